"""The cuts of a plan's operators for MindSpore: tensor, sequence, context, experts, one by one.

The operators are those of the graph that `autopar shard MODEL` cuts. A plan settles its products,
norms, sums and look-ups as Megatron-LM lays them (arXiv:1909.08053, arXiv:2205.05198 for the
sequence), and experts over the replicas (arXiv:2006.16668); every other operator takes the cuts of
what it reads. The answer is priced and checked at the operator level like any other.

MindSpore scatters what a product or a look-up sums over the first dimension only. So these take
tokens as rows, batch and sequence in one dimension, as MindFormers' layers do.
"""

from collections.abc import Iterable
from dataclasses import replace

from autopar import planner
from autopar.errors import SpecError
from autopar.export.job import Job, when
from autopar.export.mindspore_strategy import strategy_file
from autopar.frontends.mindspore_strategy import OperatorStrategy, StrategyFile, operator_names
from autopar.graph import Graph, Operator, recomputed
from autopar.sharding import Cuts, FixedStrategy, Sharding

FIRST = "layers.0."
# What a dimension is cut over: groups that hold the same experts, the experts of one, nothing.
GROUP, EXPERT, WHOLE = "group", "expert", "None"
# What follows the last layer, on its stage.
AFTER = {"norm", "logits", "logits.bias", "loss"}


def is_cut(job: Job) -> bool:
    """Returns whether a plan cuts operators over more than the batch."""
    return job.plan.tp * job.plan.cp * job.plan.ep > 1


def unsaid(job: Job) -> list[str]:
    """Returns what of a plan the cuts of operators cannot say; empty if they say it exactly."""
    problem, plan, model = job.problem, job.plan, job.problem.model
    multiple = problem.framework.vocab_multiple
    vocabulary = -(-model.vocab // multiple) * multiple
    devices = plan.dp * plan.cp * plan.tp
    reasons = when(
        (
            plan.cp > 1 and plan.tp > 1,
            "context beside tensor parallel, in the plan's order of ranks",
        ),
        (devices.bit_count() > 1, f"operators cut over {devices} devices, no power of two"),
        (model.kv_heads % plan.tp != 0, f"tp {plan.tp} over {model.kv_heads} key heads"),
        (vocabulary % plan.tp != 0, f"tp {plan.tp} over {vocabulary} rows of the embedding"),
        *_unsaid_experts(job),
        (model.mla is not None, "cuts of latent attention"),
        (model.window is not None, "cuts of layers that differ by their windows"),
        (model.tied_embeddings, "cuts of an embedding that is the head's too"),
        (
            plan.cp > 1 and problem.framework.context_exchange != "gather",
            "context parallel that does not gather keys and values",
        ),
    )
    if not reasons:
        try:
            _graph(job)
        except SpecError as error:
            reasons.append(error.what)
    return reasons


def _unsaid_experts(job: Job) -> list[tuple[bool, str]]:
    """Returns conditions under which experts are not cut, each with its reason."""
    plan, moe = job.plan, job.problem.model.moe
    if moe is None:
        return []
    return [
        (plan.cp * plan.tp > 1, "cuts of experts beside tensor or context parallel"),
        (moe.first_dense > 0 or moe.every > 1, "cuts of layers of which some have no experts"),
    ]


def sharding(
    job: Job,
    layers: int = 1,
    *,
    again: Iterable[str] = (),
) -> Sharding:
    """Returns how a plan cuts the operators of the model's first layers and of its ends.

    All layers are cut alike. Devices are those of one stage, tokens those of a micro-batch. Of
    experts that each group of replicas holds the counts are the plan's, while the devices that they
    are priced on lie in MindSpore's order; `in_groups` has the plan's.

    Args:
        job: The plan.
        layers: The layers.
        again: Names of operators that run again before the backward pass; a star stands for any
            letters.

    Raises:
        SpecError: The plan cannot be said so (`unsaid` names why), or no operator has a name.
    """
    problem, plan = job.problem, job.plan
    graph = recomputed(_graph(job, layers), again)
    fixed = [cut for each in graph.operators if (cut := _cut(job, each)) is not None]
    return planner.shard(
        graph,
        replace(problem.cluster, devices=plan.dp * plan.cp * plan.tp),
        # On one axis cuts take devices from the outermost loop inwards, as MindSpore has them.
        method="propagate",
        strategies=fixed,
        zero=plan.zero,
        optimizer_bytes=problem.framework.bytes.optimizer,
        gradient_bytes=problem.framework.bytes.gradient,
    )


def file_of(found: Sharding, stages: list[int]) -> StrategyFile:
    """Returns the strategy file of a whole model, cut as `sharding` says of its first layer.

    Args:
        found: The sharding of the first layer and of the ends.
        stages: The pipeline stage of each layer.
    """
    said = strategy_file(found)
    operators = []
    apart = set(in_groups(found))
    for name, own in _by_name(found).items():
        if _of_every_layer(own) in apart:
            continue
        strategy = _on_rows(next(each for each in said.operators if each.name == name))
        if FIRST in own:
            for layer, stage in enumerate(stages):
                operators.append(
                    replace(strategy, name=_of_layer(strategy.name, layer), stage=stage)
                )
        else:
            stage = stages[-1] if own in AFTER else stages[0]
            operators.append(replace(strategy, stage=stage))
    # How parameters lie follows from these and from what shards the optimizer.
    return replace(said, operators=tuple(operators), layouts=())


def set_apart(found: Sharding) -> dict[str, tuple[Cuts, Cuts | None]]:
    """Returns the cuts that a strategy file does not hold, for `Primitive.shard`.

    They are those of operators without a parameter, and the outputs of products and look-ups whose
    summands are scattered; null where the outputs follow. A layer's number is a star: all layers
    are cut alike. Reshapes are left out, as MindSpore cuts them as it must.
    """
    graph = found.problem.graph
    named = operator_names(graph)
    cuts: dict[str, tuple[Cuts, Cuts | None]] = {}
    for operator, each in zip(graph.operators, found.operators, strict=True):
        scattered = each.outputs if each.summands == "reduce_scatter" else None
        if operator.source == "Reshape" or (operator.name in named and scattered is None):
            continue
        inputs = each.inputs
        if operator.source in ("Dispatch", "Combine"):
            # Places in one dimension, and the rows that they are of in another.
            tokens, places = inputs
            inputs = ((tokens[0], 1, tokens[-1]), (places[0], 1))
        if operator.name in named and scattered is not None:
            inputs = _on_rows(OperatorStrategy(name=named[operator.name], inputs=inputs)).inputs
            scattered = tuple(_rows(cut) for cut in scattered)
        cuts[_of_every_layer(operator.name)] = (inputs, scattered)
    return {name: cut for name, cut in cuts.items() if name not in in_groups(found)}


def in_groups(found: Sharding) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Returns the operators of experts that several groups of replicas hold, for `Layout`.

    Tokens lie in the order of their replicas, experts in that of a group. From counts MindSpore
    takes the devices of a cut from the first dimension inwards, which there is that of the experts
    and not the one of the groups; so each dimension names what it is cut over.

    Returns:
        For each input a word a dimension: GROUP, EXPERT or WHOLE. Empty where one group holds all.
    """
    layouts = {}
    for operator, each in zip(found.problem.graph.operators, found.operators, strict=True):
        experts = ".experts." in operator.name or operator.name.endswith(".returned")
        if experts and operator.source != "Reshape":
            layouts[_of_every_layer(operator.name)] = tuple(
                (EXPERT, GROUP if rows > 1 else WHOLE, *(WHOLE for _ in others))
                for _, rows, *others in each.inputs
            )
    several = any(GROUP in cut for cuts in layouts.values() for cut in cuts)
    return layouts if several else {}


def _graph(job: Job, layers: int = 1) -> Graph:
    work = job.problem.workload
    return planner.model_graph(
        job.problem.model,
        batch=job.plan.dp * job.plan.mbs,
        sequence_length=work.sequence_length,
        precision=work.precision,
        layers=layers,
        framework=job.problem.framework,
    )


def _by_name(found: Sharding) -> dict[str, str]:
    """Returns the operators that read a parameter, by MindSpore's names for them."""
    return {name: own for own, name in operator_names(found.problem.graph).items()}


def _on_rows(strategy: OperatorStrategy) -> OperatorStrategy:
    """Returns the strategy of a product or look-up that takes tokens as rows; of others theirs.

    Example:
        >>> strategy = OperatorStrategy(name="BatchMatMul_w", inputs=((4, 2, 1), (1, 2)))
        >>> _on_rows(strategy).name, _on_rows(strategy).inputs
        ('MatMul_w', ((8, 1), (1, 2)))
    """
    kind, _, parameter = strategy.name.partition("_")
    first, *others = strategy.inputs
    match kind:
        case "BatchMatMul" if len(others[0]) == 2:
            return replace(strategy, name=f"MatMul_{parameter}", inputs=(_rows(first), *others))
        case "Gather":
            return replace(strategy, inputs=(first, *map(_rows, others)))
        case _:
            return strategy


def _rows(cut: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the cut of a tensor whose first two dimensions are one."""
    batch, sequence, *others = cut
    return (batch * sequence, *others)


def _of_every_layer(name: str) -> str:
    """Returns the name that an operator of the first layer has for all layers."""
    return name.replace(FIRST, "layers.*.")


def _of_layer(name: str, layer: int) -> str:
    """Returns the name that what the first layer has bears in another.

    Example:
        >>> _of_layer("MatMul_layers.0.mlp.down.weight", 12), _of_layer("Gather_embedding", 12)
        ('MatMul_layers.12.mlp.down.weight', 'Gather_embedding')
    """
    return name.replace(FIRST, f"layers.{layer}.")


def _cut(job: Job, operator: Operator) -> FixedStrategy | None:
    """Returns how a plan cuts an operator; null where it follows from what the operator reads."""
    plan = job.plan
    dp, cp, tp = plan.dp, plan.cp, plan.tp
    # Between products the sequence is cut over context and, with sequence parallel, tensor ranks.
    apart = cp * tp if plan.sp else cp
    scattered: Cuts | None = ((dp, apart, 1),) if plan.sp else None
    vocabulary = 1 if job.problem.framework.whole_vocabulary else tp
    part = operator.name.rpartition(".")[2]
    ep, groups = plan.ep, plan.dp // plan.ep
    match operator.source, part:
        case "Dispatch", _:
            return _fixed(operator, ((dp, 1, 1),) * 2)
        case "Transpose", "sent" | "returned":
            # Between replicas and experts it is exchanged before, and after.
            return _fixed(operator, ((groups, ep, 1, 1) if part == "sent" else (ep, groups, 1, 1),))
        case "BatchMatMul", _:
            return _fixed(operator, ((ep, groups, 1), (ep, 1, 1)))
        case "Combine", _:
            return _fixed(operator, ((dp, 1, 1, 1), (dp, 1, 1)))
        case "Gather", _:
            outputs = scattered if vocabulary > 1 else None
            return _fixed(operator, ((vocabulary, 1), (dp, cp)), outputs)
        case "RmsNorm" | "LayerNorm", _ if not operator.name.endswith((".q.norm", ".k.norm")):
            return _fixed(operator, ((dp, apart, 1), *((1,) for _ in operator.inputs[1:])))
        case "Add", "residual":
            return _fixed(operator, ((dp, apart, 1),) * 2)
        case "BiasAdd", _:
            inside = operator.name.endswith(("qkv.bias", "up.bias"))
            cuts = ((dp, cp, tp), (tp,)) if inside else ((dp, apart, 1), (1,))
            return _fixed(operator, cuts)
        case "Transpose", _:
            # Heads are moved before places, and back.
            back = operator.name.endswith("attention.turn")
            return _fixed(operator, ((dp, tp, cp, 1) if back else (dp, cp, tp, 1),))
        case "Slice", _:
            return _fixed(operator, ((1, 1),))
        case "Add", "add":
            return _fixed(operator, ((dp, apart, 1), (apart, 1)))
        case "MatMul", "logits":
            return _fixed(operator, ((dp, cp, 1), (vocabulary, 1)))
        case "MatMul", "out" | "down":
            return _fixed(operator, ((dp, cp, tp), (tp, 1)), scattered)
        case "MatMul", _:
            return _fixed(operator, ((dp, cp, 1), (1, tp)))
        case "FlashAttention", _:
            # Every rank of a sequence reads all of its keys and values.
            whole = (dp, tp, 1, 1)
            return _fixed(operator, ((dp, tp, cp, 1), whole, whole))
        case _:
            return None


def _fixed(operator: Operator, inputs: Cuts, outputs: Cuts | None = None) -> FixedStrategy:
    return FixedStrategy(operator=operator.name, inputs=inputs, outputs=outputs)
