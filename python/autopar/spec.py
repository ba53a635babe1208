"""What is asked, as frozen dataclasses, and the defaults; `autopar.cluster` holds the cluster.

The fields are those of the Rust core, name by name; a contract test holds the two together. Units
stand in the keys: `_gib` is 2^30 bytes, `_gb_per_s` 10^9 bytes a second, `_tflops` 10^12 operations
a second, `_us` microseconds, `_ps` picoseconds. Dimensions are element counts.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from autopar.cluster import Cluster
from autopar.framework import Framework

Norm: TypeAlias = Literal["rmsnorm", "layernorm"]
Position: TypeAlias = Literal["rope", "learned", "alibi", "relative"]
Activation: TypeAlias = Literal["swiglu", "clamped_swiglu", "geglu", "gelu", "relu", "relu2"]
QkNorm: TypeAlias = Literal["none", "head", "full"]
Precision: TypeAlias = Literal["bf16", "fp16", "fp8", "fp4", "tf32", "fp32"]
Attention: TypeAlias = Literal["flash", "unfused"]
Schedule: TypeAlias = Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-v"]
Granularity: TypeAlias = Literal["none", "selective", "block", "uniform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434).

    Attributes:
        q_lora_rank: Rank of the query compression; 0 for a direct projection.
        kv_lora_rank: Rank of the joint key and value compression.
        qk_nope_dim: Channels of a head without position.
        qk_rope_dim: Channels of a head with rotary position, shared by all heads in the key.
        v_dim: Channels of a value head.
    """

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_dim: int
    qk_rope_dim: int
    v_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """Mixture of experts.

    Attributes:
        experts: Routed experts in a layer.
        topk: Routed experts that a token visits.
        expert_ffn: Inner width of one routed expert.
        shared_ffn: Inner width of all shared experts together; 0 without one.
        first_dense: Leading layers that keep a dense MLP.
        every: Every how many layers one is MoE: 1 for all, 2 for every second.
        router_bias: Bias of the router, learned or kept for balance.
        expert_bias: Biases in the experts' projections.
        shared_gate: A sigmoid gate of width one on the shared expert (Qwen2-MoE).
        node_limit: Nodes on which the experts of one token may lie; 0 for no limit.
        capacity_factor: Places of an expert over its mean tokens, all filled; 0 for no limit.
    """

    experts: int
    topk: int
    expert_ffn: int
    shared_ffn: int = 0
    first_dense: int = 0
    every: int = 1
    router_bias: bool = False
    expert_bias: bool = False
    shared_gate: bool = False
    node_limit: int = 0
    capacity_factor: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Sliding-window attention.

    Attributes:
        size: Positions that a query sees.
        global_every: Every how many layers one sees the whole sequence; 0 for none.
    """

    size: int
    global_every: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder transformer by its dimensions.

    Attributes:
        name: Name in the catalog, or the file's stem.
        layers: Number of transformer layers.
        hidden: Width of the residual stream.
        ffn_hidden: Inner width of a dense MLP (one of the two input projections when gated).
        heads: Query heads.
        kv_heads: Key and value heads; equal to `heads` without grouping.
        head_dim: Width of one query and key head.
        vocab: Rows of the embedding as published, before any padding.
        max_positions: Longest sequence that it was trained for.
        norm: Kind of normalisation.
        norm_weight: Whether a norm has a weight for each channel.
        norm_bias: Whether it has a bias for each.
        norms_per_layer: Norms in one layer: 1 in a parallel block, 4 with sandwich norms.
        position: How positions enter.
        position_rows: Rows of a learned position table; 0 without one.
        activation: The MLP's nonlinearity; gated kinds have two input projections.
        tied_embeddings: Whether the output head shares the embedding's weights.
        qkv_bias: Bias of the query, key and value projections; of latent attention those to its
            latents.
        o_bias: Bias of the attention output projection.
        mlp_bias: Bias of the MLP projections.
        head_bias: Bias of the output head.
        qk_norm: Norm on queries and keys: one weight a projection, or one a channel of each head.
        parallel_block: Attention and MLP read the same normalised input and are added together.
        embedding_norm: A norm directly after the embedding.
        attention_sinks: One learned sink logit a query head.
        scaled_rotation: Queries and keys are multiplied by a factor as they are rotated (YaRN).
        mla: Multi-head latent attention; replaces the plain projections.
        moe: Mixture of experts; replaces the MLP of some layers.
        window: Sliding-window attention in some layers.
    """

    name: str
    layers: int
    hidden: int
    ffn_hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    norm: Norm = "rmsnorm"
    norm_weight: bool = True
    norm_bias: bool = False
    norms_per_layer: int = 2
    position: Position = "rope"
    position_rows: int = 0
    activation: Activation = "swiglu"
    tied_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: QkNorm = "none"
    parallel_block: bool = False
    embedding_norm: bool = False
    attention_sinks: bool = False
    scaled_rotation: bool = False
    mla: Mla | None = None
    moe: Moe | None = None
    window: Window | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one optimizer step does.

    Attributes:
        global_batch_size: Sequences in one step over the whole cluster.
        sequence_length: Tokens in one sequence.
        precision: Number format of the matrix products.
        attention: One fused kernel, or separate operators that store the scores.
        dropout: Whether hidden states and attention weights pass through dropout.
        expert_load_variation: Standard deviation of the experts' loads over their mean, as a router
            prefers some; 0 where it spreads tokens at random, as benchmarks force it to.
    """

    global_batch_size: int
    sequence_length: int
    precision: Precision = "bf16"
    attention: Attention = "flash"
    dropout: bool = False
    expert_load_variation: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the search may choose and how much it returns. An empty list allows every value.

    Attributes:
        top: Plans to return.
        memory_margin: Share of a device's memory that stays free.
        tp: Allowed tensor-parallel degrees.
        pp: Allowed pipeline depths.
        vpp: Allowed model chunks a stage.
        cp: Allowed context-parallel degrees.
        ep: Allowed expert-parallel degrees.
        dp: Allowed data-parallel degrees.
        mbs: Allowed micro-batch sizes.
        sp: Allowed settings of sequence parallel.
        zero: Allowed ZeRO stages, 0 to 3.
        schedules: Allowed schedules.
        recompute: Allowed kinds of recompute.
        shard_group: Allowed sizes of the shard group. Replicas that none of them divides are
            sharded as a whole.
        partial_shard_groups: ZeRO may shard over a part of the data-parallel group (HSDP).
        activation_offload: Activations may wait in host memory.
        optimizer_offload: Optimizer state may live in host memory.
        uneven_layers: Stages of one kind of chip may hold different numbers of layers.
        recompute_per_stage: Stages of one kind of chip may recompute differently.
        mixed_tp: Kinds of chip may have tensor-parallel degrees of their own; such plans need
            sequence parallel.
        expert_tensor_parallel: Experts are cut over the tensor-parallel group, not whole.
        batch_multiple: What a global batch must be a multiple of that is proposed where no degrees
            suit the one asked for.
    """

    top: int = 5
    memory_margin: float = 0.05
    tp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    vpp: tuple[int, ...] = ()
    cp: tuple[int, ...] = ()
    ep: tuple[int, ...] = ()
    dp: tuple[int, ...] = ()
    mbs: tuple[int, ...] = ()
    sp: tuple[bool, ...] = ()
    zero: tuple[int, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    recompute: tuple[Granularity, ...] = ()
    shard_group: tuple[int, ...] = ()
    partial_shard_groups: bool = True
    activation_offload: bool = True
    optimizer_offload: bool = True
    uneven_layers: bool = True
    recompute_per_stage: bool = False
    mixed_tp: bool = False
    expert_tensor_parallel: bool = False
    batch_multiple: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A model to train on a cluster, with what the search may choose. Holds all its inputs.

    Attributes:
        schema: Kind and version of the document.
        version: Version of the package that wrote it.
        catalog: Date and hash of the catalog that its parts came from.
        model: The model.
        cluster: The devices.
        workload: The step.
        framework: The software.
        options: What the search may choose.
    """

    schema: Literal["autopar.problem/1"] = "autopar.problem/1"
    version: str
    catalog: str
    model: Model
    cluster: Cluster
    workload: Workload
    framework: Framework
    options: Options = Options()
