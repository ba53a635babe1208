"""Plans made of MindFormers' configuration beside MindSpore's context, and both made of a plan.

`meant` says what the two train. `config_of` and `keywords_of` write a plan as the two where they
can say it; `reasons` names what they cannot. One leads back to the other.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from autopar.compat.context import Context
from autopar.compat.effects import Asked, Effect, applied
from autopar.compat.mindformers import TransformerOpParallelConfig, TransformerRecomputeConfig
from autopar.errors import SpecError
from autopar.frontends import mindformers_operators
from autopar.report import Plan, Recompute, Stage
from autopar.spec import Named, Problem, Schedule


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a configuration trains.

    Attributes:
        problem: The problem on the devices that compute something of their own, with what the
            context and the configuration set.
        plan: The plan on them.
        repeats: Times that every computation runs, each on devices of its own.
        effects: What each keyword did, or that it changes nothing, and why; then the context's.
    """

    problem: Problem
    plan: Plan
    repeats: int
    effects: tuple[Effect, ...]


def meant(
    config: TransformerOpParallelConfig,
    context: Context,
    problem: Problem,
    *,
    vpp: int = 1,
    layers: tuple[int, ...] | None = None,
    accumulation: int = 1,
) -> Meaning:
    """Returns what a configuration trains beside a context, and what each keyword does.

    Outside semi_auto_parallel and auto_parallel only `recompute` acts, and the context says the
    rest: one device, or replicas. Where the degrees need fewer devices than there are, the others
    repeat the computation: a step takes as long, and a device holds as much, as without them.

    Args:
        config: The configuration.
        context: The context; `autopar.compat.mindspore.context()` is that of the process.
        problem: Model, chips and workload.
        vpp: Model chunks of a stage (`pp_interleave_num` of the model's configuration).
        layers: Layers of each stage (from `offset` of the model's configuration); equal shares
            unless given.
        accumulation: Micro-batches of a step without a pipeline, where `micro_batch_num` is idle.

    Raises:
        SpecError: Configuration, context and problem contradict each other, or ask for what no plan
            can say.

    Example:
        >>> from autopar import planner
        >>> from autopar.compat import mindspore
        >>> mindspore.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=16)
        >>> config = TransformerOpParallelConfig(data_parallel=2, model_parallel=4)
        >>> question = planner.problem(
        ...     "llama2-7b", "ascend_910b", devices=16, global_batch_size=64, sequence_length=4096
        ... )
        >>> found = meant(config, mindspore.context(), question, accumulation=8)
        >>> found.plan.dp, found.plan.tp, found.plan.mbs, found.repeats
        (2, 4, 4, 2)
        >>> mindspore.reset_auto_parallel_context()
    """
    limited, effects = applied(context, problem)
    asked = Asked(context, problem)
    dp, tp, cp, pp, ep = _degrees(config, asked)
    used = dp * tp * cp * pp
    passes = config.micro_batch_num if pp > 1 else accumulation
    batch = problem.workload.global_batch_size
    if batch % (dp * passes):
        what = f"{dp} replicas of {passes} micro-batches do not divide the batch {batch}"
        raise SpecError("micro_batch_num", what, "Give counts that divide it.")
    if layers is None:
        if problem.model.layers % pp:
            what = f"{pp} stages do not divide {problem.model.layers} layers"
            raise SpecError("pipeline_stage", what, "Give the layers of each stage.")
        layers = (problem.model.layers // pp,) * pp
    chunks = vpp if pp > 1 else 1
    asked_again = config.recompute
    if isinstance(asked_again, bool):
        asked_again = TransformerRecomputeConfig(recompute=asked_again)
    selected, by_stage = mindformers_operators.selected(
        asked_again.select_recompute, layers, "recompute.select_recompute"
    )
    recompute = _recompute(asked_again, layers, chunks, by_stage)
    again = _gathers_again(config, asked, recompute)
    zero = 3 if again else min(limited.options.zero, default=0)
    size = next((n for n in limited.options.shard_group if dp * cp % n == 0), dp * cp)
    plan = Plan(
        dp=dp,
        tp=tp,
        sp=asked.automatic and config.use_seq_parallel and tp > 1,
        cp=cp,
        ep=ep,
        etp=tp if problem.model.moe else 1,
        pp=pp,
        vpp=chunks,
        mbs=batch // (dp * passes),
        zero=zero if size > 1 else 0,
        shard_group=size if zero else 1,
        schedule=_schedule(limited.options.schedules, pp, chunks),
        stages=tuple(
            Stage(layers=count, recompute=each)
            for count, each in zip(layers, recompute, strict=True)
        ),
    )
    framework = replace(
        limited.framework,
        slices_kept_inputs=_slices(config),
        keeps_tensor_results=_keeps(config),
        whole_vocabulary=_whole_vocabulary(config, asked),
    )
    if any(by_stage):
        framework = replace(framework, selective="named", named=selected)
    if asked_again.select_comm_recompute:
        framework = replace(framework, held=replace(framework.held, gathered_inputs=False))
    if again:
        framework = replace(framework, gathers="micro_batch")
    alone = replace(limited, cluster=replace(limited.cluster, devices=used), framework=framework)
    said = _said(config, asked, plan, selected)
    return Meaning(alone, plan, asked.devices // used, (*said, *effects))


def _degrees(config: TransformerOpParallelConfig, asked: Asked) -> tuple[int, int, int, int, int]:
    """Returns the degrees that act: dp, tp, cp, pp, ep."""
    if not asked.automatic:
        return (asked.devices if asked.mode == "data_parallel" else 1), 1, 1, 1, 1
    if config.pipeline_stage != asked.stages:
        what = f"is {config.pipeline_stage} where the context has {asked.stages}"
        raise SpecError("pipeline_stage", what, "Make the configuration after the context.")
    if config.pipeline_stage > 1 and config.micro_batch_num < config.pipeline_stage:
        what = f"must be at least pipeline_stage, {config.pipeline_stage}"
        raise SpecError("micro_batch_num", f"{what}, found {config.micro_batch_num}")
    ep = config.expert_parallel if asked.problem.model.moe else 1
    if config.data_parallel % ep:
        what = f"{ep} does not divide data_parallel {config.data_parallel}"
        raise SpecError("expert_parallel", what, "Give a divisor of it.")
    dp, tp, cp, pp = (
        config.data_parallel,
        config.model_parallel,
        config.context_parallel,
        config.pipeline_stage,
    )
    if asked.devices % (dp * tp * cp * pp):
        what = f"degrees of {dp * tp * cp * pp} devices do not divide the {asked.devices} there are"
        raise SpecError("data_parallel", what, "Give degrees whose product divides device_num.")
    return dp, tp, cp, pp, ep


def _schedule(allowed: tuple[Schedule, ...], pp: int, vpp: int) -> Schedule:
    """Returns the schedule of the context that has as many chunks a stage."""
    if pp == 1:
        return "1f1b"
    if "1f1b" in allowed and vpp == 1:
        return "1f1b"
    return "interleaved" if "interleaved" in allowed else allowed[0]


def _recompute(
    asked: TransformerRecomputeConfig,
    layers: tuple[int, ...],
    vpp: int,
    selected: tuple[bool, ...],
) -> tuple[Recompute, ...]:
    """Returns what each stage recomputes: layers, or operators of those where they are selected."""
    whole = _whole_layers(asked.recompute, layers, vpp)
    if asked.recompute is True:
        # Single operators are passed over where every layer is computed again.
        return whole
    for again, named in zip(whole, selected, strict=True):
        if named and again.granularity != "none":
            what = "computes layers of a stage again and operators of the others, as no plan does"
            raise SpecError("recompute.select_recompute", what, "Give each stage one of the two.")
    return tuple(
        Recompute("selective") if named else again
        for again, named in zip(whole, selected, strict=True)
    )


def _whole_layers(wanted: Any, layers: tuple[int, ...], vpp: int) -> tuple[Recompute, ...]:
    """Returns how many layers of each stage are computed again whole."""
    if isinstance(wanted, bool):
        return (Recompute("uniform", 1) if wanted else Recompute(),) * len(layers)
    rows = wanted if isinstance(wanted, list) and wanted and isinstance(wanted[0], list) else None
    if rows is None and isinstance(wanted, list):
        # Counts of a stage are dealt out to its chunks in turn.
        rows = [[(n + vpp - 1 - chunk) // vpp for n in wanted] for chunk in range(vpp)]
    sound = (
        rows is not None
        and len(rows) == vpp
        and all(
            len(row) == len(layers) and all(type(n) is int and n >= 0 for n in row) for row in rows
        )
    )
    if rows is None or not sound:
        what = f"must be a truth value, or {len(layers)} counts of layers, for {vpp} chunks each"
        raise SpecError("recompute.recompute", what, "Give one count for each stage.")
    if any(row != rows[0] for row in rows):
        what = "the chunks of a stage recompute different numbers of layers, which no plan says"
        raise SpecError("recompute.recompute", what, "Give each chunk as many.")
    most = [min(n, count // vpp) for n, count in zip(rows[0], layers, strict=True)]
    return tuple(Recompute("block", n) if n else Recompute() for n in most)


def _slices(config: TransformerOpParallelConfig) -> bool:
    return not isinstance(config.recompute, bool) and config.recompute.recompute_slice_activation


def _keeps(config: TransformerOpParallelConfig) -> bool:
    return not isinstance(config.recompute, bool) and not config.recompute.mp_comm_recompute


def _whole_vocabulary(config: TransformerOpParallelConfig, asked: Asked) -> bool:
    # MindFormers turns it off with a pipeline.
    return asked.automatic and config.vocab_emb_dp and config.pipeline_stage == 1


def _gathers_again(
    config: TransformerOpParallelConfig, asked: Asked, recompute: tuple[Recompute, ...]
) -> bool:
    """Returns whether sharded parameters are dropped after the forward pass of every layer."""
    return (
        not isinstance(config.recompute, bool)
        and config.recompute.parallel_optimizer_comm_recompute
        and asked.shards
        and all(each.granularity == "uniform" for each in recompute)
    )


def _said(
    config: TransformerOpParallelConfig, asked: Asked, plan: Plan, selected: Named
) -> tuple[Effect, ...]:
    """Returns what each keyword did."""
    written = config.to_dict()
    recompute = written.pop("recompute")
    if isinstance(recompute, bool):
        recompute = TransformerRecomputeConfig(recompute=recompute).to_dict()
    said: dict[str, tuple[dict[str, Any], str]] = {
        "data_parallel": ({"plan.dp": plan.dp}, "replicas"),
        "context_parallel": ({"plan.cp": plan.cp}, "ranks of one sequence"),
        "model_parallel": ({"plan.tp": plan.tp}, "ranks of one layer"),
        "expert_parallel": (
            ({"plan.ep": plan.ep}, "ranks of the experts")
            if asked.problem.model.moe
            else ({}, "the model has no experts")
        ),
        "pipeline_stage": ({"plan.pp": plan.pp}, "stages; the context has as many"),
        "micro_batch_num": (
            ({"plan.mbs": plan.mbs}, "sequences of a micro-batch")
            if plan.pp > 1
            else ({}, "counts with a pipeline only")
        ),
        "use_seq_parallel": ({"plan.sp": plan.sp}, "norms and residuals cut over the sequence"),
        "optimizer_shard": ({}, "the context's enable_parallel_optimizer says it"),
        "gradient_aggregation_group": ({}, "fuses by number; comm_fusion fuses by size"),
        "vocab_emb_dp": (
            {"framework.whole_vocabulary": _whole_vocabulary(config, asked)},
            "without a pipeline each rank of a layer holds embedding and head whole where it is on",
        ),
        "context_parallel_algo": (
            ({}, "the framework's context_exchange says how ranks of a sequence exchange")
        ),
        "ulysses_degree_in_cp": ({}, "a plan has one way of context parallel"),
    }
    inner: dict[str, tuple[dict[str, Any], str]] = {
        "recompute": (
            {"plan.stages": [stage.recompute.granularity for stage in plan.stages]},
            "what each stage computes again",
        ),
        "select_recompute": (
            {"framework.named": [name for name, on in _on(selected) if on]}
            if any(stage.recompute.granularity == "selective" for stage in plan.stages)
            else {},
            "operators that every layer of a stage computes again by themselves",
        ),
        "parallel_optimizer_comm_recompute": (
            ({"plan.zero": 3, "framework.gathers": "micro_batch"}, "parameters are gathered twice")
            if plan.zero == 3 and recompute["parallel_optimizer_comm_recompute"]
            else ({}, "acts on sharded parameters where every layer is computed again")
        ),
        "mp_comm_recompute": (
            {"framework.keeps_tensor_results": _keeps(config)},
            "off, recomputed layers keep what tensor-parallel communication brought them",
        ),
        "recompute_slice_activation": (
            {"framework.slices_kept_inputs": _slices(config)},
            "inputs that recomputed layers keep are cut over the ranks of a layer",
        ),
    }
    outer = [
        Effect(key, value, *said[key])
        if asked.automatic
        else Effect(key, value, {}, f"does not act in {asked.mode}")
        for key, value in written.items()
    ]
    return (*outer, *(Effect(f"recompute.{k}", v, *inner[k]) for k, v in recompute.items()))


def _on(selected: Named) -> list[tuple[str, bool]]:
    return [(field.name, getattr(selected, field.name)) for field in fields(selected)]


def reasons(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Returns what of a plan configuration and context cannot say; empty where they say it all.

    Example:
        >>> from autopar import planner
        >>> question = planner.problem(
        ...     "llama2-7b", "ascend_910b:16", global_batch_size=64, sequence_length=4096
        ... )
        >>> reasons(question, planner.plan(question, tp=4, pp=2))
        ()
        >>> reasons(question, planner.plan(question, tp=4, pp=2, recompute=Recompute("selective")))
        ('recomputes the core of attention alone',)
    """
    kinds = {stage.recompute.granularity for stage in plan.stages}
    groups = {stage.recompute.layers for stage in plan.stages if stage.recompute.layers}
    broken = {
        "stages lie on several kinds of chip": len({stage.chip for stage in plan.stages}) > 1,
        "keeps activations in host memory": any(stage.offload for stage in plan.stages),
        "keeps optimizer state in host memory": plan.optimizer_offload,
        "recomputes the core of attention alone": (
            "selective" in kinds and problem.framework.selective == "attention"
        ),
        "recomputes every second product": (
            "selective" in kinds and problem.framework.selective == "operators"
        ),
        "recomputes groups of layers": "uniform" in kinds and groups != {1},
        "mixes kinds of recompute": "uniform" in kinds and len(kinds) > 1,
        "ep does not divide dp": plan.dp % plan.ep != 0,
        "experts are whole on each tensor-parallel rank": (
            problem.model.moe is not None and plan.etp != plan.tp
        ),
        "zb-h1 is no schedule of MindSpore": plan.schedule == "zb-h1",
        "fewer micro-batches than stages": plan.pp > 1 and _passes(problem, plan) < plan.pp,
        "one rank of the shard group": plan.zero > 0 and plan.shard_group == 1,
    }
    return tuple(what for what, holds in broken.items() if holds)


def _passes(problem: Problem, plan: Plan) -> int:
    """Returns the micro-batches of a step."""
    return problem.workload.global_batch_size // (plan.dp * plan.mbs)


def config_of(problem: Problem, plan: Plan) -> TransformerOpParallelConfig:
    """Returns the configuration of a plan; `pp_interleave_num` and `offset` are the model's.

    Without a pipeline the micro-batches of a step are `accumulation` to `meant`.

    Raises:
        SpecError: Configuration and context cannot say it.

    Example:
        >>> from autopar import planner
        >>> from autopar.compat import mindspore
        >>> question = planner.problem(
        ...     "llama2-7b", "ascend_910b:16", global_batch_size=64, sequence_length=4096
        ... )
        >>> plan = planner.plan(question, tp=4, pp=2, recompute=Recompute("block", 3))
        >>> config_of(question, plan).to_diff_dict()["recompute"]
        {'recompute': [3, 3]}
        >>> mindspore.reset_auto_parallel_context()
    """
    _refuse(problem, plan)
    kinds = {stage.recompute.granularity for stage in plan.stages}
    counts = [stage.recompute.layers or 0 for stage in plan.stages]
    recompute: Any = False
    if kinds == {"uniform"}:
        recompute = True
    elif any(counts):
        recompute = counts if plan.vpp == 1 else [list(counts) for _ in range(plan.vpp)]
    return TransformerOpParallelConfig(
        data_parallel=plan.dp,
        model_parallel=plan.tp,
        context_parallel=plan.cp,
        expert_parallel=plan.ep,
        pipeline_stage=plan.pp,
        micro_batch_num=_passes(problem, plan) if plan.pp > 1 else 1,
        recompute=TransformerRecomputeConfig(
            recompute=recompute,
            select_recompute=select_recompute(problem, plan),
            mp_comm_recompute=not problem.framework.keeps_tensor_results,
            recompute_slice_activation=problem.framework.slices_kept_inputs,
        ),
        use_seq_parallel=plan.sp,
        vocab_emb_dp=problem.framework.whole_vocabulary,
    )


def select_recompute(problem: Problem, plan: Plan) -> bool | list[str] | dict[str, list[int]]:
    """Returns the operators that are computed again by name, as MindFormers has them.

    Example:
        >>> from autopar import planner
        >>> question = planner.problem(
        ...     "llama2-7b", "ascend_910b:16", global_batch_size=64, sequence_length=4096
        ... )
        >>> select_recompute(question, planner.plan(question))
        False
    """
    where = [
        stage.layers if stage.recompute.granularity == "selective" else 0 for stage in plan.stages
    ]
    if not any(where):
        return False
    patterns = mindformers_operators.patterns(problem.framework.named)
    return list(patterns) if all(where) else {pattern: list(where) for pattern in patterns}


def keywords_of(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Returns the keywords of `set_auto_parallel_context` for a plan, what is at its default too.

    Raises:
        SpecError: Configuration and context cannot say it.

    Example:
        >>> from autopar import planner
        >>> question = planner.problem(
        ...     "llama2-7b", "ascend_910b:16", global_batch_size=64, sequence_length=4096
        ... )
        >>> keywords = keywords_of(question, planner.plan(question, tp=4, pp=2, zero=1))
        >>> keywords["pipeline_stages"], keywords["enable_parallel_optimizer"]
        (2, True)
    """
    _refuse(problem, plan)
    return {
        "parallel_mode": "semi_auto_parallel",
        "device_num": plan.dp * plan.tp * plan.cp * plan.pp,
        "pipeline_stages": plan.pp,
        **step_keywords(problem, plan),
    }


def step_keywords(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Returns the keywords that say how a step runs: schedule, optimizer shards, what travels."""
    scheduler = {"gpipe": "gpipe", "zb-v": "zero_bubble_v"}.get(plan.schedule, "1f1b")
    size = -1 if plan.shard_group == plan.dp * plan.cp else plan.shard_group
    return {
        "pipeline_config": {
            "pipeline_interleave": plan.schedule != "1f1b",
            "pipeline_scheduler": scheduler,
        },
        "enable_parallel_optimizer": plan.zero > 0,
        "parallel_optimizer_config": {
            "optimizer_level": f"level{max(plan.zero, 1)}",
            "optimizer_weight_shard_size": size if plan.zero else -1,
            # Whole KB: what the last one holds in part is shared.
            "parallel_optimizer_threshold": problem.framework.whole_below_bytes // 1024,
        },
        "enable_alltoall": problem.framework.expert_dispatch == "copies",
        "force_fp32_communication": problem.framework.sums_in_fp32,
        "gradient_fp32_sync": problem.framework.bytes.gradient_sent == 4,
    }


def _refuse(problem: Problem, plan: Plan) -> None:
    if found := reasons(problem, plan):
        raise SpecError("plan", f"MindFormers cannot say it: {'; '.join(found)}")
