"""Plans made of MindFormers' configuration beside MindSpore's context, and both made of a plan.

`meant` says what the two train. `config_of` and `keywords_of` write a plan as the two where they
can say it; `reasons` names what they cannot. One leads back to the other.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from autopar.compat import mindspore
from autopar.compat.context import Context
from autopar.compat.effects import Asked, Effect, applied
from autopar.compat.mindformers import TransformerOpParallelConfig, TransformerRecomputeConfig
from autopar.errors import SpecError
from autopar.export import mindformers_recompute
from autopar.framework import Framework, Named
from autopar.frontends.mindformers import fused_groups
from autopar.frontends.mindformers_recompute import Chunks, Settings, stages
from autopar.report import NamedLayers, Plan, Recompute, Stage
from autopar.spec import Problem, Schedule


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
    sp = asked.context.automatic and config.use_seq_parallel and tp > 1
    if problem.model.moe is not None and tp > 1 and not sp:
        what = "is off where model_parallel cuts experts, which no estimate has"
        raise SpecError("use_seq_parallel", what, "Set it, or model_parallel to 1.")
    zero = min(limited.options.zero, default=0)
    size = next((n for n in limited.options.shard_group if dp * cp % n == 0), dp * cp)
    slices = size > 1 and zero in (1, 2) and limited.framework.held.gathered_copy_bytes > 0
    regathers = _regathers(config, slices)
    recompute, selected = _recompute(asked_again, Chunks(layers, chunks), sp, regathers[0])
    plan = Plan(
        dp=dp,
        tp=tp,
        sp=sp,
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
        fused_groups=_groups(config, asked),
    )
    if selected is not None:
        framework = replace(framework, selective="named", named=selected)
    alone = replace(limited, cluster=replace(limited.cluster, devices=used), framework=framework)
    said = _said(config, asked, plan, framework, regathers)
    return Meaning(alone, plan, asked.context.devices // used, (*said, *effects))


def _degrees(config: TransformerOpParallelConfig, asked: Asked) -> tuple[int, int, int, int, int]:
    """Returns the degrees that act: dp, tp, cp, pp, ep."""
    if not asked.context.automatic:
        return (asked.context.devices if asked.context.mode == "data_parallel" else 1), 1, 1, 1, 1
    if config.pipeline_stage != asked.context.stages:
        what = f"is {config.pipeline_stage} where the context has {asked.context.stages}"
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
    used, devices = dp * tp * cp * pp, asked.context.devices
    if devices % used:
        what = f"degrees of {used} devices do not divide the {devices} there are"
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
    asked: TransformerRecomputeConfig, chunks: Chunks, cut_sequence: bool, regathers: bool
) -> tuple[tuple[Recompute, ...], Named | None]:
    """Returns what each stage recomputes, and the framework's selection if stages take that.

    Raises:
        SpecError: A value is malformed, or no plan says it.
    """
    settings = Settings(
        asked.recompute, asked.select_recompute, asked.select_comm_recompute, regathers
    )
    try:
        return stages(settings, chunks, cut_sequence=cut_sequence)
    except SpecError as error:
        raise error.under("recompute") from None


def _slices(config: TransformerOpParallelConfig) -> bool:
    return not isinstance(config.recompute, bool) and config.recompute.recompute_slice_activation


def _keeps(config: TransformerOpParallelConfig) -> bool:
    return not isinstance(config.recompute, bool) and not config.recompute.mp_comm_recompute


def _groups(config: TransformerOpParallelConfig, asked: Asked) -> int:
    if not asked.context.automatic:
        return asked.problem.framework.fused_groups
    return fused_groups(config.gradient_aggregation_group, asked.problem.model.layers)


def _whole_vocabulary(config: TransformerOpParallelConfig, asked: Asked) -> bool:
    # MindFormers turns it off with a pipeline.
    return asked.context.automatic and config.vocab_emb_dp and config.pipeline_stage == 1


def _regathers(config: TransformerOpParallelConfig, slices: bool) -> tuple[bool, str]:
    """Returns whether sharded parameters of recomputed layers are gathered again, and why."""
    if isinstance(config.recompute, bool) or not config.recompute.recompute:
        return False, "acts on layers that are computed again whole"
    if not config.recompute.parallel_optimizer_comm_recompute:
        return False, "off, what was gathered of sharded parameters is kept for the backward pass"
    if mindspore.version != "2.3":
        because = "MindSpore 2.7 and 2.10 pass over it: optimizer_level level3 gathers again"
        return False, because
    if config.pipeline_stage > 1:
        return False, "MindSpore 2.3 passes over it in a pipeline"
    if not slices:
        return False, "acts on parameters that the parallel optimizer slices, level3 apart"
    return True, "recomputed layers gather their parameters for each pass, not once a step"


def _said(
    config: TransformerOpParallelConfig,
    asked: Asked,
    plan: Plan,
    framework: Framework,
    regathers: tuple[bool, str],
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
        "gradient_aggregation_group": (
            {"framework.fused_groups": _groups(config, asked)},
            "groups of layers whose gradients travel together, one in a pipeline's stage;"
            " comm_fusion and all_reduce_fusion_config come before it",
        ),
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
        "select_recompute": _operators(plan, framework),
        "parallel_optimizer_comm_recompute": (
            {"plan.stages": [bool(stage.recompute.regathers) for stage in plan.stages]}
            if regathers[0]
            else {},
            regathers[1],
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
        if asked.context.automatic
        else Effect(key, value, {}, f"does not act in {asked.context.mode}")
        for key, value in written.items()
    ]
    return (*outer, *(Effect(f"recompute.{k}", v, *inner[k]) for k, v in recompute.items()))


def _operators(plan: Plan, framework: Framework) -> tuple[dict[str, Any], str]:
    """Returns the operators that are computed again by themselves, as an effect has it."""
    by_stage = [stage.recompute.operators for stage in plan.stages]
    if any(by_stage):
        counts = {
            field.name: [getattr(row, field.name) if row else 0 for row in by_stage]
            for field in fields(NamedLayers)
        }
        said = {name: each for name, each in counts.items() if any(each)}
        return {"plan.stages": said}, "first layers of each chunk that compute an operator again"
    named = [field.name for field in fields(Named) if getattr(framework.named, field.name)]
    selective = any(stage.recompute.granularity == "selective" for stage in plan.stages)
    return (
        {"framework.named": named} if selective else {},
        "operators that every layer of a stage computes again by themselves",
    )


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
        "shards parameters, as MindSpore 2.3 does not": plan.zero == 3
        and mindspore.version == "2.3",
        "gathers parameters of recomputed layers again, as MindSpore 2.3 does without a pipeline": (
            any(stage.recompute.regathers for stage in plan.stages)
            and (mindspore.version != "2.3" or plan.pp > 1)
        ),
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
    again = mindformers_recompute.settings(problem, plan)
    return TransformerOpParallelConfig(
        data_parallel=plan.dp,
        model_parallel=plan.tp,
        context_parallel=plan.cp,
        expert_parallel=plan.ep,
        pipeline_stage=plan.pp,
        micro_batch_num=_passes(problem, plan) if plan.pp > 1 else 1,
        recompute=TransformerRecomputeConfig(
            recompute=again.recompute,
            select_recompute=again.select_recompute,
            select_comm_recompute=again.select_comm_recompute,
            parallel_optimizer_comm_recompute=again.regathers,
            mp_comm_recompute=not problem.framework.keeps_tensor_results,
            recompute_slice_activation=problem.framework.slices_kept_inputs,
        ),
        use_seq_parallel=plan.sp,
        vocab_emb_dp=problem.framework.whole_vocabulary,
        gradient_aggregation_group=problem.framework.fused_groups or 4,
    )


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
    step = step_keywords(problem, plan)
    if mindspore.version == "2.3":
        del step["parallel_optimizer_config"]["optimizer_level"]
        step["parallel_optimizer_config"]["gradient_accumulation_shard"] = plan.zero == 2
    return {
        "parallel_mode": "semi_auto_parallel",
        "device_num": plan.dp * plan.tp * plan.cp * plan.pp,
        "pipeline_stages": plan.pp,
        **step,
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
