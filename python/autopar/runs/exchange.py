"""How one measured run sent tokens to experts, by the words of its row."""

import re
from dataclasses import replace

from autopar.framework import Framework
from autopar.runs import rx
from autopar.runs.loads import FORCED
from autopar.runs.rows import Run
from autopar.runs.said import SWITCHED_OFF, said


def dispatched(framework: Framework, run: Run) -> Framework:
    """DeepEP and HybridEP send a token once to a node, an all-to-all of the library its copies.

    Who gathers sends every token to every rank, as Megatron does where nothing else is said to it.
    """
    if said(run, ONCE_A_NODE):
        framework = replace(framework, exchange_kernel=_library(run))
        framework = replace(framework, expert_dispatch="once_a_node")
    elif said(run, dispatched_by(r"(all-?to-?all|a2a)")):
        framework = replace(framework, expert_dispatch="copies")
    elif said(run, dispatched_by(r"all-?gather")) or _unasked(framework, run):
        framework = replace(framework, expert_dispatch="gather")
    if said(run, EXPERTS_FILLED):
        framework = replace(framework, pads_experts=False)
    hidden = bool(said(run, HIDDEN_EXCHANGE)) and not said(run, BESIDE_ITS_LAYER)
    if hidden or rx.search(OPEN_EXCHANGE, run.notes, re.I):
        framework = replace(framework, overlap=replace(framework.overlap, expert=hidden))
    in_turn = rx.search(IN_TURN, f"{framework.name} {run.framework}", re.I)
    if in_turn and said(run, FORCED):
        framework = replace(framework, neighbouring_experts=True)
        if rx.search(NO_SCORES, in_turn[0], re.I):
            framework = replace(framework, fused=replace(framework.fused, router=True))
    return framework


def _unasked(framework: Framework, run: Run) -> bool:
    """Whether nobody chose a dispatcher, as who cuts experts over tensor ranks alone need not.

    NVIDIA/Megatron-LM, transformer_config.py: moe_token_dispatcher_type is allgather.
    """
    alone = (run.experts or 1) > 1 == (run.ep or 1) < (run.tp or 1) and not said(
        run, r"(alltoall|all-to-all|a2a)\b"
    )
    return alone and framework.name in ("megatron-core", "megatron-core-2023")


def _library(run: Run) -> str:
    """The library of the exchange: what the framework names rather than what it is compared to."""
    for text in (replace(run, notes=""), run):
        named = [library for library, words in LIBRARIES.items() if said(text, words)]
        if named:
            return named[-1]
    return ""


def dispatched_by(kind: str) -> str:
    """The words for a dispatcher of a kind: `alltoall token dispatcher`, `dispatcher: NCCL a2a`."""
    return (
        rf"{kind}([- ](token|MoE|expert))*[- ]dispatch|dispatch(er|ing)?([-_ ]type)?\b"
        rf"[ =:\"']*((is|by|through|via|NCCL|an?) )*{kind}\b"
        rf"|moe[-_]token[-_]dispatcher[-_]type[ =:\"']*{kind}\b"
        r"|(?<!context )(?<!keys )(?<!values )(?<!kv )\bexchange[ds]?( of tokens)?"
        rf" (by|through|via|with|as) (padded )?{kind}s?\b"
    )


# Libraries that the catalog has rates of; DeepEP's second version is another than the timed one.
# They may stand in the name of a switch, as Primus's use_turbo_deepep.
LIBRARIES = {
    "deepep": rf"(\w+_)?deep[-_]?ep\b(?! v2)(?!{SWITCHED_OFF})",
    "hybridep": rf"(\w+_)?hybrid[-_]?ep\b(?!{SWITCHED_OFF})",
}
ONCE_A_NODE = "|".join(LIBRARIES.values()).replace("(?! v2)", "")
# Who makes whole multiples of rows before experts run: HybridEP's permutation, or the router by
# Megatron-LM's --moe-router-padding-for-fp8 and, as it is called later, -for-quantization.
EXPERTS_FILLED = r"hybrid-?ep\b|(?<![-_])(moe[-_])?router[-_ ]padding(?![-\w]* (off|false)\b)"
EXCHANGE = r"(all-to-all|a2a|EP|expert([- ]parallel)?)( comm(unication)?)?"
# MindSpeed's moe-alltoall-overlap-comm hides behind what the same layer has beside it (its
# docs/features/megatron_moe), which is little of it, as runs without it bear out.
HIDDEN_EXCHANGE = (
    rf"(dualpipe\w*|{EXCHANGE} overlap|overlap[-_]moe[-_]expert[-_]parallel[-_]comm"
    rf"|overlap\w* (of )?(all-to-all|a2a|EP))\b(?!{SWITCHED_OFF})"
    rf"|{EXCHANGE} ((is|was) )?(overlapped|hidden (under|behind|by))\b"
)
BESIDE_ITS_LAYER = r"moe-alltoall-overlap-comm\b"
# Who forces them so by giving token after token the next experts: AMD-AGI/Primus, core/
# transformer/moe/router.py (PrimusTopKRouter); pytorch/torchtitan, models/moe
# (_debug_force_load_balance_routing); NVIDIA-NeMo/Automodel, components/moe/layers.py
# (FakeBalancedGate without noise). Megatron-LM draws random logits (apply_random_logits).
IN_TURN = r"\bprimus\b|torchtitan|automodel"
# Whose gate makes no scores then: five kernels in place of the choice, its scores and the loss
# (the same, nemo_automodel 0.7.0), as few as a fused router has.
NO_SCORES = r"automodel"
OPEN_EXCHANGE = (
    rf"\b(no|not|without) {EXCHANGE} overlap|\b{EXCHANGE} ((is|was) )?not overlapped\b"
    rf"|\b({EXCHANGE} overlap|(overlap_moe_expert_parallel_comm|moe_a2a_overlap)){SWITCHED_OFF}"
)
