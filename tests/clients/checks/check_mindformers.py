"""MindFormers 1.3.2 on MindSpore 2.7.0: the run configuration, and the arguments of its classes."""

from pathlib import Path
from typing import Any

import mindspore
from cases import Case, expect, layers_of, run
from mindformers import LlamaConfig
from mindformers.core.parallel_config import build_parallel_config
from mindformers.models.llama.llama_transformer import LLamaDecodeLayer
from mindformers.models.utils import LayerSetting
from mindformers.modules.transformer import TransformerOpParallelConfig
from mindformers.tools.register.config import MindFormerConfig


def check(folder: Path, case: Case) -> None:
    plan = case["plan"]
    config = MindFormerConfig(str(folder / "mindformers.yaml"))
    check_context(dict(config.parallel), config, plan)
    build_parallel_config(config)
    parallel = config.parallel_config
    check_parallel(parallel, plan)
    module: dict[str, Any] = {}
    exec((folder / "parallel_config.py").read_text(), module)
    built: TransformerOpParallelConfig = module["parallel_config"]
    check_parallel(built, plan)
    expect(built.optimizer_shard, plan["zero"] > 0, "optimizer shard")
    expect(built.recompute.recompute, parallel.recompute.recompute, "recompute")
    model = dict(config.model.model_config)
    llama = LlamaConfig(**{key: value for key, value in model.items() if key != "type"})
    check_layers(LayerSetting(llama.num_layers, llama.offset, parallel, llama.pp_interleave_num),
                 case)  # fmt: skip


def check_context(keywords: dict[str, Any], config: Any, plan: dict[str, Any]) -> None:
    mindspore.reset_auto_parallel_context()
    mindspore.set_auto_parallel_context(**_plain(keywords))
    get = mindspore.get_auto_parallel_context
    expect(get("enable_parallel_optimizer"), plan["zero"] > 0, "parallel optimizer")
    expect(get("pipeline_interleave"), plan["vpp"] > 1, "interleave")


def check_parallel(parallel: Any, plan: dict[str, Any]) -> None:
    expect(parallel.data_parallel, plan["dp"], "dp")
    expect(parallel.model_parallel, plan["tp"], "tp")
    expect(parallel.expert_parallel, plan["ep"], "ep")
    expect(parallel.context_parallel, plan["cp"], "cp")
    expect(parallel.pipeline_stage, plan["pp"], "pp")
    expect(parallel.use_seq_parallel, plan["sp"], "sp")


def check_layers(setting: LayerSetting, case: Case) -> None:
    """Compares the layers that MindFormers gives each chunk of each stage, and recomputes there."""
    plan = case["plan"]
    expect(setting.layer_list.sum(axis=0).tolist(), layers_of(case), "layers of the stages")
    wanted = []
    for number, row in enumerate(setting.layer_list.tolist()):
        wanted.append([])
        for chunk, stage in zip(row, plan["stages"], strict=True):
            recompute = stage["recompute"]
            layers = recompute.get("layers") or 0
            own = min(dealt(layers, number, plan["vpp"]), chunk)
            count = {"none": 0, "selective": 0, "block": min(layers, chunk), "parts": own}
            wanted[-1].append(count.get(recompute["granularity"], chunk))
    expect(setting.layer_recompute, wanted, "recomputed layers")
    check_operators(setting, case)


# The operators that each field of a plan's counts stands for, by their names in a layer.
OPERATORS = {
    "norm": ("attention_norm.norm", "ffn_norm.norm"),
    "projections": (
        *(f"attention.{name}.matmul" for name in ("wq", "wk", "wv")),
        "attention.apply_rotary_emb.mul",
    ),
    "attention": ("attention.flash_attention.flash_attention",),
    "expansion": ("feed_forward.w1.matmul", "feed_forward.w3.matmul"),
    "activation": ("feed_forward.w1.activation.silu", "feed_forward.mul"),
}


def check_operators(setting: LayerSetting, case: Case) -> None:
    """Compares where operators are computed again by name, and that a layer has them."""
    framework = case["problem"]["framework"]
    stages = case["plan"]["stages"]
    counts: dict[str, list[list[int]]] = {}
    for field, names in OPERATORS.items():
        counts |= dict.fromkeys(names, first_layers(setting, stages, field, framework["named"]))
    found = {pattern.replace("\\", ""): each for pattern, each in setting.select_recompute.items()}
    for name, each in found.items():
        expect(each, counts[name], f"layers that compute {name} again")
    for name, each in counts.items():
        if any(map(any, each)):
            expect(name in found, True, f"a pattern of {name}")
            layer = LLamaDecodeLayer(layer_id=0, dim=256, n_heads=8, use_flash_attention=True)
            found_there = LayerSetting.set_pattern_recompute(layer, name.split("."))
            expect(found_there.strip(" ."), name, "the operator of a pattern")
    sequence = case["plan"]["sp"] and not framework["keeps_tensor_results"]
    named = {"gather": framework["named"]["norm"] and sequence}
    gathers = first_layers(setting, stages, "gather", named)
    for each in setting.select_comm_recompute.values():
        expect(each, gathers, "layers that gather what norms made again")


def dealt(count: int, chunk: int, chunks: int) -> int:
    """Returns how many of a stage's layers one of its chunks is dealt, all in turn."""
    return (count + chunks - 1 - chunk) // chunks


def first_layers(
    setting: LayerSetting, stages: list[dict[str, Any]], field: str, named: dict[str, bool]
) -> list[list[int]]:
    """Returns the layers of each chunk of each stage that compute an operator again by itself."""
    rows, chunks = [], setting.layer_list.tolist()
    for number, row in enumerate(chunks):
        rows.append([])
        for chunk, stage in zip(row, stages, strict=True):
            recompute = stage["recompute"]
            count = dealt((recompute.get("operators") or {}).get(field, 0), number, len(chunks))
            if recompute["granularity"] == "selective":
                count = chunk * named[field]
            rows[-1].append(min(count, chunk))
    return rows


def _plain(value: Any) -> Any:
    """Returns MindFormers' own tables as plain ones."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


if __name__ == "__main__":
    run(check)
