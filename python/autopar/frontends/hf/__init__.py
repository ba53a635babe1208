"""Hugging Face: the `config.json` of a causal language model as a model.

Each family is read as its class in transformers builds it; `tests/clients` holds parameter counts
against those classes. A feature that a model here has no word for is refused, never dropped.
"""

from collections.abc import Callable
from pathlib import Path

from autopar import files, texts, wire
from autopar.catalog import sha256
from autopar.entries import ModelEntry
from autopar.errors import shown
from autopar.frontends.hf import gpts, llamas, mixtures
from autopar.frontends.hf.config import KEYS, Config, Fields
from autopar.spec import Model


def is_config(name: str) -> bool:
    """Returns whether a text that may be a name in the catalog is a configuration or its folder.

    Example:
        >>> is_config("llama2-7b"), is_config("config.json"), is_config("my.toml")
        (False, True, False)
    """
    folder = files.is_path(name) and not name.endswith(".toml") and files.is_folder(name)
    return folder or name.endswith(".json")


def model(name: str) -> ModelEntry:
    """Returns the model that a configuration describes.

    Args:
        name: Path of a `config.json`, or of the folder that holds it.

    Raises:
        SpecError: The file is wrong, its family is not known, or a model cannot say a feature.
    """
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    data = files.read_bytes(path)
    place = files.printable(path if Path(name).is_dir() else name)
    text = texts.parse_json(data, place, "Give config.json as the model came with it.")
    config = Config(text)
    family = config.text("model_type")
    if family not in FAMILIES and config.has("text_config"):
        what = f"{family} also has parts that do not read text, and no model can say those"
        hint = "Give the table of text_config alone, with its model_type, as a file."
        raise config.error("text_config", what, hint)
    if family not in FAMILIES:
        what = f"no family {shown(family)}"
        raise config.error("model_type", what, f"Known: {', '.join(sorted(FAMILIES))}.")
    stem = path.parent.resolve().name if path.name == "config.json" else path.stem
    fields = {"name": stem or family, **FAMILIES[family](config)}
    hidden, heads = fields["hidden"], fields["heads"]
    if not config.has("head_dim") and hidden % heads and fields["head_dim"] == hidden // heads:
        what = f"{heads} attention heads do not divide the hidden size {hidden}"
        raise config.error(config.key("heads"), what, "Give head_dim, or heads that divide it.")
    return ModelEntry(
        model=wire.read(Model, fields, f"{place}: "),
        family=family,
        source=place,
        text=text,
        keys={field: config.key(field) for field in KEYS},
        digest=sha256(data),
    )


FAMILIES: dict[str, Callable[[Config], Fields]] = {
    "arcee": gpts.arcee,
    "bloom": gpts.bloom,
    "chatglm": llamas.chatglm,
    "codegen": gpts.gptj,
    "cohere": llamas.cohere,
    "cohere2": llamas.cohere2,
    "deepseek_v2": mixtures.deepseek_v2,
    "deepseek_v3": mixtures.deepseek_v3,
    "dots1": mixtures.dots1,
    "ernie4_5": llamas.ernie4_5,
    "ernie4_5_moe": mixtures.ernie4_5_moe,
    "exaone4": llamas.exaone4,
    "falcon": gpts.falcon,
    "gemma": llamas.gemma,
    "gemma2": llamas.gemma2,
    "gemma3_text": llamas.gemma3,
    "glm": llamas.glm,
    "glm4": llamas.glm4,
    "glm4_moe": mixtures.glm4_moe,
    "gpt2": gpts.gpt2,
    "gpt_bigcode": gpts.gpt_bigcode,
    "gpt_neox": gpts.gpt_neox,
    "gpt_oss": mixtures.gpt_oss,
    "gptj": gpts.gptj,
    "granite": llamas.llama,
    "granitemoe": mixtures.granitemoe,
    "helium": llamas.helium,
    "hunyuan_v1_dense": llamas.hunyuan_v1_dense,
    "llama": llamas.llama,
    "llama4_text": mixtures.llama4,
    "minimax_m2": mixtures.minimax_m2,
    "mistral": llamas.mistral,
    "mixtral": mixtures.mixtral,
    "mpt": gpts.mpt,
    "nemotron": gpts.nemotron,
    "olmo": llamas.olmo,
    "olmo2": llamas.olmo2,
    "olmo3": llamas.olmo3,
    "olmoe": mixtures.olmoe,
    "opt": gpts.opt,
    "phi": gpts.phi,
    "phi3": llamas.phi3,
    "phimoe": mixtures.phimoe,
    "qwen2": llamas.qwen2,
    "qwen2_moe": mixtures.qwen2_moe,
    "qwen3": llamas.qwen3,
    "qwen3_moe": mixtures.qwen3_moe,
    "seed_oss": llamas.seed_oss,
    "smollm3": llamas.smollm3,
    "stablelm": llamas.stablelm,
    "starcoder2": gpts.starcoder2,
}
