"""Whether a measured run's optimizer makes updates orthogonal (Muon), by the words of its row."""

import re
from dataclasses import replace

from autopar.framework import Framework, Orthogonal
from autopar.runs import rx
from autopar.runs.anatomy import noted
from autopar.runs.rows import Run
from autopar.runs.said import said


def orthogonal(framework: Framework, run: Run) -> Framework:
    """How a row's Muon goes about it, in the number of iterations that it has by default: five.

    Replicas share the matrices out where the optimizer is distributed in any way (NVIDIA/
    Megatron-LM, core/optimizer/layer_wise_optimizer.py; PyTorch's FSDP under those that are written
    for it; GSPMD), and each takes all of them where it is not (torch.optim.Muon under DDP) or where
    sharded matrices are gathered for it (Ascend/MindSpeed-MM, fsdp2_muon_optimizer.md).
    """
    if not said(run, MUON):
        return framework
    gathers = framework.name.startswith("mindspeed")
    alone = run.zero.strip() == "0" and not rx.search(DISTRIBUTED, run.notes, re.I)
    how = Orthogonal(
        iterations=noted(ITERATIONS, run.notes) or 5,
        shared=not (alone or gathers),
        batched=framework.fused.optimizer == "compiled" and not gathers,
    )
    return replace(framework, orthogonal=how)


# Its kin too: NorMuon, MuonH, MuonClip, AdaMuon, Muon-hyperball.
MUON = r"(dist(ributed)?[-_ ]?|ada|nor)?muon(clip|h)?\b"
DISTRIBUTED = (
    r"\b(dist(ributed)?|sharded|layer[-_ ]?wise|parallel)[-_ ]muon"
    r"|muon[^.;]{0,40}\b(sharded|distributed|shared out|split over|round[- ]robin)"
)
ITERATIONS = (
    r"\b(\d+)[- ](?:steps?|iterations?) (?:of )?(?:newton|NS\b)"
    r"|\bns_?steps?[ =:]*(\d+)|newton[- ]schulz(?: with)?[ =:]*\(?(\d+) (?:steps|iterations)"
)
