"""Chips, nodes and networks as records of runs speak of them."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache

from autopar import catalog
from autopar.cluster import Chip, GemmCurve, Link, Network, Peaks
from autopar.errors import SpecError
from autopar.runs import rx
from autopar.runs.rows import Run
from autopar.runs.said import TAKEN_BACK

# --- Chips by their names

MAKERS = (
    r"(nvidia|amd|huawei|intel|habana|google|aws|moore threads|metax|cambricon|kunlunxin|hygon"
    r"|iluvatar|tesla|quadro|ascend|instinct|radeon|geforce|dcu|npu|xpu|pvc|hgx|dgx|cloud)[ _-]*"
)
FORMS = r"[ _-]*\b(sxm\d?|oam|hbm\d?e?|(one )?(tile|stack)|(server|workstation) edition|ac)\b"
SLICE = r"(?<=v\d)-\d+$|(?<=v\d[ep])-\d+$|(?<=litepod)-\d+$"  # of a TPU pod, as v5p-128
MEMORY = r"(?<![\d.])(\d+) ?gi?b?\b"


def chip_as_written(text: str) -> Chip:
    """Returns the chip of a name as people write it: a maker before it, a remark behind it.

    Where the text gives another memory than the catalog's chip has, the chip gets that memory.

    Raises:
        SpecError: There is no such chip; the error names the nearest.

    Example:
        >>> chip_as_written("NVIDIA A100-SXM4-80GB (DGX A100)").name
        'a100_80'
        >>> chip_as_written("Tesla V100 16GB").memory_gib
        16.0
    """
    with suppress(SpecError):
        return catalog.chip(text).chip
    title = rx.sub(r"^\d+ ?[x\u00d7] ", "", rx.sub(r"\s*\([^)]*\)", "", text).strip())
    title = title.replace(",", "")
    title = rx.sub(SLICE, "", title, flags=re.I)
    bare = rx.sub(rf"^({MAKERS})+", "", title, flags=re.I)
    short = rx.sub(FORMS, "", rx.sub(MEMORY, "", bare, flags=re.I), flags=re.I).strip(" -_")
    memory = rx.search(MEMORY, text, re.I)
    if rx.search(r"\([^)]*\bPCIe", text, re.I) and "sxm" not in text.lower():
        title, bare, short = (f"{name} PCIe" for name in (title, bare, short))
    sized = [*_joined(f"{short} {memory[1]}GB")] if memory else []
    for name in (*sized, title, bare, *_joined(bare), short, *_joined(short)):
        with suppress(SpecError):
            found = catalog.chip(name).chip
            return _sized(found, memory and int(memory[1]), named=name in sized)
    with suppress(LookupError):
        return _sized(catalog.chip(_within(text)).chip, memory and int(memory[1]), named=False)
    return catalog.chip(title).chip  # Its error names the nearest.


def _sized(found: Chip, memory: int | None, *, named: bool) -> Chip:
    """Returns a chip of the memory that a text gives, if it is another than the catalog's.

    What is near is the same memory, and what is far off is that of a node. A name of the catalog
    with more than its chip has says the host's: GH200 120GB.
    """
    stated = (memory or found.memory_gib) / found.memory_gib
    both = found.name in TWO_DIES and stated > 1.9
    if both or 0.9 < stated < 1.1 or not 0.25 <= stated <= 2.1 or (named and stated > 1):
        return found
    return replace(found, memory_gib=float(memory or 0))


# Their memory is often told of both dies together.
TWO_DIES = ("mi250", "mi250x", "max1550", "ascend_910c", "tpu_v2", "tpu_v3", "tpu_v7")


def _within(text: str) -> str:
    """Returns the only chip whose name or alias stands among the words of a text.

    What stands inside of a longer name (`A100` in `A100 64GB`) is no name of its own, and what
    follows the first comma or bracket counts where nothing before it is a chip's name.

    Raises:
        LookupError: There is none, or more than one.
    """
    known = _known()
    text = rx.sub(FORMS, "", rx.sub(MEMORY, r" \1gb ", text.lower()), flags=re.I)
    for part in (rx.split(r"[,;(]", text)[0], text):
        words = re.findall(r"[a-z0-9.]+", part)
        spans = [
            (start, end, known[name])
            for start in range(len(words))
            for end in range(start + 1, min(start + 6, len(words)) + 1)
            if (name := "".join(words[start:end])) in known
        ]
        # A bare generation is also a version of other things, and a kind without a number is no
        # chip beside the number of one: `BW1100 DCU`.
        spans = [s for s in spans if not rx.fullmatch(r"v\d\w?|\d+", "".join(words[s[0] : s[1]]))]
        if any(rx.fullmatch(r"[a-z]{1,6}\d{2,}[a-z]*", word) for word in words):
            spans = [s for s in spans if rx.search(r"\d", "".join(words[s[0] : s[1]]))]
        longest = {
            name
            for start, end, name in spans
            if not any(a <= start and end <= b and (a, b) != (start, end) for a, b, _ in spans)
        }
        if len(longest) == 1:
            (name,) = longest
            size = rx.search(r"\b\d+gb\b", text)
            kind = "pcie" if "pcie" in text and "sxm" not in text else ""
            for more in (f"{kind}{size[0]}" if size else kind, kind):
                name = known.get(f"{_squeezed(name)}{more}", name)
            return name
    raise LookupError(text)


@cache
def _known() -> dict[str, str]:
    """Returns the catalog's chips by the letters and figures of their names and aliases."""
    entries = {name: catalog.chip(name) for name in catalog.names("chips")}
    return {_squeezed(alias): n for n, entry in entries.items() for alias in (n, *entry.aliases)}


def _squeezed(name: str) -> str:
    return rx.sub(r"[^a-z0-9.]", "", name.lower())


def _joined(name: str) -> Iterator[str]:
    """Yields a name with its words joined as the catalog joins them."""
    yield rx.sub(r"[ _]+", "-", name)
    yield rx.sub(r"[ _-]+", "", name)


# --- Nodes


def installed(found: Chip, run: Run) -> Chip:
    """Returns a chip with the node and the network that a run had."""
    if found.name == "v100" and (run.gpus_per_node == 16 or _told(run, r"DGX-?2\b")):
        # Sixteen of them are in one machine alone.
        found = replace(catalog.chip("v100_dgx2").chip, memory_gib=found.memory_gib)
    if found.name == "h20" and (
        (run.mem_gb_per_gpu or 0) > found.memory_gib or _told(run, r"(?<!not )\b141 ?GB\b")
    ):
        # A later part of the same name: told in words, or by more in use than the first has.
        found = replace(found, memory_gib=catalog.chip("h200").chip.memory_gib)
    if found.name in OF_CORES and _counts_cores(found, run):
        found = _core(found)
    node, usual = run.gpus_per_node or found.devices_per_node, found.devices_per_node
    sliced = found.link.topology.startswith("torus") and rx.search(
        SLICES, f"{run.internode} {run.notes}", re.I
    )
    if sliced:
        node = min(node, int(sliced[1]))
    if node != usual:
        nics = max(1, found.network.nics_per_node * node // usual)
        found = replace(
            found,
            devices_per_node=node,
            link_domain=node if found.link_domain == usual else max(node, found.link_domain),
            network=replace(found.network, nics_per_node=nics),
        )
    if sliced:
        found = replace(found, link_domain=min(found.link_domain, int(sliced[1])))
    board = found.link.topology == "switch" and found.link_domain == node <= 4
    several = node == 4 < (run.gpus or 0) and found.name in BOARDS_OF_FOUR
    if board and (several or _told(run, WIRED)) and not _told(run, r"NVSwitch(es)?\b"):
        found = replace(found, link=_wired(found.link, node))
    hosted = _told(run, HOSTED) and not HOSTED_ALREADY.fullmatch(found.name)
    if hosted and found.link.topology == "pcie":
        found = replace(found, link=_hosted(found))
    if node == 2 and found.name in BRIDGES and _told(run, BRIDGED):
        found = replace(found, link=_bridged(found.link, BRIDGES[found.name]))
    if limit := _told(run, LIMITED):
        found = replace(found, gemm=_limited(found.gemm, int(limit[2]) / int(limit[3] or limit[4])))
    if _told(run, OLD_HOSTS):
        found = replace(found, host=replace(found.host, pace=OLD_PACE * found.host.pace))
    return replace(found, network=network(run.internode, found.network, found.name))


# Processors of 2016 at 2.3 GHz (Xeon E5-2686 v4, the p3 instances of AWS). Runs that wait for their
# host took 1.5 times what the same takes elsewhere by eight rows of `lightv100`, 1.6 by the one of
# `dtfm`, so those are no test of it.
OLD_HOSTS = r"\bp3\.\d+xlarge\b"
OLD_PACE = 1.5


def _told(run: Run, pattern: str) -> re.Match[str] | None:
    """Returns where a row tells of its nodes what no word before it takes back."""
    words = f"{run.internode}; {run.framework}; {run.notes}"
    return rx.search(rf"{TAKEN_BACK}(?<!w/o )({pattern})", words, re.I)


# Chips of two cores, each a device to JAX or to Neuron, which the catalog has as one.
OF_CORES = ("tpu_v2", "tpu_v3", "trainium1")


def _counts_cores(found: Chip, run: Run) -> bool:
    """Returns whether a row's devices are cores: by name, memory, or as many as its slice's."""
    whole = catalog.chip(found.name).chip.memory_gib
    slice_of = rx.search(r"\bv[23]-(\d+)$", run.chip.strip(), re.I)
    return (
        found.memory_gib < 0.6 * whole
        or rx.search(r"\bcores?\b", run.chip, re.I) is not None
        or bool(slice_of and int(slice_of[1]) == run.gpus)
        or (found.name.startswith("trainium") and (run.gpus_per_node or 0) > found.devices_per_node)
    )


def _core(chip: Chip) -> Chip:
    """Returns one of a chip's two cores: half of its units and memory.

    A ring of cores passes each wire of a chip once, as one of chips does.
    """
    whole = catalog.chip(chip.name).chip.memory_gib
    attention = tuple(
        replace(rate, tflops=tuple(tflops / 2 for tflops in rate.tflops)) for rate in chip.attention
    )
    return replace(
        chip,
        devices_per_node=2 * chip.devices_per_node,
        link_domain=2 * chip.link_domain,
        memory_gib=min(chip.memory_gib, whole / 2),
        memory_bandwidth_gb_per_s=chip.memory_bandwidth_gb_per_s / 2,
        peak_tflops=_half(chip.peak_tflops),
        gemm=replace(chip.gemm, processors=chip.gemm.processors // 2),
        attention=attention,
    )


def _half(peaks: Peaks) -> Peaks:
    """Returns half of each peak that there is."""
    found = {one.name: getattr(peaks, one.name) for one in fields(peaks)}
    return Peaks(**{name: peak / 2 for name, peak in found.items() if peak})


# Slices of TPUs, each a torus of its own, are joined by the network of a data centre.
SLICES = (
    r"\b(?:slices of |slices,? (?:of |with )?(?=\d+ chips (?:each|apiece))|v[56]e-"
    r"|(?=\d+[- ]chip[- ]slices?\b))(\d+)\b"
)
# How people say that the devices of a node reach each other by links of their own.
NVLINKED = r"\b(?<!no )(?<!not )(?<!without )(?<!w/o )(?:NVLink(?:s|ed)?|NV[248])\b"
QUAD = (
    r"\b(?:mesh|pairwise|quads?|(?:fully|directly)[- ](?:connected|wired|linked)|all[- ]to[- ]all"
    r"|(?:to )?each other|(?:4|four)[- ]way|(?:4|four)[- ](?:GPUs?|cards|devices))\b"
)
# NVIDIA's boards of four A100, H100 or H200 have no switch: each pair of devices has a third of
# their links (as in catalog/chips/a100_64.toml and h100_64.toml). Four devices may be half of a
# machine of eight; several nodes of four are machines of four.
BOARDS_OF_FOUR = ("a100_40", "a100_80", "h100", "h200")
WIRED = (
    r"\bdevices wired to each other\b|\b(4|four)[- ]GPU (HGX|baseboard)|\bredstone\b"
    rf"|{NVLINKED}[^.;]*?{QUAD}|{QUAD}[^.;]*?{NVLINKED}|\b(4|four) {NVLINKED}"
)


def _wired(link: Link, node: int) -> Link:
    """Returns the link of a node whose devices share their wires out to each other."""
    rate = link.all_gather_gb_per_s
    pair = rate / max(node - 1, 1)
    return replace(link, topology="mesh", all_reduce_gb_per_s=rate, p2p_gb_per_s=pair)


# A card whose power is held below what it comes with, as nvidia-smi sets it. An RTX 3090 of 350 W
# reaches 76.6 TFLOP/s in bf16 and one held to 240 reaches 60.4 (sources in
# catalog/chips/rtx3090.toml): as the power of 0.63 of the watts. The latter is the very card of
# `zero3090`, so those runs are no test of it. An H100's 588 at 500 W and 685 at 700 would be 0.45,
# of two boards.
_USUAL = r"default|stock|factory|nominal|usual(?:ly)?|normal(?:ly)?|TDP"
LIMITED = (
    r"(?:power[- ](?:limit(?:ed)?|cap(?:ped)?)|(?:limit|capp)ed|nvidia-smi -pl)"
    r"(?: of| to| at| is| set to|[:=])* ?(\d+) ?W(?:atts?)?\b"
    rf"[ (,]*(?:(?:{_USUAL}|instead|rather than|of|out|not|vs\.?)"
    rf"(?: of| is| the| its|{_USUAL}|[ :=])* ?(\d+)|(\d+) ?W(?:atts?)? (?:{_USUAL}))"
)
OF_POWER = 0.63


def _limited(gemm: GemmCurve, power: float) -> GemmCurve:
    """Returns how fast products are on a card at a share of its power."""
    share = min(1.0, power**OF_POWER)

    def held(efficiency: float | None) -> float | None:
        return None if efficiency is None else share * efficiency

    return replace(
        gemm,
        efficiency=share * gemm.efficiency,
        fp8_efficiency=share * gemm.fp8_efficiency,
        fp8_row_efficiency=held(gemm.fp8_row_efficiency),
        fp4_efficiency=held(gemm.fp4_efficiency),
        fp32_efficiency=held(gemm.fp32_efficiency),
    )


# Cards on PCIe that do not reach each other pass rings through the host's memory.
PEERS = r"(?:P2P|peer[- ]to[- ]peer|peer access)"
HOSTED = (
    rf"\b(?:no|without|lacks?|lacking|w/o) (?:(?:GPU|CUDA|PCIe|direct) )*{PEERS}\b"
    rf"|\b{PEERS}(?: access| transfers?)?[ =:]*(?:(?:is|was) )?"
    r"(?:off|disabled|unavailable|unsupported|missing|not (?:available|supported|possible))\b"
    r"|\bNCCL_P2P_DISABLE ?= ?1\b"
)
# GeForce and TITAN cards have no other way: the catalog's links of them were measured so.
HOSTED_ALREADY = re.compile(r"rtx\d{4}(ti|d)?|titan_rtx")
# What such rings reach of what one card copies to the host: four A100 on PCIe 4 take 11.4 ms to sum
# 64 MB, 8.9 GB/s of 25.2 (besthub.dev, Why NVLink Supercharges Llama 3 70B Inference, which finds
# 1.9 s in 160 such sums by NCCL_P2P_DISABLE=1 too); eight TITAN RTX and two RTX 2080 Ti on PCIe 3
# 4.9 and 4.0 of 12.6 (sources in catalog/chips/titan_rtx.toml).
THROUGH_HOST = 0.35


def _hosted(chip: Chip) -> Link:
    """Returns the link of cards whose copies to each other pass the host's memory."""
    link, rate = chip.link, THROUGH_HOST * chip.host.pcie_gb_per_s
    share = min(1.0, rate / link.all_reduce_gb_per_s)
    return replace(
        link,
        all_reduce_gb_per_s=share * link.all_reduce_gb_per_s,
        all_gather_gb_per_s=share * link.all_gather_gb_per_s,
        all_to_all_gb_per_s=share * link.all_to_all_gb_per_s,
        socket_gb_per_s=None,
    )


# Two cards joined by NVLink, and what they sum at with large messages: 67 MB by two A40 in 1.62 ms
# (microsoft/vidur, data/profiling/a40/all_reduce.csv), whose links an A6000, an A5000 and an RTX
# 3090 have; two A100 on PCIe 208 GB/s (NVIDIA/nccl-tests issue 178); two H100 PCIe 116 GB/s (issue
# 194), whose three bridges an H100 NVL has; two links of Turing at the 20 that NVIDIA/nccl takes
# for one of Volta (src/graph/topo.h).
BRIDGED = rf"{NVLINKED}(?!( \w+)? (absent|missing|off|disabled|not)\b)"
BRIDGES = {
    "a40": 41.0,
    "a6000": 41.0,
    "a5000": 41.0,
    "rtx3090": 41.0,
    "titan_rtx": 40.0,
    "rtx2080ti": 40.0,
    "a100_pcie": 208.0,
    "a100_pcie_40": 208.0,
    "h100_pcie": 116.0,
    "h100_nvl": 116.0,
}


def _bridged(link: Link, rate: float) -> Link:
    """Returns the link of two cards joined by NVLink, whose steps are as short as a switch's."""
    return replace(
        link,
        topology="mesh",
        all_reduce_gb_per_s=rate,
        all_gather_gb_per_s=rate,
        all_to_all_gb_per_s=rate,
        p2p_gb_per_s=rate,
        socket_gb_per_s=None,
        latency_us=3.4,
    )


# --- Networks

# Share of the line rate that NCCL was measured to sustain on a kind of network, and microseconds of
# a step where those were measured too.
MEASURED_NETWORKS: dict[str, tuple[float, float | None]] = {
    # 40.5 Gbit/s in an all-reduce over four nodes of eight A100, whose ring takes one card of 100,
    # and 54.6 (44 to 57 in longer runs) over sixteen of four V100, whose ring takes two: files
    # n4_a100_all_reduce_bench.txt and n16_32gb_all_reduce_bench.txt of bigscience-workshop/
    # bigscience, experiments/bandwidth. Groups beside each other are taken to have cards each.
    r"omni-?path|\bOPA\b": (0.4, None),
    r"(omni-?path|\bOPA\b).*\bv100": (0.27, None),
    # 38 to 44 of 50 GB/s a device in all-to-alls of 2 GB over 2 to 32 nodes of eight H100; what
    # those of 32 MB take beyond their bytes is 2.2 times what steps of 14 us would
    # (crazyguitar/aws-gpu-communication-benchmark, data/nccl_alltoall.csv).
    r"\bEFA\b": (0.84, 31.0),
    # 50.2 of 100 GB/s in all-gathers of 128 MB to 8 GB over two A3 High nodes of eight H100, and
    # 630 to 690 us in 15 steps beyond their bytes in those of 8 and 16 MB (dstackai/dstack,
    # examples/clusters/a3high/README.md).
    r"\bTCPX\b": (0.5, 42.0),
    # 188.5 of 200 GB/s in those of 8 GB over two A3 Mega nodes; of 8 MB 125 us beyond their bytes
    # (dstackai/dstack, examples/misc/a3mega-clusters/README.md).
    r"\bTCPXO\b": (0.94, 8.3),
    # 36.5 of 50 GB/s a node in all-gathers and all-reduces of 1 GB over two and eight nodes of
    # Polaris, and steps of 105 us in 72 of both of 8 MB to 1 GB over 2 to 540 nodes of four A100:
    # libfabric asks for what is longer than 16 KB before it is sent (argonne-lcf/alcf-nccl-tests,
    # results_polaris; tests/data/operators/slingshot.csv). Large exchanges reach half of that rate,
    # which is not told apart. Intel's own library does without NCCL.
    r"^(?!.*(\bsockets?\b|max1550)).*\bSlingshot\b": (0.73, 105.0),
    # 8.5 of 50 GB/s in all-gathers of 128 MB to 1 GB over eight nodes there, 7 to 9.4 in
    # all-reduces over eight and two: without that plugin NCCL falls back to sockets (the same,
    # nccl_2_18).
    r"Slingshot\b.*\bsockets?\b": (0.17, None),
    # Sockets of other cards of 200 Gbit/s: as much a card as of those.
    r"^(?!.*Slingshot)(?=.*\b\d ?x ?200 ?G).*\bsockets?\b": (0.17, None),
    # Sockets of NCCL on Ethernet faster than one of its threads: 41 and 38 of 100 Gbit/s between
    # nodes of eight V100 (NVIDIA/nccl issues 209 and 398).
    r"^(?!.*\b(RoCE|RDMA|EFA))(?=.*(Ethernet|\dG(b|\b)E?))"
    r".*\b(50|100) ?G(b(it)?(/s|ps)? Ethernet|b?E\b)": (0.4, None),
}


CARD = r"(?:NIC|card|HCA|adapter|port|rail)"
NODE = r"(node|server|host|machine)"
CARDS = rf"{CARD}s?(?: ?/ ?node| (?:per|a|each) node)?,?(?: of| at| with| [x\u00d7@])?"
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
# InfiniBand's generations, as four lanes have them.
GENERATIONS = {"EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800}


def _in_figures(text: str) -> str:
    """Returns a text with small numbers in figures, and cards known by their generation in Gb."""
    for figure, word in enumerate(NUMBERS, start=1):
        text = rx.sub(rf"\b{word}\b", str(figure), text, flags=re.I)
    text = rx.sub(r"\b(\d+) ?x? ?dual[- ]port\b", lambda cards: f"{2 * int(cards[1])} x", text)
    for name, gbit in GENERATIONS.items():
        text = rx.sub(rf"\b{name}(\d{{3}})\b", r"\1Gb", text)
        text = rx.sub(rf"(\d) ?[x\u00d7] ?{name}\b(?! ?\d)", rf"\1x{gbit}Gb", text)
    return text


def network(text: str, usual: Network, chip: str = "") -> Network:
    """Returns a node's network of a text such as `8x200Gb HDR IB` or `800Gb/s per node`.

    `Gb` are bits, `GB` bytes. A text without a figure leaves the usual network. A figure without a
    count is that of the node where it is said so or where it exceeds a usual card; it is that of
    every usual card where it equals one, and else of a single card. Where the text names a kind of
    network on which NCCL was measured to sustain another share of the line rate, or its steps to
    take longer, in nodes of any chip or of this one, that is taken.

    Example:
        >>> usual = Network(nics_per_node=8, nic_gbit_per_s=200.0, efficiency=0.7, latency_us=20.0)
        >>> [(n.nics_per_node, n.nic_gbit_per_s) for text in (
        ...     "4x100Gb RoCE", "800Gb/s per node", "50Gb Ethernet", "HDR InfiniBand"
        ... ) for n in [network(text, usual)]]
        [(4, 100.0), (8, 100.0), (1, 50.0), (8, 200.0)]
    """
    for kind, (efficiency, step) in MEASURED_NETWORKS.items():
        if rx.search(kind, f"{text} {chip}", re.I):
            latency = usual.latency_us if step is None else step
            usual = replace(usual, efficiency=efficiency, latency_us=latency)
    text = _in_figures(text)
    rate = r"(\d+(?:\.\d+)?) ?([GT])i?(b|B|(?=E\b)|\b)"
    if (
        (found := rx.search(rf"(\d+) ?[x\u00d7*] ?(?:[A-Z]+-?\d* )?{rate}", text))
        or (found := rx.search(rf"\b(\d+) {CARDS} {rate}", text))
        or (found := rx.search(rf"\b(\d+) {rate}[\w/]* (?:\w+ )?{CARD}", text))
    ):
        count, *parts = found.groups()
    elif (found := rx.search(rf"{rate}(?:\w|/)*? ?[x\u00d7*] ?(\d+)", text)) or (
        found := rx.search(rf"{rate}[^;]{{0,20}}?[ ,(](\d+) {CARD}", text)
    ):
        *parts, count = found.groups()
    elif found := rx.search(rate, text):
        count, parts = "", list(found.groups())
    else:
        return usual
    figure, scale, unit = parts
    gbit = float(figure) * (1000 if scale == "T" else 1) * (8 if unit == "B" else 1)
    cards = int(count or 1)
    if not count:
        behind = rx.split(r"[,;(]", text[found.end() :])[0]
        of_node = rx.search(rf"(per|/|each) ?{NODE}", text, re.I)
        of_node = of_node or rx.match(rf"[\w/ ]* (a|every) {NODE}", behind, re.I)
        of_device = rx.search(r"(per|/|each|every) ?(gpu|npu|device|chip|card|nic)\b", text, re.I)
        if of_device or (gbit == usual.nic_gbit_per_s and not of_node):
            cards = usual.nics_per_node
        elif of_node or gbit > usual.nic_gbit_per_s:
            cards, gbit = usual.nics_per_node, gbit / usual.nics_per_node
    if not cards or not gbit:
        return usual
    return replace(usual, nics_per_node=cards, nic_gbit_per_s=gbit)
