"""How unevenly the experts of a measured run were loaded, as its row tells."""

import re

from autopar.entries import FrameworkEntry
from autopar.runs import rx
from autopar.runs.rows import Run
from autopar.runs.said import SWITCHED_OFF, said
from autopar.spec import Model


def load_variation(run: Run, entry: FrameworkEntry, model: Model, assumed: list[str]) -> float:
    """Returns the standard deviation of experts' loads over their mean.

    A row's own number, of its column or as `load variation 2 %`; none where loads were forced even;
    and what loads of routers that choose freely vary by where the row says that they did, that the
    run is one of MLPerf, or the framework forces none unasked.
    """
    if run.expert_load_variation is not None:
        return run.expert_load_variation
    if model.moe is None:
        return 0.0
    if told := said(run, VARIATION):
        return float(told["of"]) / (100 if told["percent"] else 1)
    if said(run, EVEN):
        return 0.0
    measured_to_target = rx.search(MLPERF, f"{run.source} {run.framework} {run.notes}", re.I)
    if not said(run, FREE) and not measured_to_target and not entry.run.routes_freely:
        return 0.0
    if model.moe.experts <= FEW:
        variation = OF_FEW_UNTRAINED if said(run, UNTRAINED) else OF_FEW
    else:
        continued = measured_to_target and rx.search(r"deep-?seek", run.model, re.I)
        variation = OF_SETTLED if said(run, SETTLED) or continued else OF_FREE
    assumed.append(f"expert_load_variation={variation}")
    return variation


# The options: NVIDIA/Megatron-LM arguments, --moe-router-force-load-balancing; pytorch/torchtitan,
# debug.moe_force_load_balance.
SWITCH = r"[-\w]*force[-_]load[-_]balanc(e|ing)\w*\b"
BALANCE = r"((router|load)[- ])*balanc(e|ed|ing)"
FORCED = (
    rf"force(d|s)? (even(ly)?|uniform(ly)?|round[- ]robin|{BALANCE})\b"
    r"|force-balanced\b|balanced gate\b"
    rf"|(routing|routers?|gates?|experts|tokens|loads|(?<!load )(?<!router ){BALANCE}) "
    r"((is|are|was|were) )?\(?forced\b|recipes? forces? it\b"
    r"|artificially balanced|balanced artificially|(fake|perfectly)[- ]balanced\b"
    r"|round[- ]robin (routing|routers?|dispatch|gates?)\b"
    rf"|(?=\w)(?<!\w-)(?<!no --)(?<!not --)(?<!without --){SWITCH}(?!{SWITCHED_OFF})"
)
UNEVEN = (
    r"((natural|uneven|(?<!-)free|real|realistic|learned|trained|unforced|imbalanced)"
    r" (\(\w+\) )?((token|expert|trained)[- ])?routing"
    r"|(routing|routers?|gates?) ((is|are|was|were|left|kept) )*"
    r"(natural|free|unforced|uneven|learned|realistic)(?!-))\b"
)
# Drawn, or so that each expert takes as many tokens (arXiv:2202.09368); and what is not free.
EVEN = (
    rf"{FORCED}|(?<!non-)(?<!near-)((near-)?uniform|random) routing\b"
    r"|expert[- ]choice\b|experts choose( their)? tokens\b"
    rf"|(no|not|without) {UNEVEN}|not choose freely\b"
)
FREE = (
    rf"{UNEVEN}|{BALANCE} (is |was |stays )?(left )?natural\b"
    r"|chooses? freely\b|real rout(er|ing) decisions\b|nothing forced\b"
    r"|routing is that of the (trained )?model\b"
    r"|(balance( of the experts)?|balancing|routers?|routing|experts|tokens|loads) "
    r"((is|are|was|were) )?not forced\b"
    rf"|(no|not|without) {BALANCE}[- ]forc(e|ing)\b"
    rf"|(no|not|without) (forced? (routing|{BALANCE})|force-balanced|balanced gate)\b"
    r"|(no|not|without) (random|(near-)?uniform) routing\b"
    rf"|(no|not|without) (--)?{SWITCH}|{SWITCH}{SWITCHED_OFF}"
)
SETTLED = (
    r"(?<!before )(?<!before the )"
    r"((loads|routing) ((had|have|has) )?settled|settled (loads|routing)"
    r"|(loads|routing|routers?|experts)( \w+){0,2} balanced by then"
    r"|(continu|resum)(ed|es|ing) from (a |the |its )?(checkpoint|ckpt))\b"
)

# Its results are times to a loss on real text, where nothing may be forced; DeepSeek-V3 continues
# from the published weights (mlcommons/training_policies, training_rules.adoc; version 6.0).
MLPERF = r"MLPerf\b|\bmlcommons/training_results|training_results_v\d"
UNTRAINED = (
    r"(?<!not from )(random|untrained)[- ]((initial )?weights"
    r"|init(iali[sz](ed|ation))?|models?|routers?)\b"
    r"|randomly initiali[sz]ed\b"
    # A model that has learned nothing has the logarithm of its vocabulary, 10.4 of 32,000 tokens.
    r"|(final|last) loss( of| still)?( at)? ([7-9]|1\d)(\.\d+)?\b"
)
VARIATION = (
    r"((expert|token)[- ])*loads? (variation|varies by|CV|coefficient of variation|spread)"
    r"( (is|was|of|about))*[ =:~\u2248]*"
    r"(?P<of>\d+(\.\d+)?) ?(?P<percent>%)?"
)

# Loads of many small experts vary by about their mean in the first hundreds of steps, and where a
# trained router gets other data than it was balanced on. Told by the balancing loss, one more than
# the square of that where probabilities are as loads: 1.87 for Qwen3-30B (mlc-ai/pith-train issue
# 79), 0.93. By pairs of a run with one whose loads were forced even: 0.8 to 1.2 for DeepSeek-V3
# (ROCm's blog on MoE without dropped tokens in JAX, June 2026), 1.25 for Qwen3-235B
# (PrimeIntellect-ai/prime-rl, performance page of October 2026), 0.8 for gpt-oss-120b whose warm-up
# was cut short (LambdaLabsML/torchtitan, models/gpt_oss/config_registry.py). By the fullest of 16
# ranks in fine-tuning, 2.56 to 3.01 times their mean (deepspeedai/DeepSpeed pull request 8213), 0.7
# for ranks and more for their experts. Rows without such a pair say the same in memory.
OF_FREE = 1.0

# Balanced for long by a loss or a bias, the fullest of 64 took 1.72 times the mean
# (arXiv:2408.15664, MaxVio 0.72 with a loss), as 64 nearly normal loads do that vary by 0.25; the
# pair of the gpt-oss-120b above says as much after 600 steps.
OF_SETTLED = 0.25

# Loads of eight experts, as Mixtral's, are even with a trained router too: a balancing loss of 1.01
# (NVIDIA/Megatron-LM issue 756), 5 % of the mean (shawntan/scattermoe issue 10).
OF_FEW = 0.1
FEW = 16

# But a router that nobody trained sends most tokens to a few of them: random weights collapse
# routing (NVIDIA-BioNeMo/bionemo-recipes, recipes/mixtral_native_te/benchmarks/hf_baseline.py, July
# 2026), tokens pile onto a few experts (awslabs/awsome-distributed-ai@cf5c194f, RESULTS.md of
# DeepSeek-V3 by Megatron-Bridge, June 2026). Measured for this on a model of 12 layers of 8
# experts, 512 wide, that learns text and code with a balancing loss of 0.01: their loads vary by
# 0.75 of their mean in the first step, and by 1.2 to 1.4 from the third to the ninth.
OF_FEW_UNTRAINED = 1.3
