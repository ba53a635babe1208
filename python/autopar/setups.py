"""A measured run as the problem and plan that it was, and what had to be assumed to say so.

What a row leaves open is filled from the catalog: the model of the same name and shape, the chip,
the framework's profile and its time. Words of the notes are read as data (`unfused`, `eager`,
`num-layer-list 5,6,6`); no source is known by name. What cannot be expressed is refused.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice, pairwise, product
from math import gcd
from typing import Any, get_args

from autopar import planner
from autopar.as_run import (
    ACTIVATIONS,
    ALL_BUT_ATTENTION,
    FILLERS,
    NORMS,
    PROJECTIONS,
    TAKEN_BACK,
    as_run,
)
from autopar.catalog import FrameworkEntry
from autopar.cluster import Chip, Cluster
from autopar.errors import SpecError, shown
from autopar.report import Convention, Counted, NamedLayers, Plan, Rate, Recompute, Stage, Work
from autopar.runs import Run
from autopar.shelf import Shelf, devices, framework, stores_scores, words_of
from autopar.spec import Attention, Model, Precision, Problem, Schedule
from autopar.trained import noted, trained

LARGEST_MICRO_BATCH = 64
DRIVER_ERROR = 0.05  # stated for the memory that the driver shows or the allocator reserves


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


def setup(run: Run, shelf: Shelf) -> Setup:
    """Returns a run as it was set up.

    Raises:
        SpecError: The run cannot be expressed.
    """
    if re.search(r"micro-?benchmark", run.notes, re.I):
        raise SpecError("notes", "part of a model timed alone")
    for key in ("seq_len", "gbs"):
        if not getattr(run, key):
            raise SpecError(key, "missing")
    assumed: list[str] = []
    entry, named = framework(run, shelf)
    if not named:
        assumed.append(f"framework={entry.framework.name}")
        # How many chunks its users take, and how their loss is computed, does not tell of others.
        entry = replace(entry, run=replace(entry.run, vpp=0, loss_bytes=0))
    groups = devices(run, shelf)
    device = groups[0].chip
    degrees = _degrees(run, entry, assumed)
    model = trained(run, shelf, assumed)
    precision = _precision(run, entry, device, assumed)
    entry = replace(entry, framework=entry.at(precision))
    attention = _attention(run, entry, assumed)
    problem = planner.problem(
        model,
        Cluster(groups=groups, devices=degrees.pop("devices")),
        global_batch_size=run.gbs or 0,
        sequence_length=run.seq_len or 0,
        precision=precision,
        framework=as_run(entry, run, shelf, attention),
        attention=attention,
        dropout=entry.run.dropout if run.dropout is None else run.dropout,
        expert_load_variation=run.expert_load_variation or 0.0,
        memory_margin=0.0,
        top=1,
    )
    degrees |= _sharding(run, entry, device, degrees, problem.model, assumed)
    plan, found = _plan(run, entry, problem, degrees, assumed)
    return Setup(
        problem=problem,
        plan=plan,
        rate=_rate(run, assumed),
        assumed=(*assumed, *found),
        open=tuple(setting.partition("=")[0] for setting in found),
    )


# --- How it ran


def _precision(run: Run, entry: FrameworkEntry, device: Chip, assumed: list[str]) -> Precision:
    """Returns the number format that the row names, else the framework's, else 16 bits."""
    text = run.precision.lower()
    known: list[Precision] = sorted(
        get_args(Precision), key=lambda name: name not in ("fp4", "fp8")
    )
    for name in known:
        if name in text:
            return name
    if text and not re.search(r"mixed|amp|half|16", text):
        raise SpecError("precision", f"no estimate for {shown(run.precision)}")
    usual = "bf16" if device.peak_tflops.bf16 else "fp16"
    if not text and entry.run.default_precision:
        usual = entry.run.default_precision
    assumed.append(f"precision={usual}")
    return next(name for name in known if name == usual)


def _attention(run: Run, entry: FrameworkEntry, assumed: list[str]) -> Attention:
    """Returns how attention was computed by the row's column or notes, else as was usual."""
    text = (run.attention or run.notes).lower()
    if stores_scores(run):
        return "unfused"
    if re.search(r"\bflash|\bsdpa\b|fused attention", text) or re.search(
        r"\bfused\b|\bflex", run.attention, re.I
    ):
        return "flash"
    assumed.append(f"attention={entry.run.attention}")
    return entry.run.attention


def _sharding(
    run: Run,
    entry: FrameworkEntry,
    device: Chip,
    degrees: dict[str, int],
    model: Model,
    assumed: list[str],
) -> dict[str, Any]:
    """Returns sequence parallel, ZeRO, expert-tensor parallel and where the optimizer is."""
    tp, ranks = degrees["tp"], degrees["dp"] * degrees["cp"]
    sp = run.sp
    if sp is None:
        # A sequence that cannot be cut was not.
        sp = entry.run.sp and (run.seq_len or 0) % (tp * degrees["cp"]) == 0
        if tp > 1:
            assumed.append(f"sp={str(sp).lower()}")
    zero = _zero(run, entry, assumed)
    if ranks == 1:
        zero = 0  # One rank shards nothing.
    etp = 1
    if model.moe and tp > 1:
        etp = run.etp or noted(r"(?:expert[ -]tp|\betp)[ =]*(\d+)", run.notes) or 0
        if not etp and not re.search(r"expert[ -]tp *= *tp", run.notes, re.I):
            # Where experts lie on all ranks, none are left to cut one over. Recipes cut no expert
            # that is narrower than the model (Megatron-LM's and Pai-Megatron-Patch's for Qwen3).
            narrow = model.moe.expert_ffn < model.hidden
            cut = entry.run.expert_tensor_parallel and not narrow and ranks % degrees["ep"] == 0
            etp = tp if cut else 1
            assumed.append(f"etp={etp}")
        etp = etp or tp
    return {
        "sp": sp and tp > 1,
        "zero": zero,
        "shard_group": _shard_group(run, ranks, device) if zero else 1,
        "etp": etp,
        "optimizer_offload": bool(
            re.search(rf"{TAKEN_BACK}({OPTIMIZER_ON_HOST})", run.notes, re.I)
        ),
    }


def _zero(run: Run, entry: FrameworkEntry, assumed: list[str]) -> int:
    text = run.zero.lower()
    if not text:
        assumed.append(f"zero={entry.run.zero}")
        return entry.run.zero
    if "fsdp" in text or "hsdp" in text:
        # Gathered once and whole until the backward pass has ended, as in ZeRO-2.
        return 2 if re.search(KEPT_WHOLE, run.notes, re.I) else 3
    if stage := re.search(r"[0-3]", text):
        return int(stage[0])
    if text in NOTHING or text == "ddp":
        return 0
    if "dist" in text:
        return 1
    raise SpecError("zero", f"must be 0 to 3 or fsdp, found {shown(run.zero)}")


# What FSDP's `CPUOffload` takes to the host is updated there.
OPTIMIZER_ON_HOST = (
    r"offload of [\w ]*optimizer|\boptimizer( states?)?( are| is| kept)? in host memory"
    r"|\bCPU-?Offload\b"
)

KEPT_WHOLE = r"reshard_after_forward[ =:]*(never|false)|never reshard|\bnot resharded"


def _shard_group(run: Run, ranks: int, device: Chip) -> int:
    """Returns over how many ranks ZeRO shards: a node's where the row says so."""
    if run.shard_group:
        return run.shard_group
    inside = re.search(
        r"sharded (?:over (\d+) \w+ )?(?:with)?in(?:side)? (?:a |one )?node", run.notes
    )
    if inside or "hsdp" in run.zero.lower():
        return gcd(ranks, int((inside and inside[1]) or device.devices_per_node))
    return ranks


# --- The plan


def _degrees(run: Run, entry: FrameworkEntry, assumed: list[str]) -> dict[str, int]:
    """Returns the degrees and the devices; what all the others leave is data-parallel.

    A row without any degree is data-parallel where it shards as FSDP does.
    """
    if run.tp is None and run.pp is None and run.dp is None:
        sharded = "fsdp" in run.zero.lower() or (entry.run.zero == 3 and not run.zero)
        if not run.gpus or not (sharded or "3" in run.zero):
            raise SpecError("dp, tp, pp", "missing")
        assumed.append(f"dp={run.gpus // (run.cp or 1)}")
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


def _plan(
    run: Run,
    entry: FrameworkEntry,
    problem: Problem,
    degrees: dict[str, Any],
    assumed: list[str],
) -> tuple[Plan, tuple[str, ...]]:
    """Returns the plan of a run, and those of mbs, vpp and recompute that its row leaves open.

    What neither the row nor the framework's habit says is the fastest that fits among what people
    write: powers of two, whole chunks. Recompute is what they turn to where nothing fits without
    it, by more than the estimate of memory errs: a larger micro-batch is not bought with it. Where
    nothing fits, it is what lacks least.
    """
    layers = _layers(run, problem.model.layers, degrees["pp"], assumed)
    chips = _stage_chips(problem.cluster, degrees["pp"])
    schedule = _schedule(run)
    vpps, said = _chunks(run, entry, schedule, layers)
    mbs = (run.mbs,) if run.mbs else _micro_batches(run.gbs or 1, degrees, entry)
    stated = _is_stated(run.recompute)
    habit = run.recompute if stated else "" if run.recompute else entry.run.recompute

    def plans(mbs: int, vpp: int) -> Iterator[Plan]:
        """Yields the plans with given micro-batches and chunks, the faster ones first."""
        chunk = -(-max(layers) // vpp)
        if _is_stated(habit):
            kinds: Iterable[Recompute] = (_recompute(habit, run.notes, entry, chunk),)
        else:
            kinds = _possible_recomputes(run, chunk)
        for recompute in kinds:
            yield Plan(
                **degrees,
                vpp=vpp,
                mbs=mbs,
                schedule=schedule or ("interleaved" if vpp > 1 else "1f1b"),
                stages=tuple(
                    Stage(
                        layers=n,
                        chip=kind,
                        recompute=_within(recompute, n, vpp),
                    )
                    for n, kind in zip(layers, chips, strict=True)
                ),
            )

    pairs = list(product(mbs, vpps))
    if len(pairs) == 1 and _is_stated(habit):
        [plan] = plans(*pairs[0])
    else:
        plan = planner.fastest(problem, (islice(plans(*pair), 1) for pair in pairs))
        if not _is_stated(habit) and _lacks(problem, plan) > DRIVER_ERROR:
            plan = planner.fastest(problem, (plans(*pair) for pair in pairs))
    recompute = plan.stages[0].recompute
    found = {
        "mbs": not run.mbs and str(plan.mbs),
        "vpp": not said and str(plan.vpp),
        "recompute": not stated
        and "/".join(str(part) for part in (recompute.granularity, recompute.layers) if part),
    }
    return plan, tuple(f"{name}={value}" for name, value in found.items() if value)


def _lacks(problem: Problem, plan: Plan) -> float:
    """Returns the largest share by which a stage needs more memory than its device has."""
    stages = planner.estimate(problem, plan).stages
    return max(stage.allocated_bytes / stage.capacity_bytes - 1 for stage in stages)


def _stage_chips(cluster: Cluster, pp: int) -> list[int]:
    """Returns which kind holds each stage: as many as a kind's devices make, kind after kind.

    Raises:
        SpecError: A stage would hold two kinds.
    """
    if len(cluster.groups) == 1:
        return [0] * pp
    per_stage = (cluster.devices or 0) // pp
    chips: list[int] = []
    for kind, group in enumerate(cluster.groups):
        stages, rest = divmod(group.limit or 0, per_stage)
        if rest:
            raise SpecError("chip", f"a stage of {per_stage} devices would hold two kinds of chip")
        chips += [kind] * stages
    if len(chips) != pp:
        raise SpecError("chip", f"devices for {len(chips)} stages, where pp is {pp}")
    return chips


def _chunks(
    run: Run, entry: FrameworkEntry, schedule: Schedule | None, layers: tuple[int, ...]
) -> tuple[tuple[int, ...], bool]:
    """Returns the chunks that a stage may hold, and whether the row says how many."""
    if run.vpp:
        return (run.vpp,), True
    if len(layers) == 1 or schedule in ("1f1b", "gpipe", "zb-h1"):
        return (1,), True
    if schedule == "zb-v":
        return (2,), True
    whole = tuple(v for v in range(1, max(layers) + 1) if _cuts(layers, v))
    if schedule == "interleaved":
        if len(whole) == 1:
            raise SpecError("vpp", "missing, and no number of chunks divides the stages' layers")
        usual = entry.run.interleaved_vpp
        return ((usual,) if usual in whole else whole[1:]), False
    return ((entry.run.vpp,) if entry.run.vpp else whole), False


def _cuts(layers: tuple[int, ...], vpp: int) -> bool:
    """Returns whether stages split into so many equal chunks, of which the ends' may lack a few.

    Interleaved, the embedding and the head may take the place of layers in the first and the last.
    """
    chunks = [-(-count // vpp) for count in layers]
    lacks = [chunk * vpp - count for chunk, count in zip(chunks, layers, strict=True)]
    ends = all(lacks[end] <= (chunks[end] if vpp > 1 else 0) for end in (0, -1))
    return ends and not any(lacks[1:-1])


def _layers(run: Run, layers: int, pp: int, assumed: list[str]) -> tuple[int, ...]:
    """Returns the layers of each stage.

    A list may count the embedding and the head, and what stands about them, as layers: what it has
    beyond the model's layers is taken from both ends. Without a list the shares are equal; where
    the layers do not divide, the embedding and the head stand for one each.
    """
    if listed := _listed_layers(run):
        beyond = sum(listed) - layers
        if len(listed) != pp or beyond < 0 or beyond % 2:
            what = f"{sum(listed)} layers in {len(listed)} stages listed of {layers} in {pp}"
            raise SpecError("layers_per_stage", what)
        listed[0] -= beyond // 2
        listed[-1] -= beyond // 2
        if min(listed[1:-1], default=1) < 1 or min(listed) < 0:
            raise SpecError("layers_per_stage", "a stage between the ends without a layer")
        return tuple(listed)
    slots = re.search(r"embedding slots?", run.notes)
    if layers % pp == 0 and not slots:
        return (layers // pp,) * pp
    last = noted(r"last stage has (\d+) (?:block|layer)", run.notes)
    if last and (layers - last) % (pp - 1) == 0:
        return (*((layers - last) // (pp - 1),) * (pp - 1), last)
    chunks = pp * (run.vpp or 1)
    lack = -layers % chunks
    chunk = (layers + lack) // chunks
    if chunks > pp and (layers + 2) % chunks and lack <= 2 * chunk:
        # Whole chunks, of which the last, and then the first, lack what is missing.
        shares = [chunk * chunks // pp] * pp
        shares[-1] -= min(lack, chunk)
        shares[0] -= max(lack - chunk, 0)
        assumed.append(f"layers_per_stage={'-'.join(map(str, shares))}")
        return tuple(shares)
    ends = 1 if slots or (layers + 2) % pp == 0 else 0
    share, more = divmod(layers + 2 * ends, pp)
    shares = [share + 1] * more + [share] * (pp - more)
    shares[0] -= ends
    shares[-1] -= ends
    if not slots:
        assumed.append(f"layers_per_stage={'-'.join(map(str, shares))}")
    return tuple(shares)


def _listed_layers(run: Run) -> list[int]:
    """Returns the layers of each stage as the row's column or notes list them."""
    if run.layers_per_stage:
        numbers = re.findall(r"\d+", run.layers_per_stage)
        return [int(number) for number in numbers]
    if found := re.search(r"num-layer-list ((?:\d+,)+\d+)", run.notes):
        return [int(number) for number in found[1].split(",")]
    if found := re.search(r"layer boundaries \[([\d, ]+)\]", run.notes):
        cuts = [int(number) for number in found[1].split(",")]
        return [after - before for before, after in pairwise(cuts)]
    return []


def _schedule(run: Run) -> Schedule | None:
    """Returns the order of passes that the row names."""
    text = (run.schedule or " ".join(re.findall(r"[\w-]+ (?:PP )?schedule", run.notes))).lower()
    for word, schedule in SCHEDULES.items():
        if word in text:
            return schedule
    return None


SCHEDULES: dict[str, Schedule] = {
    "interleaved": "interleaved",
    "zb-v": "zb-v",
    "zbv": "zb-v",
    "zb": "zb-h1",
    "zero-bubble": "zb-h1",
    "gpipe": "gpipe",
    "1f1b": "1f1b",
}
NOTHING = ("none", "no", "off", "0", "false")
# kwai/Megatron-Kwai (Yuan et al., USENIX ATC 2024): what is cheap to compute again.
PART_OF_EACH_LAYER = "layer-partial"


def _is_stated(recompute: str) -> bool:
    """Returns whether a text says what is recomputed, and how much of it."""
    text = recompute.lower()
    part = "partial" in text and text != PART_OF_EACH_LAYER
    return bool(text) and not part and text not in UNSAID


UNSAID = ("unknown", "?", "n/a", "na", "-", "not stated", "unspecified")


def _recompute(text: str, notes: str, entry: FrameworkEntry, chunk: int) -> Recompute:
    """Returns what a text says is recomputed in chunks of so many layers.

    JAX's policies that keep the results of products (MaxText's `minimal`) compute all else again,
    attention too, whose kernel is none of these, unless they keep what it made (`minimal_flash`).
    """
    text = text.lower()
    if text in NOTHING or re.match(r"(no|without)\b", text):
        return Recompute()
    if PROJECTIONS in text or text == ALL_BUT_ATTENTION:
        return Recompute("selective")
    if text == PART_OF_EACH_LAYER:
        text = "norms and activations"
    words = set(words_of(text)) - {"selective"}
    if words and words <= NORMS | ACTIVATIONS | FILLERS:
        norm, activation = (chunk if words & named else 0 for named in (NORMS, ACTIVATIONS))
        if not norm and not activation:
            return Recompute()
        return Recompute(
            "parts", 0, regathers=False, operators=NamedLayers(norm=norm, activation=activation)
        )
    some = re.search(r"block\D{0,3}(\d+)", text) or re.search(
        r"recompute[- ]method block (?:num_layers )?(\d+)", notes
    )
    if some:
        return Recompute("block", int(some[1]))
    if share := re.search(r"(\d+) ?%", text):
        return Recompute("block", max(1, round(chunk * int(share[1]) / 100)))
    if share := re.search(r"(\d+) ?(?:/|of) ?([1-9]\d*) layers", text):
        return Recompute("block", max(1, round(chunk * int(share[1]) / int(share[2]))))
    if turn := re.search(r"every (\d+)(?:st|nd|rd|th)? layer", text):
        return Recompute("block", max(1, chunk // int(turn[1])))
    if products := re.search(r"minimal(_flash)?|\bdots_", f"{text} {notes}"):
        core = 0 if products[1] else chunk
        again = NamedLayers(norm=chunk, attention=core, activation=chunk)
        return Recompute("parts", 0, regathers=False, operators=again)
    if re.search(r"selective|attn|attention|\bcore\b|\bsac\b|\bop\b", text):
        return Recompute("selective")
    if groups := re.search(r"uniform\D{0,3}(\d+)", text):
        return Recompute("uniform", int(groups[1]))
    if text == "half":
        return Recompute("block", max(1, chunk // 2))
    if re.search(r"\b(full|uniform|block|all|yes|true|1|on|ac|ckpt|nothing_saveable)\b", text):
        return Recompute("uniform", 1)
    if re.search(r"\bcheckpoint(s|ing)?\b", text):
        return Recompute("uniform", 1)
    raise SpecError("recompute", f"no estimate for {shown(text)}")


def _possible_recomputes(run: Run, chunk: int) -> Iterator[Recompute]:
    """Yields what may be recomputed where nobody says, from the least to the most."""
    if "partial" not in run.recompute.lower():
        yield from (Recompute(), Recompute("selective"))
    yield from (Recompute("block", layers) for layers in range(1, chunk + 1))


def _within(recompute: Recompute, layers: int, vpp: int) -> Recompute:
    """Returns a recompute with no more layers than a chunk has, operators in all of a stage's."""
    if (operators := recompute.operators) is not None:
        everywhere = {name: layers for name, count in asdict(operators).items() if count}
        return replace(recompute, operators=NamedLayers(**everywhere))
    if recompute.layers is None:
        return recompute
    return replace(recompute, layers=max(1, min(recompute.layers, -(-layers // vpp))))


def _micro_batches(batch: int, degrees: dict[str, Any], entry: FrameworkEntry) -> tuple[int, ...]:
    """Returns what a micro-batch may be: the powers of two that divide a replica's batch.

    In a pipeline it is what the framework's habit makes of that batch, if it has one.
    """
    own, rest = divmod(batch, degrees["dp"])
    if entry.run.micro_batch_a_stage and degrees["pp"] > 1 and own % degrees["pp"] == rest == 0:
        return (own // degrees["pp"],)
    sizes = [1]
    while sizes[-1] < LARGEST_MICRO_BATCH and rest == own % (2 * sizes[-1]) == 0:
        sizes.append(2 * sizes[-1])
    return tuple(sizes)


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
        return Rate(unit="tflops_per_device", value=run.model_tflops_per_gpu, convention=convention)
    share = run.mfu or 0.0
    return Rate(unit="mfu", value=share / 100 if share > 1 else share, convention=convention)


def _convention(text: str) -> Convention:
    """Returns the convention that a text names: model FLOPs and full attention unless it says."""
    words = words_of(text.replace("_", " "))
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
