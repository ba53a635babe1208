"""A measured run as the problem and plan that it was, and what had to be assumed to say so.

What a row leaves open is filled from the catalog: the model of the same name and shape, the chip,
the framework's profile and its time. Words of the notes are read as data (`unfused`, `eager`,
`num-layer-list 5,6,6`); no source is known by name. What cannot be expressed is refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from math import gcd
from typing import Any, get_args

from autopar import catalog, planner
from autopar.catalog import FrameworkEntry
from autopar.errors import SpecError, shown
from autopar.report import Convention, Counted, Plan, Rate, Recompute, Stage, Work
from autopar.runs import Run
from autopar.spec import (
    Chip,
    Cluster,
    DeviceGroup,
    Granularity,
    Model,
    Moe,
    Network,
    Precision,
    Problem,
    Schedule,
)

VOCAB = 50257  # of GPT-2, for rows that give none
LARGEST_MICRO_BATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A run as it was set up.

    Attributes:
        problem: What was trained, on what.
        plan: How.
        rate: How fast it was; None if nobody says.
        assumed: Settings that its row leaves open, each with the value taken.
        open: Those of mbs, vpp and recompute among them.
    """

    problem: Problem
    plan: Plan
    rate: Rate | None
    assumed: tuple[str, ...]
    open: tuple[str, ...]


@dataclass(slots=True)
class Shelf:
    """The catalog as runs are looked up in it, read once.

    Attributes:
        models: Every model.
        frameworks: Every framework.
        chips: Chips by the names that were asked for.
    """

    models: tuple[Model, ...] = field(
        default_factory=lambda: tuple(catalog.model(n).model for n in catalog.names("models"))
    )
    frameworks: tuple[FrameworkEntry, ...] = field(
        default_factory=lambda: tuple(map(catalog.framework, catalog.names("frameworks")))
    )
    chips: dict[str, Chip] = field(default_factory=dict)


def setup(run: Run, shelf: Shelf) -> Setup:
    """Returns a run as it was set up.

    Raises:
        SpecError: The run cannot be expressed.
    """
    assumed: list[str] = []
    if re.search(r"micro-?benchmark", run.notes, re.I):
        raise SpecError("notes", "part of a model timed alone")
    entry = framework(run, shelf)
    if not _matches(entry, run.framework):
        assumed.append(f"framework={entry.framework.name}")
    chip = _chip(run, shelf)
    degrees = _degrees(run)
    for key in ("seq_len", "gbs"):
        if not getattr(run, key):
            raise SpecError(key, "missing")
    precision = _precision(run, chip, assumed)
    sp = run.sp
    if sp is None:
        sp = entry.run.sp and degrees["tp"] > 1
        if degrees["tp"] > 1:
            assumed.append(f"sp={str(sp).lower()}")
    attention = _attention(run) or entry.run.attention
    problem = planner.problem(
        _model(run, shelf, assumed),
        Cluster(groups=(DeviceGroup(chip=chip),), devices=degrees.pop("devices")),
        global_batch_size=run.gbs or 0,
        sequence_length=run.seq_len or 0,
        precision=precision,
        framework=entry.framework,
        attention="unfused" if attention == "unfused" else "flash",
        dropout=entry.run.dropout if run.dropout is None else run.dropout,
        memory_margin=0.0,
        top=1,
    )
    zero = _zero(run, entry, assumed)
    shards = degrees["dp"] * degrees["cp"]
    if shards == 1:
        zero = 0  # One rank shards nothing.
    degrees |= {
        "sp": sp and degrees["tp"] > 1,
        "zero": zero,
        "shard_group": _shard_group(run, shards, chip) if zero else 1,
        "etp": _expert_tensor(run, entry, degrees["tp"], assumed) if problem.model.moe else 1,
    }
    plan, settings = _plan(run, problem, degrees)
    return Setup(
        problem=problem,
        plan=plan,
        rate=_rate(run, assumed),
        assumed=(*assumed, *settings),
        open=tuple(setting.partition("=")[0] for setting in settings),
    )


# --- Where it ran


def _chip(run: Run, shelf: Shelf) -> Chip:
    """Returns the kind of device with the node and network that the run had."""
    if not run.chip:
        raise SpecError("chip", "missing")
    if run.chip not in shelf.chips:
        shelf.chips[run.chip] = chip_as_written(run.chip)
    chip = shelf.chips[run.chip]
    if run.gpus_per_node and run.gpus_per_node != chip.devices_per_node:
        node, whole = run.gpus_per_node, chip.devices_per_node
        nics = max(1, chip.network.nics_per_node * node // whole)
        chip = replace(
            chip,
            devices_per_node=node,
            link_domain=node if chip.link_domain == whole else chip.link_domain,
            network=replace(chip.network, nics_per_node=nics),
        )
    return replace(chip, network=network(run.internode, chip.network))


def chip_as_written(text: str) -> Chip:
    """Returns the chip of a name as people write it: a maker before it, a remark behind it.

    Raises:
        SpecError: There is no such chip; the error names the nearest.

    Example:
        >>> chip_as_written("NVIDIA A100-SXM4-80GB (DGX A100)").name
        'a100_80'
    """
    plain = re.sub(r"\s*\([^)]*\)", "", text).strip()
    bare = re.sub(r"^(nvidia|amd|huawei|intel|google|tesla|ascend|instinct)[ -]+", "", plain, flags=re.I)
    joined = re.sub(r"[ _]+", "-", bare)
    shorter = re.sub(r"[ -]*(sxm\d?|pcie|oam|\d+ ?gi?b)\b", "", bare, flags=re.I).strip(" -")
    for name in dict.fromkeys((text, plain, bare, joined, shorter)):
        try:
            return catalog.chip(name).chip
        except SpecError as error:
            first = error if name == text else first
    raise first


def network(text: str, usual: Network) -> Network:
    """Returns a node's network of a text such as `8x200Gb HDR IB` or `800Gb/s per node`.

    A text without a figure leaves the chip's usual network. `Gb` are bits, `GB` bytes.

    Example:
        >>> usual = Network(nics_per_node=8, nic_gbit_per_s=200.0, efficiency=0.7, latency_us=20.0)
        >>> network("4x100Gb RoCE", usual).nic_gbit_per_s
        100.0
        >>> network("800Gb/s per node", usual).nic_gbit_per_s
        100.0
        >>> network("50Gb Ethernet", usual).nics_per_node
        1
    """
    found = re.search(r"(?:(\d+)\s*[x\u00d7*]\s*)?(\d+(?:\.\d+)?)\s*([GT])(b|bps|bit|B)(?![a-z]*-?based)", text)
    if found is None:
        return usual
    bits = float(found[2]) * (1000 if found[3] == "T" else 1) * (8 if found[4] == "B" else 1)
    cards = int(found[1] or 1)
    if re.search(r"per node|/ ?node", text) and cards == 1:
        cards, bits = usual.nics_per_node, bits / usual.nics_per_node
    elif re.search(r"per (gpu|device|chip|npu)|/ ?(gpu|device|chip|npu)", text, re.I) and cards == 1:
        cards = usual.nics_per_node
    if not cards or not bits:
        return usual
    return replace(usual, nics_per_node=cards, nic_gbit_per_s=bits)


# --- The software


def framework(run: Run, shelf: Shelf) -> FrameworkEntry:
    """Returns the profile that a run's framework text, words and time point to.

    The name or alias that stands first in the text wins, the longer of two at one place; of several
    profiles with one name, the one whose words or precision the row has, then the newest that had
    begun. Without any, Megatron-Core, or FSDP where the row shards as FSDP does.
    """
    places = [(place, entry) for entry in shelf.frameworks if (place := _matches(entry, run.framework))]
    if not places:
        name = "fsdp" if run.zero.lower() == "fsdp" else "megatron-core"
        return next(entry for entry in shelf.frameworks if entry.framework.name == name)
    best = min(place for place, _ in places)
    entries = [entry for place, entry in places if place == best]
    words = set(_words(f"{run.framework} {run.notes}"))

    def fits(entry: FrameworkEntry) -> bool:
        wanted = entry.run
        spoken = not wanted.words or any(word in words for word in wanted.words)
        return spoken and wanted.precision in ("", run.precision.lower())

    entries = [entry for entry in entries if fits(entry)] or entries
    begun = [e for e in entries if not run.month or e.run.since <= run.month]
    oldest = min(entries, key=lambda e: e.run.since)
    special = lambda e: (e.run.since, bool(e.run.words) + bool(e.run.precision))  # noqa: E731
    return max(begun, key=special) if begun else oldest


def _matches(entry: FrameworkEntry, text: str) -> tuple[int, int] | None:
    """Returns where a profile's name stands in a text: the place, and less for a longer name."""
    words = _words(text)
    found = []
    for name in (entry.framework.name, *entry.aliases, *entry.run.texts):
        wanted = _words(name)
        for place in range(len(words) - len(wanted) + 1):
            if words[place : place + len(wanted)] == wanted:
                found.append((place, -len(wanted)))
    return min(found, default=None)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9.]+", text.lower())


def _precision(run: Run, chip: Chip, assumed: list[str]) -> Precision:
    text = run.precision.lower()
    for precision in get_args(Precision):
        if precision in text:
            return precision  # type: ignore[no-any-return]
    if text:
        raise SpecError("precision", f"no estimate for {shown(run.precision)}")
    precision = "bf16" if chip.peak_tflops.bf16 else "fp16"
    assumed.append(f"precision={precision}")
    return precision


def _attention(run: Run) -> str:
    """Returns how attention was computed by the row's column or notes."""
    text = run.attention.lower() or run.notes.lower()
    if re.search(r"unfused|(no|without|non)[ -]flash|eager attention", text):
        return "unfused"
    return "flash" if "flash" in text else ""


def _zero(run: Run, entry: FrameworkEntry, assumed: list[str]) -> int:
    text = run.zero.lower()
    if not text:
        assumed.append(f"zero={entry.run.zero}")
        return entry.run.zero
    if "fsdp" in text or "hsdp" in text:
        return 3
    if stage := re.search(r"[0-3]", text):
        return int(stage[0])
    raise SpecError("zero", f"must be 0 to 3 or fsdp, found {shown(run.zero)}")


def _shard_group(run: Run, ranks: int, chip: Chip) -> int:
    """Returns over how many ranks ZeRO shards: a node's where the notes say so."""
    if run.shard_group:
        return run.shard_group
    inside = re.search(r"sharded (over \d+ \w+ )?(with)?in(side)? (a |the |one )?node", run.notes)
    return gcd(ranks, chip.devices_per_node) if inside else ranks


def _expert_tensor(run: Run, entry: FrameworkEntry, tp: int, assumed: list[str]) -> int:
    """Returns the tensor-parallel degree inside an expert."""
    if run.etp:
        return run.etp
    if stated := re.search(r"expert[ -]tp[ =]*(\d+)", run.notes, re.I):
        return int(stated[1])
    if re.search(r"expert[ -]tp *= *tp", run.notes, re.I):
        return tp
    etp = tp if entry.run.expert_tensor_parallel else 1
    if tp > 1:
        assumed.append(f"etp={etp}")
    return etp


# --- The model


def _model(run: Run, shelf: Shelf, assumed: list[str]) -> Model:
    """Returns a run's model: shape from the row, the rest from its kin in the catalog."""
    missing = [key for key in ("layers", "hidden", "heads") if not getattr(run, key)]
    kin = _kin(run, shelf)
    if missing:
        exact = kin and _plain(kin.name) == _plain(run.model)
        if not (kin and exact):
            raise SpecError(missing[0], "missing, and the catalog has no model of that name")
        run = replace(
            run,
            layers=run.layers or kin.layers,
            hidden=run.hidden or kin.hidden,
            heads=run.heads or kin.heads,
            kv_heads=run.kv_heads or kin.kv_heads,
            ffn_hidden=run.ffn_hidden or kin.ffn_hidden,
            vocab=run.vocab or kin.vocab,
            experts=run.experts or (kin.moe.experts if kin.moe else None),
        )
    layers, hidden, heads = run.layers or 0, run.hidden or 0, run.heads or 0
    same_width = kin is not None and (kin.hidden, kin.heads) == (hidden, heads)
    vocab = run.vocab
    if vocab is None:
        vocab = kin.vocab if kin and same_width and kin.layers == layers else VOCAB
        assumed.append(f"vocab={vocab}")
    gated = run.gated_mlp
    if gated is None:
        gated = kin is None or kin.activation in ("swiglu", "geglu")
        if kin is None:
            assumed.append("gated_mlp=true")
    ffn = run.ffn_hidden
    if ffn is None:
        ffn = 4 * hidden
        assumed.append(f"ffn_hidden={ffn}")
    head_dim = run.head_dim or _noted(r"head_dim\D{0,3}(\d+)", run.notes)
    if head_dim is None:
        head_dim = kin.head_dim if kin and same_width else max(1, hidden // max(1, heads))
    positions = run.seq_len or 1
    known: dict[str, Any] = {
        "name": run.model or "model",
        "layers": layers,
        "hidden": hidden,
        "ffn_hidden": ffn,
        "heads": heads,
        "kv_heads": run.kv_heads or heads,
        "head_dim": head_dim,
        "vocab": vocab,
        "max_positions": positions,
    }
    if run.experts and run.experts > 1:
        known["moe"] = moe = _moe(run, kin, ffn)
        if same_width and kin and kin.moe and ffn == kin.moe.expert_ffn:
            known["ffn_hidden"] = kin.ffn_hidden
        elif ffn == moe.expert_ffn:
            known["ffn_hidden"] = ffn
    if kin is None:
        return Model(**known, **(GATED if gated else _plain_block(positions)))
    model = replace(kin, **{"moe": None, **known})
    if not same_width:
        model = replace(model, mla=None, window=None)
    if model.position == "learned":
        model = replace(model, position_rows=max(positions, 1))
    if "alibi" in run.notes.lower():
        model = replace(model, position="alibi", position_rows=0)
    return model


GATED: dict[str, Any] = {"norm": "rmsnorm", "position": "rope", "activation": "swiglu"}


def _plain_block(positions: int) -> dict[str, Any]:
    """Returns the choices of GPT-2 and GPT-3."""
    biases = dict.fromkeys(("norm_bias", "qkv_bias", "o_bias", "mlp_bias"), True)
    shape = {"norm": "layernorm", "position": "learned", "position_rows": positions}
    return {**shape, **biases, "activation": "gelu", "tied_embeddings": True}


def _kin(run: Run, shelf: Shelf) -> Model | None:
    """Returns the model of the catalog that is most like a run's: of its family, gated as it is.

    Most like is the one that shares most dimensions, then most of the name.
    """
    name = _plain(run.model)
    family = re.match(r"[a-z]*", name)
    if not family or not family[0]:
        return None

    def likeness(model: Model) -> tuple[int, int]:
        shape = ("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab")
        alike = sum(getattr(run, key) == getattr(model, key) for key in shape)
        theirs = _plain(model.name)
        shared = next((i for i, (a, b) in enumerate(zip(name, theirs, strict=False)) if a != b),
                      min(len(name), len(theirs)))  # fmt: skip
        return alike, shared

    def related(model: Model) -> bool:
        if re.match(r"[a-z]*", _plain(model.name)) != family and not _plain(model.name).startswith(family[0]):
            return False
        if run.gated_mlp is not None and run.gated_mlp != (model.activation in ("swiglu", "geglu")):
            return False
        return run.experts is None or (run.experts > 1) == (model.moe is not None)

    kin = [model for model in shelf.models if related(model)]
    return max(kin, key=likeness, default=None)


def _moe(run: Run, kin: Model | None, ffn: int) -> Moe:
    """Returns a run's experts: from its columns, else as its kin's of the same width."""
    stated: dict[str, Any] = {"experts": run.experts, "topk": run.topk}
    if run.expert_ffn is not None:
        stated["expert_ffn"] = run.expert_ffn
    if run.shared_ffn is not None:
        stated["shared_ffn"] = run.shared_ffn
    dense = run.dense_layers
    if dense is None:
        dense = _noted(r"dense_layers\D{0,3}(\d+)", run.notes)
    if dense is not None:
        stated["first_dense"] = dense
    stated = {key: value for key, value in stated.items() if value is not None}
    same = kin and kin.moe and kin.hidden == run.hidden and kin.moe.experts == run.experts
    if same and kin and kin.moe:
        moe = replace(kin.moe, **stated)
        return replace(moe, first_dense=min(moe.first_dense, run.layers or 0))
    return Moe(**{"topk": 1, "expert_ffn": ffn, **stated})


def _noted(pattern: str, notes: str) -> int | None:
    found = re.search(pattern, notes, re.I)
    return int(found[1]) if found else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


# --- The plan


def _degrees(run: Run) -> dict[str, int]:
    """Returns the degrees and the devices; what all the others leave is data-parallel."""
    if run.tp is None and run.pp is None and run.dp is None:
        raise SpecError("dp, tp, pp", "missing")
    tp, pp, cp, ep = run.tp or 1, run.pp or 1, run.cp or 1, run.ep or 1
    rest = tp * pp * cp
    dp = run.dp
    if dp is None:
        if not run.gpus or run.gpus % rest:
            raise SpecError("dp", f"missing, and tp x pp x cp = {rest} does not divide the devices")
        dp = run.gpus // rest
    devices = dp * rest
    if run.gpus and run.gpus != devices:
        raise SpecError("gpus", f"{run.gpus}, where the degrees multiply to {devices}")
    return {"dp": dp, "tp": tp, "cp": cp, "ep": ep, "pp": pp, "devices": devices}


def _plan(run: Run, problem: Problem, degrees: dict[str, Any]) -> tuple[Plan, tuple[str, ...]]:
    """Returns the plan of a run and those of mbs, vpp and recompute that had to be found.

    What is open is the fastest that fits; where nothing fits, what lacks least.
    """
    batch = problem.workload.global_batch_size
    dp, pp = degrees["dp"], degrees["pp"]
    layers, listed = _layers(run, problem.model.layers, pp)
    schedule = _schedule(run)
    chunked = schedule not in (None, "interleaved", "zb-v")
    vpps = (run.vpp,) if run.vpp else (1,) if pp == 1 or chunked else ()
    recomputes = _recomputes(run)
    found = ["mbs"] * (run.mbs is None) + ["vpp"] * (not vpps) + ["recompute"] * (not recomputes)
    if run.recompute and len(recomputes) == 1:
        found = [name for name in found if name != "recompute"]
    elif "recompute" not in found and len(recomputes) != 1:
        found.append("recompute")
    chunk_layers = layers[0] // (vpps[0] if vpps else 1)
    fraction = run.offload_fraction or 0.0

    def spelled(mbs: int, vpp: int, recompute: Recompute) -> Plan:
        order: Schedule = schedule or ("interleaved" if vpp > 1 else "1f1b")
        if order == "interleaved" and vpp == 1:
            order = "1f1b"
        offload = round(fraction * min(layers) / vpp)
        shared = {key: degrees[key] for key in degrees}
        return Plan(
            **shared,
            vpp=vpp,
            mbs=mbs,
            schedule=order,
            stages=tuple(
                Stage(layers=n, recompute=_within(recompute, n // vpp), offload=offload)
                for n in layers
            ),
        )

    if not found:
        return spelled(run.mbs or 1, vpps[0], recomputes[0]), ()
    uniform = len(set(layers)) == 1 and not listed
    if uniform and not fraction and degrees["shard_group"] in (1, dp * degrees["cp"]):
        plan = _searched(run, problem, degrees, vpps, recomputes, schedule)
    else:
        share = max(1, batch // dp)
        mbs = (run.mbs,) if run.mbs else tuple(_halving(share))
        chunks = vpps or tuple(v for v in range(1, min(layers) + 1) if all(n % v == 0 for n in layers))
        every = recomputes or tuple(_every_recompute(chunk_layers))
        plan = _fastest(problem, (spelled(*choice) for choice in product(mbs, chunks, every)))
    values = {"mbs": plan.mbs, "vpp": plan.vpp, "recompute": _spelled(plan.stages[0].recompute)}
    return plan, tuple(f"{name}={values[name]}" for name in found)


def _searched(
    run: Run,
    problem: Problem,
    degrees: dict[str, Any],
    vpps: tuple[int, ...],
    recomputes: tuple[Recompute, ...],
    schedule: Schedule | None,
) -> Plan:
    """Returns the fastest plan with given degrees, by the search."""
    kinds: dict[Granularity, None] = dict.fromkeys(r.granularity for r in recomputes)
    options = replace(
        problem.options,
        **{key: (degrees[key],) for key in ("dp", "tp", "sp", "cp", "ep", "pp", "zero")},
        vpp=vpps,
        mbs=(run.mbs,) if run.mbs else (),
        schedules=(schedule,) if schedule else ("1f1b", "interleaved"),
        recompute=tuple(kinds) or ("none", "selective", "uniform"),
        partial_shard_groups=False,
        activation_offload=False,
        optimizer_offload=False,
        uneven_layers=False,
        expert_tensor_parallel=degrees["etp"] > 1,
    )
    report = planner.solve(replace(problem, options=options), threads=1)
    if report.ranked:
        return report.ranked[0].plan
    if report.infeasible is not None and report.infeasible.kind == "memory":
        return report.infeasible.nearest.plan
    raise SpecError("plan", "no mbs, vpp and recompute make its degrees a legal plan")


def _fastest(problem: Problem, plans: Iterator[Plan]) -> Plan:
    """Returns the fastest of some plans that fits, else the one that lacks least."""
    best: tuple[bool, int, Plan] | None = None
    refused = None
    for plan in plans:
        try:
            cost = planner.estimate(problem, plan)
        except SpecError as error:
            refused = error
            continue
        lacks = max(s.allocated_bytes - s.capacity_bytes for s in cost.stages)
        fits = not cost.violations
        key = (not fits, cost.step_ps if fits else lacks)
        if best is None or key < best[:2]:
            best = (*key, plan)
    if best is None:
        raise refused or SpecError("plan", "no plan has its degrees")
    return best[2]


def _layers(run: Run, layers: int, pp: int) -> tuple[tuple[int, ...], bool]:
    """Returns the layers of each stage, and whether the row lists them.

    A list may count the embedding and the head, and what stands about them, as layers: what it has
    beyond the model's layers is then taken from both ends. Where the layers do not divide, the
    embedding and the head stand for one each; failing that the last stage has fewer.
    """
    listed = _listed_layers(run)
    if listed:
        if len(listed) != pp:
            raise SpecError("layers_per_stage", f"{len(listed)} stages listed for pp {pp}")
        beyond = sum(listed) - layers
        if beyond < 0 or beyond % 2:
            raise SpecError("layers_per_stage", f"{sum(listed)} layers listed of {layers}")
        listed[0] -= beyond // 2
        listed[-1] -= beyond // 2
        if min(listed) < 1:
            raise SpecError("layers_per_stage", "a stage without a layer")
        return tuple(listed), True
    if layers % pp == 0 and not re.search(r"embedding slots? count", run.notes):
        return (layers // pp,) * pp, False
    if (layers + 2) % pp == 0 and pp > 1:
        share = (layers + 2) // pp
        return (share - 1, *(share,) * (pp - 2), share - 1), True
    if last := _noted(r"last stage has (\d+) (?:block|layer)", run.notes):
        if (layers - last) % (pp - 1) == 0:
            return (*((layers - last) // (pp - 1),) * (pp - 1), last), True
    share = -(-layers // pp)
    if share * (pp - 1) < layers:
        return (*(share,) * (pp - 1), layers - share * (pp - 1)), True
    more = layers % pp
    return (*(layers // pp + 1,) * more, *(layers // pp,) * (pp - more)), True


def _listed_layers(run: Run) -> list[int]:
    """Returns the layers of each stage as the row's column or notes list them."""
    if run.layers_per_stage:
        numbers = re.findall(r"\d+", run.layers_per_stage)
        return [int(number) for number in numbers]
    if found := re.search(r"num-layer-list ((?:\d+,)+\d+)", run.notes):
        return [int(number) for number in found[1].split(",")]
    if found := re.search(r"layer boundaries \[([\d, ]+)\]", run.notes):
        cuts = [int(number) for number in found[1].split(",")]
        return [after - before for before, after in zip(cuts, cuts[1:], strict=False)]
    return []


def _schedule(run: Run) -> Schedule | None:
    """Returns the order of passes that the row names."""
    text = (run.schedule or " ".join(re.findall(r"[\w-]+ (?:PP )?schedule", run.notes))).lower()
    if not text:
        return None
    if "interleaved" in text:
        return "interleaved"
    for word, schedule in (("zb-v", "zb-v"), ("zbv", "zb-v"), ("zb", "zb-h1"), ("zero", "zb-h1"),
                           ("gpipe", "gpipe"), ("1f1b", "1f1b")):  # fmt: skip
        if word in text:
            return schedule  # type: ignore[return-value]
    return None


def _recomputes(run: Run) -> tuple[Recompute, ...]:
    """Returns what a run may have recomputed: one thing, or nothing known."""
    text = run.recompute.lower()
    block = re.search(r"block\D{0,12}(\d+)", text) or re.search(
        r"recompute[- ]method block (?:num_layers )?(\d+)", run.notes
    )
    if not text or text in ("unknown", "?"):
        return ()
    if block and text not in NOTHING:
        return (Recompute("block", int(block[1])),)
    if text in NOTHING:
        return (Recompute(),)
    if "partial" in text:
        return ()
    if second := re.search(r"every (\d+)(st|nd|rd|th)? layer", text):
        chunk = (run.layers or 1) // (run.pp or 1) // (run.vpp or 1)
        return (Recompute("block", max(1, chunk // int(second[1]))),)
    if "selective" in text:
        return (Recompute("selective"),)
    if uniform := re.search(r"uniform\D*(\d+)", text):
        return (Recompute("uniform", int(uniform[1])),)
    if re.search(r"full|uniform|all|yes|true|1|on", text):
        return (Recompute("uniform", 1),)
    raise SpecError("recompute", f"no estimate for {shown(run.recompute)}")


NOTHING = ("none", "no", "off", "0", "false")


def _every_recompute(chunk: int) -> Iterator[Recompute]:
    yield Recompute()
    yield Recompute("selective")
    yield from (Recompute("block", layers) for layers in range(1, chunk + 1))


def _within(recompute: Recompute, chunk: int) -> Recompute:
    """Returns a recompute with no more layers than a chunk has."""
    if recompute.layers is None:
        return recompute
    return replace(recompute, layers=max(1, min(recompute.layers, chunk)))


def _spelled(recompute: Recompute) -> str:
    return f"{recompute.granularity}/{recompute.layers}" if recompute.layers else recompute.granularity


def _halving(share: int) -> Iterator[int]:
    """Yields the powers of two that divide a replica's batch."""
    mbs = 1
    while share % mbs == 0 and mbs <= LARGEST_MICRO_BATCH:
        yield mbs
        mbs *= 2


# --- The measurement


def _rate(run: Run, assumed: list[str]) -> Rate | None:
    """Returns the rate that says most directly how long a step took."""
    if run.iter_time_s:
        return Rate(unit="step_s", value=run.iter_time_s)
    if run.tokens_per_s_per_gpu:
        return Rate(unit="tokens_per_s_per_device", value=run.tokens_per_s_per_gpu)
    if not run.model_tflops_per_gpu and not run.mfu:
        return None
    convention = _convention(run.flops_convention)
    if not run.flops_convention:
        assumed.append(f"flops_convention={convention.work}_{convention.attention}_attention")
    if run.model_tflops_per_gpu:
        return Rate(
            unit="tflops_per_device", value=run.model_tflops_per_gpu, convention=convention
        )
    return Rate(unit="mfu", value=run.mfu or 0.0, convention=convention)


def _convention(text: str) -> Convention:
    """Returns the convention that a text names: model FLOPs and full attention unless it says."""
    words = _words(text.replace("_", " "))
    work: Work = "model"
    for known in get_args(Work):
        if known in words:
            work = known
    attention: Counted = "none" if work in ("6n", "8n") else "full"
    for counted in get_args(Counted):
        if counted in words or (counted == "none" and "no" in words):
            attention = counted
    if text and not {"model", "hardware", "6n", "8n"} & set(words):
        what = f"no convention is called {shown(text)}"
        raise SpecError("flops_convention", what, "Write model_full_attention or the like.")
    return Convention(work=work, attention=attention)
