//! The training framework: what it fuses, overlaps, shards and allocates. Choices and byte counts, no multipliers.

mod bytes;
mod fused;
mod held;
mod offload;
mod orthogonal;
mod overlap;

use crate::error::{require, Error};
use crate::spec::kernels::{AdamKernel, OperandsAcross};
pub use bytes::NumberBytes;
pub use fused::Fused;
pub use held::{Communicators, GatheredUnit, Gradients, Held, Offloaded};
pub use offload::Offload;
pub use orthogonal::Orthogonal;
pub use overlap::{Overlap, TensorOverlap};
use serde::{Deserialize, Serialize};

/// Largest number to a multiple of which a size is padded: no vocabulary is larger.
const MOST_MULTIPLE: u64 = 1 << 30;
/// Most microseconds of a delay, a second, and most GiB.
const MOST: f64 = 1e6;

/// A training framework as far as it changes time or memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Framework {
    /// Name in the catalog, or the file's stem.
    pub name: String,
    /// Fused-attention kernels it uses, best first; the first that the chip has a table for is taken.
    pub attention_kernels: Vec<String>,
    /// Operators that run as one kernel.
    pub fused: Fused,
    /// Communication that runs behind computation.
    pub overlap: Overlap,
    /// Bytes of each stored number.
    pub bytes: NumberBytes,
    /// Each pipeline send is cut over the tensor-parallel group also without sequence parallel.
    pub sharded_sends: bool,
    /// Grouped key and value heads are repeated to as many as query heads before attention (Megatron before its core).
    pub repeats_key_heads: bool,
    /// The embedding is padded to a multiple of this many rows a tensor-parallel rank.
    pub vocab_multiple: u64,
    /// Each tensor-parallel rank holds embedding and head whole and repeats their work.
    pub whole_vocabulary: bool,
    /// Tokens are embedded by a product of the table with rows of one 1 each, in place of a look-up.
    pub embeds_by_product: bool,
    /// Where the vocabulary is cut, each tensor-parallel rank gathers the logits of all of it, for a loss of its own.
    pub gathered_logits: bool,
    /// When ZeRO gathers parameters and reduces gradients.
    pub gathers: Gathers,
    /// Whatever is gathered for each pass, gradients add up whole on each rank and are reduced once a step, after the last of several
    /// micro-batches (PyTorch FSDP: `no_sync`, `set_requires_gradient_sync(False)`).
    pub reduces_once: bool,
    /// What each pass scatters over shards it also sums over their copies (PyTorch FSDP); else that waits for the step's end.
    pub sums_copies_each_pass: bool,
    /// ZeRO stages 1 and 2 sum gradients by an all-reduce, of which each rank keeps its share (DeepSpeed).
    pub all_reduces: bool,
    /// What a rank owns of the tensors that ZeRO shards once a step.
    pub shards: Shards,
    /// Collectives in which ZeRO gathers the parameters of one layer without experts, and in which it reduces their gradients: 1
    /// where they lie in one buffer.
    pub gather_pieces: u32,
    /// Host time to copy one rank's share into or out of each such collective's buffer, in microseconds; 0 where shares are
    /// gathered and reduced in place.
    pub gather_copy_us: f64,
    /// The embedding, and the head with the norm before it, are units of their own.
    pub ends_apart: bool,
    /// How ranks of one sequence exchange keys and values.
    pub context_exchange: ContextExchange,
    /// How tokens reach experts on other nodes.
    pub expert_dispatch: ExpertDispatch,
    /// The library that sends a token once to a node; empty where no chip's table of such is meant.
    pub exchange_kernel: String,
    /// Where experts have a capacity, tokens come to them and go back by products with matrices that hold a one for each place of
    /// each expert (GShard, arXiv:2006.16668, algorithm 1), not as rows that are moved.
    pub dispatch_by_products: ByProducts,
    /// Tokens that no other rank sent are sorted by expert once more all the same (Megatron's dispatchers).
    pub permutes_twice: bool,
    /// Rows that are looked up pass at the streaming rate, those put where indices say do not (PyTorch's vectorized_gather_kernel).
    pub gathers_in_vectors: bool,
    /// Biases of grouped experts are repeated for their rows, so that each row's gradient is added to a sum in memory (PyTorch's
    /// repeat_interleave); else rows are looked up, and their gradients sorted and summed.
    pub repeats_biases: bool,
    /// What experts made is summed over a token's experts by a product of 32-bit numbers with their weights (torch.bmm).
    pub sums_by_product: bool,
    /// Values, and queries that share keys, are copied out of what one product made of them with keys before fused attention, and
    /// the three's gradients joined for it.
    pub copies_packed_heads: bool,
    /// Tokens are written out for each of their experts before they are sorted, and what was sorted back is summed by an operator
    /// of its own (MaxText): both pass memory in its order.
    pub copies_choices: bool,
    /// What experts made is added to its tokens as it comes, and so are backward the gradients of what was gathered for experts
    /// (JAX, `x.at[tokens].add`); else it is gathered back into the tokens' order and summed.
    pub scatters_results: bool,
    /// Rows of a tile of grouped products: one in which an expert's rows end and the next one's begin is worked out for both.
    /// 0 where each expert has tiles of its own.
    pub grouped_tile_rows: u64,
    /// Width of such a tile at most, inner and outer: what does not fill the last one is worked out with it. 0 where tiles divide
    /// the experts' widths.
    pub grouped_tile_width: u64,
    /// Each token is sent to experts that lie next to each other, the next token to the next ones (AMD-AGI/Primus, forced load
    /// balance): all alike loaded, on as few ranks as hold them. Else choices are spread at random.
    pub neighbouring_experts: bool,
    /// Where products run in 8 or 4 bits, the tokens of each expert are copied to a whole multiple of rows before them, and the
    /// results back (NVIDIA/Megatron-LM, transformer/moe/experts.py: Fp8Padding and Fp8Unpadding of Transformer Engine, which
    /// copy nothing where router, dispatcher or a capacity made the multiples).
    pub pads_experts: bool,
    /// Experts run as one batched product in which each has as many rows as the fullest: tokens are copied into rows of zeros, expert
    /// by expert, and results out of them (KempnerInstitute/KempnerForge until September 2026).
    pub pads_to_fullest: bool,
    /// What experts keep for the backward pass is copied out of tensors of fixed size into pages, and back (Megatron-Core's
    /// `moe_paged_stash`).
    pub stashes_experts: bool,
    /// Experts' products run in 16 bits where a job's others run in fewer (Megatron's grouped products of 2024, which AMD-AGI/Primus
    /// keeps as `moe_use_legacy_grouped_gemm`).
    pub wide_experts: bool,
    /// A router's product is of 32-bit numbers, to which its operands are cast, and passes vector units (PyTorch without TF32).
    pub wide_router: bool,
    /// Experts that are multiplied one after another are slices of one parameter: for each of them the backward pass fills a gradient
    /// of all, which is added to the sum (huggingface/transformers since release 5, integrations/moe.py; pytorch/pytorch,
    /// FunctionsManual.cpp: select_backward).
    pub sliced_experts: bool,
    /// What ZeRO copies on the device beside its gathers and reductions in every pass.
    pub shard_copies: ShardCopies,
    /// What is gathered after it was cast, where products run in 8 bits.
    pub eight_bit_gathers: EightBitGathers,
    /// What of an operand shares a scale where products run in 8 bits.
    pub fp8_scaling: Fp8Scaling,
    /// Where a chip multiplies 8-bit operands as they lie, those of one scale are cast by rows alone.
    pub casts_by_rows: bool,
    /// Operands of 8 bits that products read across the dimension that they sum over.
    pub operands_across: OperandsAcross,
    /// Fused softmax needs the sequences of a micro-batch times the heads of a rank to be a multiple of this, and scores in 16 bits if
    /// that is not 1; else it runs in separate operators.
    pub softmax_multiple: u64,
    /// Keys of the longest rows of scores that fused softmax takes; longer ones run in separate operators. 0 for any.
    pub softmax_longest: u64,
    /// How often queries, keys and values are laid out anew before fused attention, as activations have the sequence before the
    /// batch: once for a kernel that wants it behind, twice where they are packed for it too; its result is once then.
    pub attention_layouts: u32,
    /// Fused attention wants heads before the sequence, so that it is laid out anew also where the batch is one.
    pub heads_first: bool,
    /// Queries, keys and values of latent attention are padded before fused attention, all to one multiple of so many channels
    /// that holds the widest; 0 where its kernel takes values of a width of their own.
    pub attention_padding: u64,
    /// Rows and columns of the blocks in which fused attention skips what a sliding window masks: a block that one pair of the window
    /// lies in is worked out whole (jax-ml/jax, pallas/ops/tpu/splash_attention). 0 where it works out the pairs of the window alone.
    pub attention_block: u64,
    /// Context parallel gives each rank one piece of the sequence, of which the last sees most and is waited for; else two pieces,
    /// one from either end, which see as much on every rank.
    pub contiguous_context: bool,
    /// Bytes of a logit that metrics read and write beside the loss of every micro-batch.
    pub metric_bytes: u64,
    /// Norms before sub-layers, and the addition before any but the first, run again in the backward pass of a layer that is not
    /// computed again as a whole: each is a checkpoint of its own (InternLM/InternEvo, `dropout_selective_checkpoint`).
    pub repeats_norms: bool,
    /// A loss in pieces keeps the logits of none of them, and its backward pass makes them again (AI-Hypercomputer/maxtext,
    /// `num_vocab_tiling`; openxla/tokamax, linear_softmax_cross_entropy_loss).
    pub recomputes_logits: bool,
    /// Bytes a weight of the head with which each piece of a loss adds its gradient to that of the pieces before; 0 where the product
    /// adds it up itself, or pieces share no weight.
    pub piece_sum_bytes: u64,
    /// Gradients are clipped by their norm before the update.
    pub clips_gradients: bool,
    /// The loss reads and writes logits in 16 bits; else it casts them to 32 first.
    pub loss_in_16_bits: bool,
    /// Activations are summed over the tensor-parallel group in 32 bits, whatever they are computed in.
    pub sums_in_fp32: bool,
    /// A softmax of attention in separate operators is kept in 32 bits for the backward pass: automatic mixed precision casts what
    /// it reads, and so does the code of many models.
    pub softmax_in_fp32: bool,
    /// With sequence parallel every tensor that is gathered, and every one that is summed and scattered, by a collective of its
    /// own is copied once more, as the sequence is not its first dimension.
    pub sequence_copies: bool,
    /// The input that a recomputed layer keeps is cut over the tensor-parallel group, and gathered to recompute.
    pub slices_kept_inputs: bool,
    /// Weights are kept in 32 bits and cast to 16 in every forward pass, their gradients back (automatic mixed precision).
    pub casts_weights: bool,
    /// Which projections of one input are products of their own.
    pub projections: Projections,
    /// Products of one input share what a tensor-parallel group does for it: it is gathered once, and its gradient is summed once, as
    /// all of them made it.
    pub shared_edges: bool,
    /// Where experts run one after another, each looks up its tokens among all, and adds what it made to all (huggingface/transformers
    /// before release 5); else tokens are sorted first.
    pub looks_up_tokens: bool,
    /// A layer's recompute ends with the last tensor that its backward pass reads, as PyTorch's non-reentrant checkpoint (2.1 on)
    /// and a compiler without dead code do; else the whole forward pass runs again.
    pub recompute_stops_early: bool,
    /// Recompute gathers a sharded layer's parameters for itself, and none are gathered behind the layer before: a checkpoint
    /// around what is sharded (PyTorch FSDP under a reentrant one).
    pub recompute_gathers: bool,
    /// What tensor-parallel communication brought a recomputed layer is kept, and not brought again.
    pub keeps_tensor_results: bool,
    /// Bytes of gradients that are reduced together; 0 for those of a layer.
    pub fused_reduce_bytes: u64,
    /// Where groups of gradients that are reduced together begin, in place of their bytes: ascending places in the order of the
    /// parameters of a stage; none for groups by bytes. Gradients that ZeRO scatters are grouped by bytes all the same.
    pub fused_reduce_places: Vec<u32>,
    /// Bytes of parameters that are gathered together; 0 for those of a layer.
    pub fused_gather_bytes: u64,
    /// Groups of layers whose gradients are reduced, and parameters gathered, together where neither bytes nor places say
    /// otherwise; a stage of several has all of its layers in one (MindFormers, `gradient_aggregation_group`). 0 for each layer
    /// by itself.
    pub fused_groups: u64,
    /// Parameters of at most so many bytes on a rank stay whole on every replica, with their gradients and optimizer state; 0
    /// for none.
    pub whole_below_bytes: u64,
    /// What selective recompute computes again.
    pub selective: Selective,
    /// The operators that it computes again where these are named.
    pub named: Named,
    /// Where it is of single operators, products with a bias are all kept and none is counted among the others; else all are
    /// computed again.
    pub keeps_biased_products: bool,
    /// So does it of experts' grouped products; else these run again.
    pub keeps_grouped_products: bool,
    /// Where it is of single operators, the attention kernels whose results are not kept and which run again.
    pub reruns_attention: Vec<String>,
    /// There, what experts exchange is not kept either but sent again.
    pub reruns_exchange: bool,
    /// Where it is of single operators, queries and keys are kept with what attention makes of them: its compiled kernel returns
    /// what its backward pass reads.
    pub keeps_attention_inputs: bool,
    /// Memory of one process outside the allocator beside communicators: device context and library workspaces, in GiB.
    pub context_gib: f64,
    /// What it holds beside what the plan says.
    pub held: Held,
    /// How an optimizer whose state is in host memory is fed and stepped.
    pub offload: Offload,
    /// What is done to the updates of matrices before they are applied.
    pub orthogonal: Orthogonal,
    /// Size of the buffers in which gradients are reduced, in bytes; 0 when they lie in place.
    pub bucket_bytes: u64,
    /// Host time to launch one kernel, in microseconds, on a host of pace 1.
    pub launch_us: f64,
    /// What a kernel over distributed tensors takes more where layers are cut over tensor-parallel ranks, in microseconds, as each
    /// operator asks how its operands lie (PyTorch DTensor without a compiler); 0 where layers are written for one rank's share.
    pub distributed_tensor_us: f64,
    /// What it takes more still where queries and keys are such too, as they pass more than a rotation, in microseconds.
    pub distributed_heads_us: f64,
    /// What the host takes more for a kernel, forward and again, where single operators are computed again, in microseconds: each
    /// asks a policy in Python whether its result is kept (PyTorch's selective checkpoints); 0 where a compiler asked before.
    pub asked_operator_us: f64,
    /// What the host spends on each pass of a layer that a compiler made by itself, in microseconds, to check that it is what was.
    pub compiled_layer_us: f64,
    /// What the host takes to launch a kernel of experts' dispatch and combination where a compiler leaves these out, in microseconds.
    pub dispatch_launch_us: f64,
    /// What the host spends on each pass of a layer in which hooks gather or reduce its shards, in microseconds (PyTorch FSDP).
    pub sharded_layer_us: f64,
    /// Replicas that shard nothing pass such hooks too (pytorch/torchtitan, `apply_replicate`).
    pub hooks_replicas: bool,
    /// What the host launches as one graph.
    pub graphs: Graphs,
    /// The host waits for each kernel before it launches the next (CUDA_LAUNCH_BLOCKING): host and device take turns.
    pub blocking_launches: bool,
    /// Fused attention adds up the gradients of queries in one order, whatever runs first.
    pub ordered_attention: bool,
    /// A new tensor is filled before a kernel writes it (PyTorch, torch.utils.deterministic.fill_uninitialized_memory).
    pub fills_tensors: bool,
    /// The host waits for the device after a message between stages that nothing hides, so that each pass begins with nothing launched
    /// ahead (NVIDIA/Megatron-LM, `batch_p2p_sync`).
    pub waits_for_messages: bool,
    /// Operators that fetch a micro-batch, which the host launches in every forward pass of every stage after it waited for the device
    /// (NVIDIA/Megatron-LM before 2024: `broadcast_data` asks for the sizes of what was sent).
    pub fetching_operators: u32,
}

/// Parts of a layer whose kernels the host launches as one CUDA graph (NVIDIA/Megatron-LM, `cuda_graph_scope`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graphs {
    /// Attention with its projections and the norm before it.
    pub attention: bool,
    /// What precedes the exchange of a mixture of experts: norm, router, the index of what goes where, and shared experts.
    pub router: bool,
    /// The MLP of a dense layer with the norm before it.
    pub mlp: bool,
}

/// What selective recompute computes again in the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selective {
    /// The core of attention (Korthikanti et al. 2022, arXiv:2205.05198, section 5).
    Attention,
    /// Every second matrix product and all that is no product; attention and reduce-scatters are kept (pytorch/torchtitan:
    /// selective activation checkpointing of operators).
    Operators,
    /// The operators that [`Named`] names, each by itself; what they make and the backward pass reads is dropped (MindSpore:
    /// `Primitive.recompute`).
    Named,
}

/// Operators of a layer that may be computed again by themselves.
///
/// Of the others the backward pass reads no result, or none without an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// Norms before sub-layers, with the gather of their results where these are kept gathered.
    pub norm: bool,
    /// Products that make queries, keys and values, with norms and rotation of these.
    pub projections: bool,
    /// The core of attention: scores, softmax and values.
    pub attention: bool,
    /// The product that closes attention, and the addition behind it.
    pub output: bool,
    /// Copies of tokens in the order of their experts, where these are on one rank.
    pub dispatch: bool,
    /// The products that open an MLP.
    pub expansion: bool,
    /// The nonlinearity of an MLP with its gate.
    pub activation: bool,
    /// The products that close experts, whose results their weights multiply.
    pub contraction: bool,
}

/// What of an operand shares a scale where products run in 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fp8Scaling {
    /// All of it, by maxima that casts of earlier passes found: one cast serves each product that reads it.
    Delayed,
    /// All of it, by its own maximum, for which it is read before it is cast.
    Current,
    /// A block of it (MXFP8: 32 in a row), whose maximum the cast itself finds.
    Block,
    /// Each row, along the dimension that a product sums over, so that each needs a cast of its own (pytorch/ao, recipe `rowwise`).
    Row,
}

/// When ZeRO stages 2 and 3 (FSDP) gather parameters and reduce gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gathers {
    /// For each pass of each micro-batch; whole parameters and gradients exist for a layer or two at a time.
    MicroBatch,
    /// Once a step: whole parameters and gradients are kept from its first to its last micro-batch.
    Step,
    /// Once a step where stages form a pipeline, else for each pass.
    StepInPipeline,
}

impl Gathers {
    /// Whether parameters are gathered and gradients reduced for each pass.
    pub fn each_pass(self, pipelined: bool) -> bool {
        match self {
            Gathers::MicroBatch => true,
            Gathers::Step => false,
            Gathers::StepInPipeline => !pipelined,
        }
    }
}

/// What a rank owns of the tensors that ZeRO shards once a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shards {
    /// An equal slice of all of them in a row: one reduce-scatter and one gather serve all ranks.
    Slices,
    /// Such slices, but gradients are reduced to one owner after another; one gather serves all ranks.
    Owners,
    /// Whole tensors: gradients are reduced to their owner, and parameters broadcast from it, one owner after another.
    Tensors,
}

/// Whose tokens fill experts of a capacity by a product with a mask of their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ByProducts {
    /// None: they are copied.
    None,
    /// Each sequence's (MaxText).
    Sequence,
    /// A micro-batch's as one (DeepSpeed).
    MicroBatch,
    /// What that takes a sequence at least, however many a micro-batch has: a price, of no framework.
    #[serde(skip)]
    AtLeast,
}

/// How the ranks of a context-parallel group exchange what attention needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextExchange {
    /// Key and value blocks travel round a ring, each behind the attention to the one before (Liu et al. 2023,
    /// arXiv:2310.01889).
    Ring,
    /// Keys and values are gathered before attention (Llama Team 2024, arXiv:2407.21783, section 3.3.2).
    Gather,
    /// Keys and values are gathered behind the attention to a rank's own, and attention runs block by block: its results are
    /// merged, and the gradients of keys and values travel round a ring, in 32 bits (pytorch/pytorch,
    /// torch/distributed/tensor/experimental/_attention.py).
    Blocks,
    /// Sequence shards are exchanged for heads and back (DeepSpeed-Ulysses, arXiv:2309.14509).
    Heads,
}

/// How tokens reach experts on other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertDispatch {
    /// One copy for each expert (all-to-all).
    Copies,
    /// One copy for each node, passed on there to each rank that holds some of the token's experts, where it is copied for each of
    /// them (DeepEP, HybridEP; DeepSeek-V3, arXiv:2412.19437, section 3.2.2).
    OnceANode,
    /// Every rank of the expert group gathers all tokens, keeps what its experts were chosen for, and scatters the sums.
    Gather,
    /// The same with a copy for each expert, which are split and joined: an all-to-all without the operator
    /// (MindSpore without `enable_alltoall`).
    GatherSplit,
}

/// Which projections of one input run as one product. Those that do not each read the input, add to its gradient, and with tensor
/// parallel gather the input and sum its gradient by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Projections {
    /// Queries, keys and values in one, gate and up in one.
    Packed,
    /// Queries, keys and values in one, gate and up apart.
    GateApart,
    /// All apart.
    Apart,
}

/// Copies between a layer's tensors and the buffers of ZeRO's collectives: everything is read once and written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardCopies {
    /// Gathered parameters, out of the buffer.
    pub gathered: bool,
    /// Gradients, into the buffer, in the width in which they travel.
    pub reduced: bool,
}

/// What travels in 8 bits where the products that read it run in 8 bits; what is summed never does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EightBitGathers {
    /// Activations and their gradients that a tensor-parallel group gathers.
    pub activations: bool,
    /// Parameters that ZeRO gathers.
    pub parameters: bool,
}

impl Framework {
    /// Bytes of a parameter of the roots of second moments, which Adam in separate operators takes of all tensors before it divides
    /// by them (pytorch/pytorch, torch/optim/adamw.py, `_multi_tensor_adamw`: `_foreach_sqrt`).
    pub fn root_bytes(&self) -> u64 {
        match self.fused.optimizer {
            AdamKernel::Separate if !self.orthogonal.any() => self.bytes.moment(),
            AdamKernel::Separate
            | AdamKernel::ByTensor
            | AdamKernel::Native
            | AdamKernel::Fused
            | AdamKernel::Compiled => 0,
        }
    }

    /// Checks ranges.
    pub fn validate(&self) -> Result<(), Error> {
        for (v, path) in [
            (self.context_gib, "context_gib"),
            (self.held.communicator_gib, "held.communicator_gib"),
            (self.launch_us, "launch_us"),
            (self.distributed_tensor_us, "distributed_tensor_us"),
            (self.distributed_heads_us, "distributed_heads_us"),
            (self.asked_operator_us, "asked_operator_us"),
            (self.compiled_layer_us, "compiled_layer_us"),
            (self.dispatch_launch_us, "dispatch_launch_us"),
            (self.sharded_layer_us, "sharded_layer_us"),
            (self.gather_copy_us, "gather_copy_us"),
        ] {
            require(
                (0.0..=MOST).contains(&v),
                path,
                || format!("must be from 0 to {MOST}, found {v}"),
                "Give the figure in the unit that the key names.",
            )?;
        }
        for (count, path, most) in [
            (self.attention_padding, "attention_padding", 1 << 16),
            (self.attention_block, "attention_block", 1 << 20),
            (self.metric_bytes, "metric_bytes", 1 << 10),
            (self.piece_sum_bytes, "piece_sum_bytes", 1 << 10),
            (u64::from(self.fetching_operators), "fetching_operators", 1 << 16),
        ] {
            require(
                count <= most,
                path,
                || format!("must be at most {most}, found {count}"),
                "Give channels, operators, or bytes of one number.",
            )?;
        }
        for (multiple, path, cure) in [
            (self.vocab_multiple, "vocab_multiple", "Give 1 for no padding."),
            (
                self.softmax_multiple,
                "softmax_multiple",
                "Give 1 where fused softmax takes any number.",
            ),
        ] {
            require(
                (1..=MOST_MULTIPLE).contains(&multiple),
                path,
                || format!("must be from 1 to {MOST_MULTIPLE}, found {multiple}"),
                cure,
            )?;
        }
        require(
            self.attention_layouts <= 2,
            "attention_layouts",
            || format!("must be 0, 1 or 2, found {}", self.attention_layouts),
            "Give 1 where fused attention wants the batch first, 2 where it also wants one tensor.",
        )?;
        require(
            (1..=1024).contains(&self.gather_pieces),
            "gather_pieces",
            || format!("must be from 1 to 1024, found {}", self.gather_pieces),
            "Give 1 where a layer's parameters are gathered at once.",
        )?;
        require(
            self.fused_reduce_places.windows(2).all(|pair| pair[0] < pair[1]),
            "fused_reduce_places",
            || "must ascend".to_owned(),
            "Give each place at which a group begins once, the first parameters first.",
        )?;
        let n = self.named;
        require(
            self.selective != Selective::Named
                || n.norm
                || n.projections
                || n.attention
                || n.expansion
                || n.activation,
            "named",
            || "names no operator".to_owned(),
            "Name what selective recompute computes again, or give another kind of it.",
        )?;
        for (v, path) in [
            (self.bytes.parameter, "bytes.parameter"),
            (self.bytes.gradient, "bytes.gradient"),
            (self.bytes.gradient_sent, "bytes.gradient_sent"),
        ] {
            require(
                (1..=32).contains(&v),
                path,
                || format!("must be from 1 to 32, found {v}"),
                "Give the bytes of one number.",
            )?;
        }
        let kept = self.bytes.optimizer;
        require(
            kept <= 32,
            "bytes.optimizer",
            || format!("must be at most 32, found {kept}"),
            "Give the bytes of all that an optimizer keeps of a parameter, 0 if it keeps nothing.",
        )?;
        self.operands_across.validate()?;
        self.offload.validate()?;
        self.orthogonal.validate()?;
        self.held.validate()
    }
}
