"""Over how many ranks a row says that states are sharded."""

import re
from dataclasses import replace
from math import gcd

from autopar.cluster import Chip
from autopar.runs import rx
from autopar.runs.anatomy import noted
from autopar.runs.rows import Run
from autopar.runs.said import TAKEN_BACK, on

# --- Strategies

# As PyTorch, DeepSpeed and PaddlePaddle name in a row's column what is sharded.
STRATEGIES = {
    r"hybrid[-_ ]?shard\w*": "hsdp",
    r"(full[-_ ]?shard\w*|p_g_os|sharded data[- ]parallel\w*)": "fsdp",
    r"(shard[-_ ]?grad[-_ ]?op|os_g|os\+g|stage[-_ ]?2)": "2",
    r"(os|optimi[sz]er( states?)?|stage[-_ ]?1)": "1",
    r"(no[-_ ]?shard|replicated|data[- ]parallel|plain dp|dp)": "0",
}


def in_known_words(run: Run) -> Run:
    """Returns a run whose column calls what is sharded a stage of ZeRO, FSDP or HSDP.

    What else the column says, as `ZeRO-3, offload` or `FSDP SHARD_GRAD_OP`, its notes say then. A
    column that only denies ways of sharding, as `DDP, not FSDP`, shards nothing.
    """
    text = run.zero.strip().lower()
    for words, known in STRATEGIES.items():
        if rx.fullmatch(words, text):
            return replace(run, zero=known)
    told = [on(text, way) for way in WAYS]
    if False in told:
        stage = rx.search(r"[1-3]", text)
        return replace(run, zero=stage[0] if stage else "fsdp" if told[0] else "0")
    if rx.search(r"\w\W+[a-z]", text):
        return replace(run, notes=f"{run.notes}; {run.zero}")
    return run


# Ways to shard that a column names among other words.
WAYS = (r"[fh]sdp", r"zero[- ]?[1-3]", r"dist\w*")


# --- Groups

UNIT = r"(?:GPUs?|chips?|devices?|ranks?|cards?|NPUs?|ways)"
OF_EXPERTS = r"(?<!expert )(?<!expert-)"
# As MaxText, torchtitan, InternLM and people call the size of a group; an expert's own is another.
GROUPS = (
    rf"{OF_EXPERTS}\bshard(?:ing)?[- _]?(?:group|degree|size)(?: size)?(?: is| of)?[ =:(]*(\d+)\b",
    r"\bzero1(?:[- _](?:group|shard)(?:[- _]size)?[ =:]*|[=:] ?)(\d+)\b",
    rf"{OF_EXPERTS}\b(?:FSDP|HSDP|sharded|sharding)(?: of \w+)? (?:over|across|among) (?:the )?"
    rf"(\d+) {UNIT}\b",
    r"\b(?:FSDP|weights|parameters|states)(?: \w+)? (?:split|sharded|cut) (\d+)[- ]ways?\b",
    r"\b(\d+)[- ]way (?:(?:fully|weights?|param(?:eter)?s?|states?)[- ])*"
    r"(?:shard(?:ing|ed)|FSDP)\b",
    rf"{OF_EXPERTS}\b(?:FSDP|HSDP|sharded|sharding) (?:(?:in|by|over|with) )?"
    r"groups?(?: of)? (\d+)\b",
    r"\b(?:P|params?|parameters|weights)(?: ?(?:[,/&+]|and) ?(?:G|grads?|gradients))?"
    rf" (?:over|across) (\d+) {UNIT}\b",
)
# These leave out the ranks of context parallelism, over which weights are sharded too.
DEGREES = (
    r"\b(?:data[-_]parallel|dp)[-_]shard(?:[-_](?:degree|size))?[ =:]*(\d+)\b",
    rf"{OF_EXPERTS}\bfsdp(?: degree| size| axis)?(?: of)?[ =:]+(\d+)\b"
    r"(?! ?[x\u00d7*] ?(?:[a-z](?![a-z]*[ =:]+\d)|\d+(?! ?rep)))",
)
PARTS = r"(?:FSDP|HSDP|HYBRID_SHARD|hybrid[- ]shard\w*|shard\w*)"
WITHIN = r"(?:with)?in(?:side)?(?: of)?(?: (?:a|an|one|each|every|the|its)(?: [\w-]+)??)?"
NODE = r"(?:node|VM|host|machine|server)"
STATES = r"\b(?:states|optimi[sz]er|weights|param(?:eter)?s?)"
# Where shards are told to lie within a node, and where the strategy itself means that.
OF_A_NODE = (
    rf"{OF_EXPERTS}{PARTS}(?: (?:over|across) (\d+) \w+)?(?: \w+)? {WITHIN} {NODE}\b"
    rf"|\bHYBRID_SHARD\b|\bshard(?:ing)? group (?:=|is|of) (?:a|one) (?:[\w-]+ )?{NODE}\b"
    rf"|{PARTS} across the (\d+) \w+ of (?:a|one|each) {NODE}\b"
    r"|\bshard(?:s|ed|ing)?(?:[ =:]*(\d+))?[ ,]+intra[- ]?node\b"
    rf"|{STATES}(?: \w+)? (?:split|cut|sharded) (?:{WITHIN} {NODE}|(?:intra|in)[- ]node)\b"
    r"|\bHSDP\b(?! (?:is |was )?(?:off|not|disabled|unused)\b)"
)
OF_A_SLICE = rf"{OF_EXPERTS}{PARTS} {WITHIN} (?:slice|pod)\b"


def shard_group(run: Run, ranks: int, device: Chip) -> int:
    """Returns over how many ranks ZeRO shards: a part of them where the row says so.

    That is a degree, a node or a slice of a pod. A degree that does not divide the ranks is of
    something else.
    """
    if run.shard_group:
        return run.shard_group
    told = f"{run.framework}; {run.notes}"
    for pattern in (*GROUPS, *DEGREES):
        size = (noted(pattern, told) or 0) * ((run.cp or 1) if pattern in DEGREES else 1)
        if size > 1 and ranks % size == 0:
            return size
    inside = rx.search(rf"{TAKEN_BACK}(?:{OF_A_NODE})", told, re.I)
    if inside or "hsdp" in run.zero.lower():
        degree = inside and next(filter(None, inside.groups()), None)
        return gcd(ranks, int(degree or device.devices_per_node))
    sliced = device.link.topology.startswith("torus") and device.link_domain < ranks
    if sliced and rx.search(OF_A_SLICE, told, re.I):
        return gcd(ranks, device.link_domain // (run.tp or 1))
    return ranks


# Gathered once and whole until the backward pass has ended, as in ZeRO-2.
KEPT_WHOLE = (
    r"reshard_after_forward[ =:]*(never|false|off|no|0)\b|\bshard_grad_op\b"
    r"|\b(never|not|no|without) reshard(ed|ing)?\b"
    r"|\b(weights|parameters|params) (stay|are kept|kept|remain) gathered\b"
)
