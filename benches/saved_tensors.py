"""What autograd saves of a layer of Hugging Face's classes: the tests' kept.csv.

    python benches/saved_tensors.py > tests/data/operators/kept.csv

Needs torch and transformers, and no GPU. Each model has 256 channels, four heads and 1,024 tokens,
all in 16 bits and without dropout, under PyTorch's scaled_dot_product_attention. Counted are the
storages that saved_tensors_hooks is given, parameters and tables left out, as the difference that a
third layer makes, in tensors of 256 x 1,024 numbers of 2 bytes.
"""

import sys
import warnings
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

HIDDEN, BATCH, LENGTH = 256, 4, 256
SIZES = {"vocab_size": 256, "max_position_embeddings": 256}
NEW = {"hidden_size": HIDDEN, "num_attention_heads": 4, **SIZES}
LLAMA = {**NEW, "intermediate_size": 680, "num_key_value_heads": 4}
DROPOUT = dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), 0.0)
OLD = {"n_embd": HIDDEN, "n_head": 4, "n_positions": 256, "vocab_size": 256, **DROPOUT}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", LLAMA),
    "llama grouped": ("llama", LLAMA | {"num_key_value_heads": 2}),
    "qwen3": ("qwen3", LLAMA | {"num_key_value_heads": 2, "head_dim": 64}),
    "gpt2": ("gpt2", OLD),
    "gpt_neox": ("gpt_neox", NEW | {"intermediate_size": 1024}),
    "gptj": ("gptj", OLD | {"rotary_dim": 64}),
    "olmo": ("olmo", LLAMA),
    "opt": ("opt", NEW | {"ffn_dim": 1024, "word_embed_proj_dim": HIDDEN, "dropout": 0.0}),
    "falcon": ("falcon", NEW | {"multi_query": True, "parallel_attn": True, "bias": False}),
}


def saved(family: str, shape: dict[str, Any], layers: int) -> int:
    """Returns the bytes that a model of so many layers saves."""
    key = "n_layer" if "n_embd" in shape else "num_hidden_layers"
    config = AutoConfig.for_model(family, **shape, **{key: layers}, use_cache=False)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").bfloat16().train()
    held = {
        tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())
    }
    storages: dict[int, int] = {}
    tensors = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            storages[storage.data_ptr()] = storage.nbytes()
            tensors.append(tensor)  # Alive, so that no other takes its place.
        return tensor

    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(tokens, labels=tokens)
    return sum(storages.values())


def main() -> int:
    """Prints the table; returns the exit code."""
    warnings.simplefilter("ignore")
    print("family,kept")
    for name, (family, shape) in FAMILIES.items():
        layer = saved(family, shape, 3) - saved(family, shape, 2)
        print(f"{name},{layer / (HIDDEN * BATCH * LENGTH * 2):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
