"""The command line of Baidu AIAK's APSS: its flags as a problem, a plan as its printed dict.

The dict says less than a plan: one pipeline schedule, no context or expert parallel, a sharded
optimizer or none, one setting of recompute for each kind of chip. The search is held to that.
"""

from dataclasses import dataclass, replace
from typing import Any

from autopar import catalog, files
from autopar.cluster import Cluster, DeviceGroup
from autopar.errors import SpecError, shown
from autopar.report import NoFactorisation, Plan, Ranked, Recompute, Report
from autopar.spec import Options, Problem, Workload

MODELS = (
    "llama-7b",
    "llama-65b",
    "llama-175b",
    "llama-540b",
    "llama-1800b",
    "llama2-7b",
    "llama2-13b",
    "llama2-70b",
    "llama2-35b",
    "glm-130b",
    "glm-67b",
    "galactica-6.7b",
    "galactica-30b",
    "galactica-120b",
)
CHIPS = ("a800", "h800", "h100", "kunlun3", "ascend_910b")
LARGEST = 1_048_576
NODE = 8
STEP = 512
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Question:
    """What a command asks.

    Attributes:
        problem: The problem, with options held to what the dict can say.
        kinds: The chips as the command named them, in its order.
        notes: Names that stand for something else.
    """

    problem: Problem
    kinds: tuple[str, ...]
    notes: tuple[str, ...]


def question(
    *,
    version: str,
    model_name: str = "llama2-70b",
    num_gpus: int = 256,
    gpu_infos: str = "a800",
    nproc_per_node: int = NODE,
    global_batch_size: int = 1024,
    sequence_length: int = 4096,
    top: int = 5,
) -> Question:
    """Returns the problem that the flags describe; the defaults are APSS's.

    Args:
        version: Version of this package, for the document.
        model_name: One of `MODELS`, or a path to a model's TOML file.
        num_gpus: Devices, whole nodes of 8, at most 1,048,576.
        gpu_infos: Chips with how many there are at most, `a800:128,h800:160`; without a number, or
            with -1, there is no limit. A chip is one of `CHIPS` or a path to a TOML file.
        nproc_per_node: Devices in a node: 8.
        global_batch_size: Sequences in a step, a multiple of 512, at most 1,048,576.
        sequence_length: Tokens in a sequence, a multiple of 512, at most 1,048,576.
        top: Plans to return.

    Raises:
        SpecError: A flag is wrong; the error names it.

    Example:
        >>> asked = question(version="0.1.0", gpu_infos="a800:128,h800:160")
        >>> asked.kinds, asked.problem.cluster.devices
        (('a800', 'h800'), 256)
    """
    if nproc_per_node != NODE:
        raise SpecError("--nproc-per-node", f"must be {NODE}, found {nproc_per_node}", "Give 8.")
    _check("--num-gpus", num_gpus, NODE, "Give whole nodes of 8 devices.")
    _check("--global-batch-size", global_batch_size, STEP, "Give a multiple of 512.")
    _check("--sequence-length", sequence_length, STEP, "Give a multiple of 512.")
    _check("--top", top, 1, "Give the number of strategies to print.", largest=100_000)
    model = catalog.model(_listed(model_name, MODELS, "--model-name", "model"), "--model-name")
    framework = catalog.framework("apss")
    digests = [model.digest, framework.digest]
    groups: list[DeviceGroup] = []
    kinds: list[str] = []
    notes = []
    for name, limit in catalog.parse_groups(gpu_infos, "--gpu-infos"):
        entry = catalog.chip(_listed(name, CHIPS, "--gpu-infos", "chip"), "--gpu-infos")
        digests.append(entry.digest)
        if any(group.chip.name == entry.chip.name for group in groups):
            what = f"chip {shown(name)} is listed twice"
            raise SpecError("--gpu-infos", what, "List each chip once.")
        if entry.chip.devices_per_node != NODE:
            what = f"{shown(name)} has {entry.chip.devices_per_node} devices in a node, not {NODE}"
            raise SpecError("--gpu-infos", what, "APSS knows nodes of 8; use autopar search.")
        groups.append(DeviceGroup(chip=entry.chip, limit=limit))
        kinds.append(entry.chip.name if files.is_path(name) else name.lower())
        if kinds[-1] != entry.chip.name:
            notes.append(f"{kinds[-1]} is {entry.chip.name}")
    problem = Problem(
        version=version,
        catalog=catalog.version(digests),
        model=model.model,
        cluster=Cluster(groups=tuple(groups), devices=num_gpus),
        workload=Workload(
            global_batch_size=global_batch_size,
            sequence_length=sequence_length,
            precision="bf16" if all(group.chip.peak_tflops.bf16 for group in groups) else "fp16",
        ),
        framework=framework.framework,
        options=options(top=top, several=len(groups) > 1),
    )
    return Question(problem, tuple(kinds), tuple(notes))


def proposable(report: Report) -> Report:
    """Returns a report that proposes only device counts and batches that APSS takes.

    Example:
        >>> from autopar import planner
        >>> asked = question(version="0.1.0", num_gpus=1_000_000, global_batch_size=1_048_576)
        >>> planner.solve(asked.problem).infeasible
        NoFactorisation(kind='factorisation', nearest_devices=1048576, nearest_batch=1600000)
        >>> proposable(planner.solve(asked.problem)).infeasible
        NoFactorisation(kind='factorisation', nearest_devices=1048576, nearest_batch=None)
    """
    if not isinstance(report.infeasible, NoFactorisation):
        return report
    devices, batch = report.infeasible.nearest_devices, report.infeasible.nearest_batch
    nearest = NoFactorisation(
        nearest_devices=None if devices is None or devices > LARGEST else devices,
        nearest_batch=None if batch is None or batch > LARGEST else batch,
    )
    return replace(report, infeasible=nearest)


def options(*, top: int, several: bool) -> Options:
    """Returns the options that hold a search to what the dict can say of one kind or several."""
    return Options(
        top=top,
        vpp=(1,),
        cp=(1,),
        ep=(1,),
        zero=(0, 1),
        schedules=("1f1b",),
        partial_shard_groups=False,
        activation_offload=False,
        optimizer_offload=False,
        # Only the form for several kinds lists the layers of each stage.
        uneven_layers=several,
        batch_multiple=STEP,
    )


def unsayable(problem: Problem, plan: Plan) -> list[str]:
    """Returns what the dict cannot say of a plan; empty for a plan that it says exactly.

    Example:
        >>> from autopar.report import Plan, Stage
        >>> problem = question(version="0.1.0", num_gpus=8).problem
        >>> unsayable(problem, Plan(dp=4, cp=2, stages=(Stage(layers=80),)))
        ['context parallel 2']
    """
    stages = plan.stages
    reasons = [
        (bool(plan.tp_of_kind), "tensor parallel of its own on each kind of chip"),
        (plan.cp > 1, f"context parallel {plan.cp}"),
        (plan.ep > 1, f"expert parallel {plan.ep}"),
        (plan.vpp > 1, f"{plan.vpp} chunks a stage"),
        (plan.schedule not in ("1f1b", "interleaved"), f"schedule {plan.schedule}"),
        (plan.zero > 1, f"ZeRO stage {plan.zero}"),
        (plan.zero == 1 and plan.shard_group != plan.dp * plan.cp, "a partial shard group"),
        (plan.optimizer_offload, "optimizer offload"),
        (any(stage.offload for stage in stages), "activation offload"),
        (
            len({(stage.chip, stage.recompute) for stage in stages})
            > len({stage.chip for stage in stages}),
            "different recompute on one kind of chip",
        ),
        (
            len(problem.cluster.groups) == 1 and len({stage.layers for stage in stages}) > 1,
            "uneven layers on one kind of chip",
        ),
    ]
    return [reason for holds, reason in reasons if holds]


def strategy(problem: Problem, ranked: Ranked, kinds: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns a plan as APSS prints it, keys in its order.

    Args:
        problem: What was asked.
        ranked: A plan with its estimate.
        kinds: What each kind of chip is called; the chips' names unless given.

    Raises:
        SpecError: The dict cannot say the plan.
    """
    plan, estimate = ranked.plan, ranked.estimate
    if reasons := unsayable(problem, plan):
        what = f"the apss form cannot say {', '.join(reasons)}"
        raise SpecError("--format", what, "Ask for table or json, or limit the search.")
    kinds = kinds or tuple(group.chip.name for group in problem.cluster.groups)
    several = len(kinds) > 1
    peaks = [
        max(
            (
                cost.memory_bytes
                for stage, cost in zip(plan.stages, estimate.stages, strict=True)
                if stage.chip == kind
            ),
            default=0,
        )
        for kind in range(len(kinds))
    ]
    recompute = [
        _megatron(next((stage.recompute for stage in plan.stages if stage.chip == kind), None))
        for kind in range(len(kinds))
    ]
    settings: dict[str, Any] = {
        "pipeline-model-parallel-size": plan.pp,
        "tensor-model-parallel-size": plan.tp,
        "micro-batch-size": plan.mbs,
    }
    flags = {
        "use-flash-attn": problem.workload.attention == "flash",
        "sequence-parallel": plan.sp,
        "use-distributed-optimizer": plan.zero == 1,
        "fused-rmsnorm": problem.model.norm == "rmsnorm",
        "apply-rotary-positional-embedding-kernel": problem.model.position == "rope",
    }
    settings.update({flag: "" for flag, is_set in flags.items() if is_set})
    settings["pipeline-stage-chips"] = (
        [kinds[stage.chip] for stage in plan.stages] if several else [kinds[0]]
    )
    if several:
        settings["pipeline-stage-layers"] = [stage.layers for stage in plan.stages]
    for i, key in enumerate(("granularity", "method", "num-layers")):
        settings[f"recompute-{key}"] = [setting[i] for setting in recompute]
    tokens = problem.workload.global_batch_size * problem.workload.sequence_length
    return {
        # Rounded up, as the tool prints it; in whole numbers, so that no rounding comes before.
        "sim_throughput": -(-tokens * 10**12 // estimate.step_ps),
        "sim_total_time_s": estimate.step_s,
        "max-use-mem-size": [peak / GIB for peak in peaks],
        "strategy": settings,
    }


def _megatron(recompute: Recompute | None) -> tuple[str | None, str | None, int | None]:
    """Returns granularity, method and number of layers as Megatron's flags name them."""
    match recompute:
        case Recompute(granularity="selective"):
            return "selective", None, None
        case Recompute(granularity="block" | "uniform" as method, layers=layers):
            return "full", method, layers
        case _:
            return None, None, None


def _check(flag: str, value: int, step: int, hint: str, largest: int = LARGEST) -> None:
    """Refuses a count that is not from 1 to `largest` or no multiple of `step`."""
    if not 1 <= value <= largest:
        raise SpecError(flag, f"must be from 1 to {largest}, found {shown(value)}", hint)
    if value % step:
        raise SpecError(flag, f"must be a multiple of {step}, found {value}", hint)


def _listed(name: str, known: tuple[str, ...], flag: str, noun: str) -> str:
    """Returns a name of the list, or a path; APSS knows no other."""
    if files.is_path(name) or name.lower() in known:
        return name
    from difflib import get_close_matches

    near = get_close_matches(name.lower(), known, n=3, cutoff=0.5) or known
    what = f"no {noun} named {shown(name)} in the list of apss"
    raise SpecError(flag, what, f"Nearest: {', '.join(near)}.")
