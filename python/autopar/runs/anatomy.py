"""What the words of a row tell of its model's parts: ends, heads, experts, windows, positions."""

import re

from autopar.runs import rx
from autopar.runs.said import TAKEN_BACK
from autopar.spec import Mla, Window

FIGURES = {"one": 1, "two": 2, "three": 3, "four": 4}
SOME = rf"(\d+|{'|'.join(FIGURES)})"


def figures(text: str) -> str:
    """Returns a text whose thousands are not set apart: `6,144` as `6144`."""
    apart = r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])"
    return rx.sub(apart, lambda found: found[0].replace(",", ""), text)


def noted(pattern: str, notes: str) -> int | None:
    """Returns the number that a pattern's first group finds in notes, whatever their case."""
    found = rx.search(pattern, notes, re.I)
    return next((int(group) for group in found.groups() if group), None) if found else None


def _first(patterns: tuple[str, ...], notes: str) -> int | None:
    """Returns the number that the first of the patterns that is found has, in figures or words."""
    for pattern in patterns:
        if found := rx.search(pattern, notes, re.I):
            text = next(group for group in found.groups() if group)
            return FIGURES.get(text.lower()) or int(text)
    return None


# --- Ends


END = r"(emb\w*|wte|lm[_ -]?head|(output )?head|output( layer| weights?)?|unembedding)"
TIED = (
    rf"\btied\b|\btie[-_]?(word[-_]?)?embeddings?\b(?! *[=:]+ *(false|no|0)\b)|\bweight[- ]tying\b"
    rf"|\bshare[-_]embeddings?[-_]and[-_]output[-_]weights\b|\bshared? {END}"
    r"|\bshared input(/| and | & )output emb"
    rf"|\b{END}([ /]{END})* (is |are )?shared\b|\b{END} and {END} share (their )?weights\b"
)
APART = (
    r"\b(untied|untie[-_]embeddings\S*|not tied|un-tied|no[- ](weight[- ])?tying"
    r"|(without|no) (tied|shared) (emb\w*|weights)|tie[-_]?(word[-_]?)?embeddings?\W+(false|no|0)"
    r"|(not|isn't|aren't) shared with the (lm[_ ]?)?head|separate (lm[_ ]|output )?head"
    r"|(lm[_ -]?head|output head) (is )?(separate|of its own))\b"
)
# `tied or untied output: unknown`, `whether the head is tied is not told`.
UNTOLD = (
    r"\b(tied or (untied|not)|untied or tied"
    r"|(whether|(unclear|unknown|not \w+) if) [^;.]*\b(tied|untied)\b[^;.]*)"
)


def tied(notes: str) -> bool | None:
    """Returns whether a model's output projection is its embedding, by notes; None if unsaid."""
    notes = rx.sub(UNTOLD, "", notes, flags=re.I)
    if rx.search(APART, notes, re.I):
        return False
    return True if rx.search(TIED, notes, re.I) else None


# --- Attention

HEAD_DIM = (
    r"(?<![a-z_])head[_ -]?(?:dim(?:ension)?s?|size|width)\D{0,3}(\d{2,3})\b"
    r"|\bd_?head\D{0,3}(\d{2,3})\b|\bheads (?:of|x) (?:width )?(\d{2,3})\b(?! (?:layers|experts))"
)
# Latent attention, as `MLA of q rank 1536 (kv rank 512, 128+64, v 128)`: a head's channels without
# position and with.
LATENT = (
    rf"{TAKEN_BACK}MLA\b",
    r"\bkv[-_ ]?(?:lora)?[-_ ]?(?:rank)?[ =:]*(\d+)",
    r"\b(\d+) ?(?:nope)? ?\+ ?(\d+)(?: ?rope)?\b|\b(\d+) ?nope ?(?:[/,&]|and) ?(\d+) ?rope\b"
    r"|\bnope[ =:]*(\d+) ?(?:[+/,&]|and) ?(?:qk[-_ ]?)?rope[ =:]*(\d+)\b"
    r"|\bqk_nope(?:_head)?(?:_dim)?[ =:]*(\d+)\W+qk_rope(?:_head)?(?:_dim)?[ =:]*(\d+)\b",
    r"\bv(?:[-_ ]?head)?(?:[-_ ]?dim)?[ =:]*(\d+)\b",
)
QUERY_RANK = r"\bq[-_ ]?(?:lora)?[-_ ]?(?:rank)?[ =:]*(\d+)"


def latent(notes: str) -> Mla | None:
    """Returns latent attention as notes give its widths, all of them in its clause; else None."""
    name, keys, parts, values = LATENT
    if not (start := rx.search(name, notes, re.I)):
        return None
    clause = rx.split(r"\.(?= )", notes[start.start() : start.start() + 160])[0]
    found = [rx.search(pattern, clause, re.I) for pattern in (keys, parts, values)]
    if not found[0] or not found[1] or not found[2]:
        return None
    nope, rope = (int(width) for width in found[1].groups() if width)
    return Mla(
        q_lora_rank=noted(QUERY_RANK, clause) or 0,
        kv_lora_rank=int(found[0][1]),
        qk_nope_dim=nope,
        qk_rope_dim=rope,
        v_dim=int(found[2][1]),
    )


# Of a part of each head a third of what all of it takes at most: no model says so.
ROTARY = (
    rf"{TAKEN_BACK}(?:rotary(?![-_ ]?(?:pct|percent\w*|fraction)\b)"
    r"(?: (?:position(?:al)? )?(?:emb\w*|positions?|encodings?))?|RoPE)\b"
    r"(?!(?: \w+){0,2} (?:on|of|over) (?:a|half|part|one|the first|\d+ ?%)(?![a-z]))"
)
# A rotation whose model has a factor, trained without it.
UNSCALED = r"\b(?:rotary (?:embedding|positions?)|RoPE) without (?:YaRN|a factor)\b|\bno YaRN\b"
# A norm of each head's queries and keys, which the model that a run is like need not have.
HEADS_NORMED = (
    rf"{TAKEN_BACK}(?:\b(?:QK|q/k|q-k|query[-/]key)[-_ ]?(?:layer|RMS)?norms?\b"
    r"|\bnorms? of (?:queries and keys|query and key)\b)(?! *[=:]+ *(?:false|no|off|0)\b)"
)
# `squared ReLU`, `ReLU^2`.
RELU_SQUARED = rf"{TAKEN_BACK}(?:\bsquared[- ]ReLU\b|\bReLU[- ]?(?:squared\b|\^ ?2(?!\d)|²|2\b))"
# Of trainers that hold a race for one model: their names, in a model's or a framework's.
RACED = (
    r"(?<![a-z])(?:nanochat|autoresearch|parameter[- ]golf|modded[- ]?nanoGPT"
    r"|nanoGPT[- ]speed-?runs?)(?![a-z])"
)
ORDINALS = {"third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8}
# Layer norms where a family has root-mean-square ones: pytorch/torchtitan's norm_type of 2024.
LAYER_NORMED = (
    rf"{TAKEN_BACK}(?:\bnorm(?:_type|alization)[ =:\"']+(?:nn\.)?layer[-_ ]?norm\b"
    r"|\b(?:nn\.)?layer[-_ ]?norms? (?:instead|in place) of (?:\w+ )?(?:RMS|root))"
)
WINDOWED = (
    r"(?:sliding[- ]windows?(?: attention| size)*|SWA|window(?:ed)? attention|attention window"
    r"|local[- ]attention(?: window)?|(?:flex[-_ ]?)?att(?:entio)?n: window)"
)
WINDOW = (
    rf"{TAKEN_BACK}(?<!without a )(?:{WINDOWED}(?: of)?(?: size| width)?[- =:(]{{1,2}}"
    r"(\d{1,3}(?:,\d{3})+|\d+)(?: ?(k))?\b(?! of \d)(?! (?:is |was )?(?:off|disabled|not used)\b)"
    rf"|(?<![\d:.])(\d{{2,}})[- ](?:token )?{WINDOWED}"
    r"|\bwindows of (\d{1,3}(?:,\d{3})+|\d{2,})"
    r"(?= (?:tokens|with full|in (?:all|most|every|some|three))\b))"
)
# Of the sequence, as karpathy/nanochat's pattern of letters has it (nanochat/gpt.py: of four layers
# three see half, S, and the last all, L).
HALF_WINDOW = (
    r"\bSSSL\b|\bwindows? of half (?:of )?the (?:length|sequence|context)\b"
    r"|\b(?:sees?|attends? to) half (?:of )?the (?:length|sequence|context)\b"
)
# The same, pull request 809: a short window is a quarter of the sequence.
QUARTER_SINCE = "2026-03"
FULL_EVERY_NTH = (
    r"\b(?:full|global)(?: attention)?(?: in| on| at)? (?:every|each) "
    rf"(?:(\d+)(?:st|nd|rd|th)?|({'|'.join(ORDINALS)})) layers?\b"
    r"|\b(?:1|one) (?:in|of|out of) (\d+) layers? (?:is |are |being )?(?:full|global)\b"
    rf"|\b(?:every|each) (?:(\d+)(?:st|nd|rd|th)?|({'|'.join(ORDINALS)})) layer (?:attends |is )"
    r"(?:fully|full|global)\b"
)
FULL_EVERY = {
    2: r"every (other|second|2nd)|alternat|half (of )?the layers|\b1:1\b",
    4: r"\bSSSL\b|three (layers )?(in|of|out of) four|\b3 (layers )?(in|of|out of) (every )?4\b"
    r"|\b(every|each) (4th|fourth)|\b3:1\b",
    6: r"\bfive (layers )?(in|of|out of) six|\b5 (in|of|out of) (every )?6\b|\b5:1\b",
}


def window(notes: str, seq_len: int, month: str) -> Window | None:
    """Returns the sliding window that notes tell, in all layers but those that they leave out.

    Which layers those are stands in the clause of the window, or in one behind it that goes on with
    it. The short windows of nanochat's letters are as of a month.
    """
    clauses = rx.split(r"[;,](?!\d{3}\b)", notes)
    for place, clause in enumerate(clauses):
        half = rx.search(HALF_WINDOW, clause, re.I)
        if (found := rx.search(WINDOW, clause, re.I)) or half:
            quarter = month >= QUARTER_SINCE and half and "SSSL" in half[0].upper()
            size = seq_len // 4 if quarter else seq_len // 2
            if found:
                figures = (found[1] or found[3] or found[4]).replace(",", "")
                size = int(figures) * (1024 if found[2] else 1)
            behind = clauses[place + 1] if place + 1 < len(clauses) else ""
            if rx.match(
                r" (with|except|but|and|each|(1|one) in|alternat|every|in|on|full|global)\b",
                behind,
                re.I,
            ):
                clause += behind
            nth = rx.search(FULL_EVERY_NTH, clause, re.I)
            named = nth and next(filter(None, nth.groups()))
            counted = ORDINALS.get(named.lower()) or int(named) if named else 0
            layers = (n for n, words in FULL_EVERY.items() if rx.search(words, clause, re.I))
            return Window(size=size, global_every=counted or next(layers, 0))
    return None


DOCUMENT = r"\b(?:doc(?:ument)?s?|samples?|examples?|lines?|conversations?)\b"
PACKED = rf"{DOCUMENT}[^;.]{{0,40}}?(?<![\d.,])(\d+)[- ]tok"


def documents(notes: str, seq_len: int) -> int | None:
    """Returns how many tokens the documents have that notes say were packed, each a mask's."""
    for clause in rx.split(r"[;.](?= |$)", notes):
        if rx.search(r"\bpack", clause, re.I) and (long := noted(PACKED, clause)):
            return long if 2 * long <= seq_len else None
    return None


# --- Experts

EXPERT = r"(?<!shared[ -])\bexperts?"
WIDTH = r"[ _-](?:ffn|intermediate(?:[ _]size)?|width)\D{0,3}(\d+)"
ROUTED_WIDTHS = (
    rf"(?:\bmoe|{EXPERT}){WIDTH}",
    rf"{EXPERT} ?(?:\+|and|/) ?shared[- ]experts?{WIDTH}",
    r"\bmoe[-_](?:ffn[-_]hidden|intermediate)[-_]size\D{0,3}(\d{3,})",
    r"\bmoe[-_]mlp[-_]dim\D{0,3}(\d{3,})",
    rf"{EXPERT},? (?:(?:of (?:width )?|x |at |are )|(?:all |each )(?=\d+ wide))?"
    r"(\d{3,})(?: wide| each)?\b"
    r"(?! ?(?:experts|tokens|steps))",
    r"\b(\d{3,})[- ]wide (?:routed )?experts\b",
)
OF_TIME = r"(?! (?:steps|iterations|tokens|samples|sequences|updates)\b)"
SHARED_WIDTHS = (
    rf"{TAKEN_BACK}shared[ -]experts?(?:{WIDTH}| of (\d{{3,}})\b{OF_TIME})",
    r"\bmoe[-_]shared[-_]expert[-_]intermediate[-_]size\D{0,3}(\d{3,})",
    r"\b(\d{3,})[- ]wide shared\b",
    rf"{TAKEN_BACK}shared(?: experts?| one)?(?: is| each| width| ffn| also| at| of)*[ :(]{{1,2}}"
    rf"(\d{{3,}})\b{OF_TIME}",
)
SHARED_COUNT = (
    rf"{TAKEN_BACK}{SOME} shared[ -]experts?\b",
    rf"{TAKEN_BACK}{SOME} shared (?:\+|and|plus) \d+ routed\b",
    r"\bn_shared_experts\D{0,3}(\d+)",
    r"\bshared[ -]experts?: (\d)\b",
)
DENSE_LAYERS = (
    r"dense_layers\D{0,3}(\d+)",
    r"\bfirst_k_dense_replace\D{0,3}(\d+)",
    rf"\b{SOME} (?:leading |first |initial )?dense (?:FFN |MLP )?layers?\b",
    rf"\bfirst {SOME} layers? (?:is |are |have )?(?:a )?dense\b",
)
FIRST_DENSE = r"\b(?:first layer|layer 0)(?: is)?(?: a)? dense\b|\bdense first layer\b"
LAST_DENSE = r"\blayers 0 ?(?:-|to|\.\.) ?(\d+)(?: are)? dense\b"


def dense_layers(notes: str) -> int | None:
    """Returns how many leading layers have no experts, by notes; None if unsaid."""
    if (told := _first(DENSE_LAYERS, notes)) is not None:
        return told
    if last := rx.search(LAST_DENSE, notes, re.I):
        return int(last[1]) + 1
    return 1 if rx.search(FIRST_DENSE, notes, re.I) else None


LAYER = r"(?:transformer |decoder )?(?:layer|block|FFN|MLP)s?\b"
WITH_EXPERTS = r"(?:MoE|mixtures?(?: of experts)?|experts?|sparse)"
NTH = (
    r"(?:every|each) (?:(?P<other>other|second)|(?P<nth>\d+)(?:st|nd|rd|th)?"
    rf"|(?P<word>{'|'.join(ORDINALS)}))"
)
EXPERTS_EVERY = (
    rf"\b{WITH_EXPERTS}(?: {LAYER})?(?: (?:is|are|sits?|only|used|placed|present))* "
    rf"(?:in|on|at|for) (?:only )?{NTH} {LAYER}",
    rf"\b{NTH} {LAYER}(?: (?:is|are|has|have|holds?|an?|the|of|with|its|\d+))+ {WITH_EXPERTS}\b",
    # DeepSpeed's examples, NVIDIA/Megatron-LM, Llama 4.
    r"(?:expert[-_ ]interval|moe[-_ ]layer[-_ ]freq(?:uency)?"
    r"|interleave[-_ ]moe[-_ ]layer[-_ ]step)[ =:]*(?P<nth>\d+)\b(?!\])",
)
ALTERNATE = (
    rf"\b{WITH_EXPERTS}(?: {LAYER})? (?:in|on|at) alternat(?:e|ing) {LAYER}"
    rf"|\balternat(?:e|es|ing) (?:between )?(?:dense and {WITH_EXPERTS}|{WITH_EXPERTS} and dense)\b"
)


def experts_every(notes: str) -> int | None:
    """Returns every how many layers one has experts, by notes; None if unsaid."""
    for pattern in EXPERTS_EVERY:
        if told := rx.search(pattern, notes, re.I):
            found = told.groupdict()
            if found["nth"]:
                return int(found["nth"])
            return 2 if found.get("other") else ORDINALS[found["word"].lower()]
    return 2 if rx.search(ALTERNATE, notes, re.I) else None


def expert_ffn(notes: str, experts: int) -> int | None:
    """Returns the inner width of a routed expert, by notes, which may tell their number alike."""
    widths = (noted(pattern, notes) for pattern in ROUTED_WIDTHS)
    return next((width for width in widths if width and width != experts), None)


def shared_ffn(notes: str, expert: int) -> int | None:
    """Returns the inner width of all shared experts, by notes; each as a routed one if untold."""
    width = next(filter(None, (noted(pattern, notes) for pattern in SHARED_WIDTHS)), None)
    count = _first(SHARED_COUNT, notes)
    if width and width > 1:
        return width
    return count * expert if count and count < 9 else None


# --- Capacity

# A number of bytes is none of tokens.
CAPACITY = (
    r"(?<![a-z])(?:capacity(?:[-_ ]factor)?|CF)(?: of)?[ =:]{0,2}(\d+(?:\.\d+)?)\b"
    r"(?!\.\d| ?[GMT]i?B)"
)
DROPPED = (
    r"(?<!no )(?<!without )\b(expert capacity\b(?! (bound|cap|limit)\b)|token[- ]?drop"
    r"|drop(s|ped|ping)? (of )?tokens\b"
    r"|tokens (are |were )?dropped\b|dropping MoE\b)"
)
