//! What a framework holds in memory beside what its passes compute: choices and byte counts.

use crate::error::{require, Error};
use serde::{Deserialize, Serialize};

/// What a framework holds in memory, as choices and byte counts read in its source.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// Communicators that a process opens.
    pub communicators: Communicators,
    /// Buffers of one communicator, in GiB.
    pub communicator_gib: f64,
    /// Parameters that ZeRO stage 3 keeps gathered at a time, or those at work if they are more; 0 for those at work and the
    /// next by `gathered_unit`.
    pub live_parameters: u64,
    /// What ZeRO stage 3 gathers at once.
    pub gathered_unit: GatheredUnit,
    /// Embedding and head are gathered once for all passes of a micro-batch, and their gradients reduced after the last.
    pub gathered_ends: bool,
    /// The input of a column-parallel product is kept as it was gathered over the tensor-parallel group, not as this rank's
    /// share of it.
    pub gathered_inputs: bool,
    /// The residual stream is in 32 bits, whatever the products are computed in, which cast what they read of it: each by itself, or in
    /// the kernel before it where elementwise operators are joined.
    pub fp32_residual: bool,
    /// The model's pass returns each layer's keys and values, which live with its output: also those of layers that are
    /// computed again (huggingface/transformers: `use_cache`, on unless its own checkpointing turns it off).
    pub returned_keys: bool,
    /// A router holds the balancing loss of its last pass until the next forward pass makes another: of a layer that was computed
    /// again also whatever that loss was made of, all that the layer had made up to its router (KempnerInstitute/KempnerForge,
    /// kempnerforge/model/router.py: self.aux_loss; the graph of what torch.utils.checkpoint recomputes holds its tensors).
    pub held_balancing: bool,
    /// The result of attention is copied for the output projection where a micro-batch has several sequences: one of the two wants
    /// the sequence as the first dimension (huggingface/nanotron).
    pub copied_attention: bool,
    /// Bytes of an element of what experts made as it lies kept until it was weighted; 0 where weights are multiplied in before
    /// their second product, whose results the backward pass does not read.
    pub weighted_result_bytes: u64,
    /// Where another micro-batch hides the exchange of experts, one pass more is in flight; else one layer, as what its backward
    /// pass has read is dropped layer by layer while the other micro-batch makes its own.
    pub overlapped_pass: bool,
    /// Experts that are spread over ranks are outside of what ZeRO shards: whole on each of their replicas.
    pub whole_experts: bool,
    /// Bytes of a linear layer's input element as it is kept where products run in 8 bits.
    pub fp8_input_bytes: u64,
    /// Bytes of 8-bit copies that are kept of each weight of the layers where products run in 8 bits.
    pub fp8_weight_bytes: u64,
    /// Where products run in 8 bits the layers' weights lie in these copies alone, shards of them too; the wider ones that they are
    /// cast from are the optimizer's (Megatron-LM, `--fp8-param-gather`; IST-DASLab/llmq).
    pub narrow_weights: bool,
    /// How long gradients live.
    pub gradients: Gradients,
    /// Every gradient has a place in a bucket beside its own (PyTorch's DistributedDataParallel without
    /// `gradient_as_bucket_view`).
    pub bucket_copies: bool,
    /// What replicas of shards sum waits in the type that it travels in until the backward pass ends, unless gradients are stored
    /// in that type (FSDP2 before pytorch/pytorch pull request 179443).
    pub waiting_sums: bool,
    /// Memory is laid out before the first step: what is reserved is the peak, and nothing that was freed waits for its like.
    pub planned: bool,
    /// Where ZeRO stages 1 and 2 slice parameters and reduced gradients with the optimizer's state, bytes of a parameter as it lies
    /// gathered for the passes beside its slice (MindSpore); 0 where parameters are stored whole.
    pub gathered_copy_bytes: u64,
    /// Bytes of a parameter's copies that live only during the optimizer's step, sharded as its state.
    pub update_bytes: u64,
    /// Parameters of a rank that ZeRO stage 3 updates at a time, which alone have such copies; 0 for all (DeepSpeed,
    /// `sub_group_size`).
    pub updated_at_once: u64,
    /// Whatever the backward pass reads of the forward pass, casts of weights with it, has places for twice as many
    /// micro-batches as there are stages, on every stage but the last (OneFlow).
    pub stage_buffers: bool,
    /// Every micro-batch has buffers of its own in which the messages of a stage arrive, both ways and for each chunk, from the
    /// first step on (torch.distributed.pipelining).
    pub message_buffers: bool,
    /// Share of what each chunk keeps of a micro-batch that waits in host memory, whatever layers a plan sends there: a setting of
    /// a run, which no search takes (kwai/Megatron-Kwai, `--pipeline-parallel-aware-offloading-ratio`).
    pub offloaded_share: f64,
    /// What of each layer waits in host memory between its passes, of what selective recompute keeps: a setting of a run, which no
    /// search takes (jax.checkpoint_policies.save_and_offload_only_these_names).
    pub offloaded: Offloaded,
    /// Shards of parameters that each pass gathers wait in host memory, and so do those of reduced gradients; of one replica all
    /// of them: a setting of a run, which no search takes (PyTorch FSDP, `CPUOffload`; DeepSpeed, `offload_param`).
    pub parameters_on_host: bool,
    /// Gradients stay on the device where parameters wait in host memory: a setting of a run too (IST-DASLab/llmq,
    /// `--offload-master` with `--shard-weights`).
    pub gradients_stay: bool,
    /// Bytes of a logit, its 32-bit copies and gradients at the loss's peak.
    pub logit_bytes: u64,
    /// The same where the vocabulary is cut over tensor-parallel ranks.
    pub split_logit_bytes: u64,
    /// Bytes of a logit that the allocator keeps beyond that peak, where freed blocks were cut for smaller tensors.
    pub cached_logit_bytes: u64,
    /// In how many pieces the loss is computed, one after another: so many times fewer logits are there at once.
    pub loss_pieces: u64,
}

/// Tensors of a layer by what made them: which of them wait in host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offloaded {
    /// The layer's input.
    pub input: bool,
    /// Queries, keys and values.
    pub projections: bool,
    /// The result of attention's core.
    pub attention: bool,
    /// What follows attention's closing product: the input of the second norm.
    pub output: bool,
    /// What opens an MLP.
    pub expansion: bool,
    /// What closes experts.
    pub contraction: bool,
}

impl Offloaded {
    /// Whether any of them does.
    pub fn any(self) -> bool {
        let Offloaded { input, projections, attention, output, expansion, contraction } = self;
        input || projections || attention || output || expansion || contraction
    }
}

/// How long gradients live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gradients {
    /// From the first step on, in buffers of their own.
    Kept,
    /// From the backward pass of their layer, in the first micro-batch of a step, to the optimizer's step (PyTorch:
    /// `zero_grad(set_to_none=True)`, the default from 2.0 on; compiled graphs).
    Passing,
    /// In the place of their parameters, once their layer has passed (hpcaitech/ColossalAI, Gemini).
    Replace,
}

/// What ZeRO stage 3 gathers at once, one ahead of the one at work; its gradient is reduced when it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GatheredUnit {
    /// The parameters of a layer (FSDP).
    Layer,
    /// Each matrix before its product (XLA's partitioner).
    Matrix,
}

/// Communicators that a process opens, by the groups that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Communicators {
    /// Over all devices.
    pub world: u64,
    /// Over a tensor-parallel group.
    pub tensor: u64,
    /// Over a context-parallel group.
    pub context: u64,
    /// Over an expert-parallel group.
    pub expert: u64,
    /// Over replicas.
    pub data: u64,
    /// Over the stages of a pipeline.
    pub pipeline: u64,
}

impl Held {
    /// Parameters that lie gathered at a time, of `count`, where a layer's largest unit has `unit`: no fewer than that.
    pub fn gathered_parameters(&self, unit: u64, count: u64) -> u64 {
        if self.live_parameters > 0 {
            self.live_parameters.min(count).max(unit)
        } else {
            2 * unit
        }
    }

    /// Checks ranges.
    pub(super) fn validate(&self) -> Result<(), Error> {
        require(
            (0.0..=1.0).contains(&self.offloaded_share),
            "held.offloaded_share",
            || format!("must be from 0 to 1, found {}", self.offloaded_share),
            "Give 0 where layers are offloaded whole, or not at all.",
        )?;
        require(
            self.loss_pieces > 0,
            "held.loss_pieces",
            || "must be at least 1, found 0".into(),
            "Give 1 where the loss is computed at once.",
        )?;
        let c = &self.communicators;
        for (v, most, path) in [
            (c.world, 64, "held.communicators.world"),
            (c.tensor, 64, "held.communicators.tensor"),
            (c.context, 64, "held.communicators.context"),
            (c.expert, 64, "held.communicators.expert"),
            (c.data, 64, "held.communicators.data"),
            (c.pipeline, 64, "held.communicators.pipeline"),
            (self.live_parameters, 1 << 40, "held.live_parameters"),
            (self.fp8_input_bytes, 32, "held.fp8_input_bytes"),
            (self.fp8_weight_bytes, 32, "held.fp8_weight_bytes"),
            (self.gathered_copy_bytes, 32, "held.gathered_copy_bytes"),
            (self.update_bytes, 32, "held.update_bytes"),
            (self.updated_at_once, 1 << 40, "held.updated_at_once"),
            (self.logit_bytes, 64, "held.logit_bytes"),
            (self.split_logit_bytes, 64, "held.split_logit_bytes"),
            (self.cached_logit_bytes, 64, "held.cached_logit_bytes"),
        ] {
            require(
                v <= most,
                path,
                || format!("must be at most {most}, found {v}"),
                "Give the number that the framework's source says.",
            )?;
        }
        Ok(())
    }
}
