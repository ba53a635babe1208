"""How unevenly the experts of a measured run were loaded, as its row tells."""

import re

from autopar.entries import FrameworkEntry
from autopar.runs.rows import Run
from autopar.spec import Model


def load_variation(run: Run, entry: FrameworkEntry, model: Model, assumed: list[str]) -> float:
    """Returns the standard deviation of experts' loads over their mean.

    A row's own number; none where loads were forced even; and what loads of routers that choose
    freely vary by where the row says that they did, or the framework forces none unasked.
    """
    if run.expert_load_variation is not None:
        return run.expert_load_variation
    if model.moe is None or re.search(EVEN, run.notes, re.I):
        return 0.0
    if not re.search(FREE, run.notes, re.I) and not entry.run.routes_freely:
        return 0.0
    if model.moe.experts <= FEW:
        variation = OF_FEW
    else:
        variation = OF_SETTLED if re.search(SETTLED, run.notes, re.I) else OF_FREE
    assumed.append(f"expert_load_variation={variation}")
    return variation


EVEN = (
    r"\bforced? (even|round robin|balance|router balance)\w*|\bforce-balanced\b"
    r"|\b(routing|experts|tokens|balance) (is |are |was |were )?forced\b|\bbalanced gate\b"
    r"|\brecipes? forces? it\b|\b(near-)?uniform routing\b|\brandom routing\b"
)
FREE = (
    r"\b(natural|uneven|free|real|imbalanced) routing\b|\bchooses? freely\b"
    r"|\brouting is that of the (trained )?model\b"
    r"|\b(balance( of the experts)?|routers?|routing|experts) (is |are |was |were )?not forced\b"
)
SETTLED = r"\b(loads|routing) (had |have |has )?settled\b"

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
