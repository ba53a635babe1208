"""The parallel context on the operators of a graph: what each key does to cuts and costs."""

from typing import Any

import pytest

from autopar import SpecError, planner
from autopar.compat import graphs
from autopar.compat.context import Context
from autopar.compat.keys import KEYS, RANGES
from autopar.compat.settings import apply
from autopar.export.mindspore_strategy import strategy_bytes, strategy_file
from autopar.graph import Graph, MatMul, Operator, Tensor
from autopar.sharding import FixedInput, FixedStrategy, Fusion

CHIP = "ascend_910b"


def net() -> Graph:
    """Returns two products of 64 rows."""
    tensors = (
        Tensor("x", (64, 256), role="input"),
        Tensor("w1", (256, 512), role="parameter"),
        Tensor("h", (64, 512)),
        Tensor("w2", (512, 256), role="parameter"),
        Tensor("y", (64, 256)),
    )
    operators = (
        Operator(name="up", form=MatMul(), inputs=("x", "w1"), outputs=("h",)),
        Operator(name="down", form=MatMul(), inputs=("h", "w2"), outputs=("y",)),
    )
    return Graph(name="net", tensors=tensors, operators=operators)


def cut(graph: Graph | None = None, strategies: Any = (), **keys: Any) -> graphs.Cut:
    context = Context()
    apply(context, {"device_num": 8, "parallel_mode": "auto_parallel", **keys}, RANGES["2.10"])
    return graphs.shard(context, graph or net(), CHIP, strategies)


def strategies_of(found: graphs.Cut) -> dict[str, Any]:
    return {each.operator: each.inputs for each in found.sharding.chosen().strategies}


def test_every_key_has_an_effect_or_a_reason_for_none() -> None:
    found = cut()
    assert [effect.key for effect in found.effects] == list(KEYS)
    assert all(effect.because for effect in found.effects)


@pytest.mark.parametrize(
    ("search", "options"),
    [
        ("recursive_programming", {"method": "recursive", "cost_model": "mindspore"}),
        ("dynamic_programming", {"method": "dp"}),
        ("sharding_propagation", {"method": "propagate"}),
    ],
)
def test_the_search_of_the_context_is_the_method(search: str, options: dict[str, Any]) -> None:
    found = cut(search_mode=search, dataset_strategy="full_batch")
    assert found.sharding == planner.shard(
        net(), CHIP, devices=8, others="search", all_to_all=False, zero=0,
        dataset=[FixedInput(tensor="x", cuts=(1, 1))], fusion=Fusion(), **options,
    )  # fmt: skip


def test_operators_of_semi_auto_parallel_keep_what_they_were_told_and_others_cut_the_batch() -> (
    None
):
    told = FixedStrategy(operator="up", inputs=((2, 1), (1, 4)))
    found = cut(strategies=[told], parallel_mode="semi_auto_parallel")
    assert strategies_of(found) == {"up": ((2, 1), (1, 4)), "down": ((8, 1), (1, 1))}
    alone = cut(parallel_mode="data_parallel")
    assert strategies_of(alone)["up"] == ((8, 1), (1, 1))
    assert cut(parallel_mode="stand_alone").sharding.problem.cluster.devices == 1


def test_stages_share_the_devices_and_searches_refuse_what_mindspore_s_do() -> None:
    assert cut(pipeline_stages=2).sharding.problem.cluster.devices == 4
    with pytest.raises(SpecError, match=r"^pipeline_stages: 3 stages do not divide 8"):
        cut(pipeline_stages=3)
    with pytest.raises(
        SpecError, match=r"^search_mode: recursive_programming needs a power of two"
    ):
        cut(device_num=6)
    with pytest.raises(SpecError, match=r"at most 1024, found 2048"):
        cut(device_num=2048)
    with pytest.raises(SpecError, match=r"^parallel_mode: hybrid_parallel"):
        cut(parallel_mode="hybrid_parallel")


def test_a_strategy_file_overrules_the_hand_but_not_the_recursive_search(tmp_path: Any) -> None:
    path = tmp_path / "s.json"
    told = FixedStrategy(operator="up", inputs=((2, 1), (1, 4)))
    loaded = cut(strategies=[told], parallel_mode="semi_auto_parallel")
    path.write_bytes(strategy_bytes(strategy_file(loaded.sharding), path.name))
    other = FixedStrategy(operator="up", inputs=((8, 1), (1, 1)))
    keys = {"strategy_ckpt_load_file": str(path), "search_mode": "dynamic_programming"}
    again = cut(strategies=[other], **keys)
    assert strategies_of(again) == strategies_of(loaded)
    recursive = cut(**keys | {"search_mode": "recursive_programming"})
    [effect] = [each for each in recursive.effects if each.key == "strategy_ckpt_load_file"]
    assert effect.because == "recursive_programming passes over it"


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ({"enable_alltoall": True}, {"all_to_all": True}),
        ({"gradient_fp32_sync": False}, {"gradient_bytes": 2}),
        ({"gradient_fp32_sync": False, "force_fp32_communication": True}, {"gradient_bytes": 4}),
        ({"enable_parallel_optimizer": True}, {"zero": 1}),
        (
            {
                "enable_parallel_optimizer": True,
                "parallel_optimizer_config": {"optimizer_level": "level3"},
            },
            {"zero": 3},
        ),
        ({"comm_fusion": {"openstate": False}}, {"fusion": None}),
    ],
)
def test_a_key_is_an_option_of_the_search(keys: dict[str, Any], options: dict[str, Any]) -> None:
    asked = cut(**keys).sharding.problem.options
    assert {name: getattr(asked, name) for name in options} == options


def test_groups_are_those_of_the_context() -> None:
    sized = cut(comm_fusion={"allreduce": {"mode": "size", "config": 8}}).sharding.problem.options
    assert sized.fusion is not None
    assert (sized.fusion.all_reduce.mode, sized.fusion.all_reduce.mb) == ("size", 8)
    placed = cut(all_reduce_fusion_config=[1]).sharding.problem.options.fusion
    assert placed is not None
    assert placed.all_reduce.places == (1,)


def test_the_dataset_is_cut_as_the_context_has_it() -> None:
    found = cut(dataset_strategy=((4, 1),), search_mode="dynamic_programming")
    assert [each.cuts for each in found.sharding.problem.options.dataset] == [(4, 1)]
    with pytest.raises(
        SpecError, match=r"^dataset_strategy: cuts 2 tensors where the graph reads 1"
    ):
        cut(dataset_strategy=((4, 1), (4, 1)))
