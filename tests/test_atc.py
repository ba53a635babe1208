"""ATC's graph-parallel flags and its two option files: what is read, and what is refused."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autopar
from autopar import SpecError, partition
from autopar.files import write_all
from autopar.frontends import atc
from autopar.frontends.mindspore_strategy import read
from autopar.graph import Graph, MatMul, Operator, Tensor
from conftest import Command

# The example of ATC's guide up to CANN 8.0, in English and Chinese: a comma is missing.
GUIDE = """{
    "graph_parallel_option": {
        "auto": false,
        "opt_level": "O1"
        "tensor_parallel_option": {
            "tensor_parallel_size": 2
        },
        "tensor_sharding":{
          "optimizer_state_sharding": true,
          "gradient_sharding":true,
          "model_weight_sharding": true,
          "model_weight_prefetch": true,
          "model_weight_prefetch_buffer_size": 50
        }
    }
}"""


def node(node_id: int = 0, cards: int = 2, **changes: object) -> dict[str, Any]:
    return {
        "node_id": node_id,
        "node_type": "ATLAS800",
        "ipaddr": "127.0.0.1",
        "port": 2509,
        "item_list": [{"item_id": item} for item in range(cards)],
        **changes,
    }


def cluster(*nodes: dict[str, Any], **changes: object) -> str:
    table = {
        "cluster": [{"cluster_nodes": list(nodes) or [node()]}],
        "item_def": [{"item_type": "Ascend910B3"}],
        **changes,
    }
    return json.dumps({key: value for key, value in table.items() if value is not None})


Ask = Callable[..., atc.Question]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Returns a function that asks with ATC's example, changed."""
    monkeypatch.chdir(tmp_path)
    Path("numa_config_2p.json").write_text(cluster(), "utf-8")
    Path("parallel_option.json").write_text(GUIDE.replace('"O1"', '"O1",'), "utf-8")

    def question(**changes: Any) -> atc.Question:
        flags: dict[str, Any] = {
            "distributed_cluster_build": 1,
            "cluster_config": "./numa_config_2p.json",
            "model": "./matmul2.pb",
            "enable_graph_parallel": 1,
            "graph_parallel_option_path": "./parallel_option.json",
            "soc_version": "Ascend910B3",
            "output": "test_parallel",
            "framework": 3,
        }
        return atc.question(**flags | changes)

    return question


def test_the_example_of_the_guide_with_its_comma_is_read(ask: Ask) -> None:
    asked = ask()
    assert asked.framework == "tensorflow"
    assert asked.chip.chip.name == "ascend_910b"
    assert asked.option.method == "dp"
    assert len(asked.topology.devices) == 2
    assert asked.option.tensor_sharding == atc.TensorSharding(
        optimizer_state_sharding=True,
        gradient_sharding=True,
        model_weight_sharding=True,
        model_weight_prefetch=True,
        model_weight_prefetch_buffer_size=50,
    )


def test_the_example_as_it_stands_in_the_guide_names_the_place_of_the_comma() -> None:
    with pytest.raises(SpecError) as error:
        atc.read_option(GUIDE, "parallel_option.json")
    # `        "opt_level": "O1"` is 8 + 12 + 5 characters long: the comma belongs at column 26.
    assert str(error.value).startswith(
        'parallel_option.json:4: not JSON: a comma is missing after "O1" (column 26). Add it.'
    )


def test_what_is_not_given_has_atcs_defaults() -> None:
    option = atc.read_option('{"graph_parallel_option": {"auto": false, "tensor_sharding": {}}}')
    assert option.method == "ilp"
    assert option.tensor_parallel_option is None
    assert option.tensor_sharding == atc.TensorSharding(
        optimizer_state_sharding=False,
        gradient_sharding=False,
        model_weight_sharding=False,
        model_weight_prefetch=True,
        model_weight_prefetch_buffer_size=0,
    )


def test_a_size_may_be_left_to_the_cluster(ask: Ask) -> None:
    Path("parallel_option.json").write_text(
        '{"graph_parallel_option": {"auto": false, "tensor_parallel_option": {}}}', "utf-8"
    )
    assert ask().option.tensor_parallel_option == atc.TensorParallel()


def test_devices_stand_by_node_and_card() -> None:
    # Two nodes of three cards, the second listed first and its cards out of order.
    cards = [{"item_id": 5, "ipaddr": "10.0.0.2"}, {"item_id": 3}, {"item_id": 4}]
    text = cluster(node(1, item_list=cards), node(0, cards=3, is_local=True))
    topology = atc.read_topology(text)
    assert topology.nodes == 2
    assert [(device.node_id, device.item_id) for device in topology.devices] == [
        (0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5)
    ]  # fmt: skip


def test_the_devices_of_a_card_count_on_inference_cards() -> None:
    kind = {"item_type": "Ascend310P3", "device_list": [{"device_id": 0}, {"device_id": 1}]}
    bare = {"node_id": 0, "node_type": "ATLAS300", "item_list": [{"item_id": 7}]}
    topology = atc.read_topology(cluster(bare, item_def=[kind]))
    assert topology.devices == (
        atc.Device(node_id=0, item_id=7, device_id=0),
        atc.Device(node_id=0, item_id=7, device_id=1),
    )


def test_the_file_that_torch_air_writes_is_read() -> None:
    text = """{"cluster": [{"cluster_nodes": [{"node_id": 0, "node_type": "ATLAS800",
      "ipaddr": "127.0.0.1", "port": 29500, "item_list": [{"item_id": 0}, {"item_id": 1}]}],
      "nodes_toplogy": {}}], "item_def": [{"item_type": "Ascend910"}],
      "node_def": [{"item": [{"item_type": "Ascend910"}]}]}"""
    topology = atc.read_topology(text)
    assert len(topology.devices) == 2
    assert topology.item_type == "Ascend910"


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("Ascend910A", "ascend_910a"),
        ("Ascend910ProB", "ascend_910a"),
        ("Ascend910PremiumA", "ascend_910a"),
        ("Ascend910B1", "ascend_910b1"),
        ("Ascend910B2C", "ascend_910b2"),
        ("Ascend910B3", "ascend_910b"),
        ("Ascend910B4", "ascend_910b4"),
        ("Ascend910B4-1", "ascend_910b4"),
        ("Ascend910_9391", "ascend_910c"),
    ],
)
def test_a_soc_version_is_a_chip_of_the_catalog(ask: Ask, name: str, chip: str) -> None:
    assert ask(soc_version=name).chip.chip.name == chip


def test_names_that_stand_for_something_else_are_told(ask: Ask) -> None:
    assert ask().notes[0] == "Ascend910B3 is ascend_910b"
    assert len(ask().notes) == 1
    notes = ask(soc_version="Ascend910A").notes
    assert notes[0] == "./numa_config_2p.json has Ascend910B3; --soc_version is used"


def test_chinese_paths_are_allowed(ask: Ask) -> None:
    Path("集群.json").write_text(cluster(), "utf-8")
    assert len(ask(cluster_config="./集群.json", output="/结果/模型_1-a.b").topology.devices) == 2


WRONG_FLAGS: dict[str, tuple[dict[str, Any], str]] = {
    "caffe": ({"framework": 0}, "--framework: must be 3 (TensorFlow) or 5 (ONNX), found 0. Export"),
    "mindir": ({"framework": 1}, "--framework: must be 3 (TensorFlow) or 5 (ONNX), found 1"),
    "no framework": ({"framework": 7}, "found 7. Give the number of its form."),
    "a switch of 2": (
        {"enable_graph_parallel": 2},
        "--enable_graph_parallel: must be 0 or 1, found 2",
    ),
    "parallel without distributed": (
        {"distributed_cluster_build": 0},
        "--enable_graph_parallel: needs --distributed_cluster_build=1. Give both.",
    ),
    "options without parallel": (
        {"enable_graph_parallel": 0},
        "--graph_parallel_option_path: needs --distributed_cluster_build=1 and",
    ),
    "nothing to do": (
        {"enable_graph_parallel": 0, "graph_parallel_option_path": None},
        "--enable_graph_parallel: must be 1: autopar partitions a graph and compiles none",
    ),
    "no cluster": (
        {"cluster_config": None},
        "--cluster_config: missing; --enable_graph_parallel=1 needs it",
    ),
    "no options": (
        {"graph_parallel_option_path": None},
        "--graph_parallel_option_path: missing; --enable_graph_parallel=1 needs it",
    ),
    "a space in a path": (
        {"cluster_config": "./my config.json"},
        '--cluster_config: "./my config.json" has the character " ". Allowed are letters',
    ),
    "a sign in a path": (
        {"graph_parallel_option_path": "~/option.json"},
        '--graph_parallel_option_path: "~/option.json" has the character "~"',
    ),
    "a sign in the output": ({"output": "a*"}, '--output: "a*" has the character "*"'),
    "an output that is a folder": ({"output": "/"}, '--output: names no file, found "/"'),
    "an empty output": ({"output": ""}, '--output: names no file, found ""'),
    "an absent file": ({"cluster_config": "none.json"}, "none.json: no such file"),
    "an unknown chip": (
        {"soc_version": "Ascend910B9"},
        '--soc_version: no chip named "Ascend910B9" in the catalog. Nearest: ascend_910b',
    ),
}


@pytest.mark.parametrize(("flags", "what"), WRONG_FLAGS.values(), ids=WRONG_FLAGS)
def test_wrong_flags_are_refused(ask: Ask, flags: dict[str, Any], what: str) -> None:
    with pytest.raises(SpecError) as error:
        ask(**flags)
    assert what in str(error.value)


def test_a_size_that_is_not_the_clusters_names_both_files(ask: Ask) -> None:
    Path("numa_config_2p.json").write_text(cluster(node(cards=4)), "utf-8")
    with pytest.raises(SpecError) as error:
        ask()
    assert str(error.value) == (
        "./parallel_option.json:6: graph_parallel_option.tensor_parallel_option"
        ".tensor_parallel_size: must be the 4 devices of ./numa_config_2p.json, found 2."
        " Change one of the two files."
    )


WRONG_OPTIONS = {
    "auto with more": (
        '{"graph_parallel_option": {"auto": true, "opt_level": "O1"}}',
        "graph_parallel_option.opt_level: given beside auto true",
    ),
    "no auto": ('{"graph_parallel_option": {}}', "graph_parallel_option.auto: missing key"),
    "no option": ("{}", "graph_parallel_option: missing key"),
    "auto as a text": (
        '{"graph_parallel_option": {"auto": "true"}}',
        'graph_parallel_option.auto: must be true or false, found "true"',
    ),
    "an unknown level": (
        '{"graph_parallel_option": {"auto": false, "opt_level": "O3"}}',
        'graph_parallel_option.opt_level: must be one of O1, O2, found "O3"',
    ),
    "an unknown key": (
        '{"graph_parallel_option": {"auto": false, "tensor_shard": {}}}',
        "graph_parallel_option.tensor_shard: unknown key. Nearest: tensor_sharding",
    ),
    "a size of 0": (
        '{"graph_parallel_option": {"auto": false, '
        '"tensor_parallel_option": {"tensor_parallel_size": 0}}}',
        "tensor_parallel_size: must be positive, found 0",
    ),
    "a size in quotes": (
        '{"graph_parallel_option": {"auto": false, '
        '"tensor_parallel_option": {"tensor_parallel_size": "2"}}}',
        'tensor_parallel_size: must be a whole number, found "2"',
    ),
    "a negative buffer": (
        '{"graph_parallel_option": {"auto": false, '
        '"tensor_sharding": {"model_weight_prefetch_buffer_size": -1}}}',
        "model_weight_prefetch_buffer_size: must be from 0",
    ),
    "a key twice": (
        '{"graph_parallel_option": {"auto": false, "auto": true}}',
        "option.json:1: graph_parallel_option.auto: given twice, on the same line. Keep one",
    ),
    "comments": (
        '{"graph_parallel_option": { // all\n"auto": true}}',
        "option.json:1: not JSON: a comment (column 29). Remove it.",
    ),
    "half a file": (
        '{"graph_parallel_option": {"auto": true',
        "option.json:1: not JSON: the text ends within a table or list (column 40). Give the",
    ),
    "a list": ("[]", "must be a table, found a list of 0"),
}


@pytest.mark.parametrize(("text", "what"), WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
def test_a_wrong_option_file_is_refused(text: str, what: str) -> None:
    with pytest.raises(SpecError) as error:
        atc.read_option(text, "option.json")
    assert str(error.value).startswith("option.json")
    assert what in str(error.value)


WRONG_CLUSTERS = {
    "no cluster": (cluster(cluster=None), "cluster: missing key"),
    "an empty cluster": (cluster(cluster=[]), "cluster: must be a list of tables, found a list of"),
    "no nodes": (cluster(cluster=[{}]), "cluster[0].cluster_nodes: missing key"),
    "no kind": (cluster(item_def=None), "item_def: missing key"),
    "no name of a kind": (cluster(item_def=[{}]), "item_def[0].item_type: missing key"),
    "two kinds": (
        cluster(item_def=[{"item_type": "Ascend910A"}, {"item_type": "Ascend910B3"}]),
        "item_def: has Ascend910A, Ascend910B3. Give devices of one kind.",
    ),
    "no address": (
        cluster({key: value for key, value in node().items() if key != "ipaddr"}),
        "cluster[0].cluster_nodes[0].ipaddr: missing key",
    ),
    "no port": (
        cluster({key: value for key, value in node().items() if key != "port"}),
        "cluster[0].cluster_nodes[0].port: missing key",
    ),
    "a port in quotes": (
        cluster(node(port="2509")),
        'port: must be a whole number from 0, found "',
    ),
    "a node twice": (cluster(node(), node()), "cluster_nodes[1].node_id: 0 is given twice"),
    "a card twice": (
        cluster(node(item_list=[{"item_id": 1}, {"item_id": 1}])),
        "cluster_nodes[0].item_list: item_id 1 is given twice",
    ),
    "nodes that differ": (
        cluster(node(0), node(1, cards=3)),
        "cluster_nodes[1].item_list: has 3 items, node 0 has 2. Give every node equally many.",
    ),
    "no cards": (cluster(node(item_list=[])), "item_list: must be a list of tables"),
    "cards that are numbers": (
        cluster(node(item_list=[0])),
        "item_list[0]: must be a table, found 0",
    ),
    "local as a text": (cluster(node(is_local="yes")), 'is_local: must be true or false, found "y'),
    "a list": ("[]", "must be a table, found a list of 0"),
}


@pytest.mark.parametrize(("text", "what"), WRONG_CLUSTERS.values(), ids=WRONG_CLUSTERS)
def test_a_wrong_cluster_file_is_refused(text: str, what: str) -> None:
    with pytest.raises(SpecError) as error:
        atc.read_topology(text, "cluster.json")
    assert str(error.value).startswith("cluster.json")
    assert what in str(error.value)


# --- The command

GRAPHS = Path(__file__).parent / "data/graphs"


def line(**changes: str | None) -> list[str]:
    """Returns ATC's example command, changed; None leaves a flag out."""
    flags: dict[str, str | None] = {
        "distributed_cluster_build": "1",
        "cluster_config": "./numa_config_2p.json",
        "model": "./net.pb",
        "enable_graph_parallel": "1",
        "graph_parallel_option_path": "./parallel_option.json",
        "soc_version": "Ascend910B3",
        "output": "test_parallel",
        "framework": "3",
        "input_shape": "ids:8,32",
        "log": None,
    }
    given = {**flags, **changes}
    return ["atc", *(f"--{key}={value}" for key, value in given.items() if value is not None)]


@pytest.fixture
def files_of_atc(tmp_path: Path) -> Path:
    """Returns a folder with a graph, a topology of two devices and the guide's options, mended."""
    shutil.copy(GRAPHS / "bert-2-layers.pb", tmp_path / "net.pb")
    (tmp_path / "numa_config_2p.json").write_text(cluster(), "utf-8")
    (tmp_path / "parallel_option.json").write_text(GUIDE.replace('"O1"', '"O1",'), "utf-8")
    return tmp_path


def written(folder: Path) -> list[str]:
    names = ("net.pb", "net.onnx", "numa_config_2p.json", "parallel_option.json")
    return sorted(path.name for path in folder.iterdir() if path.name not in names)


def test_the_command_writes_the_table_and_the_strategies(
    command: Command, files_of_atc: Path
) -> None:
    run = command(*line())
    assert run.code == 0, run.err
    assert "on 2 x ascend_910b" in run.out
    assert "note: Ascend910B3 is ascend_910b" in run.err
    assert written(files_of_atc) == ["test_parallel.json", "test_parallel.strategy.json"]
    table = json.loads((files_of_atc / "test_parallel.json").read_text("utf-8"))
    assert [(each["rank"], each["item_id"]) for each in table["devices"]] == [(0, 0), (1, 1)]
    strategies = read(files_of_atc / "test_parallel.strategy.json")
    assert strategies.current_stage == 2
    for operator in strategies.operators:
        assert all(2 % size == 0 for cuts in operator.inputs for size in cuts)


def test_without_tensor_parallelism_all_is_data_parallel(
    command: Command, files_of_atc: Path
) -> None:
    (files_of_atc / "parallel_option.json").write_text(
        '{"graph_parallel_option": {"auto": false}}', "utf-8"
    )
    assert command(*line()).code == 0
    strategies = read(files_of_atc / "test_parallel.strategy.json")
    products = [each.inputs for each in strategies.operators if each.name.startswith("MatMul_")]
    assert set(products) == {((2, 1), (1, 1))}


def test_automatic_is_never_slower_than_what_may_be_set(
    command: Command, files_of_atc: Path
) -> None:
    def total(text: str) -> float:
        row = next(row for row in text.splitlines() if row.startswith("total"))
        return float(row.split()[1])

    options = files_of_atc / "parallel_option.json"
    set_ = command(*line())
    options.write_text('{"graph_parallel_option": {"auto": true}}', "utf-8")
    automatic = command(*line())
    assert automatic.code == 0, automatic.err
    assert total(automatic.out) <= total(set_.out)


def test_automatic_tries_each_size_of_tensor_parallelism(ask: Ask) -> None:
    Path("parallel_option.json").write_text('{"graph_parallel_option": {"auto": true}}', "utf-8")
    devices = tuple(atc.Device(node_id=0, item_id=card) for card in range(8))
    asked = replace(ask(), topology=atc.Topology(devices=devices, nodes=1, item_type="Ascend910"))
    meshes = [options.mesh for options in asked.options]
    assert list(dict.fromkeys(meshes)) == [(), (4, 2), (2, 4)]
    assert [meshes.count(mesh) for mesh in dict.fromkeys(meshes)] == [5, 5, 5]


def test_automatic_solves_each_division_and_says_which_was_chosen(ask: Ask) -> None:
    Path("parallel_option.json").write_text('{"graph_parallel_option": {"auto": true}}', "utf-8")
    ways = [(options.zero, options.prefetch_mb) for options in ask().options]
    assert ways == [(0, None), (1, None), (2, None), (3, None), (3, 0)]
    shape = (1024, 1024)
    graph = Graph(
        name="two products",
        gradients="implied",
        tensors=(
            Tensor("x", shape, "bfloat16", "input"),
            Tensor("v", shape, "bfloat16", "parameter"),
            Tensor("w", shape, "bfloat16", "parameter"),
            Tensor("y", shape, "bfloat16"),
            Tensor("z", shape, "bfloat16"),
        ),
        operators=(
            Operator(name="first", form=MatMul(), inputs=("x", "v"), outputs=("y",)),
            Operator(name="second", form=MatMul(), inputs=("y", "w"), outputs=("z",)),
        ),
    )

    def said(zero: int, prefetch_mb: int | None) -> str:
        options = {"others": "data_parallel", "zero": zero, "prefetch_mb": prefetch_mb}
        return partition.chosen(autopar.shard(graph, "ascend_910b", devices=2, **options))  # type: ignore[arg-type]

    assert said(1, None) == (
        "chosen: tensor_parallel_size 1, optimizer_state_sharding true, "
        "gradient_sharding false, model_weight_sharding false"
    )
    divided = (
        "chosen: tensor_parallel_size 1, optimizer_state_sharding true, "
        "gradient_sharding true, model_weight_sharding true, model_weight_prefetch "
    )
    assert said(3, None) == f"{divided}false"
    # While one product runs, the other's weight of 2 x 1024 x 1024 bytes arrives beside its own.
    assert said(3, 0) == f"{divided}true, model_weight_prefetch_buffer_size 5"


def test_the_command_reads_onnx(command: Command, files_of_atc: Path) -> None:
    shutil.copy(GRAPHS / "encoder-opset14.onnx", files_of_atc / "net.onnx")
    run = command(*line(framework="5", model="net.onnx", input_shape=None, log="debug"))
    assert run.code == 0, run.err
    strategies = read(files_of_atc / "test_parallel.strategy.json")
    # Two layers of four weights; products of more than two dimensions are called BatchMatMul.
    assert sum("MatMul_" in each.name for each in strategies.operators) == 8


WRONG_COMMANDS: dict[str, tuple[dict[str, str | None], str]] = {
    "no model": ({"model": None}, "Missing option '--model'"),
    "no chip": ({"soc_version": None}, "Missing option '--soc_version'"),
    "no framework": ({"framework": None}, "Missing option '--framework'"),
    "an unknown level of log": ({"log": "loud"}, "'loud' is not one of 'debug', 'info', 'warning'"),
    "no cluster": ({"cluster_config": None}, "--cluster_config: missing"),
    "a switch that is a word": ({"enable_graph_parallel": "on"}, "'on' is not a valid integer"),
    "an open dimension": (
        {"input_shape": None},
        "--input_shape ids: dimension 0 of this input is unknown",
    ),
    "an input that is not there": (
        {"input_shape": "words:8,32"},
        'the graph has no input "words". Its inputs: ids.',
    ),
    "a shape that is none": ({"input_shape": "ids:8,x"}, '"ids:8,x" is no name with sizes from 1'),
    "another form": ({"framework": "5"}, "net.pb: no ONNX model"),
    "a graph that is not there": ({"model": "./none.pb"}, "./none.pb: no such file"),
    "a folder that is not there": ({"output": "none/out"}, "none/out.json"),
}


@pytest.mark.parametrize(("flags", "what"), WRONG_COMMANDS.values(), ids=WRONG_COMMANDS)
def test_the_command_refuses_in_one_line_and_writes_nothing(
    command: Command, files_of_atc: Path, flags: dict[str, str | None], what: str
) -> None:
    run = command(*line(**flags))
    assert run.code == 2
    errors = [row for row in run.err.splitlines() if not row.startswith("note: ")]
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert what in errors[0]
    assert written(files_of_atc) == []


def test_the_guides_example_is_refused_at_its_comma(command: Command, files_of_atc: Path) -> None:
    (files_of_atc / "parallel_option.json").write_text(GUIDE, "utf-8")
    run = command(*line())
    assert run.code == 2
    assert "parallel_option.json:4: not JSON: a comma is missing" in run.err
    assert written(files_of_atc) == []


def test_a_graph_that_does_not_fit_writes_nothing(command: Command, files_of_atc: Path) -> None:
    run = command(*line(input_shape="ids:4000000,32"))
    assert run.code == 1
    assert "no strategies fit in memory" in run.err
    assert written(files_of_atc) == []


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "none" / "b.json"
    with pytest.raises(SpecError, match="no such file"):
        write_all({first: b"1", second: b"2"})
    assert list(tmp_path.iterdir()) == []
    first.write_bytes(b"old")
    write_all({first: b"new"})
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]
