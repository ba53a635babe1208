"""The catalog as records of runs speak of it: devices, frameworks and models in words.

People write `NVIDIA A100-SXM4-80GB`, `8x200Gb HDR IB`, `NeMo 24.07` and `Llama-3.1-405B-proxy`;
here such texts find what they mean. What a text leaves open is not filled in.
"""

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache

from autopar import catalog
from autopar.cluster import Chip, DeviceGroup
from autopar.entries import ChipEntry, FrameworkEntry, ModelEntry
from autopar.errors import SpecError, shown
from autopar.runs import rx
from autopar.runs.attention import stores_scores
from autopar.runs.hardware import chip_as_written, installed
from autopar.runs.rows import PRESENT, Run
from autopar.runs.said import TAKEN_BACK, on
from autopar.spec import Model

# Where names of profiles stand in a text.
Places = dict[str, tuple[bool, int, int]]
GATED = ("swiglu", "clamped_swiglu", "geglu")


@cache
def _models() -> tuple[ModelEntry, ...]:
    return tuple(map(catalog.model, catalog.names("models")))


@cache
def _frameworks() -> tuple[FrameworkEntry, ...]:
    return tuple(map(catalog.framework, catalog.names("frameworks")))


@dataclass(slots=True)
class Shelf:
    """The catalog, read once.

    Attributes:
        models: Every model.
        frameworks: Every framework.
        chips: Chips by the texts that were asked for.
        entries: Entries of chips by the names that were asked for.
        places: Where frameworks stand in the texts that were asked for.
    """

    models: tuple[ModelEntry, ...] = field(default_factory=_models)
    frameworks: tuple[FrameworkEntry, ...] = field(default_factory=_frameworks)
    chips: dict[str, Chip] = field(default_factory=dict)
    entries: dict[str, ChipEntry] = field(default_factory=dict)
    places: dict[str, Places] = field(default_factory=dict)


# --- Chips and networks


def devices(run: Run, shelf: Shelf) -> tuple[DeviceGroup, ...]:
    """Returns a run's devices, the kinds in the order in which they hold the pipeline's stages.

    Several kinds are written with their numbers, `V100-16GB x12 + T4-16GB x4`; their networks may
    follow each other with a comma between them.

    Raises:
        SpecError: The row names no chip, or one that the catalog lacks; it then names the nearest.
    """
    if not run.chip:
        raise SpecError("chip", "missing")
    kinds = [part.strip() for part in rx.split(rf" \+ |,? and (?=\d+ ?{TIMES})", run.chip)]
    if len(kinds) == 1:
        return (DeviceGroup(chip=chip(run, shelf)),)
    networks = run.internode.split(",")
    if len(networks) != len(kinds):
        networks = [run.internode] * len(kinds)
    groups = []
    for kind, internode in zip(kinds, networks, strict=True):
        counted = rx.fullmatch(
            r"(?:(?P<before>\d+) ?x ?)?(?P<kind>.+?)(?: x ?(?P<after>\d+))?", kind
        )
        number = counted and (counted["before"] or counted["after"])
        if not counted or not number:
            raise SpecError("chip", f"how many there are of {shown(kind)} is missing")
        one = replace(run, chip=counted["kind"], internode=internode)
        groups.append(DeviceGroup(chip=chip(one, shelf), limit=int(number)))
    return tuple(groups)


TIMES = r"[x\u00d7]"


def chip(run: Run, shelf: Shelf) -> Chip:
    """Returns a run's kind of device with the node and the network that the run had.

    Raises:
        SpecError: The catalog lacks the chip; the error names the nearest.
    """
    if run.chip not in shelf.chips:
        shelf.chips[run.chip] = chip_as_written(run.chip)
    return installed(shelf.chips[run.chip], run)


def chip_entry(name: str, shelf: Shelf) -> ChipEntry:
    """Returns the catalog's entry of a chip.

    Raises:
        SpecError: The catalog lacks the chip; the error names the nearest.
    """
    if name not in shelf.entries:
        shelf.entries[name] = catalog.chip(name)
    return shelf.entries[name]


# --- Frameworks


def framework(run: Run, shelf: Shelf) -> tuple[FrameworkEntry, bool]:
    """Returns the profile that a run's framework, words and time point to, and whether it is named.

    The name or alias that stands first in the text wins, the longer of two at one place, and any
    over what frameworks are built on (`PyTorch Lightning + DeepSpeed`). Of several profiles with
    one name it is those that had begun, then those whose words, precision or chips it has, then
    the newest, and the profile as it was then. Where nobody says when, stored scores tell a time
    before fused attention. Without any name it is that of the chip's maker, else FSDP or torchtitan
    where the row says so, ZeRO under a Hugging Face model where it shards parameters and nothing
    else, and Megatron of its time. A path to a TOML file is a profile of one's own.

    Raises:
        SpecError: The file of a profile is wrong.
    """
    if run.framework.endswith(".toml"):
        return catalog.framework(run.framework), True
    unfused = run.month == PRESENT and stores_scores(run)
    # DeepSpeed on Megatron-LM is Megatron-LM's model.
    called = rx.sub(
        r"(deepspeed[^,;(]*?) (?:on|over|atop) (megatron)\b",
        r"\2 + \1",
        run.framework,
        flags=re.I,
    )
    called = rx.sub(VERSIONED, r"\1", called, flags=re.I)
    if rx.search(r"megatron[- ]bridge\b", called, re.I):
        # Which trains by Megatron-Core.
        called = rx.sub(r"\b(megatron[- ](core|lm)|m-?core)\b", "", called, flags=re.I)
    places = _places_of(shelf, called)
    known = bool(places)
    if not known:
        places = _places_of(shelf, _usual(run, shelf))
    if rx.fullmatch("[23]", run.zero) and not OF_WHOLE_MODELS.issuperset(places):
        # Of two that a row names, what shards.
        places = {name: place for name, place in places.items() if name not in OF_WHOLE_MODELS}
    device = _first_chip(run, shelf)
    maker = device.vendor if device else ""
    named = _first(shelf, places)
    if maker in OF_PYTORCH and not any(by_xla(entry, shelf) for entry in named):
        named = _first(shelf, _places_of(shelf, OF_PYTORCH[maker]))
    sharded = f"zero {run.zero}" if rx.search(r"[123]", run.zero) else ""
    words = f"{run.framework}; {run.model}; {run.chip}; {run.precision}; {sharded}; {run.notes}"
    if rx.search(r"\b(DeepEP|HybridEP)\b", words, re.I):
        # Which take nothing that is padded to a capacity (NVIDIA/Megatron-LM, token_dispatcher.py).
        words = rx.sub(r"\b(expert )?capacity( factor)?\b", "", words, flags=re.I)
    compiled = is_compiled(run)

    def likeness(entry: FrameworkEntry) -> tuple[bool, bool, bool, int, str]:
        told = entry.run
        # Whether it was compiled the whole row says.
        phrases = [phrase for phrase in told.words if "compile" not in phrase]
        for_compiled = len(phrases) < len(told.words)
        said = [on(words, _named(phrase)) or False for phrase in phrases]
        said += [True] if compiled and for_compiled else []
        precise = told.precision == run.precision.lower()
        possible = (any(said) or not told.words) and (precise or not told.precision)
        possible &= not told.vendors or maker in told.vendors
        possible &= not told.chips or (device is not None and device.chip.name in told.chips)
        possible &= compiled is not False or not for_compiled
        if known and run.month < told.unmarked_since:
            marks = f"{words}; {run.attention}"
            possible &= any(on(marks, _named(phrase)) for phrase in told.marks)
        begun = told.since <= run.month
        # The oldest stands in for a time before all of them.
        return (
            possible,
            not unfused or told.attention == "unfused",
            begun,
            2 * sum(said) + (precise and bool(told.precision)) + bool(told.vendors or told.chips),
            (told.since if begun else "".join(chr(255 - ord(c)) for c in told.since)),
        )

    found = max(named, key=likeness)
    # One device shards nothing, whatever the framework could.
    fsdp = bool(rx.search(FULLY_SHARDED, run.framework, re.I))
    shards = "sdp" in run.zero.lower() if run.zero else fsdp and run.gpus != 1
    sharding = SHARDED if shards else {}
    if rx.fullmatch(r"0|none|ddp", run.zero, re.I) and not fsdp:
        sharding = WHOLE
    if own := sharding.get(found.framework.name):
        found = next(entry for entry in shelf.frameworks if entry.framework.name == own)
    for month, earlier in found.before.items():
        if run.month < month:
            found = replace(found, framework=earlier)
            break
    return found, known


def _first(shelf: Shelf, places: Places) -> list[FrameworkEntry]:
    """Returns the profiles that are named first."""
    best = min(places.values())
    return [entry for entry in shelf.frameworks if places.get(entry.framework.name) == best]


def by_xla(entry: FrameworkEntry, shelf: Shelf) -> bool:
    """Returns whether a profile is of what XLA compiles, as its chips take nothing else."""
    leaders = {e.framework.name: e.follows for e in shelf.frameworks}
    name = entry.framework.name
    while leader := leaders.get(name):
        name = leader
    return name == "maxtext"


# What PyTorch's programs run by on the chips of these makers, whatever framework has written them.
OF_PYTORCH = {"Google": "PyTorch/XLA", "AWS": "neuronx-distributed"}


def _first_chip(run: Run, shelf: Shelf) -> ChipEntry | None:
    """Returns a run's kind of device as the catalog has it, of several the first."""
    kind = rx.sub(r" x ?\d+$", "", run.chip.split(" + ")[0].strip())
    with suppress(SpecError):
        return chip_entry(chip(replace(run, chip=kind), shelf).name, shelf)
    return None


# What stands between the names of two that go together: `DeepSpeed 0.2 (ZeRO) with Megatron-LM`.
VERSIONED = r"(deepspeed)(?: v?\d[\d.]*)?(?: \([^)]*\))?(?= (?:with|and|\+|on|over) megatron\b)"
# FSDP as what a row is called by, not what it is set against.
FULLY_SHARDED = rf"{TAKEN_BACK}FSDP[12]?\b(?! (off|was)\b)"


def is_compiled(run: Run) -> bool | None:
    """Returns whether a row says that its model was compiled or not; None where it says neither.

    Whatever was of its attention, its kernels or other rows; of the loss alone it was not.
    """
    text = f"{run.framework}; {run.notes}"
    if rx.search(EAGER, text, re.I):
        return False
    if on(text, MODEL_AND_LOSS_COMPILED):
        return True
    rest = rx.sub(LOSS_COMPILED, "", text, flags=re.I)
    told = on(rest, COMPILED)
    return False if told is None and rest != text else told


COMPILED = (
    r"((?<![a-z])|(?<=\bun))(torch[._ ])?compil(ed?|ation)(?![a-z-])(?! time)(?! by itself)"
    r"(?! (brought|gained|gave|made|would|did|was tried|failed|variants?)\b)"
    r"|(?<![a-z])(torch)?inductor\b|\bjitted\b"
)
_BOTH = r"(model|layers|blocks) (and|&|\+|as well as) (the )?loss"
MODEL_AND_LOSS_COMPILED = (
    rf"\b{_BOTH}( (function|fn))?( (is|are|was|were|both|alike|go|run|ran|under|by|with|through))*"
    r" (torch\.)?compiled?\b"
    rf"|(?<![a-z])(torch[._ ])?compil(ed?|ation)( of| for|:)?( both)?( the)? {_BOTH}\b"
)
LOSS_COMPILED = (
    r"(?<![a-z])(only |just )?[^.;,]{0,20}\bloss[^.;,]{0,20}\b(torch\.)?compiled?('d)?\b"
    r"|(torch\.)?compiled?(:| of| for| on)?( but of)?( just| only)?( the)? loss( function"
    r"| fn)?( only)?"
    r"(?=[;.,]|$)|compile\.components=\[?[\"']?loss[\"']?\]?"
)
EAGER = r"\beager\b(?! (attention|scores|softmax|SDPA)\b)"

# Profiles of models that any way of sharding may serve, and those of FSDP; rows tell them apart.
SHARDED = {
    "deepspeed": "fsdp",
    "huggingface-2021": "fsdp",
    "pytorch-ddp": "fsdp",
    "ddp-compiled": "fsdp-compiled",
    # Ascend/MindSpeed-LLM, mindspeed_llm/fsdp2 (01b991bd, models/model_factory.py): Hugging Face's
    # models under PyTorch's fully_shard, not Megatron's.
    "mindspeed": "fsdp",
}

# FSDP is what PyTorch alone is taken for, where a row does not say that nothing is sharded.
WHOLE = {"fsdp": "pytorch-ddp", "fsdp-compiled": "ddp-compiled"}


# What shards nothing, whatever stage of ZeRO a row gives.
OF_WHOLE_MODELS = {"pytorch-ddp", "ddp-compiled"}


def _usual(run: Run, shelf: Shelf) -> str:
    """Returns the framework that a run is taken for whose own nobody names."""
    device = chip(run, shelf).name if run.chip and " + " not in run.chip else ""
    for maker, own in OF_A_MAKER.items():
        if device.startswith(maker):
            return own
    alone = (run.tp or 1) == (run.pp or 1) == 1
    if "fsdp" in run.zero.lower():
        return "FSDP" if alone else "torchtitan"
    if alone and rx.search(r"[23]", run.zero):
        return "DeepSpeed"
    return "Megatron-LM"


# What the makers of these chips offer themselves.
OF_A_MAKER = {
    "tpu": "MaxText",
    "ascend": "MindSpeed",
    "gaudi": "Habana",
    "trainium": "neuronx-distributed",
}


def _places_of(shelf: Shelf, text: str) -> Places:
    """Returns where the profiles that a text names stand in it."""
    if text not in shelf.places:
        places = ((entry.framework.name, _place(entry, text)) for entry in shelf.frameworks)
        shelf.places[text] = {name: place for name, place in places if place}
    return shelf.places[text]


def _place(entry: FrameworkEntry, text: str) -> tuple[bool, int, int] | None:
    """Returns where a text names a profile: if by a base, the place, and less for a longer name."""
    own = (entry.framework.name, *entry.aliases, *entry.run.texts)
    found = [
        (base, stands.start(), -len(words_of(name)))
        for base, names in ((False, own), (True, entry.run.bases))
        for name in names
        for stands in rx.finditer(
            rf"{_named(name)}(?! (layers?|modules?|kernels?|linears?)\b)", text, re.I
        )
    ]
    return min(found, default=None)


@cache
def _named(phrase: str) -> str:
    """Returns the pattern of a phrase whose words may be joined, or have little between them."""
    words = map(re.escape, words_of(phrase))
    return rf"(?<![a-z0-9.]){BETWEEN.join(words)}(?![a-z0-9]|\.[a-z0-9])"


BETWEEN = r"[^a-z0-9.;]*(?:(?:with|under|on|and|using|via|s|the|pytorch|torch)[^a-z0-9.;]+)*"


def words_of(text: str) -> list[str]:
    """Returns the words of a text in lower case; a version is one word.

    Example:
        >>> words_of("DeepSpeed/Megatron-LM v1.1.5")
        ['deepspeed', 'megatron', 'lm', 'v1.1.5']
    """
    return re.findall(r"[a-z0-9.]+", text.lower())


# --- Models


def kin(run: Run, shelf: Shelf) -> tuple[Model | None, bool]:
    """Returns the catalog's model that is most like a run's, and whether it is that very model.

    The very model bears the name and has every dimension that the row gives. Else it is one of the
    same kind, whether the MLP is gated and has experts, and of the same family, the letters that
    one of its names begins with; if there is none, of a family that begins with these letters.
    Most like is one of the nearest generation, the first where a name tells none; of these the one
    that shares most dimensions, then most of the name.

    Raises:
        SpecError: The name is a path to a TOML file, and the file is wrong.
    """
    if run.model.endswith(".toml"):
        return catalog.model(run.model).model, True
    name = plain(run.model)
    names = {name, plain(rx.sub(AROUND_NAMES, "", run.model, flags=re.I))}
    for entry in shelf.models:
        if not names.isdisjoint(map(plain, (entry.model.name, *entry.aliases))) and all(
            getattr(run, key) in (None, getattr(entry.model, key)) for key in SHAPE[:4]
        ):
            return entry.model, True
    family = _letters(plain(rx.sub(SIZE_FIRST, "", run.model, flags=re.I)))
    if not family:
        return None, False

    def alike(model: Model) -> bool:
        gated = run.gated_mlp in (None, model.activation in GATED)
        return gated and ((run.experts or 1) > 1) == (model.moe is not None)

    own = _generation(run.model)

    def likeness(model: Model) -> tuple[float, int, int]:
        apart = abs(_generation(model.name) - own)
        alike = sum(getattr(run, key) == getattr(model, key) for key in SHAPE)
        other = plain(model.name)
        pairs = enumerate(zip(name, other, strict=False))
        return -apart, alike, next((i for i, (a, b) in pairs if a != b), min(len(name), len(other)))

    def families(entry: ModelEntry) -> list[str]:
        return [_letters(plain(name)) for name in (entry.model.name, *entry.aliases)]

    kind = [entry for entry in shelf.models if alike(entry.model)]
    related = [entry.model for entry in kind if family in families(entry)] or [
        entry.model for entry in kind if families(entry)[0].startswith(family)
    ]
    return max(related, key=likeness, default=None), False


# What stands about a model's name and changes no shape: `meta-llama/Llama-2-7b-hf`, `(SFT)`.
AROUND_NAMES = (
    r"^[\w.-]+/|\s*\([^()\d]*\)|[-_ ]+(hf|base|instruct|chat|it|sft|pre-?train\w*)\b(?=\W|$)"
)
SIZE_FIRST = r"^\d+(\.\d+)?[BMT]\b[-_ ]*"
SHAPE = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab")


def plain(name: str) -> str:
    """Returns the letters and figures of a name.

    Example:
        >>> plain("Llama-3.1-8B")
        'llama3.18b'
    """
    return rx.sub(r"[^a-z0-9.]", "", name.lower())


def _generation(name: str) -> float:
    """Returns the number behind a family's letters that is not a size: 2.5 of `Qwen2.5-7B`."""
    found = rx.match(r"[a-z]+[-_ ]?v?(\d{1,2}(?:\.\d{1,2})?)(?=$|[-_ ])", name, re.I)
    return float(found[1]) if found else 1.0


def _letters(name: str) -> str:
    return rx.split(r"\d", name)[0]
