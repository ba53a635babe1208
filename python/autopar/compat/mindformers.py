"""Drop-ins for MindFormers' parallel, recompute and expert configurations.

The classes take the keywords of MindFormers 1.3.2, refuse what it refuses with the same exception
types, in this package's words, and are changed as those are: by setting their attributes. Setting
`pipeline_stage`, which making a `TransformerOpParallelConfig` does, sets `pipeline_stages` of the
parallel context (`autopar.compat.mindspore`).

With `autopar.compat.mindspore.version = "2.3"` two rules of the documentation of that time hold:
`recompute` may be a truth value, and a given `optimizer_shard` sets `enable_parallel_optimizer` of
the context; 1.3.2 keeps `optimizer_shard` without effect.

Example:
    >>> config = TransformerOpParallelConfig(
    ...     data_parallel=2, model_parallel=4, recompute=TransformerRecomputeConfig(recompute=True)
    ... )
    >>> config.to_diff_dict()
    {'data_parallel': 2, 'model_parallel': 4, 'recompute': {'recompute': True}}
    >>> config.model_parallel = 0
    Traceback (most recent call last):
    ValueError: model_parallel: must be an integer from 1, found 0
"""

import inspect
from collections.abc import Callable
from copy import deepcopy
from typing import Any, ClassVar

from autopar.compat import mindspore
from autopar.compat.settings import boolean, whole, wrong

Check = Callable[[str, Any], object]

ALGORITHMS = ("colossalai_cp", "ulysses_cp", "hybird_cp")
"""How context parallelism runs: a ring, all-to-all over the heads, both. The spelling is theirs."""


def _from_one(name: str, value: Any) -> int:
    return whole(name, value, 1)


def _from_zero(name: str, value: Any) -> int:
    return whole(name, value, 0)


def _decimal(name: str, value: Any, least: str) -> float:
    if not isinstance(value, float):
        raise TypeError(wrong(name, "a float", value))
    if value < 0.0 or (value == 0.0 and least == "above 0"):
        raise ValueError(wrong(name, f"a float {least}", value))
    return value


def _one_of(words: tuple[str, ...]) -> Check:
    def check(name: str, value: Any) -> None:
        if value not in words:
            raise ValueError(wrong(name, f"one of {', '.join(words)}", value))

    return check


class Config:
    """Attributes that are looked at when they are set."""

    _checks: ClassVar[dict[str, Check]] = {}
    _written: ClassVar[tuple[str, ...]] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; TypeError or ValueError where its value is wrong."""
        if name in self._checks:
            self._checks[name](name, value)
        super().__setattr__(name, value)

    def __eq__(self, other: object) -> bool:
        """Returns whether both say the same."""
        return type(self) is type(other) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Returns the call that makes an equal one."""
        keywords = ", ".join(f"{name}={value!r}" for name, value in self.to_diff_dict().items())
        return f"{type(self).__name__}({keywords})"

    def to_dict(self) -> dict[str, Any]:
        """Returns the keywords with their values in the order in which MindFormers writes them."""
        found = {name: getattr(self, name) for name in self._written}
        return {
            name: value.to_dict() if isinstance(value, Config) else deepcopy(value)
            for name, value in found.items()
        }

    def to_diff_dict(self) -> dict[str, Any]:
        """Returns the keywords whose values are not the default ones."""
        usual = inspect.signature(type(self).__init__).parameters
        found = {}
        for name in self._written:
            value = getattr(self, name)
            if isinstance(value, Config):
                if value.to_diff_dict():
                    found[name] = value.to_diff_dict()
            elif value != usual[name].default:
                found[name] = deepcopy(value)
        return found


class TransformerRecomputeConfig(Config):
    """What a transformer layer computes again in the backward pass.

    Args:
        recompute: All layers or none; or how many at the start of each stage, as a list, or as a
            list for each model chunk.
        select_recompute: The same for the operators that MindFormers selects: product and
            activation of the MLP.
        parallel_optimizer_comm_recompute: Sharded parameters are gathered again too.
        select_comm_recompute: The same for the communication around norms.
        mp_comm_recompute: Tensor-parallel communication is repeated, not its result kept.
        recompute_slice_activation: What a layer keeps is cut over the tensor-parallel group.

    Raises:
        TypeError: One of the three truth values is none. The others are looked at only when they
            are set later, and must then be truth values.
    """

    _checks: ClassVar[dict[str, Check]] = {
        "recompute": boolean,
        "select_recompute": boolean,
        "parallel_optimizer_comm_recompute": boolean,
        "select_comm_recompute": boolean,
        "mp_comm_recompute": boolean,
        "recompute_slice_activation": boolean,
    }
    _written: ClassVar[tuple[str, ...]] = (
        *("recompute", "select_recompute", "parallel_optimizer_comm_recompute"),
        *("mp_comm_recompute", "recompute_slice_activation"),
    )

    def __init__(
        self,
        recompute: Any = False,
        select_recompute: Any = False,
        parallel_optimizer_comm_recompute: bool = False,
        select_comm_recompute: Any = False,
        mp_comm_recompute: bool = True,
        recompute_slice_activation: bool = False,
    ) -> None:
        self.parallel_optimizer_comm_recompute = parallel_optimizer_comm_recompute
        self.mp_comm_recompute = mp_comm_recompute
        self.recompute_slice_activation = recompute_slice_activation
        for name, value in (
            ("recompute", recompute),
            ("select_recompute", select_recompute),
            ("select_comm_recompute", select_comm_recompute),
        ):
            object.__setattr__(self, name, value)

    recompute: Any
    select_recompute: Any
    select_comm_recompute: Any


class OpParallelConfig(Config):
    """How one operator is cut.

    Args:
        data_parallel: Parts of the batch.
        model_parallel: Parts of the weights.
        use_seq_parallel: Norms and residuals are cut over the sequence.
        context_parallel: Parts of the sequence in attention.
        select_recompute: Whether the selected operators are computed again; not looked at.
        context_parallel_algo: colossalai_cp or ulysses_cp.

    Raises:
        TypeError, ValueError: A value has the wrong type, or is out of its range.
    """

    _checks: ClassVar[dict[str, Check]] = {
        "data_parallel": _from_one,
        "model_parallel": _from_one,
        "context_parallel": _from_one,
    }
    _written: ClassVar[tuple[str, ...]] = (
        *("data_parallel", "model_parallel", "context_parallel", "use_seq_parallel"),
        *("select_recompute", "context_parallel_algo"),
    )

    def __init__(
        self,
        data_parallel: int = 1,
        model_parallel: int = 1,
        use_seq_parallel: bool = False,
        context_parallel: int = 1,
        select_recompute: Any = False,
        context_parallel_algo: str = "colossalai_cp",
    ) -> None:
        self.data_parallel = data_parallel
        self.model_parallel = model_parallel
        self.context_parallel = context_parallel
        self.use_seq_parallel = boolean("use_seq_parallel", use_seq_parallel)
        self.select_recompute = select_recompute
        _one_of(ALGORITHMS[:2])("context_parallel_algo", context_parallel_algo)
        self.context_parallel_algo = context_parallel_algo

    def get_ulysses_cp_num(self) -> int:
        """Returns the part of context_parallel that exchanges heads instead of passing a ring."""
        return self.context_parallel if self.context_parallel_algo == "ulysses_cp" else 1


def _recompute(name: str, value: Any) -> None:
    if not isinstance(value, (TransformerRecomputeConfig, bool)):
        raise TypeError(wrong(name, "a TransformerRecomputeConfig or a truth value", value))


_NO_RECOMPUTE: Any = object()


class TransformerOpParallelConfig(Config):
    """How a transformer is parallel. All but `recompute` acts in semi_auto and auto modes only.

    `data_parallel * model_parallel * pipeline_stage` is at most the devices; with fewer, the rest
    repeat the computation. `micro_batch_num` is at least `pipeline_stage` when training. Neither is
    looked at here but when a plan is made of it (`autopar.compat.plans`), as in MindFormers.

    Args:
        data_parallel: Parts of the batch.
        model_parallel: Parts of each layer's weights.
        context_parallel: Parts of the sequence.
        expert_parallel: Parts of the experts; counts in a mixture of experts only.
        pipeline_stage: Pipeline stages.
        micro_batch_num: Micro-batches of a step; counts with a pipeline only.
        recompute: What is computed again: a `TransformerRecomputeConfig`, or its keywords.
        use_seq_parallel: Norms and residuals are cut over the sequence.
        optimizer_shard: Whether the optimizer is sharded; see the module.
        gradient_aggregation_group: Size of the groups in which sharded gradients are fused.
        vocab_emb_dp: The embedding is whole on each tensor-parallel rank; not with a pipeline.
        context_parallel_algo: colossalai_cp, ulysses_cp or hybird_cp.
        ulysses_degree_in_cp: Part of context_parallel that is Ulysses in hybird_cp.

    Raises:
        TypeError, ValueError: A value has the wrong type, or is out of its range.
    """

    _checks: ClassVar[dict[str, Check]] = {
        "data_parallel": _from_one,
        "model_parallel": _from_one,
        "context_parallel": _from_one,
        "expert_parallel": _from_one,
        "pipeline_stage": _from_one,
        "micro_batch_num": _from_one,
        "recompute": _recompute,
        "gradient_aggregation_group": _from_one,
        "vocab_emb_dp": boolean,
    }
    _written: ClassVar[tuple[str, ...]] = (
        *("data_parallel", "context_parallel", "model_parallel", "expert_parallel"),
        *("pipeline_stage", "micro_batch_num", "use_seq_parallel", "optimizer_shard"),
        *("gradient_aggregation_group", "vocab_emb_dp", "recompute", "context_parallel_algo"),
        "ulysses_degree_in_cp",
    )

    def __init__(
        self,
        data_parallel: int = 1,
        model_parallel: int = 1,
        context_parallel: int = 1,
        expert_parallel: int = 1,
        pipeline_stage: int = 1,
        micro_batch_num: int = 1,
        recompute: Any = _NO_RECOMPUTE,
        use_seq_parallel: bool = False,
        optimizer_shard: Any = None,
        gradient_aggregation_group: int = 4,
        vocab_emb_dp: bool = True,
        context_parallel_algo: str = "colossalai_cp",
        ulysses_degree_in_cp: int = 1,
    ) -> None:
        if recompute is _NO_RECOMPUTE:
            recompute = TransformerRecomputeConfig()
        elif isinstance(recompute, dict):
            recompute = TransformerRecomputeConfig(**recompute)
        elif isinstance(recompute, bool) and mindspore.version != "2.3":
            must = "a TransformerRecomputeConfig or a dictionary"
            raise TypeError(wrong("recompute", must, recompute))
        self.recompute = recompute
        _one_of(ALGORITHMS)("context_parallel_algo", context_parallel_algo)
        self.context_parallel_algo = context_parallel_algo
        self.ulysses_degree_in_cp = ulysses_degree_in_cp
        self.gradient_aggregation_group = gradient_aggregation_group
        self.data_parallel = data_parallel
        self.model_parallel = model_parallel
        self.context_parallel = context_parallel
        self.vocab_emb_dp = vocab_emb_dp
        self.use_seq_parallel = boolean("use_seq_parallel", use_seq_parallel)
        _from_one("pipeline_stage", pipeline_stage)
        self.micro_batch_num = micro_batch_num
        self.pipeline_stage = pipeline_stage
        self.expert_parallel = expert_parallel
        self.optimizer_shard = optimizer_shard
        hybrid = context_parallel > 1 and context_parallel_algo == "hybird_cp"
        if hybrid and context_parallel % ulysses_degree_in_cp:
            must = f"a divisor of context_parallel {context_parallel}"
            raise ValueError(wrong("ulysses_degree_in_cp", must, ulysses_degree_in_cp))

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute, and in the context what it overrides there."""
        super().__setattr__(name, value)
        if name == "pipeline_stage":
            mindspore.set_auto_parallel_context(pipeline_stages=value)
        if name == "optimizer_shard" and value is not None and mindspore.version == "2.3":
            mindspore.set_auto_parallel_context(enable_parallel_optimizer=value)

    def get_ulysses_cp_num(self) -> int:
        """Returns the part of context_parallel that exchanges heads instead of passing a ring."""
        if self.context_parallel == 1 or self.context_parallel_algo == "colossalai_cp":
            return 1
        if self.context_parallel_algo == "ulysses_cp":
            return self.context_parallel
        return self.ulysses_degree_in_cp


class MoEConfig(Config):
    """The mixture of experts.

    Args:
        expert_num: Experts in a layer.
        capacity_factor: Tokens that an expert takes, over an even share of them; not looked at.
        aux_loss_factor: Weight of the loss that balances the experts, above 0 and below 1.
        num_experts_chosen: Experts that a token visits, at most expert_num.
        expert_group_size: Tokens of a data-parallel group, from 1.
        group_wise_a2a: All-to-all inside the tensor-parallel group, then gather.
        comp_comm_parallel: Experts and their communication run side by side, in pieces.
        comp_comm_parallel_degree: The pieces, from 1.
        save_token_distribution: Write how many tokens each expert got.
        cur_layer: Layer whose distribution is written, from 0.
        enable_cold_hot_expert: Keep often visited experts on every device.
        update_step: Steps between updates of which those are, from 1.
        hot_expert_num: How many those are, from 0 to expert_num.
        cold_token_percent: Share of the tokens for the others, above 0 and at most 1.
        moe_module_name: Name of the module whose distribution is written.
        routing_policy: Name of the router; not looked at.
        norm_topk_prob: The chosen weights add up to 1.
        enable_sdrop: Drop tokens in sections of the sequence.
        use_fused_ops_topkrouter: Route by fused operators.
        router_dense_type: float16, float32 or bfloat16. MindFormers writes a type of MindSpore
            here, and takes float16 for float32.
        shared_expert_num: Experts that every token visits.
        use_shared_expert_gating: A gate on those.
        max_router_load: Tokens up to which routing is prepared.
        topk_method: How experts are chosen.
        topk_group: Groups of experts that a token may visit.
        n_group: Groups of experts.
        first_k_dense_replace: Leading layers without experts.
        moe_intermediate_size: Inner width of an expert.
        routed_scaling_factor: Scale of the chosen weights.
        aux_loss_types: List of `expert`, `device`, `comm`; with aux_loss_factors.
        aux_loss_factors: Their weights.
        z_loss_factor: Weight of the loss that keeps the router's logits small.

    Raises:
        TypeError, ValueError: A value has the wrong type, or is out of its range, when it is made;
            afterwards nothing is looked at.
    """

    _written: ClassVar[tuple[str, ...]] = (
        *("expert_num", "capacity_factor", "aux_loss_factor", "num_experts_chosen"),
        *("expert_group_size", "group_wise_a2a", "comp_comm_parallel"),
        *("comp_comm_parallel_degree", "save_token_distribution", "cur_layer"),
        *("enable_cold_hot_expert", "update_step", "hot_expert_num", "cold_token_percent"),
        *("moe_module_name", "routing_policy", "norm_topk_prob", "enable_sdrop"),
        *("use_fused_ops_topkrouter", "router_dense_type", "shared_expert_num"),
        *("use_shared_expert_gating", "routed_scaling_factor", "moe_intermediate_size"),
        *("n_group", "topk_group", "topk_method", "first_k_dense_replace", "aux_loss_types"),
        *("aux_loss_factors", "z_loss_factor", "max_router_load"),
    )

    def __init__(
        self,
        expert_num: int = 1,
        capacity_factor: float = 1.1,
        aux_loss_factor: float = 0.05,
        num_experts_chosen: int = 1,
        expert_group_size: int | None = None,
        group_wise_a2a: bool = False,
        comp_comm_parallel: bool = False,
        comp_comm_parallel_degree: int = 2,
        save_token_distribution: bool = False,
        cur_layer: int = 0,
        enable_cold_hot_expert: bool = False,
        update_step: int = 10000,
        hot_expert_num: int = 0,
        cold_token_percent: float = 1.0,
        moe_module_name: str = "",
        routing_policy: str = "TopkRouterV1",
        norm_topk_prob: bool = True,
        enable_sdrop: bool = False,
        use_fused_ops_topkrouter: bool = False,
        router_dense_type: str = "float32",
        shared_expert_num: int = 0,
        use_shared_expert_gating: bool = False,
        max_router_load: int = 131072,
        topk_method: str = "greedy",
        topk_group: int | None = None,
        n_group: int | None = None,
        first_k_dense_replace: Any = True,
        moe_intermediate_size: int = 1407,
        routed_scaling_factor: float = 1.0,
        aux_loss_types: list[str] | None = None,
        aux_loss_factors: list[float] | None = None,
        z_loss_factor: float = 0.0,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in self._written}
        _from_one("expert_num", expert_num)
        _decimal("aux_loss_factor", aux_loss_factor, "above 0")
        _from_one("num_experts_chosen", num_experts_chosen)
        boolean("group_wise_a2a", group_wise_a2a)
        boolean("comp_comm_parallel", comp_comm_parallel)
        _from_one("comp_comm_parallel_degree", comp_comm_parallel_degree)
        boolean("save_token_distribution", save_token_distribution)
        _from_zero("cur_layer", cur_layer)
        boolean("enable_cold_hot_expert", enable_cold_hot_expert)
        _from_one("update_step", update_step)
        _from_zero("hot_expert_num", hot_expert_num)
        _decimal("cold_token_percent", cold_token_percent, "from 0")
        _one_of(("float16", "float32", "bfloat16"))("router_dense_type", router_dense_type)
        if expert_group_size is not None:
            _from_one("expert_group_size", expert_group_size)
        if aux_loss_factor >= 1.0:
            raise ValueError(wrong("aux_loss_factor", "below 1", aux_loss_factor))
        for name in ("num_experts_chosen", "hot_expert_num"):
            if given[name] > expert_num:
                must = f"at most expert_num, {expert_num}"
                raise ValueError(wrong(name, must, given[name]))
        if not 0.0 < cold_token_percent <= 1.0:
            raise ValueError(wrong("cold_token_percent", "above 0 up to 1", cold_token_percent))
        if aux_loss_types is None:
            given |= {"aux_loss_types": [], "aux_loss_factors": []}
        elif not isinstance(aux_loss_types, list) or not isinstance(aux_loss_factors, list):
            raise ValueError(wrong("aux_loss_types", "a list beside its factors", aux_loss_types))
        elif set(aux_loss_types) - {"expert", "device", "comm"}:
            must = "a list of expert, device, comm"
            raise ValueError(wrong("aux_loss_types", must, aux_loss_types))
        if router_dense_type == "float16":
            given["router_dense_type"] = "float32"
        for name in self._written:
            setattr(self, name, given[name])

    def to_diff_dict(self) -> dict[str, Any]:
        """Returns the keywords whose values are not the default ones."""
        usual = MoEConfig().to_dict()
        return {name: value for name, value in self.to_dict().items() if value != usual[name]}
