"""What JAX's checkpoint policies keep of a layer and send to the host, by the words of a row."""

import re
from dataclasses import dataclass

from autopar.framework import Named
from autopar.held import Offloaded
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
_LIST = rf"({_NAME}(?:(?:, ?| and |, and ){_NAME})*)"
_ON_HOST = (
    rf"offloaded to (?:the )?host: {_LIST}",
    rf"{_LIST} (?:are |is )?(?:offloaded\b|in host memory)",
    rf"({_NAME})=offload\b",
)
_ON_DEVICE = (
    rf"kept on (?:the )?device(?: are|:) {_LIST}",
    rf"{_LIST} (?:are |is )?kept\b",
    rf"({_NAME})=device\b",
)


def kept(run: Run) -> Kept | None:
    """Returns what a row's policy keeps of each layer, if it names tensors or a known policy.

    A policy that keeps nothing but inputs of layers computes them again as a whole.
    """
    column = run.recompute.lower()
    if column in NOTHING:
        return None
    if column in POLICIES:
        return POLICIES[column]
    notes = run.notes
    if re.search(r"\bcustom\b[ \w]*remat|remat[_\w]*[ =]*(?:policy )?custom\b", notes, re.I):
        host, device = _tensors(_ON_HOST, notes), _tensors(_ON_DEVICE, notes)
        if named := (host | device) & MADE:
            return Kept(named=named, on_host=host)
    if not column or column.startswith("all but"):
        return None
    words = rf"\b({'|'.join(sorted(POLICIES, key=len, reverse=True))})\b"
    policy = re.search(words, column) or re.search(rf"remat[\w=]*(?: policy)?[ :]*{words}", notes)
    if policy:
        return POLICIES[policy[1]]
    if re.search(_DOTS, f"{column} {notes}"):
        return POLICIES["minimal"]
    return None


def _tensors(patterns: tuple[str, ...], text: str) -> frozenset[str]:
    """Returns the tensors that lists in a text name; queries, keys and values only together."""
    found = {
        part
        for pattern in patterns
        for names in re.findall(pattern, text)
        for name in re.findall(_NAME, names)
        for words, part in _PARTS.items()
        if re.fullmatch(words, name)
    }
    together = "qkv" in found or found >= {"q", "k", "v"}
    found -= {"q", "k", "v", "qkv"}
    return frozenset(found | ({"projections"} if together else set()))
