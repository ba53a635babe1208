"""The catalog as records of runs speak of it: chips, networks, frameworks and models in words.

People write `NVIDIA A100-SXM4-80GB`, `8x200Gb HDR IB`, `NeMo 24.07` and `Llama-3.1-405B-proxy`;
here such texts find what they mean. What a text leaves open is not filled in.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from autopar import catalog
from autopar.cluster import Chip, DeviceGroup, GemmCurve, Link, Network
from autopar.entries import FrameworkEntry, ModelEntry
from autopar.errors import SpecError, shown
from autopar.runs.rows import Run
from autopar.runs.said import TAKEN_BACK, said
from autopar.spec import Model

MAKERS = (
    r"(nvidia|amd|huawei|intel|habana|google|aws|moore threads|metax|cambricon|kunlunxin|hygon"
    r"|iluvatar|tesla|quadro|ascend|instinct|radeon|geforce|dcu|npu|xpu|pvc|hgx|dgx|cloud)[ _-]*"
)
FORMS = r"[ _-]*\b(sxm\d?|oam|hbm\d?e?|(one )?(tile|stack)|(server|workstation) edition|ac)\b"
SLICE = r"(?<=v\d)-\d+$|(?<=v\d[ep])-\d+$|(?<=litepod)-\d+$"  # of a TPU pod, as v5p-128
MEMORY = r"(?<![\d.])(\d+) ?gi?b?\b"
GATED = ("swiglu", "clamped_swiglu", "geglu")


@dataclass(slots=True)
class Shelf:
    """The catalog, read once.

    Attributes:
        models: Every model.
        frameworks: Every framework.
        chips: Chips by the texts that were asked for.
    """

    models: tuple[ModelEntry, ...] = field(
        default_factory=lambda: tuple(map(catalog.model, catalog.names("models")))
    )
    frameworks: tuple[FrameworkEntry, ...] = field(
        default_factory=lambda: tuple(map(catalog.framework, catalog.names("frameworks")))
    )
    chips: dict[str, Chip] = field(default_factory=dict)


# --- Chips and networks


def devices(run: Run, shelf: Shelf) -> tuple[DeviceGroup, ...]:
    """Returns a run's devices, the kinds in the order in which they hold the pipeline's stages.

    Several kinds are written with their numbers, `V100-16GB x12 + T4-16GB x4`; their networks may
    follow each other with a comma between them.

    Raises:
        SpecError: The row names no chip, or one that the catalog lacks; it then names the nearest.
    """
    if not run.chip:
        raise SpecError("chip", "missing")
    kinds = [part.strip() for part in run.chip.split(" + ")]
    if len(kinds) == 1:
        return (DeviceGroup(chip=chip(run, shelf)),)
    networks = run.internode.split(",")
    if len(networks) != len(kinds):
        networks = [run.internode] * len(kinds)
    groups = []
    for kind, internode in zip(kinds, networks, strict=True):
        counted = re.fullmatch(r"(.+?) x ?(\d+)", kind)
        if not counted:
            raise SpecError("chip", f"how many there are of {shown(kind)} is missing")
        one = replace(run, chip=counted[1], internode=internode)
        groups.append(DeviceGroup(chip=chip(one, shelf), limit=int(counted[2])))
    return tuple(groups)


def chip(run: Run, shelf: Shelf) -> Chip:
    """Returns a run's kind of device with the node and the network that the run had.

    Raises:
        SpecError: The catalog lacks the chip; the error names the nearest.
    """
    if run.chip not in shelf.chips:
        shelf.chips[run.chip] = chip_as_written(run.chip)
    found = shelf.chips[run.chip]
    node, usual = run.gpus_per_node or found.devices_per_node, found.devices_per_node
    sliced = found.link.topology.startswith("torus") and re.search(
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
    if re.search(WIRED, run.notes, re.I) and found.link.topology == "switch":
        found = replace(found, link=_wired(found.link, node))
    hosted = said(run, HOSTED) and not HOSTED_ALREADY.fullmatch(found.name)
    if hosted and found.link.topology == "pcie":
        found = replace(found, link=_hosted(found))
    if node == 2 and found.name in BRIDGES and said(run, BRIDGED):
        found = replace(found, link=_bridged(found.link, BRIDGES[found.name]))
    if limit := said(run, LIMITED):
        found = replace(found, gemm=_limited(found.gemm, int(limit[2]) / int(limit[3])))
    return replace(found, network=network(run.internode, found.network, found.name))


# Slices of TPUs, each a torus of its own, are joined by the network of a data centre.
SLICES = r"\bslices of (\d+)\b"
# NVIDIA's boards of four A100, H100 or H200 have no switch: each pair of devices has a third of
# their links (as in catalog/chips/a100_64.toml and h100_64.toml).
WIRED = r"\bdevices wired to each other\b"


def _wired(link: Link, node: int) -> Link:
    """Returns the link of a node whose devices share their wires out to each other."""
    rate = link.all_gather_gb_per_s
    pair = rate / max(node - 1, 1)
    return replace(link, topology="mesh", all_reduce_gb_per_s=rate, p2p_gb_per_s=pair)


# A card whose power is held below what it comes with, as nvidia-smi sets it. An RTX 3090 of 350 W
# reaches 76.6 TFLOP/s in bf16 and one held to 240 reaches 60.4 (sources in
# catalog/chips/rtx3090.toml): as the power of 0.63 of the watts. The latter is the very card of
# `zero3090`, so those runs are no test of it. An H100's 527 at 500 W and 685 at 700 would be 0.78,
# of two boards.
LIMITED = r"power limit of (\d+) W \(default (\d+)"
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
HOSTED = r"\bno (P2P|peer-to-peer)\b|\bNCCL_P2P_DISABLE ?= ?1\b"
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
BRIDGED = r"NVLink bridges?\b"
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
    title = re.sub(r"^\d+ ?x ", "", re.sub(r"\s*\([^)]*\)", "", text).strip())
    title = re.sub(SLICE, "", title, flags=re.I)
    bare = re.sub(rf"^({MAKERS})+", "", title, flags=re.I)
    short = re.sub(FORMS, "", re.sub(MEMORY, "", bare, flags=re.I), flags=re.I).strip(" -_")
    memory = re.search(MEMORY, text, re.I)
    if re.search(r"\([^)]*\bPCIe", text, re.I) and "sxm" not in text.lower():
        title, bare, short = (f"{name} PCIe" for name in (title, bare, short))
    sized = [*_joined(f"{short} {memory[1]}GB")] if memory else []
    for name in (*sized, title, bare, *_joined(bare), short, *_joined(short)):
        with suppress(SpecError):
            found = catalog.chip(name).chip
            stated = float(memory[1]) / found.memory_gib if memory else 1.0
            # What is near is the same memory, and what is far off is that of a node. A name of the
            # catalog with more than its chip has says the host's: GH200 120GB.
            same = 0.9 < stated < 1.1 or not 0.25 <= stated <= 2 or (name in sized and stated > 1)
            return found if same or not memory else replace(found, memory_gib=float(memory[1]))
    return catalog.chip(title).chip  # Its error names the nearest.


def _joined(name: str) -> Iterator[str]:
    """Yields a name with its words joined as the catalog joins them."""
    yield re.sub(r"[ _]+", "-", name)
    yield re.sub(r"[ _-]+", "", name)


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
    r"^(?!.*(\bsockets|max1550)).*\bSlingshot\b": (0.73, 105.0),
    # 8.5 of 50 GB/s in all-gathers of 128 MB to 1 GB over eight nodes there, 7 to 9.4 in
    # all-reduces over eight and two: without that plugin NCCL falls back to sockets (the same,
    # nccl_2_18).
    r"Slingshot\b.*\bsockets": (0.17, None),
    # Sockets of NCCL on Ethernet faster than one of its threads: 41 and 38 of 100 Gbit/s between
    # nodes of eight V100 (NVIDIA/nccl issues 209 and 398).
    r"^(?!.*\b(RoCE|RDMA|EFA)).*\b(50|100) ?Gb(it)?(/s|ps)? Ethernet": (0.4, None),
}


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
        if re.search(kind, f"{text} {chip}", re.I):
            latency = usual.latency_us if step is None else step
            usual = replace(usual, efficiency=efficiency, latency_us=latency)
    rate = r"(\d+(?:\.\d+)?) ?([GT])i?(b|B)"
    if found := re.search(rf"(\d+) ?[x\u00d7*] ?{rate}", text):
        count, *parts = found.groups()
    elif found := re.search(rf"{rate}(?:\w|/)*? ?[x\u00d7*] ?(\d+)", text):
        *parts, count = found.groups()
    elif found := re.search(rate, text):
        count, parts = "", list(found.groups())
    else:
        return usual
    figure, scale, unit = parts
    gbit = float(figure) * (1000 if scale == "T" else 1) * (8 if unit == "B" else 1)
    cards = int(count or 1)
    if not count:
        of_node = re.search(r"(per|/|each) ?(node|server|host|machine)", text, re.I)
        of_device = re.search(r"(per|/|each) ?(gpu|npu|device|chip|card|nic)", text, re.I)
        if of_device or (gbit == usual.nic_gbit_per_s and not of_node):
            cards = usual.nics_per_node
        elif of_node or gbit > usual.nic_gbit_per_s:
            cards, gbit = usual.nics_per_node, gbit / usual.nics_per_node
    if not cards or not gbit:
        return usual
    return replace(usual, nics_per_node=cards, nic_gbit_per_s=gbit)


# --- Frameworks


def framework(run: Run, shelf: Shelf) -> tuple[FrameworkEntry, bool]:
    """Returns the profile that a run's framework, words and time point to, and whether it is named.

    The name or alias that stands first in the text wins, the longer of two at one place, and any
    over what frameworks are built on (`PyTorch Lightning + DeepSpeed`). Of several profiles with
    one name it is those whose words, precision or maker of chips the row has, then the newest that
    had begun, and the profile as it was then. Where nobody says when, stored scores tell a time
    before fused attention. Without any name it is that of the chip's maker, else FSDP or torchtitan
    where the row says so, ZeRO under a Hugging Face model where it shards parameters and nothing
    else, and Megatron of its time. A path to a TOML file is a profile of one's own.

    Raises:
        SpecError: The file of a profile is wrong.
    """
    if run.framework.endswith(".toml"):
        return catalog.framework(run.framework), True
    unfused = not run.month and stores_scores(run)
    places = _places_of(shelf, run.framework)
    known = bool(places)
    if not known:
        places = _places_of(shelf, _usual(run, shelf))
    best = min(places.values())
    named = [e for e in shelf.frameworks if places.get(e.framework.name) == best]
    sharded = f"zero {run.zero}" if re.search(r"[123]", run.zero) else ""
    words = words_of(
        f"{run.framework} {run.model} {run.chip} {run.precision} {sharded} {run.notes}"
    )
    maker = _maker(run, shelf)
    eager = bool(re.search(EAGER, f"{run.framework} {run.notes}", re.I))

    def likeness(entry: FrameworkEntry) -> tuple[bool, bool, int, bool, str]:
        told = entry.run
        said = [_says(words, words_of(phrase)) for phrase in told.words]
        precise = told.precision == run.precision.lower()
        possible = (any(said) or not told.words) and (precise or not told.precision)
        possible &= not told.vendors or maker in told.vendors
        possible &= not (eager and any("compile" in phrase for phrase in told.words))
        if known and run.month and run.month < told.unmarked_since:
            marks = [*words, *words_of(run.attention)]
            possible &= any(_says(marks, words_of(phrase)) for phrase in told.marks)
        begun = not run.month or told.since <= run.month
        # The oldest stands in for a time before all of them.
        return (
            possible,
            not unfused or told.attention == "unfused",
            2 * sum(said) + (precise and bool(told.precision)) + bool(told.vendors),
            begun,
            (told.since if begun else "".join(chr(255 - ord(c)) for c in told.since)),
        )

    found = max(named, key=likeness)
    # One device shards nothing, whatever the framework could.
    fsdp = bool(re.search(FULLY_SHARDED, run.framework, re.I))
    shards = "sdp" in run.zero.lower() if run.zero else fsdp and run.gpus != 1
    sharding = SHARDED if shards else {}
    if re.fullmatch(r"0|none|ddp", run.zero, re.I) and not fsdp:
        sharding = WHOLE
    if own := sharding.get(found.framework.name):
        found = next(entry for entry in shelf.frameworks if entry.framework.name == own)
    for month, earlier in found.before.items():
        if run.month and run.month < month:
            found = replace(found, framework=earlier)
            break
    return found, known


def _maker(run: Run, shelf: Shelf) -> str:
    """Returns who makes a run's devices, of several kinds the first; empty for unknown ones."""
    kind = re.sub(r" x ?\d+$", "", run.chip.split(" + ")[0].strip())
    with suppress(SpecError):
        return catalog.chip(chip(replace(run, chip=kind), shelf).name).vendor
    return ""


# FSDP as what a row is called by, not what it is set against.
FULLY_SHARDED = rf"{TAKEN_BACK}FSDP[12]?\b(?! (off|was)\b)"

# A model that was not compiled, whatever was of its kernels, its loss or other rows.
EAGER = (
    r"\beager\b(?! (attention|scores|softmax|SDPA)\b)|\bcompile[: ]+off\b"
    r"|\b(no|not|without) (torch\.)?compiled?\b"
    r"|\bcompiled?(:| of)( the)? loss( only)?(;|$)"
)

# Profiles of models that any way of sharding may serve, and those of FSDP; rows tell them apart.
SHARDED = {
    "deepspeed": "fsdp",
    "huggingface-2021": "fsdp",
    "pytorch-ddp": "fsdp",
    "ddp-compiled": "fsdp-compiled",
    # Ascend/MindSpeed-LLM, mindspeed_llm/fsdp2 (01b991bd, models/model_factory.py): Hugging Face's
    # models under PyTorch's fully_shard, not Megatron's.
    "mindspeed": "fsdp",
}

# FSDP is what PyTorch alone is taken for, where a row does not say that nothing is sharded.
WHOLE = {"fsdp": "pytorch-ddp", "fsdp-compiled": "ddp-compiled"}


def stores_scores(run: Run) -> bool:
    """Returns whether a row says that attention was not fused, or names a chip that cannot.

    FlashAttention runs on neither Pascal nor Volta.
    """
    said = re.fullmatch(r"unfused|eager|naive|vanilla|math|standard", run.attention, re.I)
    said = said or re.search(STORED_SCORES, run.attention or run.notes, re.I)
    return bool(said or re.search(r"(?<!BI-)\b[pv]100", run.chip, re.I))


STORED_SCORES = (
    r"unfused (attention|scores|softmax)"
    r"|\battention (is |was )?(unfused|not fused)"
    r"|\b(no|not|without|non|w/o)[ -]?(flash|FA\b|fused attention)"
    r"|(?<![a-z])(flash([ _-]att(entio)?n)?|FA)[ -]?[1-4]?[ =:]*(is |was )?"
    r"(off|disabled|not used|false)\b"
    r"|\b(eager|naive|vanilla|math) (SDPA )?att(entio)?n\b"
    r"|\battn_implementation[ =:]+eager\b|\battention (backend|implementation)[ =:]+(eager|math)\b"
    r"|\bmateriali[sz]ed (attention|scores)"
)


def _usual(run: Run, shelf: Shelf) -> str:
    """Returns the framework that a run is taken for whose own nobody names."""
    device = chip(run, shelf).name if run.chip and " + " not in run.chip else ""
    for maker, own in OF_A_MAKER.items():
        if device.startswith(maker):
            return own
    alone = (run.tp or 1) == (run.pp or 1) == 1
    if "fsdp" in run.zero.lower():
        return "FSDP" if alone else "torchtitan"
    if alone and re.search(r"[23]", run.zero):
        return "DeepSpeed"
    return "Megatron-LM"


# What the makers of these chips offer themselves.
OF_A_MAKER = {
    "tpu": "MaxText",
    "ascend": "MindSpeed",
    "gaudi": "Habana",
    "trainium": "neuronx-distributed",
}


def _places_of(shelf: Shelf, text: str) -> dict[str, tuple[bool, int, int]]:
    """Returns where the profiles that a text names stand in it."""
    return {
        entry.framework.name: place for entry in shelf.frameworks if (place := _place(entry, text))
    }


def _place(entry: FrameworkEntry, text: str) -> tuple[bool, int, int] | None:
    """Returns where a text names a profile: if by a base, the place, and less for a longer name."""
    words = words_of(text)
    found = []
    own = (entry.framework.name, *entry.aliases, *entry.run.texts)
    for base, names in ((False, own), (True, entry.run.bases)):
        for wanted in map(words_of, names):
            places = enumerate(_places(wanted, words))
            found += [(base, place, -len(wanted)) for place, stands in places if stands]
    return min(found, default=None)


def _places(wanted: list[str], words: list[str]) -> Iterator[bool]:
    """Yields for each place among words whether the wanted ones stand there in their order."""
    for place in range(len(words) - len(wanted) + 1):
        yield words[place : place + len(wanted)] == wanted


def _says(words: list[str], wanted: list[str]) -> bool:
    """Returns whether the wanted words stand somewhere and nothing before them takes them back."""
    places = enumerate(_places(wanted, words))
    return any(stands and words[place - 1 : place] not in DENIALS for place, stands in places)


DENIALS = (["no"], ["not"], ["non"], ["without"])


def words_of(text: str) -> list[str]:
    """Returns the words of a text in lower case; a version is one word.

    Example:
        >>> words_of("DeepSpeed/Megatron-LM v1.1.5")
        ['deepspeed', 'megatron', 'lm', 'v1.1.5']
    """
    return re.findall(r"[a-z0-9.]+", text.lower())


# --- Models


def kin(run: Run, shelf: Shelf) -> tuple[Model | None, bool]:
    """Returns the catalog's model that is most like a run's, and whether it is that very model.

    The very model bears the name and has every dimension that the row gives. Else it is one of the
    same family, the letters that a name begins with, and kind, whether the MLP is gated and has
    experts; most like is the one that shares most dimensions, then most of the name.

    Raises:
        SpecError: The name is a path to a TOML file, and the file is wrong.
    """
    if run.model.endswith(".toml"):
        return catalog.model(run.model).model, True
    name = plain(run.model)
    for entry in shelf.models:
        if name in map(plain, (entry.model.name, *entry.aliases)) and all(
            getattr(run, key) in (None, getattr(entry.model, key)) for key in SHAPE[:4]
        ):
            return entry.model, True
    family = _letters(name)
    if not family:
        return None, False

    def related(model: Model) -> bool:
        gated = run.gated_mlp in (None, model.activation in GATED)
        mixed = ((run.experts or 1) > 1) == (model.moe is not None)
        return gated and mixed and _letters(plain(model.name)).startswith(family)

    def likeness(model: Model) -> tuple[int, int]:
        alike = sum(getattr(run, key) == getattr(model, key) for key in SHAPE)
        other = plain(model.name)
        pairs = enumerate(zip(name, other, strict=False))
        return alike, next((i for i, (a, b) in pairs if a != b), min(len(name), len(other)))

    models = (entry.model for entry in shelf.models)
    return max(filter(related, models), key=likeness, default=None), False


SHAPE = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab")


def plain(name: str) -> str:
    """Returns the letters and figures of a name.

    Example:
        >>> plain("Llama-3.1-8B")
        'llama3.18b'
    """
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _letters(name: str) -> str:
    return re.split(r"\d", name, maxsplit=1)[0]
