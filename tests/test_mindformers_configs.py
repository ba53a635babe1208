"""The drop-in configurations of MindFormers: what the real ones did, and older rules."""

import ast
import json
from collections.abc import Iterator

import pytest

from autopar.compat import mindspore
from autopar.compat.mindformers import (
    MoEConfig,
    TransformerOpParallelConfig,
    TransformerRecomputeConfig,
)
from config_outcomes import GOLDEN, outcome

_, *LINES = GOLDEN.read_text("utf-8").splitlines()


@pytest.fixture(autouse=True)
def _defaults_after() -> Iterator[None]:
    yield
    mindspore.version = "2.10"
    mindspore.reset_auto_parallel_context()


@pytest.mark.parametrize("line", LINES)
def test_each_recorded_case_comes_out_as_in_mindformers(line: str) -> None:
    case = json.loads(line)
    ours = outcome(*ast.literal_eval(case["case"]))
    assert ours["raises"] == case["raises"]
    assert ours["stages"] == case["stages"]
    if case["dict"] is not None:
        assert ours["dict"] == case["dict"]


def test_the_number_of_stages_overrides_the_context() -> None:
    config = TransformerOpParallelConfig(pipeline_stage=4)
    assert mindspore.get_auto_parallel_context("pipeline_stages") == 4
    config.pipeline_stage = 2
    assert mindspore.get_auto_parallel_context("pipeline_stages") == 2


def test_recompute_as_a_truth_value_is_of_the_older_release() -> None:
    with pytest.raises(TypeError, match="recompute"):
        TransformerOpParallelConfig(recompute=True)
    mindspore.version = "2.3"
    assert TransformerOpParallelConfig(recompute=True).to_dict()["recompute"] is True


def test_a_sharded_optimizer_overrides_the_context_in_the_older_release_only() -> None:
    TransformerOpParallelConfig(optimizer_shard=True)
    assert mindspore.get_auto_parallel_context("enable_parallel_optimizer") is False
    mindspore.version = "2.3"
    TransformerOpParallelConfig(optimizer_shard=True)
    assert mindspore.get_auto_parallel_context("enable_parallel_optimizer") is True


def test_two_configurations_do_not_share_what_they_recompute() -> None:
    one, other = TransformerOpParallelConfig(), TransformerOpParallelConfig()
    one.recompute.mp_comm_recompute = False
    assert other.recompute.mp_comm_recompute is True
    assert one != other
    assert other == TransformerOpParallelConfig()


def test_what_differs_from_the_defaults_makes_an_equal_configuration() -> None:
    recompute = TransformerRecomputeConfig(recompute=[2, 1], mp_comm_recompute=False)
    config = TransformerOpParallelConfig(data_parallel=4, recompute=recompute)
    assert config.to_diff_dict() == {
        "data_parallel": 4,
        "recompute": {"recompute": [2, 1], "mp_comm_recompute": False},
    }
    assert TransformerOpParallelConfig(**config.to_diff_dict()) == config
    experts = MoEConfig(expert_num=8, num_experts_chosen=2)
    assert experts.to_diff_dict() == {"expert_num": 8, "num_experts_chosen": 2}
    assert repr(experts) == "MoEConfig(expert_num=8, num_experts_chosen=2)"


@pytest.mark.parametrize(
    ("algorithm", "exchanged"), [("colossalai_cp", 1), ("ulysses_cp", 8), ("hybird_cp", 4)]
)
def test_the_part_of_the_sequence_that_exchanges_heads(algorithm: str, exchanged: int) -> None:
    config = TransformerOpParallelConfig(
        context_parallel=8, context_parallel_algo=algorithm, ulysses_degree_in_cp=4
    )
    assert config.get_ulysses_cp_num() == exchanged
