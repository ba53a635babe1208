"""What a catalog entry holds: a model, a chip, a framework or a cluster with where it comes from.

`catalog` reads entries from files, `entry_files` writes them.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from autopar.cluster import Chip, DeviceGroup, FabricLevel, NetworkLink, Peaks
from autopar.framework import Framework, NumberBytes
from autopar.spec import Attention, Model
from autopar.texts import Text

IN_32_BITS = NumberBytes(parameter=4, gradient=4, gradient_sent=4, optimizer=8)
"""What a job in 32 bits stores: weights, which the optimizer steps, gradients and two moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model with where it comes from.

    Attributes:
        model: The model.
        family: Models that share an architecture.
        aliases: Other names.
        status: Whether it was released, or derived from one that was.
        derivation: How it was derived.
        source: Where its dimensions were published.
        checked: When they were compared with the source.
        note: What else to know.
        published_parameters: Parameters by the source.
        text: The file.
        keys: The file's own keys for fields of the model, where it calls them otherwise.
        digest: SHA-256 of the file.
    """

    model: Model
    family: str = ""
    aliases: tuple[str, ...] = ()
    status: Literal["released", "derived"] = "released"
    derivation: str = ""
    source: str = ""
    checked: str = ""
    note: str = ""
    published_parameters: int | None = None
    text: Text
    keys: dict[str, str] = field(default_factory=dict)
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipEntry:
    """A chip with where its figures come from.

    Attributes:
        chip: The chip.
        aliases: Other names.
        vendor: Who makes it.
        architecture: Its generation.
        confidence: How sure each group of figures is, from A to C.
        source: Where each group of figures was published.
        checked: When they were compared with the source.
        note: What else to know.
        fitted: Figures that were fitted to training runs, each with the sources of the runs.
        fitted_as: Chip whose fitted figures this one's follow in a constant ratio.
        best_tflops: Fastest measured products, 10^12 operations a second, before any fit.
        steady_tflops: What large products sustain that were timed one after another, 10^12
            operations a second.
        link_line_gb_per_s: What the wires of the link together carry in one direction by the data
            sheet, 10^9 bytes a second.
        inherits_attention: Chip whose attention rates it has, scaled, of kernels that it names none
            of its own for.
        systolic: Its products run on an array of so many rows and columns, which a head fills as
            far as it is wide: one narrower than the array gets that share of the inherited rate of
            the widest. 0 for none.
        inherits_gemm: Chip whose curve of matrix products it has, where it names none of its own.
        text: The chip's own file.
        digest: SHA-256 of the files.
    """

    chip: Chip
    aliases: tuple[str, ...] = ()
    vendor: str = ""
    architecture: str = ""
    confidence: dict[str, str]
    source: dict[str, str]
    checked: str = ""
    note: str = ""
    fitted: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fitted_as: str | None = None
    best_tflops: Peaks = field(default_factory=Peaks)
    steady_tflops: Peaks = field(default_factory=Peaks)
    link_line_gb_per_s: float | None = None
    inherits_attention: str | None = None
    systolic: int = 0
    inherits_gemm: str | None = None
    text: Text
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDefaults:
    """What a run of a framework used where a record of it does not say.

    Attributes:
        texts: What records call the framework, beside its name and aliases; several may share one.
        bases: What it is taken for where a record names nothing but what frameworks are built on;
            a framework that follows this one and has texts of its own has none of these.
        since: First month of its time, as 2021-04; of several with one text the newest is meant
            that had begun when a run was made.
        words: Words or phrases of a record that tell it from others with the same text.
        vendors: Makers of the chips on which it is meant, of several with one text; empty for all.
        chips: The chips themselves on which it is meant, of several with one text; empty for all.
        marks: Words of which a record has one that means it before `unmarked_since`.
        unmarked_since: Month from which the text alone means it, as 2024-06.
        precision: Precision that tells it from others with the same text.
        default_precision: Number format where a record gives none; the chip's 16 bits if empty.
        attention: One fused kernel, or separate operators.
        dropout: Whether there was dropout.
        dropout_of: Models that had it where others had none, by letters and digits of their names.
        sp: Whether sequence parallel was on with tensor parallel.
        zero: ZeRO stage.
        vpp: Model chunks of a stage; 0 where it was up to the user.
        interleaved_vpp: The same where the schedule is known to be interleaved.
        micro_batch_a_stage: Whether a pipeline's step had as many micro-batches as stages.
        accumulates: Whether a step without a pipeline had several micro-batches.
        recompute: `full`, `selective` or `none`; empty where it was up to the user.
        expert_tensor_parallel: Whether experts were cut over the tensor-parallel group.
        cuts_narrow_experts: Whether also those were that are narrower than the model.
        routes_freely: Whether a mixture's routers chose experts by their scores alone.
        graphs_on: Chips on which attention, and what precedes the exchange of experts, were graphs.
        graphs_not_of: Of such a chip, the models of which nothing was.
        copies_of: Models whose tokens went by all-to-all in 16 bits if nothing names a dispatcher.
        cudnn_norms_on: Chips on which norms of some models were cuDNN's, which has no general ones.
        cudnn_norms_of: These models, by how operands of 8 bits were scaled.
        loss_bytes: Bytes of a logit at the peak of a loss in separate operators, which it was; 0
            where it was as the profile has it.
        cached_loss_bytes: Bytes of a logit that the allocator kept beyond that.
    """

    texts: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    since: str = ""
    words: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    chips: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    unmarked_since: str = ""
    precision: str = ""
    default_precision: str = ""
    attention: Attention = "flash"
    dropout: bool = False
    dropout_of: tuple[str, ...] = ()
    sp: bool = True
    zero: int = 0
    vpp: int = 0
    interleaved_vpp: int = 0
    micro_batch_a_stage: bool = False
    accumulates: bool = True
    recompute: str = ""
    expert_tensor_parallel: bool = True
    cuts_narrow_experts: bool = False
    routes_freely: bool = False
    graphs_on: tuple[str, ...] = ()
    graphs_not_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    copies_of: tuple[str, ...] = ()
    cudnn_norms_on: tuple[str, ...] = ()
    cudnn_norms_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    loss_bytes: int = 0
    cached_loss_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfPrecision:
    """Bytes of stored numbers that a framework has otherwise where a job computes in fp16.

    Attributes:
        gradient: Gradients as they are accumulated.
        gradient_sent: Gradients as they travel.
        update_bytes: Copies of a parameter and its gradient that live only during the update.
    """

    gradient: int
    gradient_sent: int
    update_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkEntry:
    """A training framework with where its choices are written.

    Attributes:
        framework: The framework.
        before: The framework as it was before a month, by that month, as 2021-04; the earliest
            first.
        fp16: What it stores otherwise in fp16.
        run: What a run of it used where nobody says.
        follows: Framework whose choices, sources and defaults of runs it has where its own file
            states none; the aliases, the date and the note are its own.
        aliases: Other names.
        source: Where each choice is written.
        checked: When it was compared with the source.
        note: What else to know.
        fitted: Figures that were fitted to training runs, each with the sources of the runs.
        text: The framework's own file.
        digest: SHA-256 of the files.
    """

    framework: Framework
    before: dict[str, Framework] = field(default_factory=dict)
    fp16: HalfPrecision | None = None
    run: RunDefaults = RunDefaults()
    follows: str | None = None
    aliases: tuple[str, ...] = ()
    source: dict[str, str]
    checked: str = ""
    note: str = ""
    fitted: dict[str, tuple[str, ...]] = field(default_factory=dict)
    text: Text
    digest: str

    def at(self, precision: str) -> Framework:
        """Returns the framework as it is where a job computes in a precision.

        Example:
            >>> from autopar.catalog import framework
            >>> entry = framework("megatron-core")
            >>> [entry.at(name).bytes.gradient for name in ("bf16", "fp16")]
            [4, 2]
            >>> entry.at("fp32").bytes
            NumberBytes(parameter=4, gradient=4, gradient_sent=4, optimizer=8)
        """
        if precision in ("fp32", "tf32"):
            # Layers read the weights that the optimizer steps, and nothing is narrower.
            copy = min(self.framework.held.gathered_copy_bytes, 1) * IN_32_BITS.parameter
            held = replace(self.framework.held, gathered_copy_bytes=copy)
            return replace(self.framework, bytes=IN_32_BITS, held=held, casts_weights=False)
        if precision != "fp16" or self.fp16 is None:
            return self.framework
        half = self.fp16
        stored = replace(
            self.framework.bytes, gradient=half.gradient, gradient_sent=half.gradient_sent
        )
        held = replace(self.framework.held, update_bytes=half.update_bytes)
        return replace(self.framework, bytes=stored, held=held)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEntry:
    """Kinds of device and the network between them, before it is said how many a job uses.

    Attributes:
        groups: The kinds of device with their limits.
        devices: Devices that a job uses unless it says otherwise.
        fabric: Network levels above the node, inner first.
        between_kinds: Link between devices of different kinds.
        text: The cluster's own file, if it has one.
        chip_texts: The files of the groups' chips.
        digests: SHA-256 of each file.
    """

    groups: tuple[DeviceGroup, ...]
    devices: int | None = None
    fabric: tuple[FabricLevel, ...] = ()
    between_kinds: NetworkLink | None = None
    text: Text | None = None
    chip_texts: tuple[Text, ...]
    digests: tuple[str, ...]
