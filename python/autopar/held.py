"""What a training framework holds in memory beside parameters and optimizer, as frozen dataclasses.

The fields are those of the Rust core, name by name; a contract test holds the two together.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Gradients: TypeAlias = Literal["kept", "passing", "replace"]
GatheredUnit: TypeAlias = Literal["layer", "matrix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicators:
    """Communicators that a process opens, by the groups that it belongs to.

    Attributes:
        world: Over all devices.
        tensor: Over a tensor-parallel group.
        context: Over a context-parallel group.
        expert: Over an expert-parallel group.
        data: Over replicas.
        pipeline: Over the stages of a pipeline.
    """

    world: int = 1
    tensor: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1
    pipeline: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloaded:
    """Tensors of a layer by what made them: which of them wait in host memory.

    Attributes:
        input: The layer's input.
        projections: Queries, keys and values.
        attention: The result of attention's core.
        output: What follows attention's closing product: the input of the second norm.
        expansion: What opens an MLP.
        contraction: What closes experts.
    """

    input: bool = False
    projections: bool = False
    attention: bool = False
    output: bool = False
    expansion: bool = False
    contraction: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a framework holds in memory, as choices and byte counts read in its source.

    Attributes:
        communicators: Communicators that a process opens.
        communicator_gib: Buffers of one communicator, in GiB.
        live_parameters: Parameters that ZeRO stage 3 keeps gathered at a time, or those at work if
            they are more; 0 for those at work and the next by `gathered_unit`.
        gathered_unit: What ZeRO stage 3 gathers at once: a `layer`, or each `matrix` by itself.
        gathered_ends: Embedding and head are gathered once for all passes of a micro-batch, and
            their gradients reduced after the last.
        gathered_inputs: The input of a column-parallel product is kept as it was gathered over the
            tensor-parallel group, not as this rank's share of it.
        fp32_residual: The residual stream is in 32 bits, whatever the products are computed in,
            which cast what they read of it: each by itself, or in the kernel before it where
            elementwise operators are joined.
        returned_keys: The model's pass returns each layer's keys and values, which live with its
            output: also those of layers that are computed again.
        held_balancing: A router holds the balancing loss of its last pass until the next forward
            pass makes another: of a layer that was computed again also whatever that loss was made
            of, all that the layer had made up to its router.
        copied_attention: The result of attention is copied for the output projection where a
            micro-batch has several sequences.
        weighted_result_bytes: Bytes of an element of what experts made as it lies kept until it was
            weighted; 0 where weights are multiplied in before their second product, whose results
            the backward pass does not read.
        overlapped_pass: Where another micro-batch hides the exchange of experts, one pass more is
            in flight; else one layer.
        whole_experts: Experts that are spread over ranks are outside of what ZeRO shards: whole on
            each of their replicas.
        fp8_input_bytes: Bytes of a linear layer's input element as it is kept where products run
            in 8 bits.
        fp8_weight_bytes: Bytes of 8-bit copies that are kept of each weight of the layers where
            products run in 8 bits.
        narrow_weights: Where products run in 8 bits the layers' weights lie in these copies alone,
            shards of them too; the wider ones that they are cast from are the optimizer's.
        gradients: How long gradients live: `kept` from the first step on; `passing` from the
            backward pass of their layer, in the first micro-batch of a step, to the optimizer's
            step; or in the place of their parameters, which they `replace`.
        bucket_copies: Every gradient has a place in a bucket beside its own.
        waiting_sums: What replicas of shards sum waits in the type that it travels in until the
            backward pass ends, unless gradients are stored in that type.
        planned: Memory is laid out before the first step: what is reserved is the peak, and
            nothing that was freed waits for its like.
        gathered_copy_bytes: Where ZeRO stages 1 and 2 slice parameters and reduced gradients with
            the optimizer's state, bytes of a parameter as it lies gathered for the passes beside
            its slice; 0 where parameters are stored whole.
        update_bytes: Bytes of a parameter's copies that live only during the optimizer's step,
            sharded as its state.
        updated_at_once: Parameters of a rank that ZeRO stage 3 updates at a time, which alone have
            such copies; 0 for all.
        stage_buffers: Whatever the backward pass reads of the forward pass, casts of weights with
            it, has places for twice as many micro-batches as there are stages, on every stage but
            the last.
        message_buffers: Every micro-batch has buffers of its own in which the messages of a stage
            arrive, both ways and for each chunk, from the first step on.
        offloaded_share: Share of what each chunk keeps of a micro-batch that waits in host memory,
            whatever layers a plan sends there; a setting of a run.
        offloaded: What of each layer waits in host memory between its passes, of what selective
            recompute keeps; a setting of a run.
        parameters_on_host: Shards of parameters that each pass gathers wait in host memory, and so
            do those of reduced gradients, of one replica all of them; a setting of a run.
        gradients_stay: Gradients stay on the device where parameters wait in host memory; a setting
            of a run too.
        logit_bytes: Bytes of a logit, its 32-bit copies and gradients at the loss's peak.
        split_logit_bytes: The same where the vocabulary is cut over tensor-parallel ranks.
        cached_logit_bytes: Bytes of a logit that the allocator keeps beyond that peak, where freed
            blocks were cut for smaller tensors.
        loss_pieces: In how many pieces the loss is computed, one after another.
    """

    communicators: Communicators = Communicators()
    communicator_gib: float = 0.6
    live_parameters: int = 0
    gathered_unit: GatheredUnit = "layer"
    gathered_ends: bool = False
    gathered_inputs: bool = False
    fp32_residual: bool = False
    returned_keys: bool = False
    held_balancing: bool = False
    copied_attention: bool = False
    weighted_result_bytes: int = 2
    overlapped_pass: bool = False
    whole_experts: bool = False
    fp8_input_bytes: int = 1
    fp8_weight_bytes: int = 0
    narrow_weights: bool = False
    gradients: Gradients = "kept"
    bucket_copies: bool = False
    waiting_sums: bool = False
    planned: bool = False
    gathered_copy_bytes: int = 0
    update_bytes: int = 0
    updated_at_once: int = 0
    stage_buffers: bool = False
    message_buffers: bool = False
    offloaded_share: float = 0.0
    offloaded: Offloaded = Offloaded()
    parameters_on_host: bool = False
    gradients_stay: bool = False
    logit_bytes: int = 12
    split_logit_bytes: int = 12
    cached_logit_bytes: int = 0
    loss_pieces: int = 1
