"""What a training framework does as far as it changes time or memory, as frozen dataclasses.

The fields are those of the Rust core, name by name; a contract test holds the two together.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from autopar.held import Held

NormKernel: TypeAlias = Literal[
    "separate", "eager", "compiled", "widened", "fused", "native", "tuned"
]
GeneralNorms: TypeAlias = Literal["absent", "cuda", "hip"]
RotaryKernel: TypeAlias = Literal[
    "separate", "eager", "unfused", "widened", "complex", "compiled", "fused", "by_token"
]
SoftmaxKernel: TypeAlias = Literal["separate", "compiled", "narrow", "fused"]
AdamKernel: TypeAlias = Literal["separate", "by_tensor", "native", "fused", "compiled"]
TensorOverlap: TypeAlias = Literal["none", "backward", "pipelined", "pipelined_products"]
Projections: TypeAlias = Literal["packed", "gate_apart", "apart"]
ByProducts: TypeAlias = Literal["none", "sequence", "micro_batch"]
Gathers: TypeAlias = Literal["micro_batch", "step", "step_in_pipeline"]
Shards: TypeAlias = Literal["slices", "owners", "tensors"]
Fp8Scaling: TypeAlias = Literal["delayed", "current", "block", "row"]
Selective: TypeAlias = Literal["attention", "operators", "named"]
ContextExchange: TypeAlias = Literal["ring", "gather", "blocks", "heads"]
ExpertDispatch: TypeAlias = Literal["copies", "once_a_node", "gather", "gather_split"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """How operators run: as one kernel, or as one a mathematical step.

    Attributes:
        norm: Norms: `separate` operators, those of PyTorch (`eager`), what torch.compile makes of
            them (`compiled`), a `fused` kernel a pass and one for the weights' gradients, the same
            as PyTorch has it (`native`) or on an input that is `widened` to 32 bits, or one `tuned`
            to each width.
        activation: Bias and activation.
        activation_in_products: A dense MLP's nonlinearity with its gate is part of the products
            beside it, whose arithmetic hides what it moves (XLA on TPUs).
        gate: The product with a gate is part of that kernel; else it and the nonlinearity are
            operators of their own.
        clamp: The clamps of a clamped SwiGLU are part of that kernel.
        gelu: GELU is one operator; else each term of its approximation by tanh is.
        gelu_again: Of those terms none is kept: the backward pass computes them again, with the sum
            of product and bias that they begin with.
        gelu_in_fp32: Of those terms the cube and what it enters are of 32 bits, as torch.autocast
            has powers.
        rope: Rotary embedding: `separate` operators, those of `eager` PyTorch, the same `unfused`
            as Megatron-Core has them, `widened` to 32 bits or as `complex` numbers, `compiled`, or
            `fused`, that `by_token` as Apex and Transformer Engine have it.
        normed_rotation: Norms of each head's queries and keys are part of the rotation's kernel.
        softmax: Scale, mask and softmax of unfused attention: `separate` operators, the same in
            16 bits of a graph that casts nothing (`narrow`), as XLA `compiled` them, or `fused`.
        residual: Bias, dropout and residual addition.
        cross_entropy: Cross-entropy.
        compiled_loss: The cast of logits to 32 bits is part of the head's product, and what is
            elementwise of the loss part of the sums that read them and of their gradient (XLA).
        grouped_gemm: Expert products as one operator.
        gradient_accumulation: Weight gradients added to the stored ones by the product itself.
        looped_gemm: The grouped product is a compiled loop that launches each expert's by itself.
        quantized_mlp: Experts' first product with activation and casts, and the gradient of the
            second with those, in a kernel each, in 8 bits with scales of blocks.
        permutation: Tokens sorted by expert, and back with their weights, in a kernel each.
        general_norms: Tuned root-mean-square norms are of Transformer Engine's widths alone; others
            pass its general kernels, as built for NVIDIA's devices (`cuda`) or AMD's (`hip`);
            `absent` where every width has its own.
        router: A router's scores with its choice, the scores for its balancing loss, and that
            loss, in a kernel each.
        expert_bias: Biases of grouped experts added in one pass over all of them.
        optimizer: Adam: each of its operations by itself (`separate`), for each tensor by itself
            too (`by_tensor`), one kernel as PyTorch has it (`native`), Apex's and what was made of
            it (`fused`), or `compiled` as by XLA.
    """

    norm: NormKernel
    activation: bool
    rope: RotaryKernel
    softmax: SoftmaxKernel
    residual: bool
    cross_entropy: bool
    grouped_gemm: bool
    gradient_accumulation: bool
    looped_gemm: bool = False
    quantized_mlp: bool = False
    permutation: bool = False
    router: bool = False
    expert_bias: bool = False
    compiled_loss: bool = False
    gate: bool = True
    clamp: bool = True
    gelu: bool = True
    optimizer: AdamKernel = "fused"
    gelu_again: bool = False
    gelu_in_fp32: bool = False
    normed_rotation: bool = False
    activation_in_products: bool = False
    general_norms: GeneralNorms = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Communication that runs behind computation.

    Attributes:
        gradient_reduce: Gradient reduction behind the last backward pass.
        reduce_from_stage: Of these, those from this ZeRO stage on alone.
        gradient_scatter: Of these, what every pass scatters (ZeRO stage 3), and where all devices
            are in one domain what is summed once a step: behind the rest of the backward pass, else
            in the open, by the cores that compute (XLA on TensorCores).
        parameter_gather: Parameter all-gather behind the first forward pass.
        step_gather: Of these, what is gathered once a step (ZeRO stages 1 and 2); else no pass
            begins before it (DeepSpeed).
        tensor: Tensor-parallel communication: never, behind the weight gradient, or in pieces: of
            all of it, or around single products, so that the gradient of an input that several
            products read is scattered after their sum.
        pipeline: Pipeline sends of the interleaved schedule.
        context: Ring attention behind attention.
        expert: Expert all-to-all behind the shared expert and the other micro-batch.
        replicas_alone: Gradients are reduced behind computation only without tensor and pipeline
            parallel, whose collectives run in turn with computation.
        unsharded_alone: Gradients are reduced behind computation only where nothing is sharded over
            replicas.
        every_send: Pipeline sends of every schedule run behind computation.
        backward_gather: Where the backward pass gathers parameters too: the next layer's behind the
            computation of the one before, else after it (PyTorch FSDP's BACKWARD_POST).
    """

    gradient_reduce: bool
    parameter_gather: bool
    reduce_from_stage: int = 0
    tensor: TensorOverlap
    pipeline: bool
    context: bool
    expert: bool
    replicas_alone: bool = False
    unsharded_alone: bool = False
    every_send: bool = False
    step_gather: bool = True
    backward_gather: bool = True
    gradient_scatter: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphs:
    """Parts of a layer whose kernels the host launches as one CUDA graph.

    Attributes:
        attention: Attention with its projections and the norm before it.
        router: What precedes the exchange of a mixture of experts: norm, router, the index of what
            goes where, and shared experts.
        mlp: The MLP of a dense layer with the norm before it.
    """

    attention: bool = False
    router: bool = False
    mlp: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCopies:
    """Copies between a layer's tensors and the buffers of ZeRO's collectives.

    Attributes:
        gathered: Gathered parameters, out of the buffer.
        reduced: Gradients, into the buffer, in the width in which they travel.
    """

    gathered: bool = False
    reduced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """What a framework does where the optimizer's state is in host memory.

    Attributes:
        threads: Threads of each process that step the optimizer; 0 for as many as a device's share
            of the host's memory can feed.
        pinned: Gradients, parameters and what is kept for the backward pass cross between the
            device and pinned memory, those of a pass behind it; else the process copies them itself
            and launches nothing meanwhile.
        pass_bytes: Bytes of each parameter of a rank's share that cross with every micro-batch
            after which gradients are reduced, as their sums are on the host too; 0 where these stay
            on the device to the end of a step.
        step_bytes: Bytes of each of them that cross once a step; 0 for gradients and parameters as
            they are stored.
    """

    threads: int = 0
    pinned: bool = True
    pass_bytes: int = 0
    step_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Orthogonal:
    """What is done to the updates of a layer's matrices before they are applied (Muon).

    Embedding, head, router and vectors are stepped by Adam; of a matrix one moment is kept.

    Attributes:
        iterations: Of Newton and Schulz; 0 where nothing is made orthogonal.
        shared: Each replica takes some of the matrices and all get the results; else each takes
            all of them.
        batched: Matrices that are alike are one batched product, of which a device launches nothing
            by itself (XLA, compiled steps).
    """

    iterations: int = 0
    shared: bool = False
    batched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EightBitGathers:
    """What travels in 8 bits where the products that read it run in 8 bits.

    Attributes:
        activations: Activations and their gradients that a tensor-parallel group gathers.
        parameters: Parameters that ZeRO gathers.
    """

    activations: bool = False
    parameters: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandsAcross:
    """Operands of 8 bits, of two, that a product reads across the dimension that it sums over.

    They are written by rows alone. What a chip was timed to take for them more stands in its
    `fp8_across_slowdowns`.

    Attributes:
        input_gradient: Of the product that gives the gradient of a linear layer's input: the
            weights, for 1.
        weight_gradient: Of that of its weights: the input for 1, the output's gradient too for 2.
    """

    input_gradient: int = 0
    weight_gradient: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Operators of a layer that may be computed again by themselves.

    What they make and the backward pass reads is dropped. Of other operators the backward pass
    reads no result, or none without an exchange.

    Attributes:
        norm: Norms before sub-layers, with the gather of their results where these are kept
            gathered.
        projections: Products that make queries, keys and values, with norms and rotation of these.
        attention: The core of attention: scores, softmax and values.
        output: The product that closes attention, and the addition behind it.
        dispatch: Copies of tokens in the order of their experts, where these are on one rank.
        expansion: The products that open an MLP.
        activation: The nonlinearity of an MLP with its gate.
        contraction: The products that close experts, whose results their weights multiply.
    """

    norm: bool = False
    projections: bool = False
    attention: bool = False
    output: bool = False
    dispatch: bool = False
    expansion: bool = False
    activation: bool = False
    contraction: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberBytes:
    """Bytes of each stored number.

    Attributes:
        parameter: Parameters as the layers read them.
        gradient: Gradients as they are accumulated.
        gradient_sent: Gradients as they travel.
        optimizer: Optimizer state: a copy in full precision and two moments; 0 where it keeps none.
    """

    parameter: int
    gradient: int
    gradient_sent: int
    optimizer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A training framework as far as it changes time or memory.

    Attributes:
        name: Name in the catalog, or the file's stem.
        attention_kernels: Fused-attention kernels, best first; the first that a chip has is taken.
        fused: Operators that run as one kernel.
        overlap: Communication that runs behind computation.
        bytes: Bytes of each stored number.
        sharded_sends: Each pipeline send is cut over the tensor-parallel group, which gathers it.
        repeats_key_heads: Grouped key and value heads are repeated to all query heads.
        vocab_multiple: The embedding is padded to a multiple of this many rows a tensor rank.
        gathers: When FSDP and ZeRO gather parameters and reduce gradients: for each pass of each
            micro-batch, once a step, or once a step where stages form a pipeline.
        reduces_once: Whatever is gathered for each pass, gradients add up whole on each rank and
            are reduced once a step, after the last of several micro-batches (no_sync).
        sums_copies_each_pass: What each pass scatters over shards it also sums over their copies
            (PyTorch FSDP); else that waits for the step's end.
        all_reduces: ZeRO stages 1 and 2 sum gradients by an all-reduce, of which each rank keeps
            its share.
        shards: What a rank owns of the tensors that ZeRO shards once a step: an equal slice of all
            of them, reduced to all ranks at once (`slices`) or to one of its `owners` after
            another, or whole `tensors`, which are reduced to and broadcast from one owner after
            another.
        gather_pieces: Collectives in which ZeRO gathers the parameters of a layer without experts,
            whose own matrices add to them where each is gathered by itself; 1 for one buffer.
        gather_copy_us: Microseconds of the host to copy one rank's share into or out of each such
            collective's buffer; 0 where shares are gathered and reduced in place.
        ends_apart: The embedding, and the head with the norm before it, are units of their own,
            so that the head's parameters are gathered, and its gradients reduced, behind others.
        context_exchange: How context parallel exchanges keys and values: round a ring, gathered,
            gathered with attention in blocks that are merged (PyTorch), or for heads (Ulysses).
        expert_dispatch: How tokens reach experts: a copy for each expert, one for each node,
            gathered by every rank of the group, or all copies gathered and split in place of an
            all-to-all.
        exchange_kernel: The library that sends a token once to a node (`deepep`, `hybridep`), whose
            rates a chip may have.
        dispatch_by_products: Whose tokens fill experts of a capacity by a product with a mask of
            their places: none's, each sequence's, or a micro-batch's as one.
        permutes_twice: Tokens that no other rank sent are sorted by expert once more all the same.
        gathers_in_vectors: Rows that are looked up pass at the streaming rate; what is put where
            indices say does not (PyTorch's vectorized gather).
        repeats_biases: Biases of grouped experts are repeated for their rows, so that each row's
            gradient is added to a sum in memory (PyTorch's repeat_interleave); else rows are looked
            up, and their gradients sorted and summed.
        sums_by_product: What experts made is summed over a token's experts by a product of 32-bit
            numbers with their weights (torch.bmm).
        copies_packed_heads: Values, and queries that share keys, are copied out of what one product
            made of them with keys before fused attention, and the three's gradients joined for it.
        copies_choices: Tokens are written out for each of their experts before they are sorted, and
            what was sorted back is summed by an operator of its own.
        scatters_results: A scatter adds what experts made to its tokens, and so gradients of what
            was gathered for experts; else both are gathered back and summed.
        grouped_tile_rows: Rows of a tile of grouped products: one in which an expert's rows end and
            the next one's begin is worked out for both. 0 where each expert has its own tiles.
        grouped_tile_width: Width of such a tile at most, inner and outer, of which the last is
            worked out whole; 0 where tiles divide the experts' widths.
        neighbouring_experts: Each token goes to experts that lie next to each other and the next
            token to the next ones, all alike loaded; else choices are spread at random.
        pads_experts: Where products run in 8 or 4 bits, each expert's tokens are copied to a whole
            multiple of rows before them and the results back; else router or dispatcher makes the
            multiples.
        pads_to_fullest: Experts run as one batched product in which each has as many rows as the
            fullest: tokens are copied into rows of zeros, expert by expert, and results out of
            them.
        stashes_experts: What experts keep for the backward pass is copied out of tensors of fixed
            size into pages, and back, where products run in 8 bits with scales of blocks.
        wide_experts: Experts' products run in 16 bits where a job's others run in fewer.
        wide_router: A router's product is of 32-bit numbers, to which its operands are cast, and
            passes vector units; else it is of 16-bit ones.
        sliced_experts: Experts that are multiplied one after another are slices of one parameter,
            of whose gradient the backward pass fills all for each and adds it to the sum.
        whole_vocabulary: Each tensor-parallel rank holds and works out embedding and head whole.
        embeds_by_product: Tokens are embedded by a product of the table with rows of one 1 each, in
            place of a look-up.
        gathered_logits: Where the vocabulary is cut, each tensor-parallel rank gathers the logits
            of all of it, for a loss of its own.
        shard_copies: What ZeRO copies on the device beside its collectives in every pass.
        eight_bit_gathers: What is gathered after it was cast, where products run in 8 bits.
        fp8_scaling: What of an operand shares a scale where products run in 8 bits: all of it, by
            maxima that passes before found (`delayed`) or by its own, for which it is read before
            its cast (`current`), a `block` whose maximum the cast itself finds, or each `row`,
            which is cast for each product by itself.
        casts_by_rows: Where a chip multiplies 8-bit operands as they lie, those of one scale are
            cast by rows alone; else by columns too, for products that sum over these.
        operands_across: Operands of 8 bits that products read across the dimension that they sum
            over.
        softmax_multiple: Fused softmax needs the sequences of a micro-batch times the heads of a
            rank to be a multiple of this, and scores in 16 bits if that is not 1; else it runs in
            separate operators.
        softmax_longest: Keys of the longest rows of scores that fused softmax takes; longer ones
            run in separate operators. 0 for any.
        recomputes_logits: A loss in pieces makes its logits again in the backward pass.
        piece_sum_bytes: Bytes a weight of the head with which each piece of a loss adds its
            gradient to that of the pieces before; 0 where the product adds it up itself.
        clips_gradients: Gradients are clipped by their norm before the update.
        loss_in_16_bits: The loss reads and writes logits in 16 bits; else it casts them to 32.
        sums_in_fp32: Activations are summed over the tensor-parallel group in 32 bits.
        attention_layouts: How often queries, keys and values are laid out anew before fused
            attention: once for a kernel that wants the sequence behind the batch, twice where they
            are packed for it too; its result is once then.
        heads_first: Fused attention wants heads before the sequence, so that it is laid out anew
            also where the batch is one.
        attention_padding: Queries, keys and values of latent attention are padded before fused
            attention, all to one multiple of so many channels that holds the widest; 0 where its
            kernel takes values of a width of their own.
        attention_block: Rows and columns of the blocks in which fused attention skips what a
            sliding window masks: one that a pair of the window lies in is worked out whole. 0
            where the pairs of the window alone are.
        contiguous_context: Context parallel gives each rank one piece of the sequence, of which
            the last sees most and is waited for; else two pieces, one from either end, which see as
            much on every rank.
        metric_bytes: Bytes of a logit that metrics read and write beside the loss of every
            micro-batch.
        repeats_norms: Norms before sub-layers, and the addition before any but the first, run again
            in the backward pass of a layer that is not computed again as a whole.
        softmax_in_fp32: A softmax of attention in separate operators is kept in 32 bits for the
            backward pass.
        sequence_copies: With sequence parallel every tensor that is gathered, and every one that is
            summed and scattered, by a collective of its own is copied once more, as the sequence is
            not its first dimension.
        slices_kept_inputs: The input that a recomputed layer keeps is cut over the tensor-parallel
            group, and gathered to recompute.
        casts_weights: Weights are kept in 32 bits and cast to 16 in every forward pass, their
            gradients back.
        projections: Which projections of one input are products of their own: none, gate and up, or
            queries, keys and values too.
        shared_edges: Products of one input share what a tensor-parallel group does for it: it is
            gathered once, and its gradient is summed once, as all of them made it. Else each has
            collectives of its own.
        looks_up_tokens: Where experts run one after another, each looks up its tokens among all,
            and adds what it made to all; else tokens are sorted first.
        recompute_stops_early: A layer's recompute ends with the last tensor that its backward pass
            reads; else the whole forward pass runs again.
        recompute_gathers: Recompute gathers a sharded layer's parameters for itself, and none are
            gathered behind the layer before: a checkpoint around what is sharded (PyTorch FSDP
            under a reentrant one).
        keeps_tensor_results: What tensor-parallel communication brought a recomputed layer is kept,
            and not brought again.
        fused_reduce_bytes: Bytes of gradients that are reduced together; 0 for those of a layer.
        fused_reduce_places: Where groups of gradients that are reduced together begin, in place of
            their bytes: ascending places in the order of a stage's parameters; none for groups by
            bytes. Gradients that ZeRO scatters are grouped by bytes all the same.
        fused_gather_bytes: Bytes of parameters that are gathered together; 0 for those of a layer.
        fused_groups: Groups of layers whose gradients are reduced, and parameters gathered,
            together where neither bytes nor places say otherwise; a stage of several has all of its
            layers in one. 0 for each layer by itself.
        whole_below_bytes: Parameters of at most so many bytes on a rank stay whole on every
            replica, with their gradients and optimizer state; 0 for none.
        selective: What selective recompute computes again: the core of `attention`, of single
            `operators` every second matrix product and all that is no product, or those `named`.
        named: The operators that it computes again where these are named.
        keeps_biased_products: Where it is of single operators, products with a bias are all kept
            and none is counted among the others; else all are computed again.
        keeps_grouped_products: So are experts' grouped products.
        reruns_attention: Where it is of single operators, the attention kernels whose results are
            not kept and which run again.
        reruns_exchange: There, what experts exchange is not kept either but sent again.
        keeps_attention_inputs: Where it is of single operators, queries and keys are kept with what
            attention makes of them: its compiled kernel returns what its backward pass reads.
        context_gib: Memory of one process outside the allocator beside communicators: device
            context and library workspaces, in GiB.
        held: What it holds beside what the plan says.
        offload: How an optimizer whose state is in host memory is fed and stepped.
        orthogonal: What is done to the updates of matrices before they are applied.
        bucket_bytes: Buffers in which gradients are reduced, in bytes; 0 when they lie in place.
        launch_us: Host time to launch one kernel, in microseconds, on a host of pace 1.
        distributed_tensor_us: What a kernel over distributed tensors takes more where layers are
            cut over tensor-parallel ranks, in microseconds (PyTorch DTensor without a compiler).
        distributed_heads_us: What it takes more still where queries and keys are distributed
            tensors too, as they pass more than a rotation, in microseconds.
        asked_operator_us: What the host takes more for a kernel, forward and again, where single
            operators are computed again, in microseconds: each asks whether its result is kept
            (PyTorch's selective checkpoints); 0 where a compiler asked before.
        compiled_layer_us: What each pass of a layer that a compiler made by itself takes the host
            beside its kernels, in microseconds.
        dispatch_launch_us: Host time to launch a kernel of experts' dispatch and combination where
            a compiler leaves these out, so that they are separate operators, in microseconds; 0
            where they are launched and joined as all others.
        sharded_layer_us: What each pass of a layer in which its shards are gathered or reduced
            takes the host, in microseconds.
        hooks_replicas: So does each pass of one that nothing shards over its replicas (torchtitan).
        graphs: What the host launches as one graph.
        blocking_launches: The host waits for each kernel before it launches the next.
        ordered_attention: Fused attention adds up the gradients of queries in one order, so that
            each run gives the same bits.
        fills_tensors: A new tensor is filled before a kernel writes it, as PyTorch's deterministic
            algorithms have it unless they are told not to.
        waits_for_messages: The host waits for the device after a message between stages that
            nothing hides, so that each pass begins with nothing launched ahead.
        fetching_operators: Operators that fetch a micro-batch, which the host launches in every
            forward pass of every stage after it waited for the device; 0 where it does not wait.
    """

    name: str
    attention_kernels: tuple[str, ...]
    fused: Fused
    overlap: Overlap
    bytes: NumberBytes
    sharded_sends: bool
    repeats_key_heads: bool = False
    vocab_multiple: int
    gathers: Gathers
    reduces_once: bool = False
    sums_copies_each_pass: bool = False
    all_reduces: bool = False
    shards: Shards = "slices"
    gather_pieces: int = 1
    gather_copy_us: float = 0.0
    ends_apart: bool = False
    context_exchange: ContextExchange
    expert_dispatch: ExpertDispatch
    exchange_kernel: str = ""
    dispatch_by_products: ByProducts = "none"
    permutes_twice: bool = False
    gathers_in_vectors: bool = False
    repeats_biases: bool = False
    sums_by_product: bool = False
    copies_packed_heads: bool = False
    copies_choices: bool = False
    scatters_results: bool = False
    grouped_tile_rows: int = 0
    grouped_tile_width: int = 0
    neighbouring_experts: bool = False
    pads_experts: bool = False
    pads_to_fullest: bool = False
    stashes_experts: bool = False
    wide_experts: bool = False
    wide_router: bool = False
    sliced_experts: bool = False
    whole_vocabulary: bool = False
    embeds_by_product: bool = False
    gathered_logits: bool = False
    shard_copies: ShardCopies = ShardCopies()
    eight_bit_gathers: EightBitGathers = EightBitGathers()
    fp8_scaling: Fp8Scaling = "delayed"
    casts_by_rows: bool = False
    operands_across: OperandsAcross = OperandsAcross()
    softmax_multiple: int = 1
    softmax_longest: int = 0
    recomputes_logits: bool = False
    piece_sum_bytes: int = 0
    clips_gradients: bool = True
    loss_in_16_bits: bool = False
    sums_in_fp32: bool = False
    attention_layouts: int = 0
    heads_first: bool = False
    attention_padding: int = 0
    attention_block: int = 0
    contiguous_context: bool = False
    metric_bytes: int = 0
    repeats_norms: bool = False
    softmax_in_fp32: bool = True
    sequence_copies: bool = False
    slices_kept_inputs: bool = False
    casts_weights: bool = False
    projections: Projections = "packed"
    shared_edges: bool = False
    looks_up_tokens: bool = False
    recompute_stops_early: bool = False
    recompute_gathers: bool = False
    keeps_tensor_results: bool = False
    fused_reduce_bytes: int = 0
    fused_reduce_places: tuple[int, ...] = ()
    fused_gather_bytes: int = 0
    fused_groups: int = 0
    whole_below_bytes: int = 0
    selective: Selective = "attention"
    named: Named = Named()
    keeps_biased_products: bool = False
    keeps_grouped_products: bool = False
    reruns_attention: tuple[str, ...] = ()
    reruns_exchange: bool = False
    keeps_attention_inputs: bool = False
    context_gib: float
    held: Held = field(default_factory=Held)
    offload: Offload = Offload()
    orthogonal: Orthogonal = Orthogonal()
    bucket_bytes: int
    launch_us: float
    distributed_tensor_us: float = 0.0
    distributed_heads_us: float = 0.0
    asked_operator_us: float = 0.0
    compiled_layer_us: float = 0.0
    dispatch_launch_us: float = 0.0
    sharded_layer_us: float = 0.0
    hooks_replicas: bool = False
    graphs: Graphs = Graphs()
    blocking_launches: bool = False
    ordered_attention: bool = False
    fills_tensors: bool = False
    waits_for_messages: bool = False
    fetching_operators: int = 0
