"""Hugging Face configurations as models.

`data/hf_configs.json` holds configurations as the Hub publishes them, cut to the keys that shape a
model, and small ones for rarer keys; the parameters of each are those that transformers 5.23 counts
in its own class on the meta device (`clients/checks/check_transformers.py --print`).
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autopar
from autopar import SpecError, catalog, planner
from autopar.frontends import hf
from autopar.spec import Window
from conftest import Command

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "data/hf_configs.json").read_text())
IN_CATALOG = sorted(GOLDEN.keys() & set(catalog.names("models")))


def written(folder: Path, config: Any) -> str:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return str(path)


@pytest.mark.parametrize("name", GOLDEN)
def test_parameters_are_those_that_transformers_counts(name: str, tmp_path: Path) -> None:
    facts = autopar.model_facts(written(tmp_path, GOLDEN[name]["config"]))
    assert facts.parameters == GOLDEN[name]["parameters"]


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "deepseek-v3"])
def test_biases_of_latent_attention_are_counted(name: str, tmp_path: Path) -> None:
    # modeling_deepseek_v3.py: q_a_proj, kv_a_proj_with_mqa and o_proj have them, q_proj has none.
    entry = GOLDEN[name]
    config = {**entry["config"], "attention_bias": True}
    latents = config["q_lora_rank"] or 0, config["kv_lora_rank"], config["qk_rope_head_dim"]
    biases = config["num_hidden_layers"] * (sum(latents) + config["hidden_size"])
    facts = autopar.model_facts(written(tmp_path, config))
    assert facts.parameters == entry["parameters"] + biases


def test_every_family_has_a_configuration_with_counts() -> None:
    families = {entry["config"]["model_type"] for entry in GOLDEN.values()}
    assert families == hf.FAMILIES.keys() - {"chatglm"}


@pytest.mark.parametrize("name", IN_CATALOG)
def test_a_configuration_is_the_model_of_the_catalog(name: str, tmp_path: Path) -> None:
    found = planner.model_of(written(tmp_path, GOLDEN[name]["config"])).model
    entry = catalog.model(name).model
    # The golden configurations give a round number of positions, which shape nothing here.
    same = replace(entry, name=found.name, max_positions=found.max_positions)
    if name == "phi-3-mini":
        # The catalog leaves out its window of 2,047, half of its longest sequence.
        found = replace(found, window=None)
    assert found == same


def test_chatglm_is_the_model_of_the_catalog(tmp_path: Path) -> None:
    # The dimensions of THUDM/chatglm3-6b, whose class is not part of transformers.
    config = {
        "model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "ffn_hidden_size": 13696,
        "num_attention_heads": 32, "multi_query_attention": True, "multi_query_group_num": 2,
        "kv_channels": 128, "padded_vocab_size": 65024, "seq_length": 8192, "rmsnorm": True,
        "post_layer_norm": True, "add_qkv_bias": True, "add_bias_linear": False,
    }  # fmt: skip
    assert autopar.model_facts(written(tmp_path, config)).parameters == 6_243_584_000


def test_a_folder_stands_for_its_configuration_and_gives_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-2-7b-hf"
    folder.mkdir()
    file = written(folder, GOLDEN["llama2-7b"]["config"])
    assert planner.model_of(str(folder)) == planner.model_of(file)
    assert planner.model_of(str(folder)).model.name == "Llama-2-7b-hf"


def layered(kinds: list[str]) -> dict[str, Any]:
    return {**GOLDEN["gemma2-9b"]["config"], "layer_types": kinds}


def test_windows_come_from_the_kinds_of_the_layers(tmp_path: Path) -> None:
    whole, part = "full_attention", "sliding_attention"
    for kinds, window in [
        ([part, part, whole] * 14, Window(size=4096, global_every=3)),
        ([part] * 42, Window(size=4096)),
        ([whole] * 42, None),
    ]:
        assert planner.model_of(written(tmp_path, layered(kinds))).model.window == window
    irregular = written(tmp_path, layered([whole, part, part] * 14))
    with pytest.raises(SpecError, match="layer_types: must be whole attention in every n-th layer"):
        planner.model_of(irregular)


def test_a_pattern_of_letters_says_what_a_number_does(tmp_path: Path) -> None:
    letters = {**GOLDEN["exaone4-32b"]["config"], "sliding_window_pattern": "LLLG"}
    model = planner.model_of(written(tmp_path, letters)).model
    assert model.window == Window(size=4096, global_every=4)


def test_layers_with_experts_may_be_named_one_by_one(tmp_path: Path) -> None:
    named = {**GOLDEN["llama4-maverick"]["config"], "moe_layers": list(range(1, 48, 2))}
    named.pop("interleave_moe_layer_step")
    model = planner.model_of(written(tmp_path, named)).model
    assert model.moe == catalog.model("llama4-maverick").model.moe


LLAMA = GOLDEN["llama2-7b"]["config"]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({**LLAMA, "model_type": "mamba"}, 'model_type: no family "mamba". Known: arcee, '),
        ({"hidden_size": 1}, "model_type: missing key"),
        ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, "hidden_size: missing key"),
        (
            {**LLAMA, "hidden_size": "4096"},
            'hidden_size: must be a whole number from 1, found "4096"',
        ),
        ({**LLAMA, "hidden_size": True}, "hidden_size: must be a whole number from 1, found true"),
        ({**LLAMA, "num_attention_heads": 0}, "num_attention_heads: must be a whole number from 1"),
        ({**LLAMA, "num_attention_heads": 30}, "30 attention heads do not divide the hidden size"),
        ({**LLAMA, "attention_bias": 1}, "attention_bias: must be true or false, found 1"),
        ({**LLAMA, "hidden_act": "relu"}, "hidden_act: must be silu or gelu beside a gate"),
        ({**LLAMA, "hidden_size": 10**30}, "hidden"),
        ({**GOLDEN["opt-1.3b"]["config"], "word_embed_proj_dim": 512}, "word_embed_proj_dim: must"),
        ({**GOLDEN["phi-2"]["config"], "qk_layernorm": True}, "qk_layernorm: must be false"),
        (
            {**GOLDEN["qwen2-57b-a14b"]["config"], "mlp_only_layers": [3]},
            "mlp_only_layers: must be",
        ),
        (
            {**GOLDEN["mpt-7b"]["config"], "attn_config": {"alibi": False}},
            "attn_config: must have alibi and multihead_attention, found",
        ),
        ({**GOLDEN["mpt-7b"]["config"], "attn_config": 3}, "attn_config: must be a table, found 3"),
        (
            {**GOLDEN["llama4-scout"]["config"], "moe_layers": ["0"]},
            "moe_layers: must be every n-th layer",
        ),
        (
            {**GOLDEN["exaone4-32b"]["config"], "sliding_window_pattern": "LGLG"},
            "sliding_window_pattern: must be whole attention in every n-th layer",
        ),
        (
            {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}},
            "config.json:1: text_config: gemma3 also has parts that do not read text",
        ),
        (
            {**LLAMA, "num_key_value_heads": 5},
            "num_key_value_heads: must divide heads (32), found 5",
        ),
        ({**LLAMA, "num_hidden_layers": 9999}, "num_hidden_layers: must be from 1 to 4096, found"),
        (
            {**GOLDEN["mixtral-8x7b"]["config"], "num_experts_per_tok": 9},
            "num_experts_per_tok: must be from 1 to experts (8), found 9",
        ),
        ([], "must be a table, found a list of 0"),
        ("{", "not JSON"),
        (
            '{"model_type": "llama", "model_type": "opt"}',
            "config.json:1: model_type: given twice, on the same line. Keep one of them.",
        ),
    ],
)
def test_a_wrong_configuration_is_one_line(config: Any, says: str, command: Command) -> None:
    Path("config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    run = command(
        "search", "--model", "config.json", "--cluster", "a800:8", "--global-batch-size", "8",
        "--sequence-length", "4096",
    )  # fmt: skip
    assert (run.code, run.out) == (2, "")
    assert run.err.count("\n") == 1
    assert says in run.err


def test_a_wrong_configuration_names_the_line_of_its_own_key(tmp_path: Path) -> None:
    text = json.dumps({**LLAMA, "num_hidden_layers": 0}, indent=2)
    line = next(i for i, row in enumerate(text.splitlines(), 1) if "num_hidden_layers" in row)
    file = written(tmp_path, text)
    with pytest.raises(SpecError) as error:
        planner.model_of(file)
    assert error.value.path == f"{file}:{line}: num_hidden_layers"


def test_a_configuration_serves_wherever_a_model_has_a_name(command: Command) -> None:
    Path("config.json").write_text(json.dumps(LLAMA))
    flags = ["--cluster", "a800:8", "--global-batch-size", "8", "--sequence-length", "4096"]
    table = command("search", "--model", "config.json", *flags)
    assert table.code == 0
    same = command("search", "--model", "llama2-7b", *flags)
    rows = [run.out.split("\n\n")[0] for run in (table, same)]
    assert rows[0] == rows[1]
    assert 'family = "llama"' in command("models", "./config.json").out
