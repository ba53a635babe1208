"""MindSpore's strategy and group files, against those of its compiler and the protobuf library."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from autopar import SpecError
from autopar.export.mindspore_strategy import (
    group_bytes,
    group_name,
    json_bytes,
    protobuf_bytes,
    strategy_bytes,
)
from autopar.frontends.mindspore_strategy import (
    GroupFile,
    OperatorStrategy,
    ParameterLayout,
    StrategyFile,
    read,
    read_group,
    read_json,
    read_protobuf,
)

GOLDEN = Path(__file__).parent / "data/mindspore"
STRATEGIES = sorted([*GOLDEN.glob("*.json"), *GOLDEN.glob("*.ckpt")])
GROUPS = sorted(GOLDEN.glob("*.group"))

# node_strategy.proto of MindSpore: message -> fields as label, type, name, number.
PROTO = """
ParallelStrategy: repeated uint32 dim 1
ParallelStrategys: required uint32 stage 1, repeated ParallelStrategy parallel_strategy 2
ParallelStrategyItem: required string node_name 1, required ParallelStrategys parallel_strategys 2
DevMatrix: repeated uint32 dim 1
TensorMap: repeated int32 dim 1
ParamSplitShape: repeated int64 dim 1
IndicesOffset: repeated int64 dim 1
ParallelLayouts: repeated DevMatrix dev_matrix 1, repeated TensorMap tensor_map 2, \
repeated ParamSplitShape param_split_shape 3, repeated IndicesOffset indices_offset 4, \
required int32 field 5, required int32 opt_weight_shard_step 6, \
required int32 opt_weight_shard_size 7
ParallelLayoutItem: required string param_name 1, required ParallelLayouts parallel_layouts 2
ParallelStrategyMap: required uint32 current_stage 1, \
repeated ParallelStrategyItem parallel_strategy_item 2, \
repeated ParallelLayoutItem parallel_layout_item 3
ParallelGroupRanks: repeated uint32 dim 1
ParallelGroupItem: required string group_name 1, required ParallelGroupRanks parallel_group_ranks 2
ParallelGroupMap: repeated ParallelGroupItem parallel_group_item 1, \
required ParallelGroupRanks ckpt_restore_rank_list 2
"""


def message(name: str) -> Any:
    """Returns a new message of the real protobuf library."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="strategy.proto", package="straspb", syntax="proto2"
    )
    for line in PROTO.strip().splitlines():
        title, _, body = line.partition(": ")
        kind = file.message_type.add(name=title)
        for spelled in body.split(", "):
            label, typed, called, number = spelled.split()
            entry = kind.field.add(name=called, number=int(number))
            entry.label = getattr(field, f"LABEL_{label.upper()}")
            if typed.islower():
                entry.type = getattr(field, f"TYPE_{typed.upper()}")
            else:
                entry.type, entry.type_name = field.TYPE_MESSAGE, f".straspb.{typed}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"straspb.{name}"))()


def drawn(seed: int) -> StrategyFile:
    """Returns a strategy file of random content."""
    random_ = random.Random(seed)

    def counts(most: int = 4) -> tuple[int, ...]:
        return tuple(
            random_.choice([1, 2, 3, 8, 300, 70000]) for _ in range(random_.randint(0, most))
        )

    layouts = []
    for index in range(random_.randint(0, 5)):
        devices = (*counts(), 2)
        axes = tuple(random_.randint(-1, len(devices) - 1) for _ in range(random_.randint(0, 4)))
        split = counts()
        layouts.append(
            ParameterLayout(
                name=f"层.{index}.weight",
                dev_matrix=devices,
                tensor_map=axes,
                field=random_.choice([0, 7]),
                opt_weight_shard_step=random_.choice([0, 1, 16]),
                opt_weight_shard_size=random_.choice([0, -1, 8]),
                split_shape=split,
                indices_offset=tuple(range(len(split))),
            )
        )
    operators = tuple(
        OperatorStrategy(
            name=f"MatMul_层.{index}.weight",
            inputs=tuple(counts() for _ in range(random_.randint(0, 3))),
            stage=random_.randint(0, 200),
        )
        for index in range(random_.randint(0, 5))
    )
    return StrategyFile(
        current_stage=random_.randint(0, 400), operators=operators, layouts=tuple(layouts)
    )


def real(file: StrategyFile) -> Any:
    """Returns the same file as a message of the real protobuf library."""
    written = message("ParallelStrategyMap")
    written.current_stage = file.current_stage
    for operator in file.operators:
        item = written.parallel_strategy_item.add(node_name=operator.name)
        item.parallel_strategys.stage = operator.stage
        for row in operator.inputs:
            item.parallel_strategys.parallel_strategy.add(dim=row)
    for layout in file.layouts:
        into = written.parallel_layout_item.add(param_name=layout.name).parallel_layouts
        into.dev_matrix.add(dim=layout.dev_matrix)
        into.tensor_map.add(dim=layout.tensor_map)
        into.param_split_shape.add(dim=layout.split_shape)
        into.indices_offset.add(dim=layout.indices_offset)
        into.field = layout.field
        into.opt_weight_shard_step = layout.opt_weight_shard_step
        into.opt_weight_shard_size = layout.opt_weight_shard_size
    return written


@pytest.mark.parametrize("path", STRATEGIES, ids=lambda path: path.name)
def test_a_strategy_file_of_the_compiler_is_read_and_written_to_the_same_bytes(path: Path) -> None:
    assert strategy_bytes(read(path), path.name) == path.read_bytes()


@pytest.mark.parametrize("path", GROUPS, ids=lambda path: path.name)
def test_a_group_file_of_the_compiler_is_read_and_written_to_the_same_bytes(path: Path) -> None:
    assert group_bytes(read_group(path)) == path.read_bytes()


def test_the_hash_in_a_groups_name_is_that_of_its_ranks() -> None:
    groups = [group for path in GROUPS for group in read_group(path).groups]
    assert {len(ranks) for _, ranks in groups} == {2, 4, 8}
    for name, ranks in groups:
        assert group_name(ranks) == name


def test_the_two_forms_of_one_compilation_say_the_same() -> None:
    for path in GOLDEN.glob("*.ckpt"):
        text, bytes_ = read(path.with_suffix(".json")), read(path)
        assert {operator.name: operator for operator in text.operators} == {
            operator.name: operator for operator in bytes_.operators
        }
        assert {layout.name: replace(layout, tensor_shape=None) for layout in text.layouts} == {
            layout.name: layout for layout in bytes_.layouts
        }


@pytest.mark.parametrize("seed", range(100))
def test_the_protobuf_library_writes_the_same_bytes_and_is_read(seed: int) -> None:
    file = drawn(seed)
    expected = real(file).SerializeToString()
    assert protobuf_bytes(file) == expected
    assert read_protobuf(expected) == file


def test_a_packed_list_is_read_too() -> None:
    # A reader must take both spellings of a list; here [2, 1] is one chunk of two bytes.
    item = bytes.fromhex("0a0177" + "1208" + "0800" + "1204" + "0a020201")
    assert read_protobuf(bytes([8, 2, 0x12, len(item)]) + item).operators == (
        OperatorStrategy(name="w", inputs=((2, 1),)),
    )


def test_a_group_file_is_what_the_protobuf_library_writes() -> None:
    written = message("ParallelGroupMap")
    written.parallel_group_item.add(group_name="2-1").parallel_group_ranks.dim.extend([0, 300])
    written.ckpt_restore_rank_list.dim.extend([0, 4])
    file = GroupFile(groups=(("2-1", (0, 300)),), restore_ranks=(0, 4))
    assert group_bytes(file) == written.SerializeToString()


def test_a_file_without_parameters_has_the_counter_alone() -> None:
    assert json_bytes(StrategyFile()) == b'{"current_stage":2}'


def test_outputs_are_in_json_only() -> None:
    cut = OperatorStrategy(name="MatMul_w", inputs=((1, 2), (2, 1)), outputs=((2, 1),))
    file = StrategyFile(operators=(cut,))
    assert json.loads(json_bytes(file))["parallel_out_strategy_item"] == {
        "MatMul_w": {"parallel_strategy": [[2, 1]], "stage": 0}
    }
    assert read_json(json_bytes(file)) == file
    with pytest.raises(SpecError, match="cannot say the cuts of its outputs"):
        protobuf_bytes(file)


def test_shapes_are_in_json_only() -> None:
    with pytest.raises(SpecError, match=r"parallel_layout_item\.w1: without its tensor_shape"):
        json_bytes(read(GOLDEN / "two_matmuls.ckpt"))


def test_a_damaged_protobuf_is_refused_or_read_but_never_more() -> None:
    data = (GOLDEN / "uneven_embedding.ckpt").read_bytes()
    whole = read_protobuf(data)
    refused = 0
    for end in range(len(data)):
        try:
            part = read_protobuf(data[:end])
        except SpecError:
            refused += 1
        else:
            assert whole.operators[: len(part.operators)] == part.operators
            assert not part.layouts
    assert refused >= len(data) - 2
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            try:
                read_protobuf(bytes(changed))
            except SpecError:
                refused += 1
    assert refused > len(data)


def changed(table: str, key: str, **values: object) -> str:
    """Returns the golden file with values of one entry replaced, or removed where None."""
    text = json.loads((GOLDEN / "two_matmuls.json").read_text())
    entry = text[table][key]
    entry.update(values)
    text[table][key] = {name: value for name, value in entry.items() if value is not None}
    return json.dumps(text)


WRONG = {
    "broken": ('{"a":', "wrong.json:1: not JSON: the text ends within a table or list (column 6)"),
    "no comma": (
        '{"current_stage": 2\n "parallel_strategy_item": {}}',
        "wrong.json:1: not JSON: a comma is missing after 2 (column 20). Add it.",
    ),
    "a list": ("[]", "must be a table, found a list of 0"),
    "no counter": ('{"parallel_layout_item":{}}', "current_stage: missing key. Add it."),
    "a key of another form": (
        '{"current_stage":2,"parallel_layout_value_item":{}}',
        "parallel_layout_value_item: unknown key. Read are strategies of counts",
    ),
    "a count of 0": (
        changed("parallel_strategy_item", "MatMul_w1", parallel_strategy=[[2, 0], [1, 4]]),
        "parallel_strategy_item.MatMul_w1.parallel_strategy[0]: must be counts from 1, found 0",
    ),
    "a truth as a count": (
        changed("parallel_strategy_item", "MatMul_w1", parallel_strategy=[[True, 1], [1, 4]]),
        "must be counts from 1, found true",
    ),
    "a strategy that is no list": (
        changed("parallel_strategy_item", "MatMul_w1", parallel_strategy=2),
        "parallel_strategy_item.MatMul_w1.parallel_strategy: must be a list, found 2",
    ),
    "no stage": (
        changed("parallel_strategy_item", "MatMul_w1", stage=None),
        "parallel_strategy_item.MatMul_w1.stage: missing key",
    ),
    "an axis that is not there": (
        changed("parallel_layout_item", "w1", tensor_map=[-1, 2]),
        "parallel_layout_item.w1.tensor_map[1]: must be from -1 to 1, found 2",
    ),
    "an axis too many": (
        changed("parallel_layout_item", "w1", tensor_map=[-1, 0, 0]),
        "parallel_layout_item.w1.tensor_map: has 3 axes, tensor_shape 2",
    ),
    "a shape that does not divide": (
        changed("parallel_layout_item", "w1", tensor_shape=[64, 255]),
        "parallel_layout_item.w1.tensor_shape[1]: 255 is not divisible by the 4 parts",
    ),
    "no devices": (
        changed("parallel_layout_item", "w1", dev_matrix=[2, 0]),
        "parallel_layout_item.w1.dev_matrix: must be counts from 1, found 0",
    ),
    "parts without offsets": (
        changed("parallel_layout_item", "w1", param_split_shape=[32, 32]),
        "parallel_layout_item.w1.indices_offset: has 0 parts, param_split_shape 2",
    ),
    "outputs of an operator that is not there": (
        '{"current_stage":2,"parallel_out_strategy_item":'
        '{"MatMul_w":{"parallel_strategy":[[1]],"stage":0}}}',
        "parallel_out_strategy_item.MatMul_w: not in parallel_strategy_item",
    ),
}


@pytest.mark.parametrize(("text", "what"), WRONG.values(), ids=WRONG)
def test_a_wrong_strategy_file_is_refused_in_one_line(text: str, what: str) -> None:
    with pytest.raises(SpecError) as error:
        read_json(text, "wrong.json")
    assert str(error.value).startswith("wrong.json:")
    assert what in str(error.value)
