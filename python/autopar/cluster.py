"""The cluster as frozen dataclasses: chips, the nodes they sit in, and the links between them.

The fields are those of the Rust core, with units in the keys as `autopar.spec` says.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Pass: TypeAlias = Literal["forward", "backward", "both"]
Topology: TypeAlias = Literal["switch", "mesh", "cubemesh", "pcie", "torus2d", "torus3d"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Dense matrix peaks by number format, in 10^12 operations a second; absent formats are null.

    Attributes:
        bf16: bfloat16.
        fp16: IEEE half.
        fp8: 8-bit floating point.
        fp4: 4-bit floating point with a scale for each block of a row.
        tf32: TensorFloat-32.
        fp32: 32-bit products.
        int32: 32-bit integers on vector units; null where half of the units that take 32-bit
            numbers take them.
    """

    bf16: float | None = None
    fp16: float | None = None
    fp8: float | None = None
    fp4: float | None = None
    tf32: float | None = None
    fp32: float | None = None
    int32: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCurve:
    """Efficiency of matrix products by shape: a few physical figures.

    Attributes:
        efficiency: Share of the 16-bit peak that a large, aligned product sustains in training.
        fp8_efficiency: The same of the 8-bit peak.
        fp8_row_efficiency: The same where each row of an operand has a scale of its own; none where
            that is no slower.
        fp4_efficiency: The same of the 4-bit peak, on chips that have one.
        fp32_efficiency: The same of the peak of vector units in 32 bits; none where products in 32
            bits sustain what those in 16 do.
        fp8_any_layout: Products of 8-bit operands take them as they lie; else only along the
            dimension that they sum over.
        fp8_across_slowdowns: How much longer a product takes one, and both, of whose 8-bit operands
            lie across the dimension that it sums over; none where that was not timed.
        half_k: Inner dimension that costs as much again: time grows as (k + half_k)/k; 0 where a
            product starts and ends behind others.
        fp8_half_k: The same for 8-bit operands.
        tile_m: Rows of an output tile.
        tile_n: Columns of an output tile.
        processors: Processors that each hold one tile at a time.
        alignment_bytes: Bytes to which a row must be aligned for the matrix units.
        unaligned_slowdown: Slowdown of an unaligned product.
        odd_slowdown: The same where rows are not even aligned to 4 bytes, as an odd number of
            16-bit columns is not; none where that is no slower.
        sum_gb_per_s: GB/s at which a processor reads and writes the stored sum to which its tile is
            added, while it computes nothing; none where that passes behind arithmetic.
    """

    efficiency: float
    fp8_efficiency: float
    half_k: float
    fp8_half_k: float
    tile_m: int
    tile_n: int
    processors: int
    alignment_bytes: int
    unaligned_slowdown: float
    odd_slowdown: float | None = None
    sum_gb_per_s: float | None = None
    fp8_row_efficiency: float | None = None
    fp4_efficiency: float | None = None
    fp32_efficiency: float | None = None
    fp8_any_layout: bool = False
    fp8_across_slowdowns: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRate:
    """One row of a fused-attention table: rate by sequence length.

    Attributes:
        kernel: Kernel generation: `fa1`, `fa2`, `fa3`, `cudnn`, `flex`, `npu`, ...
        pass_: Which pass was timed; `pass` in documents.
        head_dim: Head width.
        causal: Whether the upper triangle was skipped (its operations are then not counted).
        sequence: Sequence lengths, ascending.
        tflops: 10^12 operations a second at each.
        window_keys: Keys beyond a window that are worked out for each query, as blocks of queries
            and keys begin and end with no window; 0 where that is not known.
    """

    kernel: str
    pass_: Pass = field(metadata={"key": "pass"})
    head_dim: int
    causal: bool
    sequence: tuple[int, ...]
    tflops: tuple[float, ...]
    window_keys: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRate:
    """What a library for experts' tokens was timed at inside the domain, by the number of ranks.

    Attributes:
        kernel: The library: `deepep`, `hybridep`.
        ranks: Ranks that exchange, ascending.
        dispatch_gb_per_s: On the way to the experts, 10^9 bytes a second of what a rank gets of all
            ranks, its own among them.
        combine_gb_per_s: The same on the way back.
    """

    kernel: str
    ranks: tuple[int, ...]
    dispatch_gb_per_s: tuple[float, ...]
    combine_gb_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The link inside a node or scale-up domain, as nccl-tests bus bandwidths of one device.

    Attributes:
        topology: How devices are wired: all at full rate behind a switch, one wire to each peer,
            eight with six wires each as in a DGX-1, a PCIe tree, or rings along two or three axes
            (rates are then those of one axis).
        all_reduce_gb_per_s: All-reduce, 10^9 bytes a second.
        all_gather_gb_per_s: All-gather and reduce-scatter, 10^9 bytes a second.
        all_to_all_gb_per_s: All-to-all, 10^9 bytes a second.
        p2p_gb_per_s: One pair of devices, one direction, 10^9 bytes a second.
        part_gb_per_s: What rings among more than four devices of a node but not all reach, where
            the library knows those of a whole node and searches for two at most in such a part
            (RCCL); none where they use all wires between its devices.
        socket_gb_per_s: All-reduce in a node of at most four devices, which hang on one socket
            without a switch; none where it is as fast as in a larger node. Other rings differ by
            as much.
        latency_us: One step of a collective between two devices, in microseconds.
        processor_share: Share of the processors that a collective takes from what it runs beside;
            1 where nothing runs beside it.
    """

    topology: Topology
    all_reduce_gb_per_s: float
    all_gather_gb_per_s: float
    all_to_all_gb_per_s: float
    p2p_gb_per_s: float
    latency_us: float
    processor_share: float = 0.15
    part_gb_per_s: float | None = None
    socket_gb_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network between nodes.

    Attributes:
        nics_per_node: Network cards of one node.
        nic_gbit_per_s: Line rate of one card, 10^9 bits a second.
        efficiency: Share of the line rate that collectives reach.
        latency_us: One step of a collective between two nodes, in microseconds.
        gathers_by_level: Gathers and scatters run inside nodes and between them in turn, so that a
            node receives once what it lacks (HCCL); else rings through all members bring it
            everything (NCCL, RCCL).
    """

    nics_per_node: int
    nic_gbit_per_s: float
    efficiency: float
    latency_us: float
    gathers_by_level: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host beside the devices.

    Attributes:
        pcie_gb_per_s: Device to host memory, one direction, 10^9 bytes a second for one device.
        kernel_us: Time that a kernel occupies the device beyond its work, in microseconds.
        memory_gb_per_s: Host memory bandwidth of one device's share, 10^9 bytes a second.
        core_gb_per_s: What one thread moves of it while its neighbours do the same, 10^9 bytes a
            second: 28 bytes in 1.63 ns, Adam by one thread beside seven others on the Xeon of an
            H100 instance (measured, November 2026).
        pace: How long it takes to launch an operator, over what the hosts take whose runs tell a
            framework's `launch_us`.
    """

    pcie_gb_per_s: float
    kernel_us: float
    memory_gb_per_s: float
    core_gb_per_s: float = 17.2
    pace: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A kind of device with the node that it comes in.

    Attributes:
        name: Name in the catalog, or the file's stem.
        devices_per_node: Devices in one node.
        link_domain: Devices that reach each other by `link`: a node, or several nodes.
        memory_gib: Memory visible to the driver, in GiB.
        memory_bandwidth_gb_per_s: Memory bandwidth by the data sheet, 10^9 bytes a second.
        memory_efficiency: Share of it that a streaming kernel reaches.
        peak_tflops: Dense matrix peaks.
        speed_spread: Standard deviation of the sustained speed between devices, as a share of it.
        gemm: How matrix products approach the peak.
        attention: Fused-attention rates.
        exchange: Rates of libraries for experts' tokens inside the domain.
        link: Link inside the domain.
        network: Network between nodes.
        host: The host's side.
        price_per_hour: Price of one device-hour, in any one currency.
        caveats: What about these figures is not measured; carried into the report.
    """

    name: str
    devices_per_node: int
    link_domain: int
    memory_gib: float
    memory_bandwidth_gb_per_s: float
    memory_efficiency: float
    peak_tflops: Peaks
    speed_spread: float = 0.0
    gemm: GemmCurve
    attention: tuple[AttentionRate, ...] = ()
    exchange: tuple[ExchangeRate, ...] = ()
    link: Link
    network: Network
    host: Host
    price_per_hour: float | None = None
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """Devices of one kind.

    Attributes:
        chip: The kind.
        limit: How many there are at most; null for no limit.
    """

    chip: Chip
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricLevel:
    """A level of the network that carries fewer bytes a second than a device's NIC takes.

    Attributes:
        nodes: Nodes below one switch of this level; traffic that leaves them passes the next level.
        bandwidth_fraction: Share of the NIC's bandwidth left beyond them: 0.5 for 2:1.
    """

    nodes: int
    bandwidth_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLink:
    """A network link as one device sees it.

    Attributes:
        bandwidth_gb_per_s: One direction, 10^9 bytes a second.
        latency_us: Time until the first byte arrives, in microseconds.
    """

    bandwidth_gb_per_s: float
    latency_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Devices of one or several kinds and how they are connected.

    Attributes:
        groups: The kinds of device that may be used.
        devices: Devices that a plan uses, all kinds together.
        fabric: Network levels above the node, inner first; empty without a bottleneck.
        between_kinds: Link between devices of different kinds; null for the slower of the two.
    """

    groups: tuple[DeviceGroup, ...]
    devices: int
    fabric: tuple[FabricLevel, ...] = ()
    between_kinds: NetworkLink | None = None
