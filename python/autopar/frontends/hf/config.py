"""The `config.json` of a causal language model, read key by key."""

from typing import Any

from autopar import wire
from autopar.errors import SpecError, shown
from autopar.texts import Text

Fields = dict[str, Any]

# What configurations call the fields of a model that are checked against each other.
KEYS = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "ffn_hidden": ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "head_dim": ("head_dim", "kv_channels"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "max_positions": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
    "moe.experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "moe.topk": ("num_experts_per_tok", "moe_k"),
    "moe.expert_ffn": ("moe_intermediate_size", "intermediate_size"),
    "moe.first_dense": ("first_k_dense_replace", "mlp_only_layers", "moe_layer_start_index"),
    "moe.every": ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"),
    "mla.kv_lora_rank": ("kv_lora_rank",),
    "mla.qk_nope_dim": ("qk_nope_head_dim",),
    "mla.v_dim": ("v_head_dim",),
    "window.size": ("sliding_window",),
}


class Config:
    """A configuration, key by key."""

    def __init__(self, source: Text, usual: Fields | None = None) -> None:
        if not isinstance(source.value, dict):
            what = f"must be a table, found {shown(source.value)}"
            raise SpecError(source.file, what, "Give config.json as the model came with it.")
        self.source = source
        given = {key: value for key, value in source.value.items() if value is not None}
        self.table: Fields = {**(usual or {}), **given}

    def beside(self, usual: Fields) -> "Config":
        """Returns the configuration completed by what its class takes otherwise."""
        return Config(self.source, usual)

    def count(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """Returns a whole number, from `least` on, under the first key that is given."""
        key = next((key for key in keys if self.has(key)), keys[0])
        if not self.has(key):
            if default is None:
                raise self.error(key, "missing key", "Add it.")
            return default
        value = self.table[key]
        count = value if isinstance(value, int) and not isinstance(value, bool) else -1
        if not least <= count <= wire.LARGEST:
            what = f"must be a whole number from {least}, found {shown(value)}"
            raise self.error(key, what, "Give the count.")
        return count

    def flag(self, key: str, default: bool) -> bool:
        value = self.table.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, f"must be true or false, found {shown(value)}", "Give one.")
        return default if value is None else value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.table.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            what = "missing key" if value is None else f"must be a text, found {shown(value)}"
            raise self.error(key, what, "Add it." if value is None else "Write it in quotes.")
        return value

    def items(self, key: str) -> list[Any]:
        value = self.table.get(key)
        if value is not None and not isinstance(value, list):
            raise self.error(key, f"must be a list, found {shown(value)}", "Write it in brackets.")
        return value or []

    def has(self, key: str) -> bool:
        return key in self.table

    def key(self, field: str) -> str:
        """Returns the key that gives a field of the model; the first known one if none does."""
        return next(filter(self.has, KEYS[field]), KEYS[field][0])

    def refuse(self, key: str, why: str) -> SpecError:
        """Returns the error that a model cannot say what stands under a key."""
        hint = "Describe a model without it in a TOML file."
        return self.error(key, f"{why}, found {shown(self.table.get(key))}", hint)

    def error(self, key: str, what: str, hint: str) -> SpecError:
        """Returns an error at a key, with its line."""
        return self.source.error(key, what, hint)
