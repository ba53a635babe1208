"""What a measured run computed again in the backward pass, by the words of its row."""

import re
from collections.abc import Iterator
from dataclasses import asdict, replace

from autopar.entries import FrameworkEntry
from autopar.errors import SpecError, shown
from autopar.report import NamedLayers, Recompute
from autopar.runs import rx
from autopar.runs.as_run import ACTIVATIONS, AGAIN, FILLERS, NORMS, PROJECTIONS
from autopar.runs.remat import NOTHING, kept
from autopar.runs.rows import Run
from autopar.runs.said import said
from autopar.runs.shelf import words_of
from autopar.runs.stored import offloads_checkpoints

# kwai/Megatron-Kwai (Yuan et al., USENIX ATC 2024): what is cheap to compute again.
PART_OF_EACH_LAYER = "layer-partial"


def is_stated(recompute: str) -> bool:
    """Returns whether a text says what is recomputed, and how much of it."""
    text = recompute.lower()
    part = "partial" in text and text != PART_OF_EACH_LAYER
    return bool(text) and not part


# NVIDIA/Megatron-LM, megatron/core/transformer/transformer_config.py: recompute_modules.
MODULES = set("core_attn moe_act layernorm mla_up_proj mlp moe shared_experts".split())
# Modules of which only a part has a name here.
WHOLE_MODULES = {"mlp", "moe", "shared_experts"}
# Profiles of what hands names to it.
MEGATRON = r"megatron|nemo(?!-automodel)|mindspeed|flagscale"


def recompute_said(run: Run, entry: FrameworkEntry) -> str:
    """Returns a row's words for recompute, of a mixture without Megatron's module `mlp`.

    That is the MLP of dense layers, of which a mixture has few or none.

    Raises:
        SpecError: The words name a module that is computed again as a whole.
    """
    if kept(run) is not None:
        return "selective"
    text = run.recompute.lower()
    parts = set(rx.split(r"[ ,:+()]+", text)) - {"selective", ""}
    if not parts <= MODULES:
        return run.recompute
    mixture = (run.experts or 1) > 1
    if mixture and "mlp" in parts and rx.match(MEGATRON, entry.framework.name):
        parts -= {"mlp"}
        text = ", ".join(sorted(parts)) or "none"
    else:
        text = run.recompute
    if whole := sorted(parts & WHOLE_MODULES):
        what = f"no estimate for {shown(run.recompute)}, of which {whole[0]} is a whole module"
        raise SpecError("recompute", what, "Leave the row out, or name the parts: `mlp alone`.")
    return text


def usual_recompute(run: Run, entry: FrameworkEntry) -> str:
    """Returns what a run recomputed whose row does not say: all of what waits on the host, else as
    its framework has it, whose profile may stand for others too.

    AI-Hypercomputer/maxtext, configs/base.yml: remat_policy is full; on GPUs it is run by recipes.
    aws-neuron/neuronx-nemo-megatron, nemo/examples/nlp/language_modeling: test.sh, test_llama.sh
    and gpt_46b.sh recompute layers in full, gpt_23b.sh and gpt_175b.sh the core of attention.
    """
    if offloads_checkpoints(run):
        return "full"
    name = entry.framework.name
    if name in ("maxtext", "maxtext-sparsecore") and rx.search(r"\bMaxText\b", run.framework, re.I):
        return "full"
    if name.startswith("neuronx") and said(run, r"(neuronx-)?nemo[- ]megatron\b"):
        core = rx.search(r"gpt.*\b(23|175)B\b", run.model, re.I)
        return "selective" if core else "full"
    return entry.run.recompute


def recompute_of(text: str, notes: str, entry: FrameworkEntry, chunk: int) -> Recompute:
    """Returns what a text says is recomputed in chunks of so many layers."""
    text = text.lower()
    if text in NOTHING:
        return Recompute()
    if PROJECTIONS in text or text in AGAIN:
        return Recompute("selective")
    if text == PART_OF_EACH_LAYER:
        text = "norms and activations"
    words = set(words_of(text)) - {"selective"}
    if words and words <= NORMS | ACTIVATIONS | FILLERS:
        norm, activation = (chunk if words & named else 0 for named in (NORMS, ACTIVATIONS))
        if not norm and not activation:
            raise SpecError("recompute", f"no estimate for {shown(text)}")
        return Recompute(
            "parts", 0, regathers=False, operators=NamedLayers(norm=norm, activation=activation)
        )
    some = rx.search(r"block\D{0,3}(\d+)", text) or rx.search(
        r"recompute[- ]method block (?:num_layers )?(\d+)", notes
    )
    if some:
        return Recompute("block", int(some[1]))
    if share := rx.search(r"(\d+) ?%", text):
        return Recompute("block", max(1, round(chunk * int(share[1]) / 100)))
    if share := rx.search(r"(\d+) ?(?:/|of) ?([1-9]\d*) (?:of )?(?:the )?layers", text):
        return Recompute("block", max(1, round(chunk * int(share[1]) / int(share[2]))))
    if turn := rx.search(r"every (?:(\d+)(?:st|nd|rd|th)?|other|second|third|fourth) layer", text):
        apart = {"other": 2, "second": 2, "third": 3, "fourth": 4}
        layers = chunk // max(int(turn[1] or apart[turn[0].split()[1]]), 1)
        if rx.search(SPARED, text):
            return Recompute("block", chunk - layers) if layers < chunk else Recompute()
        return Recompute("block", max(1, layers))
    if rx.search(r"selective|\bsac\b|\bop\b", text) or (
        rx.search(r"attn|attention|\bcore\b", text) and not rx.search(r"\b(full|whole)\b", text)
    ):
        return Recompute("selective")
    if groups := rx.search(r"uniform\D{0,3}(\d+)", text):
        return Recompute("uniform", int(groups[1]))
    if text == "half":
        return Recompute("block", max(1, chunk // 2))
    if rx.search(WHOLE, text):
        return Recompute("uniform", 1)
    raise SpecError("recompute", f"no estimate for {shown(text)}")


# As people say that all of every layer is computed again.
WHOLE = (
    r"\b(full|fully|uniform|block|all|yes|y|true|1|on|enabled|used|ac|ckpt|nothing_saveable)\b"
    r"|\bcheckpoint(s|ed|ing)?\b|\b(every|each|per)[- ](transformer |decoder )?(layer|block)s?\b"
    r"|\b(activation|gradient)[- ]|\bremat\w*\b|\brecomput\w+|\bwhole\b|\bevery(thing)?\b"
)
# What is said of layers that keep what they made.
SPARED = r"\b(but|except|without) every\b|\b(not|kept?|keeps|spared|skip(s|ped)?)\b"


def possible_recomputes(run: Run, chunk: int) -> Iterator[Recompute]:
    """Yields what may be recomputed where nobody says, from the least to the most."""
    if "partial" not in run.recompute.lower():
        yield from (Recompute(), Recompute("selective"))
    yield from (Recompute("block", layers) for layers in range(1, chunk + 1))


def within(recompute: Recompute, layers: int, vpp: int) -> Recompute:
    """Returns a recompute with no more layers than a chunk has, operators in all of a stage's."""
    if (operators := recompute.operators) is not None:
        everywhere = {name: layers for name, count in asdict(operators).items() if count}
        return replace(recompute, operators=NamedLayers(**everywhere))
    if recompute.layers is None:
        return recompute
    return replace(recompute, layers=max(1, min(recompute.layers, -(-layers // vpp))))
