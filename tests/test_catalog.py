"""The catalog: counts as published, rates under physical limits, a source for each figure.

`data/model_parameters.csv`: the parameters of each model by the formula; the published total where
there is one; whether the two are equal (`exact`), differ by less than 1e-5 (`close`), or the
published one is rounded (`rounded`). `data/chip_limits.csv`: the links' line rate in one direction
by the data sheet, and the best 16-bit matrix product that anybody published.
"""

import csv
import dataclasses
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from autopar import SpecError, catalog, model_facts
from autopar.catalog import Kind
from autopar.framework import Fused, NumberBytes, Overlap

DATA = Path(__file__).parent / "data"
KINDS = get_args(Kind)
MODELS, CHIPS = catalog.names("models"), catalog.names("chips")
FRAMEWORKS, CLUSTERS = catalog.names("frameworks"), catalog.names("clusters")


def rows(name: str) -> dict[str, dict[str, str]]:
    """Returns a table of the tests by its first column."""
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def table(kind: Kind, name: str) -> dict[str, Any]:
    """Returns a catalog file as it is written."""
    return tomllib.loads((catalog.ROOT / kind / f"{name}.toml").read_text("utf-8"))


PARAMETERS, LIMITS = rows("model_parameters.csv"), rows("chip_limits.csv")


# --- Every kind


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_entries_answer_to_one_name(kind: Kind) -> None:
    seen: dict[str, str] = {}
    for name in catalog.names(kind):
        for alias in [name, *table(kind, name).get("aliases", [])]:
            plain = alias.lower().replace("_", "-")
            assert seen.setdefault(plain, name) == name, f"{name} and {seen[plain]}: {alias}"


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_says_first_what_it_is(kind: Kind) -> None:
    for name in catalog.names(kind):
        assert (catalog.ROOT / kind / f"{name}.toml").read_text("utf-8").startswith("# ")


@pytest.mark.parametrize("kind", ["models", "chips", "frameworks"])
def test_every_file_says_its_source_and_when_it_was_checked(kind: Kind) -> None:
    for name in catalog.names(kind):
        written = table(kind, name)
        assert written["source"], name
        assert written["checked"] == catalog.CATALOG_DATE, name


# --- Models


def test_the_table_of_counts_has_every_model_of_the_catalog() -> None:
    assert sorted(PARAMETERS) == MODELS


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_its_published_number_of_parameters(name: str) -> None:
    row, facts = PARAMETERS[name], model_facts(name)
    assert facts.parameters == int(row["parameters"])
    assert facts.active_parameters == int(row["active_parameters"])
    published = int(row["published_total"] or 0)
    match row["agreement"]:
        case "":
            assert not published
        case "exact":
            assert facts.parameters == published
        case "close":
            assert facts.parameters == pytest.approx(published, rel=1e-5)
        case "rounded":
            assert facts.parameters == pytest.approx(published, rel=2e-3)
        case other:
            pytest.fail(f"no such agreement: {other}")


def test_a_count_that_a_file_calls_published_is_the_model_s() -> None:
    for name in MODELS:
        stated = catalog.model(name).published_parameters
        assert stated in (None, int(PARAMETERS[name]["parameters"])), name


def test_llama2_70b_is_the_sum_of_its_matrices() -> None:
    # 80 layers of 2 * 8192^2 (query, output) + 2 * 8192 * 1024 (key, value) + 3 * 8192 * 28672
    # (MLP) + 2 * 8192 (norms); embedding and head of 32000 rows each; the final norm.
    layer = 2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192
    assert model_facts("llama2-70b").parameters == 80 * layer + 2 * 32000 * 8192 + 8192


@pytest.mark.parametrize("name", MODELS)
def test_a_model_was_released_or_says_how_it_was_derived(name: str) -> None:
    entry = catalog.model(name)
    assert bool(entry.derivation) == (entry.status == "derived")


def test_the_seed_models_that_nobody_released_say_so() -> None:
    derived = [name for name in MODELS if catalog.model(name).status == "derived"]
    assert derived == ["glm-67b", "llama-175b", "llama-1800b", "llama-540b", "llama2-35b"]


def test_a_latent_attention_s_head_is_both_of_its_parts() -> None:
    for name in MODELS:
        model = catalog.model(name).model
        if model.mla:
            assert model.head_dim == model.mla.qk_nope_dim + model.mla.qk_rope_dim, name


# --- Chips


def test_the_table_of_limits_has_every_chip_of_the_catalog() -> None:
    assert sorted(LIMITS) == CHIPS


@pytest.mark.parametrize("name", CHIPS)
def test_a_chip_sustains_no_more_than_the_best_that_was_measured(name: str) -> None:
    chip = catalog.chip(name).chip
    peak = chip.peak_tflops.bf16 or chip.peak_tflops.fp16
    assert peak
    best = float(LIMITS[name]["best_tflops"] or peak)
    # On a card whose nominal clock is below its real one the best lies above the peak.
    assert peak * chip.gemm.efficiency <= 1.001 * best
    assert chip.gemm.efficiency < 1
    assert chip.gemm.fp8_efficiency < 1


@pytest.mark.parametrize("name", CHIPS)
def test_an_attention_rate_stays_below_the_peak_and_grows_with_the_sequence(name: str) -> None:
    chip = catalog.chip(name).chip
    peak = chip.peak_tflops.bf16 or chip.peak_tflops.fp16
    assert peak
    # FlashAttention runs on neither Pascal nor Volta.
    assert bool(chip.attention) == (not name.startswith(("p100", "v100")))
    for row in chip.attention:
        assert max(row.tflops) < peak
        # Rates fall: cuDNN's by 1.5 % on Hopper, 9 % past 32,768 on Blackwell, SYCL-TLA's by 9.4 %,
        # XeTLA's backward by 43 % past 8,192 with heads of 128, Gaudi 2's by 22 % past 16,384.
        gaudi = {"fa2": 0.78}
        falls = {"max1550": {"xetla": 0.55, "fa2": 0.9}, "gaudi2": gaudi, "gaudi3": gaudi}
        least = falls.get(name, {}).get(row.kernel, 0.91)
        assert all(b > least * a for a, b in zip(row.tflops, row.tflops[1:], strict=False)), row


@pytest.mark.parametrize("name", CHIPS)
def test_a_link_carries_no_more_than_its_wires(name: str) -> None:
    entry = catalog.chip(name)
    link, wires = entry.chip.link, entry.link_line_gb_per_s
    assert wires == (float(LIMITS[name]["link_gb_per_s"] or 0) or None)
    if wires is None:
        return
    for rate in (link.all_gather_gb_per_s, link.all_to_all_gb_per_s, link.p2p_gb_per_s):
        assert rate <= wires
    # A switch that sums sends each byte once, which bus bandwidth counts 2 * 7/8 times.
    summed = 1.75 if link.all_reduce_gb_per_s > link.all_gather_gb_per_s else 1.0
    assert link.all_reduce_gb_per_s <= summed * wires


@pytest.mark.parametrize("name", CHIPS)
def test_a_pair_in_a_mesh_has_one_wire(name: str) -> None:
    chip = catalog.chip(name).chip
    if chip.link.topology != "mesh":
        return
    wire = chip.link.all_gather_gb_per_s / (chip.devices_per_node - 1)
    assert chip.link.p2p_gb_per_s == pytest.approx(wire, rel=0.03)


@pytest.mark.parametrize("name", CHIPS)
def test_every_figure_has_a_source_and_every_group_a_confidence(name: str) -> None:
    entry = catalog.chip(name)
    groups = {"compute", "memory", "link", "network"}
    timed = {"exchange"} if entry.chip.exchange else set()
    assert set(entry.source) == groups | timed | {"host", "gemm", "attention", "speed_spread"}
    assert set(entry.confidence) == groups
    assert set(entry.confidence.values()) <= {"A", "B", "C"}
    assert entry.vendor
    assert entry.architecture


def test_a_narrow_head_fills_its_share_of_a_systolic_array() -> None:
    rates = {
        (rate.kernel, rate.pass_, rate.causal, rate.head_dim): rate
        for rate in catalog.chip("tpu_v5p").chip.attention
    }
    halves = [key for key in rates if key[3] == 64]
    assert len(halves) >= 2
    for key in halves:
        narrow, wide = rates[key], rates[(*key[:3], 128)]
        assert narrow.sequence == wide.sequence
        assert narrow.tflops == pytest.approx([rate / 2 for rate in wide.tflops], abs=0.06)
    assert {rate.head_dim for rate in catalog.chip("h100").chip.attention} >= {64, 128}


@pytest.mark.parametrize(
    ("name", "widest", "share"),
    # Keys of 192 take two arrays of 128 or one of 256, values of 128 one of either.
    [("tpu_v5p", 128, 320 / 384), ("tpu_v7", 256, 320 / 512)],
)
def test_latent_attention_fills_its_share_of_a_systolic_array(
    name: str, widest: int, share: float
) -> None:
    rates = {
        (rate.kernel, rate.pass_, rate.causal, rate.head_dim): rate
        for rate in catalog.chip(name).chip.attention
    }
    latent = [key for key in rates if key[3] == 192]
    assert latent
    for key in latent:
        full = rates[(*key[:3], widest)]
        assert rates[key].tflops == pytest.approx([rate * share for rate in full.tflops], abs=0.06)


@pytest.mark.parametrize("name", CHIPS)
def test_what_a_chip_inherits_it_says(name: str) -> None:
    entry = catalog.chip(name)
    caveats = [text for text in entry.chip.caveats if text.startswith("attention rates:")]
    if entry.inherits_attention:
        [caveat] = caveats
        assert entry.inherits_attention in caveat
    if not entry.chip.peak_tflops.fp8:
        assert entry.chip.gemm.fp8_efficiency == pytest.approx(entry.chip.gemm.efficiency)


def test_what_910b_means_is_told() -> None:
    entry = catalog.chip("910B")
    assert entry.chip.name == "ascend_910b"
    assert any("910B3" in caveat for caveat in entry.chip.caveats)


@pytest.mark.parametrize(
    "alias",
    [
        "A100", "A100-80GB", "A100-40GB", "A800-80GB", "H100-80GB", "H800-80GB", "H200-141GB",
        "910B", "B200-180GB", "GH200-96GB", "T4-16GB", "V100-32GB (DGX-2)",
        "H100-96GB (HBM2e, 500W)",
    ],
)  # fmt: skip
def test_the_chips_of_published_runs_are_found_as_they_are_written(alias: str) -> None:
    assert catalog.chip(alias).chip.name in CHIPS


# --- Frameworks and clusters


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_says_where_each_choice_is_written(name: str) -> None:
    entry = catalog.framework(name)
    choices = {field.name: field.default for field in dataclasses.fields(entry.framework)}
    del choices["name"]
    made = {key for key, usual in choices.items() if getattr(entry.framework, key) != usual}
    halves = {"fp16"} if entry.fp16 else set()
    assert made | halves <= set(entry.source) <= set(choices) | halves


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_that_follows_another_says_why_for_what_it_changes(name: str) -> None:
    entry, written = catalog.framework(name), table("frameworks", name)
    if entry.follows is None:
        return
    leader = catalog.framework(entry.follows).framework
    choices = {field.name for field in dataclasses.fields(leader)} & set(written)
    changed = {key for key in choices if getattr(entry.framework, key) != getattr(leader, key)}
    assert choices == changed, "what is as the leader's need not be said again"
    assert changed <= set(written["source"])


def test_a_framework_may_be_another_before_a_month(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'follows = "torchtitan"\n'
        '[before."2024-02"]\nlaunch_us = 9.0\n[before."2023-01".held]\nlogit_bytes = 3\n'
    )
    mine = catalog.framework(str(file))
    months = [
        "2023-01",
        "2024-02",
        "2024-07",
        "2024-10",
        "2025-03",
        "2025-04",
        "2025-08",
        "2025-09",
    ]
    newest = [
        "2025-10",
        "2025-11",
        "2025-12",
        "2026-02",
        "2026-03",
        "2026-04",
        "2026-05",
        "2026-07",
    ]
    assert list(mine.before) == [*months, *newest, "2026-10"]
    early, later, last, *_ = mine.before.values()
    # What changed at a later month had not changed before an earlier one either.
    assert (early.held.logit_bytes, early.launch_us) == (3, 9.0)
    assert (later.held.logit_bytes, later.launch_us) == (18, 9.0)
    assert (last.held.logit_bytes, last.launch_us) == (18, mine.framework.launch_us)
    file.write_text('follows = "torchtitan"\nbefore = 3\n')
    with pytest.raises(SpecError, match="before: must hold a table a month"):
        catalog.framework(str(file))


def test_a_framework_has_what_its_file_leaves_out_from_the_one_that_it_follows(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('follows = "torchtitan"\n[bytes]\ngradient_sent = 2\n[run]\nzero = 2\n')
    mine, leader = catalog.framework(str(file)), catalog.framework("torchtitan")
    bytes_ = dataclasses.replace(leader.framework.bytes, gradient_sent=2)
    assert mine.framework == dataclasses.replace(leader.framework, name="mine", bytes=bytes_)
    assert mine.run == dataclasses.replace(leader.run, zero=2)
    assert (mine.source, mine.aliases, mine.checked) == (leader.source, (), "")


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_s_kernels_are_ones_that_a_chip_was_measured_with(name: str) -> None:
    measured = {row.kernel for chip in CHIPS for row in catalog.chip(chip).chip.attention}
    assert set(catalog.framework(name).framework.attention_kernels) <= measured


def test_the_default_framework_is_described_choice_by_choice() -> None:
    framework = catalog.framework("megatron-core").framework
    assert framework.bytes == NumberBytes(parameter=2, gradient=4, gradient_sent=4, optimizer=12)
    assert framework.overlap == Overlap(
        gradient_reduce=True,
        parameter_gather=True,
        tensor="backward",
        pipeline=True,
        context=True,
        expert=False,
    )
    apart = {
        field.name
        for field in dataclasses.fields(Fused)
        if not getattr(framework.fused, field.name)
    }
    assert apart == {
        "activation_in_products",
        "clamp",
        "compiled_loss",
        "expert_bias",
        "gelu_again",
        "gelu_in_fp32",
        "normed_rotation",
        "quantized_mlp",
        "router",
    }


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_cluster_of_the_catalog_has_as_many_devices_as_it_uses(name: str) -> None:
    cluster = catalog.cluster(name)
    assert cluster.devices
    assert cluster.devices <= sum(group.limit or cluster.devices for group in cluster.groups)


def test_a_cluster_changes_what_it_says_of_a_node_s_network_and_nothing_else() -> None:
    [group] = catalog.cluster("example-oversubscribed").groups
    usual = catalog.chip("a800").chip
    assert (usual.network.nics_per_node, group.chip.network.nics_per_node) == (8, 4)
    assert dataclasses.replace(group.chip, network=usual.network) == usual
