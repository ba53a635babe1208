"""Parameter servers: what of a graph decides, the command, all-reduce as `shard` prices it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import autopar
from autopar import SpecError, wire
from autopar.cli import main
from autopar.graph import Elementwise, Gather, Graph, MatMul, Operator, Tensor
from autopar.placement import Placement, Servers, Where

ROWS, WIDTH, FIELDS, BATCH, HIDDEN = 1_000_000, 16, 8, 256, 512


def wide_and_deep(batch: int = BATCH) -> Graph:
    """Returns a table that is looked up, two products on what was found, and a tied one's use."""
    inner = FIELDS * WIDTH
    tensors = (
        Tensor("ids", (batch, FIELDS), "int32", role="input"),
        Tensor("table", (ROWS, WIDTH), "float32", role="parameter"),
        Tensor("rows", (batch, FIELDS, WIDTH), "float32"),
        Tensor("w1", (inner, HIDDEN), "float32", role="parameter"),
        Tensor("x", (batch, inner), "float32", role="input"),
        Tensor("h", (batch, HIDDEN), "float32"),
        Tensor("r", (batch, HIDDEN), "float32"),
    )
    operators = (
        Operator(name="look", form=Gather(), inputs=("table", "ids"), outputs=("rows",)),
        Operator(name="up", form=MatMul(), inputs=("x", "w1"), outputs=("h",)),
        Operator(name="relu", source="ReLU", form=Elementwise(), inputs=("h",), outputs=("r",)),
    )
    return Graph(name="wide&deep", gradients="implied", tensors=tensors, operators=operators)


def asked(graph: Graph | None = None, workers: int = 8, **options: int) -> Servers:
    return autopar.servers(graph or wide_and_deep(), "a800", workers=workers, **options)


def place(found: Servers, parameters: Where) -> Placement:
    [one] = [each for each in found.placements if each.parameters == parameters]
    return one


def test_a_parameter_that_only_look_ups_read_is_a_table() -> None:
    assert asked().tables == ("table",)


def test_a_table_that_a_product_reads_too_travels_whole() -> None:
    graph = wide_and_deep()
    tied = Operator(name="head", form=MatMul(transpose_b=True), inputs=("q", "table"),
                    outputs=("logits",))  # fmt: skip
    extra = (
        Tensor("q", (4, WIDTH), "float32", role="input"),
        Tensor("logits", (4, ROWS), "float32"),
    )
    graph = replace(graph, tensors=(*graph.tensors, *extra), operators=(*graph.operators, tied))
    found = asked(graph)
    assert found.tables == ()
    # 16 million numbers of 4 bytes instead of 2,048 rows.
    assert (
        place(found, "servers").synchronous.push_ps
        > 10 * place(asked(), "servers").synchronous.push_ps
    )


def test_two_look_ups_in_one_table_name_rows_twice() -> None:
    graph = wide_and_deep()
    again = Operator(name="again", form=Gather(), inputs=("table", "more"), outputs=("found",))
    extra = (
        Tensor("more", (BATCH, FIELDS), "int32", role="input"),
        Tensor("found", (BATCH, FIELDS, WIDTH), "float32"),
    )
    doubled = replace(graph, tensors=(*graph.tensors, *extra), operators=(*graph.operators, again))
    one, two = (place(asked(each), "servers") for each in (graph, doubled))
    # Of a million rows hardly any is named twice: worker memory grows by 2,048 rows of parameters
    # and gradients, and by the indices that the second look-up keeps.
    rows = BATCH * FIELDS
    grown = two.worker_bytes - one.worker_bytes - rows * 4
    assert grown == pytest.approx(rows * WIDTH * 8, rel=5e-3)


def test_all_reduce_costs_what_the_operator_level_says_of_data_parallel() -> None:
    workers = 4
    dense = wide_and_deep()
    up, relu = dense.operators[1:]
    kept = {"x", "w1", "h", "r"}
    local = replace(
        dense, tensors=tuple(t for t in dense.tensors if t.name in kept), operators=(up, relu)
    )
    whole = replace(
        local,
        tensors=tuple(
            t if t.name == "w1" else replace(t, shape=(t.shape[0] * workers, *t.shape[1:]))
            for t in local.tensors
        ),
    )
    ours = place(asked(local, workers=workers), "all_reduce")
    cut = autopar.shard(whole, "a800", devices=workers, others="data_parallel", method="dp")
    step = ours.synchronous
    assert step.compute_ps == cut.cost.compute_ps
    assert step.reduce_ps == pytest.approx(cut.cost.gradient_ps, rel=1e-6)
    assert step.update_ps == pytest.approx(cut.cost.optimizer_ps, rel=1e-6)
    assert ours.worker_bytes == cut.cost.memory_bytes


def test_a_graph_without_gradients_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^graph\.gradients: must be implied.*forward pass"):
        asked(replace(wide_and_deep(), gradients="none"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"servers": 0}, r"^options\.servers: must be from 1 to 2\^20, found 0"),
        ({"restart_s": -1.0}, r"^options\.restart_s: must be a finite number from 0, found -1"),
        ({"storage_gb_per_s": 0.0}, r"^options\.storage_gb_per_s: must be positive, found 0"),
        ({"optimizer_bytes": 65}, r"^options\.optimizer_bytes: must be at most 64, found 65"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, int], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        asked(**options)


def test_the_command_prints_the_placements_and_the_document_holds_the_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "net.json"
    file.write_text(wire.dumps(wide_and_deep()), "utf-8")
    words = ["servers", str(file), "--chip", "a800", "--workers", "8", "--servers", "2"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "wide&deep with 1 table on 8 workers (a800) and 2 servers" in printed
    assert "tables on servers" in printed
    assert "lost server s" in printed
    assert main([*words, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["problem"]["options"]["servers"] == 2
    assert [p["parameters"] for p in document["placements"]] == ["all_reduce", "servers", "mixed"]


def test_what_does_not_fit_ends_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["servers", "llama2-7b", "--chip", "a800", "--workers", "8", "--batch", "1",
             "--memory-gib", "1"]  # fmt: skip
    assert main(words) == 1
    assert "all-reduce: a worker lacks" in capsys.readouterr().err


def test_an_ms_job_has_servers_and_a_device_for_each_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "net.json"
    file.write_text(wire.dumps(wide_and_deep()), "utf-8")
    words = ["servers", str(file), "--chip", "ascend_910b", "--workers", "8", "--servers", "2"]
    assert main([*words, "--dynamic-workers", "--image", "registry.example/train:1"]) == 0
    job = yaml.safe_load(capsys.readouterr().out)
    assert job["metadata"]["name"] == "train-wide-deep"
    assert job["spec"]["enableDynamicWorker"] is True
    roles = job["spec"]["msReplicaSpecs"]
    assert {role: said["replicas"] for role, said in roles.items()} == {
        "Scheduler": 1, "PS": 2, "Worker": 8
    }  # fmt: skip
    [container] = roles["Worker"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"huawei.com/Ascend910": "1"}
    assert "resources" not in roles["PS"]["template"]["spec"]["containers"][0]
