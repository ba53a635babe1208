"""Plans from the degrees that somebody spells out, and from the files of launchers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autopar import _core, wire
from autopar.errors import SpecError, shown
from autopar.frontends.launch import Launch
from autopar.frontends.places import Place
from autopar.planner.question import problem
from autopar.report import Plan, Recompute, Stage
from autopar.spec import Problem, Schedule


def plan(
    problem: Problem,
    *,
    dp: int | None = None,
    tp: int | Sequence[int] = 1,
    sp: bool | None = None,
    cp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    pp: int = 1,
    vpp: int = 1,
    mbs: int = 1,
    zero: int = 0,
    shard_group: int | None = None,
    schedule: Schedule | None = None,
    optimizer_offload: bool = False,
    chips: Sequence[int] | None = None,
    layers: Sequence[int] | None = None,
    recompute: Recompute | Sequence[Recompute] | None = None,
    offload: int = 0,
) -> Plan:
    """Returns a plan with what was left out filled in; `estimate` refuses one that breaks a rule.

    Args:
        problem: What is trained, on what.
        dp: Data-parallel replicas; the devices that the other degrees leave unless given.
        tp: Tensor-parallel degree, or that of each kind of chip in the cluster's order.
        sp: Sequence parallel; on with `tp` > 1 unless given.
        cp: Context-parallel degree.
        ep: Expert-parallel degree.
        etp: Tensor-parallel degree inside an expert; as `Options.expert_tensor_parallel` says.
        pp: Pipeline stages.
        vpp: Model chunks that a stage holds.
        mbs: Sequences in one micro-batch.
        zero: ZeRO stage, 0 to 3.
        shard_group: Ranks over which ZeRO shards; dp x cp, or 1 without ZeRO, unless given.
        schedule: Order of passes; 1f1b, or interleaved with `vpp` > 1, unless given.
        optimizer_offload: Optimizer state and step on the host.
        chips: Index of each stage's kind of chip; all the first kind unless given.
        layers: Layers of each stage; equal shares unless given.
        recompute: What every stage recomputes, or the stages on each kind of chip; else nothing.
        offload: Layers of each stage whose activations wait in host memory.

    Raises:
        SpecError: An argument has another type, a share is not whole, or a list does not have one
            item a stage.

    Example:
        >>> question = problem("llama2-7b", "a800:8", global_batch_size=64, sequence_length=4096)
        >>> two = plan(question, pp=2, recompute=Recompute("block", 4))
        >>> two.dp, [stage.layers for stage in two.stages]
        (4, [16, 16])
    """
    wire.check(Problem, problem, "problem")
    kinds = len(problem.cluster.groups)
    # Arguments come from callers without a type checker too.
    asked = wire.read(
        _Asked,
        {
            "dp": dp,
            "tp": tp if wire.is_list(tp) else (wire.integer(tp, "tp"),) * kinds,
            "sp": sp,
            "cp": cp,
            "ep": ep,
            "etp": etp,
            "pp": pp,
            "vpp": vpp,
            "mbs": mbs,
            "zero": zero,
            "shard_group": shard_group,
            "schedule": schedule,
            "optimizer_offload": optimizer_offload,
            "chips": chips,
            "layers": layers,
            "offload": offload,
        },
    )
    stages = _stages(problem, asked, recompute)
    of_kind = _degree_of_kinds(asked.tp, {stage.chip for stage in stages}, kinds)
    largest = max(of_kind)
    replicas = asked.dp
    if replicas is None:
        ranks = asked.cp * sum(of_kind[stage.chip] for stage in stages)
        total = problem.cluster.devices
        product = "tp x cp x pp =" if len({*of_kind}) == 1 else "tp x cp of all stages,"
        what, hint = f"{product} {ranks} does not divide {total} devices", "Give degrees that do."
        cuts = ("plan.tp", "plan.cp", "plan.pp", "cluster.devices")
        replicas = _share(total, ranks, SpecError("dp", what, hint, cuts))
    cuts_experts = problem.model.moe is not None and problem.options.expert_tensor_parallel
    return Plan(
        dp=replicas,
        tp=largest,
        tp_of_kind=of_kind if {*of_kind} - {0, largest} else (),
        sp=largest > 1 if asked.sp is None else asked.sp,
        cp=asked.cp,
        ep=asked.ep,
        etp=(largest if cuts_experts else 1) if asked.etp is None else asked.etp,
        pp=asked.pp,
        vpp=asked.vpp,
        mbs=asked.mbs,
        zero=asked.zero,
        shard_group=asked.shard_group or (replicas * asked.cp if asked.zero else 1),
        schedule=asked.schedule or ("interleaved" if asked.vpp > 1 else "1f1b"),
        optimizer_offload=asked.optimizer_offload,
        stages=stages,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The arguments of `plan`, of which None is to be filled in; `tp` of each kind of chip."""

    dp: int | None
    tp: tuple[int, ...]
    sp: bool | None
    cp: int
    ep: int
    etp: int | None
    pp: int
    vpp: int
    mbs: int
    zero: int
    shard_group: int | None
    schedule: Schedule | None
    optimizer_offload: bool
    chips: tuple[int, ...] | None
    layers: tuple[int, ...] | None
    offload: int


def _stages(
    problem: Problem, asked: _Asked, recompute: Recompute | Sequence[Recompute] | None
) -> tuple[Stage, ...]:
    """Returns the stages: their chips, their layers, and what those recompute."""
    kinds, pp, layers = len(problem.cluster.groups), asked.pp, asked.layers
    if layers is None:
        total = problem.model.layers
        what, hint = f"pp {pp} does not divide {total} layers", "Give the layers of each stage."
        fields = ("plan.stages.layers", "plan.pp", "model.layers")
        layers = (_share(total, pp, SpecError("layers", what, hint, fields)),) * pp
    for name, items in (("layers", layers), ("chips", asked.chips)):
        if items is not None and len(items) != pp:
            what = f"must have one item for each of {pp} stages, found {len(items)}"
            hint = "List the stages from first to last."
            raise SpecError(name, what, hint, (_field(name), "plan.pp"))
    chips = asked.chips or (0,) * pp
    again: Sequence[Any] = (recompute or Recompute(),) * kinds
    if wire.is_list(recompute):
        again = recompute
    for item in again:
        wire.check(Recompute, item, "recompute")
    if len(again) != kinds or max(chips) >= kinds:
        what = f"must name each of {kinds} kinds of chip by its index and recompute"
        raise SpecError("chips", what, "Count the kinds from 0.")
    return tuple(
        Stage(chip=chip, layers=count, recompute=again[chip], offload=asked.offload)
        for chip, count in zip(chips, layers, strict=True)
    )


def _degree_of_kinds(tp: tuple[int, ...], used: set[int], kinds: int) -> tuple[int, ...]:
    """Returns the tensor-parallel degree of each kind of chip, 0 of one that holds no stage."""
    if len(tp) != kinds:
        what = f"must have one degree for each of {kinds} kinds of chip, found {len(tp)}"
        raise SpecError("tp", what, "Give one degree for all, or list them as the cluster does.")
    if any(tp[kind] < 1 for kind in used):
        what = f"must be positive for every kind that holds a stage, found {list(tp)}"
        raise SpecError("tp", what, "Give 1 where nothing is cut.")
    return tuple(degree if kind in used else 0 for kind, degree in enumerate(tp))


def launched(
    job: Launch, question: Mapping[str, Any], degrees: Mapping[str, Any]
) -> tuple[Problem, Plan]:
    """Returns the problem and the plan of a launcher's file, what it leaves open filled in.

    Args:
        job: The file as it was read.
        question: Arguments of `problem`; the cluster is needed, the model where the file has none.
        degrees: Arguments of `plan` that the file leaves open.

    Raises:
        SpecError: Something is given twice or by nobody, or the plan is not one.
    """
    for given, said in ((question, job.question), (degrees, job.plan)):
        if twice := sorted(given.keys() & said.keys()):
            where = job.places.of(_field(twice[0]))
            what = f"given beside {where}, which says {said[twice[0]]}"
            raise SpecError(_flag(twice[0]), what, "Leave the flag out.")
    if "recompute" in degrees and (job.recompute is not None or job.every):
        what = f"given beside {job.places.of(_field('recompute'))}, which says it"
        raise SpecError("--recompute", what, "Leave the flag out.")
    if job.unclear and "recompute" not in degrees:
        hint = "Give the nearest of none, selective, block/N or uniform/N, or change the file."
        raise SpecError("--recompute", f"missing: {job.file}: {job.unclear}", hint)
    asked: dict[str, Any] = {"framework": job.framework, "model": job.model}
    asked |= {**job.question, **question}
    for name in ("model", "cluster", "global_batch_size", "sequence_length"):
        if asked.get(name) is None:
            what = f"missing: {job.places.missing(_field(name))}"
            raise SpecError(_flag(name), what, "Give the flag.")
    spelled = {**job.plan, **degrees}
    if (devices := devices_of(spelled)) is not None:
        asked.setdefault("devices", devices)
    try:
        given_problem = problem(**asked)
        framework = job.tuned(given_problem.framework)
        given_problem = wire.read(Problem, wire.write(replace(given_problem, framework=framework)))
        if given_problem.model.moe is None and spelled.get("ep", 1) == 1:
            # How a file would cut experts says nothing of a model without them.
            spelled.pop("etp", None)
        told = job.staged(plan(given_problem, **spelled))
        _core.check_plan(wire.dumps(given_problem), wire.dumps(told))
    except SpecError as error:
        flags = {
            _field(name): Place(_flag(name), value=shown(value))
            for name, value in {**question, **degrees}.items()
            if value is not None
        }
        raise job.places.told(error, flags) from None
    return given_problem, told


def _flag(argument: str) -> str:
    return f"--{argument.replace('_', '-')}"


def devices_of(degrees: Mapping[str, Any]) -> int | None:
    """Returns the devices that arguments of `plan` multiply to, if they say how many.

    Example:
        >>> devices_of({"dp": 4, "tp": 2})
        8
        >>> devices_of({"tp": 2}) is devices_of({"dp": 4, "tp": (1, 2)}) is None
        True
    """
    if "dp" not in degrees or not isinstance(degrees.get("tp", 1), int):
        return None
    return math.prod(int(degrees.get(name, 1)) for name in ("dp", "tp", "cp", "pp"))


def _share(total: int, parts: int, error: SpecError) -> int:
    """Returns one of equal whole shares; the error where they are not whole."""
    if parts < 1 or total % parts:
        raise error
    return total // parts


# Arguments of `plan` and `problem` whose fields have other names, or lie deeper, than they.
_FIELDS = {
    **{name: f"plan.stages.{name}" for name in ("layers", "recompute", "offload")},
    **{name: f"workload.{name}" for name in ("global_batch_size", "sequence_length", "precision",
                                             "attention", "dropout", "expert_load_variation")},
    **{name: name for name in ("model", "cluster", "framework")},
    "chips": "plan.stages.chip",
    "devices": "cluster.devices",
    "memory_margin": "options.memory_margin",
}  # fmt: skip


def _field(argument: str) -> str:
    """Returns the field of the documents that an argument of `plan` or `problem` gives."""
    return _FIELDS.get(argument, f"plan.{argument}")
