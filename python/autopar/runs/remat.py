"""What JAX's checkpoint policies keep of a layer and send to the host, by the words of a row."""

import re
from dataclasses import dataclass

from autopar.framework import Named
from autopar.held import Offloaded
from autopar.runs import rx
from autopar.runs.rows import Run

NOTHING = ("none", "no", "off", "0", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Tensors of a layer that a policy keeps beside its input, and which of all wait on the host.

    Attributes:
        named: By the operators of `Named` that make them.
        on_host: By the fields of `Offloaded`.
    """

    named: frozenset[str]
    on_host: frozenset[str] = frozenset()

    @property
    def again(self) -> Named:
        """What is computed again: all that makes nothing of what is kept."""
        made = MADE - self.named
        return Named(norm=True, dispatch=True, activation=True, **dict.fromkeys(made, True))

    @property
    def offloaded(self) -> Offloaded:
        """What waits on the host."""
        return Offloaded(**dict.fromkeys(self.on_host, True))


MADE = frozenset(("projections", "attention", "output", "expansion", "contraction"))
_ATTENTION = frozenset(("projections", "output"))
_PRODUCTS = _ATTENTION | {"expansion", "contraction"}
# AI-Hypercomputer/maxtext, src/MaxText/layers/decoders.py@02bc28ce: get_remat_policy. Names
# are given to queries and keys after rotation, to one copy of each (layers/attentions.py).
POLICIES = {
    "minimal": Kept(named=_PRODUCTS),
    "minimal_flash": Kept(named=_PRODUCTS | {"attention"}),
    "minimal_with_context": Kept(named=_PRODUCTS | {"attention"}),
    "minimal_offloaded": Kept(named=_PRODUCTS, on_host=_PRODUCTS),
    "save_dot_with_context_except_mlp": Kept(named=_ATTENTION | {"attention"}),
    "save_dot_except_mlpwi": Kept(named=_ATTENTION | {"contraction"}),
    "save_dot_except_mlp": Kept(named=_ATTENTION),
    "save_qkv_proj": Kept(named=frozenset(("projections",))),
    "qkv_proj_offloaded": Kept(
        named=frozenset(("projections",)), on_host=frozenset(("projections",))
    ),
    "save_out_proj": Kept(named=frozenset(("output",))),
}
# JAX's own: results of products, of which a kernel of attention is none.
_DOTS = r"\bdots_"

# The tensors that a policy of one's own names (configs/base.yml: `context: 'remat'` and its kin).
_PARTS = {
    r"decoder_layer_input|(?:decoder[ _])?layer[ _]inputs?|decoder inputs?": "input",
    r"query_proj|queries|q": "q",
    r"key_proj|keys|k": "k",
    r"value_proj|values|v": "v",
    r"qkv_proj|qkv": "qkv",
    r"context|attention outputs?": "attention",
    r"out_proj": "output",
    r"mlpwi(?:_[01])?": "expansion",
    r"mlpwo": "contraction",
}
_NAME = rf"\b(?:{'|'.join(_PARTS)})\b"
_LIST = rf"({_NAME}(?:(?:,? ?and |, ?|/){_NAME})*)"
_GO = (
    r"(?:(?:outputs?|both|all|are|is|being|gets?|moved|sent|kept|put|stays?|left|in|on|to|the"
    r"|pinned|=|->) )*"
)
_HOST = r"(?:(?:host|CPU)(?:[ -](?:memory|RAM))?|offload(?:ed)?(?! to (?:the )?device))\b"
_DEVICE = r"(?:device|HBM|saved|kept)\b"
_ON_HOST = (
    rf"\boffload(?:ed|s|ing)(?: to (?:the )?(?:host|CPU))?[: ]+{_LIST}",
    rf"{_LIST} {_GO}{_HOST}",
)
_ON_DEVICE = (
    rf"(?:kept|stay|left) (?:on|in) (?:the )?(?:device|HBM)(?: are|:) {_LIST}",
    rf"(?:saves|saving|saved:|keeps|keeping|kept:) (?:only )?(?:the )?{_LIST}",
    rf"{_LIST} {_GO}{_DEVICE}",
)

# What is listed before one word: `out, query, key and value projections`, `q/k/v/o_proj`.
_PROJECTIONS = {
    "qkv": "qkv_proj",
    "q": "query_proj",
    "k": "key_proj",
    "v": "value_proj",
    "o": "out_proj",
}
_BARE = r"(?:qkv|q(?:uery)?|k(?:ey)?|v(?:alue)?|o(?:ut(?:put)?)?)"


def _spelled(text: str) -> str:
    """Returns a text with each tensor that it names by a name of its own, and `=` by itself."""
    text = rx.sub(
        rf"\b({_BARE}(?:(?:,? and |, | ?/ ?){_BARE})+)[_ ]?proj(?:ection)?s?\b",
        lambda found: ", ".join(
            _PROJECTIONS[word if word == "qkv" else word[0]]
            for word in re.findall(r"\b(?!and\b)[a-z]+", found[1].lower())
        ),
        text,
        flags=re.I,
    )
    for short, names in (
        (r"qkv ?proj(?:ection)?s?", "qkv_proj"),
        (r"(?:(?:attention|output|out|o) )+proj(?:ection)?s?(?: outputs?)?", "out_proj"),
        (r"attn", "attention"),
        (r"attention (?:output|out|context)s?(?: \(context\))?", "context"),
    ):
        text = rx.sub(rf"\b{short}\b", names, text, flags=re.I)
    return rx.sub(r" \+ | & ", ", ", rx.sub(r" ?= ?", " = ", text))


def kept(run: Run) -> Kept | None:
    """Returns what a row's policy keeps of each layer, if it names tensors or a known policy.

    A policy that keeps nothing but inputs of layers computes them again as a whole.
    """
    column = run.recompute.lower()
    if column in NOTHING:
        return None
    if column in POLICIES:
        return POLICIES[column]
    text = _spelled(f"{run.recompute}; {run.notes}")
    custom = rx.search(CUSTOM, f"{run.recompute}; {run.notes}", re.I)
    if custom or rx.search(NAMED, _spelled(run.recompute), re.I):
        host, device = _tensors(_ON_HOST, text), _tensors(_ON_DEVICE, text)
        if named := (host | device) & MADE:
            return Kept(named=named, on_host=host)
    notes = run.notes
    if not column or column.startswith("all but"):
        return None
    words = rf"\b({'|'.join(sorted(POLICIES, key=len, reverse=True))})\b"
    policy = rx.search(words, column) or rx.search(rf"remat[\w=]*(?: policy)?[ :]*{words}", notes)
    if policy:
        return POLICIES[policy[1]]
    if rx.search(_DOTS, f"{column} {notes}"):
        return POLICIES["minimal"]
    return None


# A policy that names tensors itself, in notes or as the column's own words.
CUSTOM = (
    r"\bcustom\b[ \w]*remat|remat[_\w]*[ =:]*(?:policy )?custom\b|custom[ \w]*policy\b"
    r"|^custom\b(?!.*(?:all|every\w*) (?:but|except))"
)
NAMED = rf"(?:\b(?:saves|saving|keeps|keeping) {_LIST}|{_LIST} {_GO}(?:saved|kept|{_HOST}))"


def _tensors(patterns: tuple[str, ...], text: str) -> frozenset[str]:
    """Returns the tensors that lists in a text name; queries, keys and values only together."""
    found = {
        part
        for pattern in patterns
        for names in re.findall(pattern, text, re.I)
        for name in re.findall(_NAME, names, re.I)
        for words, part in _PARTS.items()
        if rx.fullmatch(words, name, re.I)
    }
    together = "qkv" in found or found >= {"q", "k", "v"}
    found -= {"q", "k", "v", "qkv"}
    return frozenset(found | ({"projections"} if together else set()))
