"""What networks of MindSpore say of stages, micro-batches and recompute; outcomes are of 2.10.0."""

from collections.abc import Iterator
from typing import Any

import pytest

import autopar
from autopar import Recompute, SpecError
from autopar.compat import mindspore
from autopar.compat.cells import Cell, PipelineCell, Primitive, configured
from autopar.compat.plans import meant


@pytest.fixture(autouse=True)
def _defaults_after() -> Iterator[None]:
    yield
    mindspore.reset_auto_parallel_context()


def layers(counts: list[int], again: int = 0, **keywords: Any) -> list[Cell]:
    """Returns the layers of stages, of each of which the first are computed again."""
    cells = []
    for stage, count in enumerate(counts):
        for index in range(count):
            cells.append(Cell())
            cells[-1].pipeline_stage = stage
            if index < again:
                cells[-1].recompute(**keywords)
    return cells


@pytest.mark.parametrize(
    ("value", "raised"),
    [(0, None), (3, None), (2**63, None), (-1, ValueError)]
    + [(value, TypeError) for value in (True, "1", 1.0, None)],
)
def test_a_cell_takes_a_stage_as_in_mindspore(value: Any, raised: type[Exception] | None) -> None:
    cell = Cell()
    if raised is None:
        cell.pipeline_stage = value
        assert cell.pipeline_stage == value
    else:
        with pytest.raises(raised):
            cell.pipeline_stage = value
        with pytest.raises(AttributeError):
            _ = cell.pipeline_stage


@pytest.mark.parametrize(
    ("keywords", "raised"),
    [
        ({}, None),
        ({"mp_comm_recompute": True}, None),
        ({"mp_comm_recompute": None}, None),
        ({"mp_comm_recompute": 1}, TypeError),
        ({"parallel_optimizer_comm_recompute": "x"}, TypeError),
        ({"recompute_slice_activation": 0}, None),
        ({"x": True}, ValueError),
    ],
)
def test_a_cell_takes_recompute_as_in_mindspore(
    keywords: dict[str, Any], raised: type[Exception] | None
) -> None:
    cell = Cell()
    if raised is None:
        cell.recompute(**keywords)
        assert cell.recomputed is not None
    else:
        with pytest.raises(raised):
            cell.recompute(**keywords)
        assert cell.recomputed is None


@pytest.mark.parametrize(
    ("value", "raised"),
    [(1, None), (4, None), (True, None), (0, ValueError), (-1, ValueError)]
    + [(value, TypeError) for value in (2.0, "2", None)],
)
def test_a_pipeline_takes_micro_batches_as_in_mindspore(
    value: Any, raised: type[Exception] | None
) -> None:
    if raised is None:
        assert PipelineCell([Cell()], value).micro_size == value
    else:
        with pytest.raises(raised):
            PipelineCell([Cell()], value)


@pytest.mark.parametrize("value", [1, None, "x"])
def test_an_operator_is_computed_again_by_a_truth_value_only(value: Any) -> None:
    assert Primitive().recompute().recomputed is True
    assert Primitive().recompute(False).recomputed is False
    with pytest.raises(TypeError):
        Primitive().recompute(value)


def test_a_network_becomes_a_plan_with_its_stages_micro_batches_and_recompute() -> None:
    question = autopar.problem(
        "llama2-7b",
        "ascend_910b:16",
        global_batch_size=64,
        sequence_length=4096,
        framework="mindformers",
    )
    mindspore.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=16)
    network = layers([8, 9, 7, 8], again=2, recompute_slice_activation=True)
    config, counts = configured(PipelineCell(network, 8), data_parallel=2, model_parallel=2)
    found = meant(config, mindspore.context(), question, layers=counts)
    assert [stage.layers for stage in found.plan.stages] == [8, 9, 7, 8]
    assert found.plan.mbs == 64 // (2 * 8)
    assert found.problem.framework.slices_kept_inputs
    assert {stage.recompute for stage in found.plan.stages} == {Recompute("block", 2)}


def test_a_network_without_stages_is_one_and_computes_all_layers_again_or_none() -> None:
    config, counts = configured(PipelineCell([Cell(), Cell()], 1))
    assert (config.recompute.recompute, counts) == (False, (2,))
    config, _ = configured(PipelineCell(layers([2], again=2, mp_comm_recompute=False), 1))
    assert config.recompute.recompute is True
    assert config.recompute.mp_comm_recompute is False


def test_communication_that_is_not_repeated_saves_time_and_costs_memory() -> None:
    question = autopar.problem(
        "llama2-7b",
        "ascend_910b:8",
        global_batch_size=8,
        sequence_length=4096,
        framework="mindformers",
    )
    mindspore.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8)
    costs = []
    for repeated in (True, False):
        network = layers([32], again=32, mp_comm_recompute=repeated)
        config, _ = configured(PipelineCell(network, 1), model_parallel=8)
        found = meant(config, mindspore.context(), question)
        [effect] = [each for each in found.effects if each.key == "recompute.mp_comm_recompute"]
        assert effect.changes == {"framework.keeps_tensor_results": not repeated}
        costs.append(autopar.estimate(found.problem, found.plan))
    brought, kept = costs
    assert kept.step_ps < brought.step_ps
    assert kept.time.tensor_ps < brought.time.tensor_ps
    assert kept.time.recompute_ps == brought.time.recompute_ps
    # Each of 32 layers keeps the sum after attention: 8 sequences of 4,096 tokens of 4,096 numbers.
    sums = 32 * 8 * 4096 * 4096 * 2
    grown = kept.stages[0].memory.activations - brought.stages[0].memory.activations
    assert grown == sums


def refused(network: list[Cell]) -> str:
    """Returns why a network becomes no configuration."""
    with pytest.raises(SpecError) as error:
        configured(PipelineCell(network, 4))
    return str(error.value)


def test_networks_that_no_plan_says_are_refused_by_name() -> None:
    assert "stages are not in order" in refused([])
    assert "stages are not in order" in refused(layers([2, 2])[::-1])
    assert "stages are not in order" in refused(layers([2, 0, 2]))
    late = layers([4], again=1)
    late[3].recompute()
    assert "other layers again than its first" in refused(late)
    unlike = layers([2, 2], again=1)
    unlike[2].recompute(recompute_slice_activation=True)
    assert "differ in how" in refused(unlike)
    assert "operator without a name" in refused([Cell([Primitive().recompute()])])
    some = [Cell(), Cell([Primitive("feed_forward.mul").recompute()])]
    assert "an operator of other layers again than its first" in refused(some)


def test_operators_of_a_stage_s_first_layers_are_counted_whole_layers_among_them() -> None:
    names = ("feed_forward.w1.activation.silu", "feed_forward.mul")
    network = layers([4, 4], again=1)
    for index in (1, 2, 4, 5):
        network[index].operators = tuple(Primitive(name).recompute() for name in names)
    config, _ = configured(PipelineCell(network, 16), data_parallel=2, model_parallel=4)
    assert config.recompute.recompute == [1, 1]
    # The fifth layer is computed again whole, its operators with it.
    assert config.recompute.select_recompute == {
        r"feed_forward\.mul": [3, 2],
        r"feed_forward\.w1\.activation\.silu": [3, 2],
    }


def test_operators_that_are_computed_again_by_name_are_in_the_plan_and_its_cost() -> None:
    question = autopar.problem(
        "llama2-7b", "ascend_910b:16", global_batch_size=64, sequence_length=4096,
        framework="mindformers",
    )  # fmt: skip
    mindspore.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel", device_num=16, pipeline_stages=2
    )
    names = ("feed_forward.w1.activation.silu", "feed_forward.mul")

    def cost(stages: tuple[int, ...]) -> autopar.Estimate:
        network = layers([16, 16])
        for cell in network:
            again = cell.pipeline_stage in stages
            cell.operators = tuple(Primitive(name).recompute(again) for name in names)
        config, counts = configured(PipelineCell(network, 16), data_parallel=2, model_parallel=4)
        found = meant(config, mindspore.context(), question, layers=counts)
        kinds = [stage.recompute.granularity for stage in found.plan.stages]
        assert kinds == ["selective" if stage in stages else "none" for stage in (0, 1)]
        [effect] = [each for each in found.effects if each.key == "recompute.select_recompute"]
        assert effect.changes == ({"framework.named": ["activation"]} if stages else {})
        return autopar.estimate(found.problem, found.plan)

    kept, both, first = cost(()), cost((0, 1)), cost((0,))
    # The outputs of nonlinearity and of its product with the gate, each a quarter of 11,008 numbers
    # of 2 bytes for each of 2 x 4,096 tokens, in each of 16 layers, for each of two micro-batches
    # that are under way on the first stage.
    dropped = 16 * 2 * (2 * 4096 * 11008 // 4 * 2) * 2
    for cheaper in (both, first):
        memory = [each.stages[0].memory.activations for each in (kept, cheaper)]
        assert memory[0] - memory[1] == dropped
    assert kept.time.recompute_ps == 0 < both.time.recompute_ps
    assert first.stages[0] == both.stages[0]
    assert first.stages[1] == kept.stages[1]
    assert first.stages[0].backward_ps > kept.stages[0].backward_ps
