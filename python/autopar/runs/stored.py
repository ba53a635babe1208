"""What one measured run stored, by the words of its row: number formats, the host's share."""

import re
from dataclasses import replace

from autopar.framework import Framework
from autopar.held import Offloaded
from autopar.runs import rx
from autopar.runs.anatomy import noted
from autopar.runs.formats import all_narrow, formats
from autopar.runs.losses import all_wide
from autopar.runs.rows import Run
from autopar.runs.said import on, said


def stored(framework: Framework, run: Run) -> Framework:
    """Bytes of gradients and moments, and what waits on the host.

    Without a copy in 32 bits all that is stored is parameters, gradients and two moments, and
    DeepSpeed's copy where that is in 16 bits (`bf16_master_weights_and_grads`), which gradients are
    copied as for the step too (runtime/zero/stage_1_and_2.py: master_weights_and_grads_dtype).
    8-bit moments are 2 bytes in place of 8, those of 16 bits 4. Checkpoints that a row calls
    offloaded all wait on the host where it gives no share. So do parameters, which FSDP's
    `CPUOffload` takes there.
    """
    numbers = framework.bytes
    if all_wide(run) and framework.name.startswith("deepspeed"):
        # Without ZeRO the optimizer steps the parameters themselves, and copies no gradients
        # (deepspeed/runtime/engine.py: _do_optimizer_sanity_check).
        framework = replace(framework, held=replace(framework.held, update_bytes=0))
    told = formats(run)
    narrow = said(run, rf"({NARROW_GRADIENTS})\b") or told.get("reduced")
    reduced = said(run, WIDE_REDUCTION) or told.get("reduced") is False
    narrow = narrow or (told.get("gradients") and not reduced)
    # FSDP's hooks reduce in 32 bits in torchtitan, whatever its weights are in
    # (torchtitan/config/job_config.py: mixed_precision_reduce is float32 alone).
    titan = framework.name.startswith("torchtitan")
    hooked = run.shards_parameters or (titan and framework.hooks_replicas)
    wide = hooked and not narrow and (reduced or titan)
    if narrow:
        # Where sums lie beside the gradients that are added to them, only what travels is narrow.
        # FSDP casts what it reduced to the width of its parameters (pytorch/pytorch, torch/
        # distributed/fsdp/_fully_shard/_fsdp_collectives.py: foreach_reduce, to orig_dtype;
        # fsdp/_runtime_utils.py: _cast_grad_to_param_dtype).
        sums = numbers.gradient > numbers.gradient_sent or titan
        numbers = replace(numbers, gradient=numbers.gradient if sums else 2, gradient_sent=2)
    elif wide:
        numbers = replace(numbers, gradient_sent=4)
    elif said(run, MASTER_GRADIENTS):
        numbers = replace(numbers, gradient=4, gradient_sent=4)
    if narrow_states(run):
        copy = 2 if said(run, NARROW_COPY) else 0
        sent = 4 if wide else 2  # FSDP casts gradients as it reduces them.
        numbers = replace(numbers, parameter=2, gradient=2, gradient_sent=sent, optimizer=4 + copy)
        # torch.autocast casts nothing that is as narrow already (autocast_mode.cpp: cached_cast).
        update = min(framework.held.update_bytes, copy) if copy else framework.held.update_bytes
        held = replace(framework.held, fp32_residual=False, update_bytes=update)
        framework = replace(framework, casts_weights=False, held=held)
    elif rx.search(r"8-?bit adam", run.notes, re.I):
        numbers = replace(numbers, optimizer=max(numbers.optimizer - 6, 2))
    elif told.get("moments"):
        numbers = replace(numbers, optimizer=max(numbers.optimizer - 4, 4))
    if said(run, WITHOUT_MOMENTS):
        moments = 4 if narrow_states(run) else 8
        numbers = replace(numbers, optimizer=max(numbers.optimizer - moments, 0))
    if rx.search(r"\b(no|not|without|w/o) DDP\b", f"{run.framework} {run.notes}", re.I):
        # Whose buckets are gradients beside the gradients.
        framework = replace(framework, held=replace(framework.held, bucket_copies=False))
    if said(run, DROPPED_GRADIENTS):
        framework = replace(framework, held=replace(framework.held, gradients="passing"))
    offloaded = run.offload_fraction
    if offloaded is None:
        by_names = framework.held.offloaded != Offloaded()
        offloaded = 1.0 if offloads_checkpoints(run) and not by_names else 0.0
    taken = on_host(run, PARAMETERS) or bool(said(run, r"CPU-?Offload\b"))
    # LLM.Q gathers sharded weights layer by layer from where they wait, or their 8-bit copies.
    streamed = bool(said(run, STREAMED_WEIGHTS)) and framework.name == "llmq"
    held = replace(
        framework.held,
        offloaded_share=offloaded,
        parameters_on_host=taken or streamed,
        gradients_stay=streamed,
    )
    if streamed and said(run, r"8-bit weights kept in host memory\b"):
        gathers = replace(framework.eight_bit_gathers, parameters=True)
        framework = replace(framework, eight_bit_gathers=gathers)
    if not run.shards_parameters and said(run, r"(\w+_)?(float|fp)8[-_ ]all[-_ ]?gather\b"):
        # What is gathered once a step lies in 8 bits, and beside it as the backward pass wants it,
        # unless that casts it again.
        beside = 0 if said(run, CAST_AGAIN) else 1
        held = replace(held, gathered_copy_bytes=1, fp8_weight_bytes=beside)
        gathers = replace(framework.eight_bit_gathers, parameters=True)
        framework = replace(framework, eight_bit_gathers=gathers)
    if live := noted(r"stage3_max_live_parameters (\d+)", run.notes):
        held = replace(held, live_parameters=live)
    if said(run, KEPT_WEIGHTS) and run.recompute == "none":
        held = replace(held, live_parameters=1 << 40)
    if said(run, WHOLE_EXPERTS):
        held = replace(held, whole_experts=True)
    return replace(framework, bytes=numbers, held=held)


def narrow_states(run: Run) -> bool:
    """Returns whether a row says that all that is trained was in 16 bits."""
    eight = rx.search(r"8-?bit adam", run.notes, re.I)
    told = formats(run)
    wider = any(told.get(thing) is False for thing in ("copy", "moments", "states"))
    alone = said(run, WITHOUT_MOMENTS) and told.get("weights") and told.get("copy") is None
    held = (
        said(run, NARROW_PARAMETERS) and not wider and not rx.search(COPYING, run.framework, re.I)
    )
    return bool(said(run, NARROW_STATES) or alone or held) or (all_narrow(run) and not eight)


def optimizer_on_host(run: Run) -> bool:
    """Returns whether a row says that the optimizer's states waited on the host."""
    return on_host(run, OPTIMIZER) or bool(said(run, OFFLOADING_OPTIMIZER))


def offloads_checkpoints(run: Run) -> bool:
    """Returns whether a row says that its checkpoints wait on the host, not tensors by name."""
    return on_host(run, CHECKPOINTS) and not said(run, BY_NAME)


def offloaded(framework: Framework, run: Run) -> Framework:
    """How many threads of a process step what is on the host, and whether its memory is pinned."""
    offload = framework.offload
    threads = (
        noted(r"\b(\d+) threads?\b|\bOMP_NUM_THREADS[ =:]*(\d+)", run.notes)
        or int(bool(said(run, r"(one|a single) thread\b")))
        or offload.threads
    )
    pageable = rx.search(r"\b(no|not|without) pinned\b", run.notes, re.I)
    pinned = not pageable and (offload.pinned or bool(said(run, PINNED)))
    return replace(framework, offload=replace(offload, threads=threads, pinned=pinned))


# pytorch/ao, torchao/float8/config.py: force_recompute_fp8_weight_in_bwd.
CAST_AGAIN = (
    r"weights (are |were )?(re-?cast|cast again) in (the )?backward\b"
    r"|force_recompute_(fp8|float8)_weight_in_bwd\b(?![ =:]*(false|off|0)\b)"
)
# Rows and columns of second moments for whole matrices, and no first (arXiv:1804.04235); none.
WITHOUT_MOMENTS = (
    r"(adafactor|plain SGD"
    r"|SGD\b[^.;]{0,30}\b((without|with no|no|w/o|zero) momentum|momentum[ =:]+0))\b"
)
PINNED = r"pinned memory\b|pin_memory[ =:\"']*(true|on|1)\b"
NARROW_GRADIENTS = r"bf16 gradients|gradients (reduced |accumulated |held )?in (16 bits|bf16)"
# volcengine/verl sets it for FSDP unless a configuration says otherwise
# (verl/workers/fsdp_workers.py: mixed_precision_config.get("reduce_dtype", "fp32")).
WIDE_REDUCTION = (
    r"gradients (are |were )?reduced in (fp32|32 bits)|reduces gradients in (fp32|32 bits)"
    r"|(fp32|32-bit) gradients (on the wire|reduced|communicated)\b"
    r"|reduce[-_ ]d?type[ =:]+(torch\.)?(fp32|float32)|verl\b"
)
# PaddlePaddle, python/paddle/amp/auto_cast.py: weight gradients of 32 bits under level O2.
MASTER_GRADIENTS = r"(amp_)?master[_ ]?grads?( is| =|=| on| true)*\b"
# Of no gradient memory is left when a forward pass begins (torch.optim: zero_grad(set_to_none)).
DROPPED_GRADIENTS = (
    r"(param\.|p\.)?grad(ient)?s?,? (are |were |is )?(dropped|freed|set to none)\b"
    r"|zero_grad\(set_to_none(=true)?\)"
)
NARROW_STATES = (
    r"states (all )?(in )?(bf16|16 bits)\b|(all|pure|full|true)[- ](bf16|bfloat16"
    r"|16[- ]bits?|half)\b|bf16-true\b"
    r"|bf16 weights and (bf16 )?(adamw?|optimizer) states\b"
    r"|(no|without) ((fp32|32-bit) (copy|copies|master)|master (weights|copy|copies|params))\b"
    r"|master[-_ ](weights|copy|copies)[ =:]*(false|off|none|absent|missing)\b"
    r"|(fp32|32-bit) master( copy| weights)? (does not exist|(is )?absent)\b"
    r"|bf16[-_ ]adamw?\b(?! (moments?|momenta|m\b|mu\b))|adamw?[-_ ]?bf16\b"
    # AI-Hypercomputer/maxtext, configs/base.yml: mu_dtype inherits from weight_dtype, and so does
    # the second moment (optax: zeros like the parameters).
    r"|weight_dtype[ =]*b(f|float)16\b"
    # pytorch/torchtitan, config/job_config.py: training.dtype is that of the parameters.
    r"|training[.]dtype[ =:\"']*(torch\.)?b(f|float)16\b"
)
# Moments are as wide as what they are of, in PyTorch's optimizers (torch/optim/adam.py: zeros_like)
# and in optax's, unless another library steps a copy in 32 bits.
NARROW_PARAMETERS = (
    r"(param(eter)?s|weights) (are |were )?(held|kept|stored|created|loaded)"
    r" in (bf16|bfloat16|16[- ]bits?)\b"
)
COPYING = r"megatron|nemo|deepspeed|mind(spore|formers|speed)|paddle|colossal"
NARROW_COPY = r"bf16_master_weights|master weights in (16 bits|bf16)"


def on_host(run: Run, things: str) -> bool:
    """Returns whether a row says that some things waited on the host, whichever stands first.

    `offload of the optimizer and the parameters`, `params and Adam states in host RAM`,
    `offload_param`, `optimizer_cpu_offload: true`, `activations offloaded to CPU`.
    """
    thing = rf"(?<![a-z])(?:{things})(?![a-z])"
    between = rf"(?:[ ,/+&]+(?:{AMONG}))*[ ,/+&]*"
    patterns = (
        rf"{thing}{between}(?:{HOST}|(?:(?:cpu|host)[-_ ])?{TAKEN}(?![-_ ]?(?:of |{AMONG})))",
        rf"{thing}[-_ ]?(?:memory[-_ ])?(?:cpu|host)?[-_ ]{TAKEN}",
        rf"{TAKEN}{TO_HOST}(?!,)(?:[-_ ]+|{between})(?:of )?{between}{thing}",
        rf"(?:cpu|host)[-_]{thing}",
    )
    clauses = rx.split(r"[;.](?![\w])", f"{run.framework}; {run.notes}")
    return any(on(clause, pattern) for clause in clauses for pattern in patterns)


# Where it waits, what takes it there, and what may stand between: small words and other things.
HOST = (
    r"(?:\b(?:on|in|to|into|onto|at)|[-=]>|\u2192|[:=]) ?(?:the )?(?:pinned )?"
    r"(?:cpu|host)(?:'s)?(?: memory| ram| dram)?\b"
)
TAKEN = r"off-?load(?:ed|ing|s)?\b"
TO_HOST = r"(?: (?:to|on|onto) (?:the )?(?:cpu|host)(?: memory| ram)?)?"
AMONG = (
    r"and|or|all|both|are|is|was|were|be|being|kept|moved|swapped|updated|stepped|lives?|sits?|also"
    r"|stays?|waits?|saved|too|the|of|its"
    r"|states?|optimi[sz]er|optim|adam[wW]?|params?|parameters|weights|gradients|grads"
    r"|moments|master"
    r"|model|activations?|checkpoints?|copy|copies"
)
CHECKPOINTS = (
    r"(activation |layer |gradient |saved |kept )?checkpoint(s|ed|ing)?( activations?| inputs?)?"
    r"|(saved |kept |stored )?((decoder|layer)[_ ])+inputs?"
    r"|(?<!attention )activations?|acts?|inputs"
)
# NVIDIA/Megatron-LM: --fine-grained-activation-offloading of what --offload-modules names.
BY_NAME = (
    r"(fine[-_ ]grained[-_ ])?activation[-_ ]offload(ing)?[-_ ](of|for) (the )?[a-z]+_[a-z_]+\b"
)
PARAMETERS = r"(?<!part of the )param(eter)?s?|(?<!master )(?<!8-bit )weights|fp16[ _]params?"
# IST-DASLab/llmq, README.md: --offload-master with --shard-weights, of one device too.
# Or with --persistent-quants and --offload-quants.
STREAMED_WEIGHTS = (
    r"master weights in host memory; weights (and gradients )?sharded\b"
    r"|weights sharded, gathered by copies; 8-bit weights kept in host memory\b"
)
OPTIMIZER = r"optimi[sz]er|optim|adam[wW]?|moments?"
# What is named for it: FSDP's `CPUOffload` updates there what it takes there.
OFFLOADING_OPTIMIZER = (
    r"CPU-?Offload\b|(DeepSpeed)?CPU[-_ ]?Adam\b"
    r"|ZeRO-?([23],? (with )?)?-?(Offload|Infinity)\b(?! of\b)"
)
# What FSDP is told to ignore (torch.distributed.fsdp, fully_shard: ignored_params).
WHOLE_EXPERTS = (
    r"experts (are )?(outside of|excluded from|left out of) FSDP|experts = ignored_params"
    r"|experts[^.;]{0,60} outside (of )?FSDP"
)
# PyTorch's own linear layer keeps a view of its weight for the backward pass, and with it what
# ZeRO-3 gathered; DeepSpeed's in its place keeps the weight alone, unless it is turned off
# (deepspeed/runtime/zero/linear.py; partition_parameters.py: mem_efficient_linear).
KEPT_WEIGHTS = r"mem(ory)?_efficient_linear[ =:]*(off|false)\b"
