"""Random legal plans, drawn from a fixed seed, of which each shows some feature of a launcher."""

from dataclasses import fields, replace
from functools import cache
from random import Random

import autopar
from autopar import Plan, Problem, Recompute, SpecError, Stage
from autopar.export.job import Job
from autopar.export.launchers import LAUNCHERS
from autopar.framework import Named
from autopar.report import NamedLayers

IMAGE = "registry.example/train:1"
# Draws after which a feature counts as one that a launcher cannot say.
HOPELESS = 3000
FEATURES = ("vpp", "uneven", "ep", "cp", "recompute", "mixed_tp")

# (model, cluster, framework) that suit a launcher, of several shapes.
SUBJECTS: dict[str, list[tuple[str, str, str]]] = {
    "megatron": [
        ("llama2-7b", "a800", "megatron-core"),
        ("llama3-70b", "h100", "megatron-core"),
        ("mixtral-8x7b", "h100", "megatron-core"),
        ("qwen3-30b-a3b", "h100", "megatron-core"),
        ("deepseek-v2-lite", "h800", "megatron-core"),
        ("gpt3-6.7b", "a100", "megatron-core"),
    ],
    "mindformers": [
        ("llama2-7b", "ascend_910b", "mindformers"),
        ("llama3-70b", "ascend_910b", "mindformers"),
        ("mixtral-8x7b", "ascend_910b", "mindformers"),
        ("qwen2.5-14b", "ascend_910b", "mindformers"),
    ],
    "deepspeed": [
        ("llama2-7b", "a100", "deepspeed"),
        ("qwen2.5-14b", "h100", "deepspeed"),
        ("opt-13b", "a100", "deepspeed"),
    ],
    "torchtitan": [
        ("llama3-8b", "h100", "torchtitan"),
        ("llama3.1-405b", "h200", "torchtitan"),
        ("qwen3-30b-a3b", "h100", "torchtitan"),
        ("deepseek-v3", "h800", "torchtitan"),
    ],
    "mindspore": [
        ("llama2-7b", "ascend_910b", "mindformers"),
        ("gpt3-6.7b", "h100", "mindformers"),
        ("qwen2.5-14b", "ascend_910b", "torchtitan"),
        ("mixtral-8x7b", "ascend_910b", "mindformers"),
    ],
    "accelerate": [
        ("llama2-7b", "a100", "fsdp"),
        ("qwen2.5-14b", "h100", "fsdp"),
        ("mixtral-8x7b", "h100", "accelerate-megatron"),
    ],
    "flagscale": [
        ("llama2-7b", "a800", "megatron-core"),
        ("llama2-7b", "a800,h800", "megatron-core"),
        ("llama3-70b", "h800,ascend_910b", "megatron-core"),
        ("mixtral-8x7b", "a800,h800", "megatron-core"),
    ],
    "kubernetes": [
        ("llama2-7b", "a800", "megatron-core"),
        ("llama2-7b", "a800,h800", "megatron-core"),
        ("llama3-70b", "ascend_910b", "torchtitan"),
        ("llama2-7b", "ascend_910b", "mindformers"),
        ("mixtral-8x7b", "h100", "megatron-core"),
    ],
}


@cache
def problem(model: str, cluster: str, framework: str, devices: int, batch: int) -> Problem:
    """Returns a problem of sequences of 4,096 tokens."""
    return autopar.problem(
        model,
        cluster,
        devices=devices,
        global_batch_size=batch,
        sequence_length=4096 if not model.startswith(("gpt3", "opt")) else 2048,
        framework=framework,
    )


def features(job: Job) -> set[str]:
    """Returns the features that a plan shows."""
    plan = job.plan
    shown = {
        "vpp": plan.vpp > 1,
        "uneven": len({stage.layers for stage in plan.stages}) > 1,
        "ep": plan.ep > 1,
        "cp": plan.cp > 1,
        "mixed_tp": bool(plan.tp_of_kind),
        "recompute": not job.whole_recompute
        and any(stage.recompute.granularity != "none" for stage in plan.stages),
    }
    return {name for name, holds in shown.items() if holds}


def drawn(name: str, count: int, seed: int = 1, feature: str | None = None) -> list[Job]:
    """Returns plans that a launcher can say, all different; each shows a feature if one is named.

    Fewer come back where a launcher can hardly say the feature.
    """
    random = Random(f"{name} {feature} {seed}")
    jobs: dict[tuple[str, int, Plan], Job] = {}
    for tried in range(400 * count + HOPELESS):
        if len(jobs) == count or (tried > HOPELESS and not jobs):
            break
        if (job := _drawn(name, random, feature)) is not None:
            work = job.problem.workload.global_batch_size
            jobs.setdefault((job.problem.model.name, work, job.plan), job)
    return list(jobs.values())


def _drawn(name: str, random: Random, feature: str | None) -> Job | None:
    """Returns a plan, if the one that is drawn is legal and can be said."""
    subject = random.choice(SUBJECTS[name])
    asked = problem(*subject, random.choice((8, 16, 32, 64, 128)), random.choice((256, 768)))
    if name == "mindspore" and feature == "cp":
        # The one exchange that cuts of operators say.
        gathers = replace(asked.framework, context_exchange="gather")
        asked = replace(asked, framework=gathers)
    if name in ("mindformers", "megatron") and random.random() < 0.5:
        asked = _naming(random, asked)
    plan = _plan(random, asked, feature)
    if plan is None:
        return None
    if name == "mindformers" and random.random() < 0.4:
        plan = _by_parts(random, plan)
    try:
        job = Job(asked, plan, autopar.estimate(asked, plan), IMAGE)
    except SpecError:
        return None
    said = not LAUNCHERS[name].supports(job)
    return job if said and (feature is None or feature in features(job)) else None


def _naming(random: Random, problem: Problem) -> Problem:
    """Returns the problem with a framework that recomputes some operators by name."""
    chosen = {field.name: random.random() < 0.3 for field in fields(Named)}
    named = Named(**chosen | {"activation": chosen["activation"] or not any(chosen.values())})
    return replace(problem, framework=replace(problem.framework, selective="named", named=named))


def _plan(random: Random, problem: Problem, feature: str | None) -> Plan | None:
    """Returns a plan that may be illegal, or nothing where no layers can be shared out."""
    devices, layers = problem.cluster.devices, problem.model.layers
    tp = random.choice((1, 1, 2, 4, 8))
    cp = random.choice((2, 4)) if feature == "cp" else random.choice((1, 1, 1, 2))
    pipelined = feature in ("vpp", "uneven", "mixed_tp")
    pp = random.choice((2, 3, 4, 5, 8) if pipelined else (1, 1, 2, 4, 8))
    vpp = random.choice((2, 3, 4)) if feature == "vpp" else random.choice((1, 1, 2))
    vpp = vpp if pp > 1 else 1
    # What vpp does not divide, an end of the model makes up for.
    short = -layers % vpp
    shares = _shares(random, (layers + short) // vpp, pp, feature == "uneven")
    if shares is None:
        return None
    held = [share * vpp for share in shares]
    held[random.choice((0, -1))] -= short
    several = feature == "mixed_tp" and len(problem.cluster.groups) > 1
    degrees = random.sample((1, 2, 4, 8), 2) if several else [tp, tp]
    chips = _chips(random, problem, pp)
    tp = max(degrees[chip] for chip in chips)
    ranks = cp * sum(degrees[chip] for chip in chips)
    if devices % ranks:
        return None
    dp = devices // ranks
    zero = random.choice((0, 1, 1, 2, 3))
    groups = [n for n in range(1, dp * cp + 1) if dp * cp % n == 0]
    moe = problem.model.moe is not None
    schedules = ("interleaved", "interleaved", "zb-v") if vpp > 1 else ("1f1b", "1f1b", "gpipe")
    recompute = random.choice(
        (
            Recompute(),
            Recompute("selective"),
            Recompute("block", random.randint(1, min(shares))),
            Recompute("uniform", random.randint(1, min(shares))),
        )
    )
    return Plan(
        dp=dp,
        tp=tp,
        tp_of_kind=tuple(degrees) if several and len(set(chips)) > 1 else (),
        sp=tp > 1 and (several or random.random() < 0.7),
        cp=cp,
        ep=random.choice((2, 4, 8)) if feature == "ep" else random.choice((1, 1, 2)),
        etp=random.choice((1, tp)) if moe else 1,
        pp=pp,
        vpp=vpp,
        mbs=random.choice((1, 2)),
        zero=zero,
        shard_group=random.choice((dp * cp, dp * cp, random.choice(groups))) if zero else 1,
        schedule=random.choice(schedules),
        optimizer_offload=random.random() < 0.1,
        stages=_stages(random, chips, held, recompute),
    )


def _by_parts(random: Random, plan: Plan) -> Plan:
    """Returns a plan some of whose stages compute layers and operators again one by one."""
    stages = []
    for stage in plan.stages:
        names = ("norm", "projections", "attention", "expansion", "activation")
        counts = {name: random.choice((0, random.randrange(stage.layers))) for name in names}
        counts["gather"] = random.choice((0, counts["norm"])) if plan.sp else 0
        whole = random.choice((0, random.randrange(stage.layers)))
        said = {name: count if count > whole else 0 for name, count in counts.items()}
        if any(said.values()):
            parts = Recompute("parts", whole, regathers=False, operators=NamedLayers(**said))
            stage = replace(stage, recompute=parts)
        stages.append(stage)
    return replace(plan, stages=tuple(stages))


def _chips(random: Random, problem: Problem, pp: int) -> list[int]:
    """Returns the kind of each stage: one kind, or one after the other."""
    first = random.randint(0, pp) if len(problem.cluster.groups) > 1 else pp
    return [int(stage >= first) for stage in range(pp)]


def _stages(
    random: Random, chips: list[int], layers: list[int], recompute: Recompute
) -> tuple[Stage, ...]:
    """Returns stages with a setting for each kind of chip."""
    settings = (recompute, random.choice((recompute, Recompute())))
    return tuple(
        Stage(chip=chip, layers=count, recompute=settings[chip])
        for chip, count in zip(chips, layers, strict=True)
    )


def _shares(random: Random, total: int, parts: int, uneven: bool) -> list[int] | None:
    """Returns shares of layers: equal, or with a few moved from stage to stage."""
    if total < 2 * parts:
        return None
    shares = [total // parts] * parts
    shares[-1] += total - sum(shares)
    for _ in range(random.randint(1, 3) if uneven else 0):
        giver, taker = random.randrange(parts), random.randrange(parts)
        if shares[giver] > 1:
            shares[giver] -= 1
            shares[taker] += 1
    return shares
