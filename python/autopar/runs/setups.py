"""A measured run as the problem and plan that it was, and what had to be assumed to say so.

What a row leaves open is filled from the catalog: the model of the same name and shape, the chip,
the framework's profile and its time. Words of the notes are read as data (`unfused`, `eager`,
`num-layer-list 5,6,6`); no source is known by name. What cannot be expressed is refused.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any, get_args

from autopar import planner
from autopar.cluster import Chip, Cluster
from autopar.entries import FrameworkEntry
from autopar.errors import SpecError, shown
from autopar.report import Convention, Counted, Plan, Rate, Recompute, Stage, Work
from autopar.runs import checkpoints, rx, shards
from autopar.runs.anatomy import noted
from autopar.runs.as_run import SCATTERS_EACH_PASS, as_run
from autopar.runs.attention import attention_said, kernel_words
from autopar.runs.loads import load_variation
from autopar.runs.recompute import (
    is_stated,
    possible_recomputes,
    recompute_of,
    recompute_said,
    usual_recompute,
    within,
)
from autopar.runs.remat import NOTHING, kept
from autopar.runs.rows import Run
from autopar.runs.said import HF, in_full, on, said
from autopar.runs.shards import KEPT_WHOLE, shard_group
from autopar.runs.shelf import Shelf, by_xla, devices, framework, words_of
from autopar.runs.stages import schedule_of, stage_chips, stage_chunks, stage_layers
from autopar.runs.stored import narrow_states, optimizer_on_host
from autopar.runs.trained import trained
from autopar.spec import Attention, Model, Precision, Problem

LARGEST_MICRO_BATCH = 64
DRIVER_ERROR = 0.05  # stated for the memory that the driver shows or the allocator reserves


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A run as it was set up.

    Attributes:
        problem: What was trained, on what.
        plan: How.
        rate: How fast it was; None if nobody says.
        assumed: Settings that its row leaves open, each with the value taken.
        open: Those of mbs, vpp and recompute among them.
    """

    problem: Problem
    plan: Plan
    rate: Rate | None
    assumed: tuple[str, ...]
    open: tuple[str, ...]


# Both passes of a whole model.
PASSES = r"\b(fwd|forward)\W+(\w+\W+)?loss\W+(\w+\W+)?(bwd|backward)\b"


def setup(run: Run, shelf: Shelf) -> Setup:
    """Returns a run as it was set up.

    Raises:
        SpecError: The run cannot be expressed.
    """
    if rx.search(r"micro-?benchmark", run.notes, re.I) and not rx.search(PASSES, run.notes, re.I):
        raise SpecError("notes", "part of a model timed alone")
    run = in_full(shards.in_known_words(checkpoints.in_known_words(run)))
    for key in ("seq_len", "gbs"):
        if not getattr(run, key):
            raise SpecError(key, "missing")
    assumed: list[str] = []
    entry, named = framework(run, shelf)
    if not named:
        assumed.append(f"framework={entry.framework.name}")
        # What chunks and batches its users take, and how their loss is computed, tells of no other.
        entry = replace(entry, run=replace(entry.run, vpp=0, accumulates=True, loss_bytes=0))
    groups = devices(run, shelf)
    device = groups[0].chip
    degrees = _degrees(run, entry, assumed)
    model = trained(run, shelf, assumed)
    precision = _precision(run, entry, device, assumed)
    if precision == "fp32" and device.peak_tflops.tf32 and _rounds(run, entry, shelf):
        precision = "tf32"
    if precision in ("bf16", "fp16") and _is_left_in_32_bits(run, entry, degrees):
        precision = "fp32"
    entry = replace(entry, framework=entry.at(precision))
    attention = _attention(run, entry, model, device, degrees, assumed)
    as_it_was = as_run(entry, run, shelf, attention)
    if as_it_was.name == "deepspeed" and _bf16_optimizer(run, entry):
        # Beside gradients of the pass it keeps whole ones of 32 bits, and sends these.
        as_it_was = replace(as_it_was, bytes=replace(as_it_was.bytes, gradient=6, gradient_sent=4))
    problem = planner.problem(
        model,
        Cluster(groups=groups, devices=degrees.pop("devices")),
        global_batch_size=run.gbs or 0,
        sequence_length=run.seq_len or 0,
        precision=precision,
        framework=as_it_was,
        attention=attention,
        dropout=_dropout(run, entry),
        expert_load_variation=load_variation(run, entry, model, assumed),
        memory_margin=0.0,
        top=1,
    )
    degrees |= _sharding(run, entry, device, degrees, problem.model, assumed)
    plan, found = _plan(run, entry, problem, degrees, assumed)
    return Setup(
        problem=problem,
        plan=plan,
        rate=_rate(run, assumed),
        assumed=(*assumed, *found),
        open=tuple(setting.partition("=")[0] for setting in found),
    )


# --- How it ran


def _precision(run: Run, entry: FrameworkEntry, device: Chip, assumed: list[str]) -> Precision:
    """Returns the number format that the row names, else the framework's, else 16 bits."""
    text = run.precision.lower()
    for words, name in FORMATS.items():
        text = rx.sub(words, name, text)
    known: list[Precision] = sorted(
        get_args(Precision), key=lambda name: name not in ("fp4", "fp8")
    )
    for name in known:
        if on(text, name):
            return name
    if text and not rx.search(r"mixed|amp|half|16", text):
        raise SpecError("precision", f"no estimate for {shown(run.precision)}")
    usual = "bf16" if device.peak_tflops.bf16 else "fp16"
    if not text and entry.run.default_precision:
        usual = entry.run.default_precision
    assumed.append(f"precision={usual}")
    return next(name for name in known if name == usual)


def _rounds(run: Run, entry: FrameworkEntry, shelf: Shelf) -> bool:
    """Returns whether products of 32-bit numbers ran in fewer, by default or as the row says.

    XLA rounds them to TF32 on GPUs and to 16 bits on TPUs (docs.jax.dev: matmul precision), PyTorch
    where it is told to (torch.set_float32_matmul_precision).
    """
    told = on(f"{run.framework} {run.notes}", ROUNDED)
    return by_xla(entry, shelf) if told is None else told


ROUNDED = r"(allow_)?tf32\b|tensor[- ]?float-?32\b|float32_matmul_precision\b(?!\W+highest)"
# Other names of number formats.
FORMATS = {
    r"bfloat[-_ ]?16|brain[- ]float\w*": "bf16",
    r"\bfloat[-_ ]?(16|32)": r"fp\1",
    r"\b(float[-_ ]?8|e4m3\w*|e5m2\w*)": "fp8",
    r"\bfloat[-_ ]?4\w*": "fp4",
    r"\b(single precision|fp?32)\b": "fp32",
}


def _is_left_in_32_bits(run: Run, entry: FrameworkEntry, degrees: dict[str, int]) -> bool:
    """Whether torchtitan cut a model without sharding it, which disables its mixed precision.

    FSDP casts there, and automatic mixed precision where nothing is cut; tensor or pipeline
    parallelism alone has neither (pytorch/torchtitan, torchtitan/distributed/utils.py:
    maybe_enable_amp; parallel_dims.py: fsdp_enabled). `training.dtype` sets narrow weights.
    """
    cut, sharded = degrees["tp"] * degrees["pp"], degrees["dp"] * degrees["cp"]
    return (
        entry.framework.name.startswith("torchtitan")
        and cut > 1
        and sharded == 1
        and not (narrow_states(run) or said(run, r"training\.dtype\b(?![ =:]*(float32|fp32))"))
    )


# PyTorch/XLA takes its scaled_dot_product_attention apart; a kernel is called by its own name
# (pytorch/xla, torch_xla/experimental/custom_kernel.py: flash_attention).
KERNELS_OF_TPUS = r"flash|splash|pallas"
# PyTorch's own fused attention came with its release 2.0 of March 2023.
TORCH_ATTENTION_SINCE = "2023-03"
HF_ATTENTION_SINCE = "2023-12"
# Marin's GPUs had no Transformer Engine, so that Levanter's models fell back to stored scores until
# they took FlashAttention-4 (marin-community/marin issue 7013, pull request 7140), as Grug's did
# before theirs (issue 5610).
MARIN_STORED_SCORES = {"levanter-gpu": ("2025-06", "2026-07"), "grug-gpu": ("2025-06", "2026-06")}


def _attention(
    run: Run,
    entry: FrameworkEntry,
    model: Model,
    device: Chip,
    degrees: dict[str, int],
    assumed: list[str],
) -> Attention:
    """Returns how attention was computed by the row's column or notes, else as was usual.

    Hugging Face's gpt-oss, whose attention has sinks, cannot run PyTorch's fused attention, so that
    it stores scores where nobody names a kernel (huggingface/transformers, modeling_gpt_oss.py:
    _supports_sdpa is False; modeling_utils.py: get_correct_attn_implementation). Before its release
    4.36 of December 2023 none of its models but Falcon (modeling_falcon.py of 4.33) called that,
    and FlashAttention, since 4.34, where a user asked for it. What could not store them did not.
    """
    if told := attention_said(run):
        by_name = rx.search(KERNELS_OF_TPUS, kernel_words(run), re.I)
        return told if entry.framework.name != "torch-xla" or by_name else "unfused"
    early = run.month < HF_ATTENTION_SINCE and not rx.search("falcon", run.model, re.I)
    own = entry.framework.name in ("pytorch-ddp", "fsdp") and run.month < TORCH_ATTENTION_SINCE
    stored = own or (said(run, HF) and (early or rx.search(r"gpt-?oss", run.model, re.I)))
    since, until = MARIN_STORED_SCORES.get(entry.framework.name, ("", ""))
    marin = since <= run.month < until
    usual: Attention = "unfused" if stored or marin else entry.run.attention
    if usual == "unfused" and _scores_exceed(run, model, device, degrees):
        usual = "flash"
    assumed.append(f"attention={usual}")
    return usual


def _scores_exceed(run: Run, model: Model, device: Chip, degrees: dict[str, int]) -> bool:
    """Whether no device could have stored scores, or a cut of the context has them never whole.

    They are held in 16 bits before and after the softmax, of one layer, and of all of a stage where
    a row says that nothing is computed again.
    """
    if degrees["cp"] > 1:
        return True
    scores = (run.mbs or 1) * model.heads * (run.seq_len or 0) ** 2 / degrees["tp"]
    layers = model.layers / degrees["pp"] if run.recompute.lower() in NOTHING else 1
    return 2 * 2 * scores * layers > device.memory_gib * 2**30


def _dropout(run: Run, entry: FrameworkEntry) -> bool:
    """Whether there was dropout: by the row's column, else its words, else as is usual."""
    if run.dropout is not None:
        return run.dropout
    words = f"{run.framework}; {run.notes}"
    if rx.search(DROPOUT, words, re.I):
        return True
    name = rx.sub(r"[^a-z0-9]", "", run.model.lower())
    usual = entry.run.dropout or any(model in name for model in entry.run.dropout_of)
    # huggingface/transformers, models/gpt2 and models/opt: their configurations have 0.1.
    usual |= bool(said(run, HF) and rx.search(r"gpt-?2\b|\bopt\b", run.model, re.I))
    return usual and not rx.search(NO_DROPOUT, words, re.I)


IS = r"(?:[-_ ]?(?:rate|prob(?:ability)?|p)\b)?[ =:]*(?:(?:is|was|of|set to|at|turned) )*"
NO_DROPOUT = (
    rf"\b(?:no|not|without|zero|0|non)[- ](?:\w+[- ])?dropouts?\b(?![-_ ](?:fusion|kernel))"
    rf"|dropouts?{IS}(?:0+(?:\.0*)?(?![\d.]*\d)|off|none|disabled|false|zero|unused|not used)(?!\w)"
    r"|dropout-free\b"
)
DROPOUT = (
    rf"dropouts?{IS}(?:0?\.\d*[1-9]|\d+ ?%|on\b|active|enabled|true|kept|used)"
    r"|(?<![\d.])0?\.\d*[1-9] dropouts?\b|\bp_?drop[ =:]*0?\.\d*[1-9]"
    r"|\b(?:with|has|have|and|uses?) dropout\b(?! (?:and|,))|(?:^|[;,.] )dropout(?=$|[;,.])"
)


def _sharding(
    run: Run,
    entry: FrameworkEntry,
    device: Chip,
    degrees: dict[str, int],
    model: Model,
    assumed: list[str],
) -> dict[str, Any]:
    """Returns sequence parallel, ZeRO, expert-tensor parallel and where the optimizer is."""
    tp, ranks = degrees["tp"], degrees["dp"] * degrees["cp"]
    sp = run.sp
    if sp is None:
        # A sequence that cannot be cut was not.
        sp = entry.run.sp and (run.seq_len or 0) % (tp * degrees["cp"]) == 0
        if tp > 1:
            assumed.append(f"sp={str(sp).lower()}")
    zero = _zero(run, entry, assumed)
    on_host = optimizer_on_host(run)
    if ranks == 1 and not (on_host and entry.framework.offload.pass_bytes):
        zero = 0  # One rank shards nothing, but its stage says what crosses to the host.
    etp = 1
    if model.moe and tp > 1:
        etp = run.etp or noted(EXPERTS_CUT, run.notes) or 0
        if not etp and not rx.search(r"expert[ -]tp *= *tp", run.notes, re.I):
            # Where experts lie on all ranks, none are left to cut one over. Recipes cut no expert
            # that is narrower than the model (Megatron-LM's and Pai-Megatron-Patch's for Qwen3)
            # where a framework leaves it to them.
            narrow = model.moe.expert_ffn < model.hidden and not entry.run.cuts_narrow_experts
            cut = entry.run.expert_tensor_parallel and not narrow and ranks % degrees["ep"] == 0
            etp = tp if cut else 1
            assumed.append(f"etp={etp}")
        etp = etp or tp
    return {
        "sp": sp and tp > 1,
        "zero": zero,
        "shard_group": shard_group(run, ranks, device) if zero else 1,
        "etp": etp,
        "optimizer_offload": on_host,
    }


EXPERTS_CUT = r"(?:\bexperts?[-_ ](?:tp|tensor[-_ ]parallel(?:ism|[-_ ]size)?)|\betp)[ =]*(\d+)"


def _zero(run: Run, entry: FrameworkEntry, assumed: list[str]) -> int:
    """Returns the stage of ZeRO: DeepSpeed's bf16 optimizer shards its states where none is set."""
    text = run.zero.lower()
    if said(run, SCATTERS_EACH_PASS):
        return 2
    if not text:
        assumed.append(f"zero={entry.run.zero}")
        return entry.run.zero
    if "fsdp" in text or "hsdp" in text:
        return 2 if rx.search(KEPT_WHOLE, run.notes, re.I) else 3
    stage = rx.search(r"[0-3]", text)
    if stage and stage[0] != "0":
        return int(stage[0])
    if stage or text in NOTHING or text == "ddp":
        return int(_bf16_optimizer(run, entry))
    if "dist" in text:
        return 1
    raise SpecError("zero", f"must be 0 to 3 or fsdp, found {shown(run.zero)}")


def _bf16_optimizer(run: Run, entry: FrameworkEntry) -> bool:
    """Whether a row without ZeRO has DeepSpeed's optimizer for bf16."""
    text = run.zero.lower()
    nothing = text in NOTHING or text == "ddp" or rx.fullmatch(r"[^1-3]*0[^1-3]*", text)
    return (
        bool(nothing)
        and "deepspeed" in entry.framework.name
        and bool(rx.search(BF16_STATES, run.precision))
    )


# deepspeedai/DeepSpeed, runtime/engine.py (_do_optimizer_sanity_check): bf16 without ZeRO has
# BF16_Optimizer, which shards 32-bit copies and moments (runtime/bf16_optimizer.py) whatever the
# stage: "bf16 must use z0" in scripts of bigscience-workshop/bigscience (tr11-176B-ml).
BF16_STATES = r"bf16|fp8"


# --- The plan


def _degrees(run: Run, entry: FrameworkEntry, assumed: list[str]) -> dict[str, int]:
    """Returns the degrees and the devices; what all the others leave is data-parallel.

    A row without any degree is data-parallel where it shards as FSDP does.
    """
    if run.tp is None and run.pp is None and run.dp is None:
        sharded = "fsdp" in run.zero.lower() or (entry.run.zero == 3 and not run.zero)
        if not run.gpus or not (sharded or "3" in run.zero):
            raise SpecError("dp, tp, pp", "missing")
        assumed.append(f"dp={run.gpus // (run.cp or 1)}")
    tp, pp, cp, ep = run.tp or 1, run.pp or 1, run.cp or 1, run.ep or 1
    rest = tp * pp * cp
    dp = run.dp
    if dp is None:
        if not run.gpus or run.gpus % rest:
            raise SpecError("dp", f"missing, and tp x pp x cp = {rest} does not divide the devices")
        dp = run.gpus // rest
    devices = dp * rest
    if run.gpus and run.gpus != devices:
        raise SpecError("gpus", f"{run.gpus}, where the degrees multiply to {devices}")
    return {"dp": dp, "tp": tp, "cp": cp, "ep": ep, "pp": pp, "devices": devices}


def _plan(
    run: Run,
    entry: FrameworkEntry,
    problem: Problem,
    degrees: dict[str, Any],
    assumed: list[str],
) -> tuple[Plan, tuple[str, ...]]:
    """Returns the plan of a run, and those of mbs, vpp and recompute that its row leaves open.

    What neither the row nor the framework's habit says is the fastest that fits among what people
    write: powers of two, whole chunks. Recompute is what they turn to where nothing fits without
    it, by more than the estimate of memory errs: a larger micro-batch is not bought with it. Where
    nothing fits, it is what lacks least. Checkpoints that wait on the host are of whole layers.
    """
    layers = stage_layers(run, problem.model.layers, degrees["pp"], assumed)
    chips = stage_chips(problem.cluster, degrees["pp"])
    schedule = schedule_of(run)
    vpps, said = stage_chunks(run, entry, schedule, layers)
    mbs = (run.mbs,) if run.mbs else _micro_batches(run, degrees, entry)
    stated = is_stated(run.recompute) or kept(run) is not None
    usual = usual_recompute(run, entry)
    habit = recompute_said(run, entry) if stated else "" if run.recompute else usual

    def plans(mbs: int, vpp: int) -> Iterator[Plan]:
        """Yields the plans with given micro-batches and chunks, the faster ones first."""
        chunk = -(-max(layers) // vpp)
        if is_stated(habit):
            kinds: Iterable[Recompute] = (recompute_of(habit, run.notes, entry, chunk),)
        else:
            kinds = possible_recomputes(run, chunk)
        for recompute in kinds:
            yield Plan(
                **degrees,
                vpp=vpp,
                mbs=mbs,
                schedule=schedule or ("interleaved" if vpp > 1 else "1f1b"),
                stages=tuple(
                    Stage(
                        layers=n,
                        chip=kind,
                        recompute=within(recompute, n, vpp),
                    )
                    for n, kind in zip(layers, chips, strict=True)
                ),
            )

    pairs = list(product(mbs, vpps))
    if len(pairs) == 1 and is_stated(habit):
        [plan] = plans(*pairs[0])
    else:
        plan = planner.fastest(problem, (islice(plans(*pair), 1) for pair in pairs))
        if not is_stated(habit) and _lacks(problem, plan) > DRIVER_ERROR:
            plan = planner.fastest(problem, (plans(*pair) for pair in pairs))
    recompute = plan.stages[0].recompute
    found = {
        "mbs": not run.mbs and str(plan.mbs),
        "vpp": not said and str(plan.vpp),
        "recompute": not stated
        and "/".join(str(part) for part in (recompute.granularity, recompute.layers) if part),
    }
    return plan, tuple(f"{name}={value}" for name, value in found.items() if value)


def _lacks(problem: Problem, plan: Plan) -> float:
    """Returns the largest share by which a stage needs more memory than its device has."""
    stages = planner.estimate(problem, plan).stages
    return max(stage.allocated_bytes / stage.capacity_bytes - 1 for stage in stages)


# As Hugging Face, accelerate and most scripts call it: gradient accumulation 4, over 4 steps; GA=4.
ACCUMULATED = (
    r"grad(?:ient)?s?[- _]acc(?:um(?:ulation)?)?(?:[- _]steps)?[ =:]*(?:of |over )?(\d+)\b"
    r"|\b(\d+) (?:grad(?:ient)?[- ])?accum(?:ulation)?[- ]steps?\b|\bGAS?[ =:]+(\d+)\b"
)


def _micro_batches(run: Run, degrees: dict[str, Any], entry: FrameworkEntry) -> tuple[int, ...]:
    """Returns what a micro-batch may be: the powers of two that divide a replica's batch.

    It is what the notes' accumulation leaves of that batch, or the framework's habit makes of it.
    Without a pipeline it may be all of it.
    """
    own, rest = divmod(run.gbs or 1, degrees["dp"])
    alone = degrees["pp"] == 1
    if (steps := noted(ACCUMULATED, run.notes)) and own % steps == rest == 0:
        return (own // steps,)
    if entry.run.micro_batch_a_stage and not alone and own % degrees["pp"] == rest == 0:
        return (own // degrees["pp"],)
    if alone and rest == 0 < own and not entry.run.accumulates:
        return (own,)
    sizes = [1]
    while sizes[-1] < LARGEST_MICRO_BATCH and rest == own % (2 * sizes[-1]) == 0:
        sizes.append(2 * sizes[-1])
    if alone and rest == 0 and sizes[-1] < own <= LARGEST_MICRO_BATCH:
        sizes.append(own)
    return tuple(sizes)


# --- The measurement


def _rate(run: Run, assumed: list[str]) -> Rate | None:
    """Returns the rate that says most directly how long a step took."""
    if run.iter_time_s:
        return Rate(unit="step_s", value=run.iter_time_s)
    if run.tokens_per_s_per_gpu:
        return Rate(unit="tokens_per_s_per_device", value=run.tokens_per_s_per_gpu)
    if not run.model_tflops_per_gpu and not run.mfu:
        return None
    convention = _convention(run.flops_convention)
    if not run.flops_convention:
        assumed.append(f"flops_convention={convention.work}_{convention.attention}_attention")
    if run.model_tflops_per_gpu:
        return Rate(unit="tflops_per_device", value=run.model_tflops_per_gpu, convention=convention)
    share = run.mfu or 0.0
    return Rate(unit="mfu", value=share / 100 if share > 1 else share, convention=convention)


def _convention(text: str) -> Convention:
    """Returns the convention that a text names: model FLOPs and full attention unless it says."""
    words = words_of(text.replace("_", " "))
    work: Work = "model"
    for known in get_args(Work):
        if known in words:
            work = known
    attention: Counted = "none" if work in ("6n", "8n") else "full"
    for counted in get_args(Counted):
        if counted in words or (counted == "none" and "no" in words):
            attention = counted
    if text and not {"model", "hardware", "6n", "8n"} & set(words):
        what = f"no convention is called {shown(text)}"
        raise SpecError("flops_convention", what, "Write model_full_attention or the like.")
    return Convention(work=work, attention=attention)
