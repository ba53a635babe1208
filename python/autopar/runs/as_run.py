"""A framework as one measured run had it, by the words of its row."""

import re
from dataclasses import replace

from autopar.entries import FrameworkEntry
from autopar.framework import Framework, Graphs, Named, NumberBytes
from autopar.held import Offloaded
from autopar.runs import operators, remat
from autopar.runs.exchange import dispatched
from autopar.runs.rows import Run
from autopar.runs.said import HF, said
from autopar.runs.shelf import FULLY_SHARDED, Shelf, words_of
from autopar.runs.trained import noted
from autopar.spec import Attention

NORMS = set(words_of("norm norms layernorm rmsnorm"))
ACTIVATIONS = set(words_of("act activation activations swiglu gelu"))
FILLERS = set(words_of("moe and only"))
PROJECTIONS = "mla_up_proj"
# What each of these words for recompute has a layer compute again.
AGAIN = {
    "all but attention": Named(norm=True, projections=True, expansion=True, activation=True),
    # AXLearn keeps what the projections of attention made, and the input of the last
    # (apple/axlearn, common/attention.py: build_remat_spec).
    "all but attention's projections": Named(
        norm=True, attention=True, expansion=True, activation=True
    ),
    # MindSpeed's swapped attention (docs/features/swap_attention.md).
    "mlp alone": Named(expansion=True, activation=True),
}


def as_run(entry: FrameworkEntry, run: Run, shelf: Shelf, attention: Attention) -> Framework:
    """Returns a profile's framework with a row's own settings of it.

    What a row denies (`no Liger`) counts as not said.

    Args:
        entry: The profile.
        run: The row.
        shelf: The catalog, for the profile that this one follows.
        attention: How the row's attention was computed: where it was fused under a profile that
            knows no kernel, FlashAttention of the time it was.
    """
    framework = operators.fused(dispatched(_overlapped(entry.framework, run), run), run)
    framework = operators.grouped(framework, run, shelf)
    framework = _recomputed(operators.attended(framework, run, attention), run)
    framework = _graphed(_launched(framework, entry, run, shelf), entry, run, shelf)
    framework = _stored(_loss(_softmax(_mixed(framework, run), run), entry, run), run)
    framework = _offloaded(framework, run)
    if framework.casts_weights or said(run, r"autocast\b"):
        # What it takes a power of it casts to 32 bits (pytorch/pytorch, ATen/autocast_mode.h: pow).
        framework = replace(framework, fused=replace(framework.fused, gelu_in_fp32=True))
    if framework.gathers == "step" and run.shards_parameters:
        # A profile of ZeRO-1 says nothing of parameters that a row's own stage shards.
        framework = replace(framework, gathers="step_in_pipeline")
    if framework.name.startswith("fsdp") and said(run, PARAMETERS_OF_THEIR_OWN):
        copies = replace(framework.shard_copies, gathered=True)
        framework = replace(framework, shard_copies=copies)
    several = run.gbs != (run.dp or 1) * (run.mbs or 0)
    fully_sharded = framework.name.startswith(("fsdp", "torchtitan"))
    if several and fully_sharded and said(run, UNSYNCHRONISED):
        framework = replace(framework, reduces_once=True)
    return framework


# FSDP2 copies what was gathered into tensors of their own (pytorch/pytorch, torch/distributed/fsdp/
# _fully_shard/_fsdp_collectives.py: foreach_all_gather_copy_out), of which FSDP1 made views.
PARAMETERS_OF_THEIR_OWN = r"(?<!unlike )FSDP2\b(?! was\b)|fully_shard\b"

# FSDP under what leaves gradients where they are until the last micro-batch of a step:
# huggingface/transformers (trainer.py: accelerator.no_sync but with DeepSpeed), Lightning-AI/litgpt
# (fabric.no_backward_sync while it accumulates).
UNSYNCHRONISED = (
    r"(HF|Hugging ?Face) Trainer|TRL|LitGPT|lit-gpt|TinyLlama|no_sync"
    r"|reduced with the last micro-batch"
)


def _overlapped(framework: Framework, run: Run) -> Framework:
    """What a script says: gradients and parameters behind or after passes, context by heads."""
    if told := re.search(BESIDE_THE_PASSES, run.notes, re.I):
        beside = not told[1]
        gathered = framework.overlap.parameter_gather if told[2] else beside
        overlap = replace(framework.overlap, gradient_reduce=beside, parameter_gather=gathered)
        framework = replace(framework, overlap=overlap)
    called = framework.context_exchange == "blocks"
    if said(run, HEADS_EXCHANGED) and not said(run, HEADS_AND_KEYS):
        framework = replace(framework, context_exchange="heads")
    elif said(run, KEYS_IN_A_RING if called else rf"{KEYS_IN_A_RING}|{RING_ATTENTION}"):
        framework = replace(framework, context_exchange="ring")
    if framework.name.startswith("mindspeed"):
        return _of_mindspeed(framework, run)
    return framework


HEADS_EXCHANGED = (
    r"cp_comm_type a2a\b|context by all-to-all of heads\b"
    r"|(?<!-)(?<!beats )(?<!compared to )(?<!compared with )(\w+-)*ulysses\b"
)
# Ulysses inside of rings or around them, as USP has it (arXiv:2405.07719).
BY = r"[-+ x/&\d]*((by|and|with)\b[-+ x/&\d]*)?"
HEADS_AND_KEYS = rf"USP\b|ulysses\b{BY}ring\b|ring\b( attention)?{BY}ulysses\b"
KEYS_IN_A_RING = r"(context by (a )?|zigzag )ring\b|ring-flash-attn\b"
# What PyTorch calls so is attention in blocks, whose keys it gathers.
RING_ATTENTION = r"(?<!for )(?<!zigzag )ring attention\b(?! of PyTorch)"


def _of_mindspeed(framework: Framework, run: Run) -> Framework:
    """What a script of MindSpeed-LLM sets: MC2, and latent attention without padding."""
    overlap = framework.overlap
    if re.search(r"\b(no|without) MC2\b", run.notes, re.I):
        overlap = replace(overlap, tensor="none")
    elif said(run, r"use-mc2\b" if framework.name == "mindspeed-legacy" else r"MC2\b"):
        # A table of all its models says MC2, which scripts of the legacy kind mostly leave out.
        overlap = replace(overlap, tensor="pipelined")
    if said(run, r"mla-fa-without-pad\b"):
        framework = replace(framework, attention_padding=0)
    return replace(framework, overlap=overlap)


# NVIDIA/Megatron-LM arguments: --overlap-grad-reduce and --overlap-param-gather are off by default.
# An OverlappedDistributedOptimizer is alibaba/Megatron-LLaMA's, of before these.
BESIDE_THE_PASSES = (
    r"\b((?:no|without) )?(?:overlap of gradients (?:(alone)|(?:or|and|nor) parameters)"
    r"|overlapped distributed optimizer)\b"
)


def _launched(framework: Framework, entry: FrameworkEntry, run: Run, shelf: Shelf) -> Framework:
    """Returns the framework with the host's time for what a row says was launched otherwise.

    Without distributed tensors or Transformer Engine's modules the host has less to do, and with a
    graph of the whole step nothing. Where a row says that there was none, or of a part of the
    layers alone, a profile that assumes one has the host's time of the profile that it follows.
    """
    if re.search(OWN_SHARDS, f"{run.framework} {run.notes}", re.I):
        framework = replace(framework, distributed_tensor_us=0.0, distributed_heads_us=0.0)
    if said(run, BLOCKS):
        framework = replace(framework, blocking_launches=True)
    if re.search(PLAIN_MODULES, f"{run.framework} {run.notes}", re.I):
        plain = next(e for e in shelf.frameworks if e.framework.name == "megatron-2022")
        framework = replace(
            framework, launch_us=min(framework.launch_us, plain.framework.launch_us)
        )
    if re.search(NOT_ALL_IN_GRAPHS, f"{run.framework} {run.notes}", re.I):
        # Recipes with parts of layers in graphs have experts' products apart from what is beside
        # them (NVIDIA/Megatron-LM, examples/moe_recipes/qwen3_30b/gb200: partial_cg, paged_stash).
        leader = next((e for e in shelf.frameworks if e.framework.name == entry.follows), entry)
        if not said(run, operators.QUANTIZED_MLP):
            framework = replace(framework, fused=replace(framework.fused, quantized_mlp=False))
        return replace(framework, launch_us=framework.launch_us or leader.framework.launch_us)
    if said(run, ALL_IN_ONE_GRAPH):
        return replace(
            framework,
            launch_us=0.0,
            compiled_layer_us=0.0,
            dispatch_launch_us=0.0,
            sharded_layer_us=0.0,
        )
    if re.search(r"TinyLlama|Lingua", run.framework, re.I):
        # Neither kernels that somebody wrote nor a model compiled as a whole are compiled layers.
        return replace(framework, compiled_layer_us=0.0)
    if framework.name == "ddp-compiled" and said(run, r"compile of each layer\b"):
        by_layer = next(e for e in shelf.frameworks if e.framework.name == "fsdp-compiled")
        framework = replace(framework, compiled_layer_us=by_layer.framework.compiled_layer_us)
    return framework


BLOCKS = (
    r"(?<!unset )CUDA_LAUNCH_BLOCKING\b"
    r"(?![ =:]*((is|was) )?(0|false|off|unset|disabled|not (set|used))\b)"
)
PLAIN_MODULES = r"\b(no|not|without) (TE|Transformer Engine)\b"
OWN_SHARDS = r"\b(no|not|without) DTensors?\b"
NOT_ALL_IN_GRAPHS = (
    r"\b(no|not|without|partial|TE) (any )?((TE|CUDA)[- ])*graphs?\b"
    r"|\bgraphs? (of|for|on) (the )?(attention|router|preprocess|experts|norms?)"
)
ALL_IN_ONE_GRAPH = (
    r"(with|under|using|full([- ](iteration|step))?) CUDA[- ]graphs?"
    r"|CUDA[- ]graph of the whole (iteration|step)"
)


def _graphed(framework: Framework, entry: FrameworkEntry, run: Run, shelf: Shelf) -> Framework:
    """Parts of a layer that were CUDA graphs: as a row says, else as was usual on its chip.

    Where it names none they are all that precedes the exchange of experts. A graph of nothing that
    runs, as one that a rate was read off, is no such.
    """
    told = [
        found
        for clause in f"{run.framework};{run.notes}".split(";")
        if not re.search(r"\bnot (in|told|stated|printed)\b", clause, re.I)
        for found in re.finditer(GRAPHS, clause, re.I)
        if found["none"] or re.search(rf"{PART}|CUDA|HIP|\bTE\b", found[0], re.I)
    ]
    if not told:
        chip = shelf.chips.get(run.chip)
        if chip is None or chip.name not in entry.run.graphs_on:
            return framework
        if any(model in run.model.lower() for model in entry.run.graphs_not_of.get(chip.name, ())):
            return framework
        return replace(framework, graphs=Graphs(attention=True, router=True))
    words = " ".join(found[0] for found in told if not found["none"])
    every = bool(words) and not re.search(PART, words, re.I)

    def graphed(part: str) -> bool:
        return every or bool(re.search(part, words, re.I))

    graphs = Graphs(
        attention=graphed(r"\batt"), router=graphed("router|preprocess"), mlp=graphed("feed|mlp")
    )
    return replace(framework, graphs=graphs)


PART = r"(?:att(?:entio)?n|router|preprocess\w*|feed-forward|mlp)"
_BEFORE = rf"(?:(?:{PART}|part|captured|and|the|what|precedes|exchange|in|TE|CUDA|HIP)[ ,]+)*"
_BEHIND = rf"(?:[ ,]+(?:of|for|on|in|and|the|{PART}))*"
GRAPHS = rf"(?P<none>\b(?:no|not|without) (?:any )?)?{_BEFORE}\bgraphs?\b{_BEHIND}"


def _recomputed(framework: Framework, run: Run) -> Framework:
    """What is computed again by name: Megatron's modules of latent attention, or all but attention.

    Up-projections come with what stands beside them: norms and activations as named. Hugging Face's
    checkpoints were reentrant ones, which run a layer to its end, and lie around the layers that
    FSDP wrapped: what recompute gathered is freed and gathered again (huggingface/transformers,
    trainer.py, warns of it; issue 30404).
    """
    hugging_face = run.month < STOPS_EARLY_SINCE and said(run, HF_CHECKPOINTS)
    if run.month >= STOPS_EARLY_SINCE and said(run, HF):
        framework = replace(framework, recompute_stops_early=True)
    if framework.keeps_biased_products and not framework.fused.residual and said(run, FLEX):
        framework = replace(framework, keeps_attention_inputs=True)
    if hugging_face or said(run, r"(?<!non-)reentrant checkpoints?\b"):
        # Around what FSDP1 shards; FSDP2 knows a forward pass that is run again (_fsdp_state.py).
        around = framework.name.startswith("fsdp") and not said(run, r"FSDP2\b")
        framework = replace(framework, recompute_stops_early=False, recompute_gathers=around)
    if (tensors := remat.kept(run)) is not None:
        framework = replace(framework, held=replace(framework.held, offloaded=tensors.offloaded))
        again = tensors.again
    elif named := AGAIN.get(run.recompute.lower()):
        again = named
    elif PROJECTIONS in run.recompute:
        words = set(words_of(run.recompute))
        again = Named(
            projections=True, norm=bool(words & NORMS), activation=bool(words & ACTIVATIONS)
        )
    else:
        return framework
    return replace(framework, selective="named", named=again)


# FlexAttention that is compiled by itself (pytorch/torchtitan, models/common/attention.py:
# wrap_inductor_compiled_regions) is one operator to a checkpoint that is not, whose results are all
# kept since pull request 2357 of February 2026 (distributed/activation_checkpoint.py:
# inductor_compiled_code); what its backward pass reads is one of them, inputs too, as a run of
# PyTorch 2.15 shows.
FLEX = r"Flex-?Attention\b"
HF_CHECKPOINTS = r"(HF|Hugging ?Face) (gradient )?checkpointing"
# huggingface/transformers (modeling_utils.py: use_reentrant): True in release 4, False in 5, which
# is of January 2026.
STOPS_EARLY_SINCE = "2026-01"


def _mixed(framework: Framework, run: Run) -> Framework:
    """Automatic mixed precision: of torchtitan without FSDP, and over an embedding in 16 bits.

    Where nothing shards or cuts a model torchtitan computes under torch.autocast (its pull request
    1303 of June 2025: maybe_enable_amp; pull request 2458 of early 2026 ended that), and so does
    what kept that code, as a row says. The stream of activations is as wide as what the embedding
    gives.
    """
    whole = (run.tp or 1) * (run.pp or 1) * (run.cp or 1) == 1 and run.zero == "0"
    whole &= run.precision != "fp32" and not re.search(FULLY_SHARDED, run.framework, re.I)
    then = AUTOCAST_SINCE <= run.month < REPLICATES_SINCE or said(run, r"autocast\b")
    if whole and then and framework.name.startswith("torchtitan"):
        stored = NumberBytes(parameter=6, gradient=4, gradient_sent=4, optimizer=8)
        held = replace(framework.held, fp32_residual=True, bucket_copies=True)
        framework = replace(framework, casts_weights=True, bytes=stored, held=held)
    by_script = framework.name in ("pytorch-ddp", "ddp-compiled") and not said(run, HF)
    if said(run, NARROW_STREAM) or (by_script and said(run, NARROW_EMBEDDING)):
        framework = replace(framework, held=replace(framework.held, fp32_residual=False))
    return framework


AUTOCAST_SINCE = "2025-06"
REPLICATES_SINCE = "2026-04"
# karpathy/nanochat, nanochat/gpt.py: transformer.wte.to(dtype=torch.bfloat16).
NARROW_STREAM = r"nanochat|residual stream in (bf16|16 bits)\b"
# Of a script that is nobody else's, not of positions.
NARROW_EMBEDDING = r"(?<!rotary )(?<!position )(?<!positional )embedding in (bf16|16 bits)\b"


NARROW_SOFTMAX = r"softmax in (fp16|bf16|16 bits)\b"


def _softmax(framework: Framework, run: Run) -> Framework:
    """Softmax in separate operators: as wide as what it reads where nothing casts it."""
    if _casts_nothing(framework, run) or said(run, NARROW_SOFTMAX):
        return replace(framework, softmax_in_fp32=False)
    return framework


def _casts_nothing(framework: Framework, run: Run) -> bool:
    """Whether softmax, of attention and of the loss, is as wide as what it reads.

    PyTorch's own attention, which fairseq calls, casts nothing, nor does Hugging Face's GPT-2, as
    its Llama, OPT and BLOOM do; automatic mixed precision, whose weights are in 32 bits, does too.
    """
    code = re.search(r"fairseq|GPT-?2\b", f"{run.framework} {run.model}", re.I)
    return bool(code) and framework.bytes.parameter == 2 and "megatron" not in framework.name


def _loss(framework: Framework, entry: FrameworkEntry, run: Run) -> Framework:
    """The loss: in one kernel as a row says, else in separate operators where that was usual.

    One kernel reads 16-bit logits and makes gradients as wide, which Transformer Engine's and
    Liger's write into their place. Hugging Face's models made logits of 32 bits and shifted them
    into another copy first. What Megatron calls fused is not one: the compiler joined it.
    """
    usual = entry.run
    apart = said(run, r"loss in separate operators\b")
    in_place = not apart and said(run, LOSS_IN_PLACE)
    listed = operators.listed_kernels(run)
    kernel = said(run, LOSS_KERNEL) or re.search("cross[- ]?entropy", listed, re.I)
    if said(run, LIGER_PLAIN_LOSS):
        return _with_loss(framework, True, 8, 0)
    if said(run, NARROW_LOSS):
        return _with_loss(replace(framework, loss_in_16_bits=True), False, 8, 0)
    if said(run, WIDE_LOSS):
        return _with_loss(replace(framework, loss_in_16_bits=False), False, 14, 0)
    fused = said(run, FUSED_LOSS)
    compiled = usual.loss_bytes or framework.fused.cross_entropy
    if in_place or kernel or (fused and not compiled):
        shifted = run.month < HF_LOSS_SINCE and said(run, HF)
        width = 2 if in_place else 8 if shifted else 4
        return _with_loss(replace(framework, loss_in_16_bits=True), True, width, 0)
    if fused:
        return framework
    if usual.loss_bytes:
        return _with_loss(framework, False, usual.loss_bytes, usual.cached_loss_bytes)
    if compiled:
        return framework
    if _casts_nothing(framework, run):
        # Logits, a shifted copy, its log-softmax and a gradient, 2 bytes each. Of a loss outside of
        # the model nobody holds the logits once it is known.
        return _with_loss(framework, False, 6 if said(run, LOSS_OUTSIDE) else 8, 0)
    if run.month >= HF_UNSHIFTED_SINCE and said(run, HF):
        # Nobody holds the logits once the loss is known: their block is free then, but small beside
        # those of 32 bits where they had 16.
        return _with_loss(framework, False, 12, 4 if _all_wide(run) else 2)
    return framework


def _with_loss(framework: Framework, joined: bool, width: int, cached: int) -> Framework:
    """Returns a framework whose loss is joined or not and holds so many bytes of a logit."""
    held = replace(
        framework.held,
        logit_bytes=width,
        split_logit_bytes=width,
        cached_logit_bytes=cached,
    )
    return replace(framework, fused=replace(framework.fused, cross_entropy=joined), held=held)


# Who sets it in the scripts and configurations of examples: alibaba/Pai-Megatron-Patch,
# examples/qwen3/run_mcore_qwen3.sh; AMD-AGI/Primus, examples/megatron/configs.
FUSED_LOSS = (
    r"fused cross[- ]?entropy|cross[- ]?entropy (loss )?fusion|fused loss|Pai-Megatron-Patch"
)
# Release 4.46 of huggingface/transformers: the loss is a function of 16-bit logits since.
HF_LOSS_SINCE = "2024-11"
# Release 4.48 shifts labels in place of logits: as the backward pass begins, the log-softmax of a
# copy in 32 bits, its gradient and theirs lie there (pytorch/pytorch, derivatives.yaml:
# nll_loss_forward, _log_softmax).
HF_UNSHIFTED_SINCE = "2025-01"
# F.cross_entropy of what the model returns, in separate operators: logits, their log-softmax, its
# gradient and theirs, 2 bytes each (Lightning-AI/lightning-thunder, benchmark_litgpt.py).
NARROW_LOSS = r"loss of 16-bit logits"
# F.cross_entropy of their copy in 32 bits, which is freed: the log-softmax of that, its gradient
# and theirs, 4 bytes each, beside the logits (duoan/picotron, tests/bench_tp.py and bench_cp.py).
WIDE_LOSS = r"loss of 32-bit logits"
LOSS_OUTSIDE = r"loss outside (of )?the model"
# Dao-AILab/flash-attention, losses/cross_entropy.py.
LOSS_KERNEL = r"xentropy\b"


def _stored(framework: Framework, run: Run) -> Framework:
    """Bytes of gradients and moments, activations on the host, and logits of a loss in pieces.

    Without a copy in 32 bits all that is stored is parameters, gradients and two moments, and
    DeepSpeed's copy where that is in 16 bits (`bf16_master_weights_and_grads`), which gradients are
    copied as for the step too (runtime/zero/stage_1_and_2.py: master_weights_and_grads_dtype).
    8-bit moments are 2 bytes in place of 8, those of 16 bits 4. A loss in pieces has so many times
    fewer logits at its peak. Checkpoints that a row calls offloaded all wait on the host where it
    gives no share. So do parameters, which FSDP's `CPUOffload` takes there.
    """
    stored = framework.bytes
    if _all_wide(run) and framework.name.startswith("deepspeed"):
        # Without ZeRO the optimizer steps the parameters themselves, and copies no gradients
        # (deepspeed/runtime/engine.py: _do_optimizer_sanity_check).
        framework = replace(framework, held=replace(framework.held, update_bytes=0))
    narrow = said(run, rf"({NARROW_GRADIENTS})\b")
    wide = run.shards_parameters and not narrow and said(run, WIDE_REDUCTION)
    if narrow:
        # Where sums lie beside the gradients that are added to them, only what travels is narrow.
        sums = stored.gradient > stored.gradient_sent
        stored = replace(stored, gradient=stored.gradient if sums else 2, gradient_sent=2)
    elif wide:
        stored = replace(stored, gradient_sent=4)
    if said(run, NARROW_STATES):
        copy = 2 if said(run, NARROW_COPY) else 0
        sent = 4 if wide else 2  # FSDP casts gradients as it reduces them.
        stored = replace(stored, parameter=2, gradient=2, gradient_sent=sent, optimizer=4 + copy)
        # torch.autocast casts nothing that is as narrow already (autocast_mode.cpp: cached_cast).
        update = min(framework.held.update_bytes, copy) if copy else framework.held.update_bytes
        held = replace(framework.held, fp32_residual=False, update_bytes=update)
        framework = replace(framework, casts_weights=False, held=held)
    elif re.search(r"8-?bit adam", run.notes, re.I):
        stored = replace(stored, optimizer=max(stored.optimizer - 6, 2))
    elif said(run, rf"({NARROW_MOMENTS})\b"):
        stored = replace(stored, optimizer=max(stored.optimizer - 4, 4))
    if said(run, DROPPED_GRADIENTS):
        framework = replace(framework, held=replace(framework.held, gradients="passing"))
    offloaded = run.offload_fraction
    if offloaded is None:
        by_names = framework.held.offloaded != Offloaded()
        offloaded = 1.0 if offloads_checkpoints(run) and not by_names else 0.0
    on_host = bool(said(run, PARAMETERS_ON_HOST))
    held = replace(framework.held, offloaded_share=offloaded, parameters_on_host=on_host)
    if not run.shards_parameters and said(run, r"(float|fp)8 all-gather\b"):
        # What is gathered once a step lies in 8 bits, and beside it as the backward pass wants it,
        # unless that casts it again.
        beside = 0 if said(run, r"weights cast again in backward") else 1
        held = replace(held, gathered_copy_bytes=1, fp8_weight_bytes=beside)
        gathers = replace(framework.eight_bit_gathers, parameters=True)
        framework = replace(framework, eight_bit_gathers=gathers)
    if live := noted(r"stage3_max_live_parameters (\d+)", run.notes):
        held = replace(held, live_parameters=live)
    if said(run, KEPT_WEIGHTS) and run.recompute == "none":
        held = replace(held, live_parameters=1 << 40)
    if said(run, WHOLE_EXPERTS):
        held = replace(held, whole_experts=True)
    if said(run, IN_PIECES):
        held = replace(held, loss_pieces=_pieces(run))
    if held.planned and (layers := said(run, MTP)):
        # Each predicts by the head, and its logits wait for the backward pass as the others do.
        several = 1 + (1 if layers["layers"].lower() == "one" else int(layers["layers"]))
        held = replace(held, logit_bytes=several * held.logit_bytes)
        held = replace(held, split_logit_bytes=several * held.split_logit_bytes)
    return replace(framework, bytes=stored, held=held)


# Layers that predict further tokens, which are in no column.
MTP = r"(?P<layers>one|[1-9]) (MTP|multi-token[ -]prediction) layers?\b"


def offloads_checkpoints(run: Run) -> bool:
    """Returns whether a row says that its checkpoints wait on the host."""
    return bool(said(run, OFFLOADED))


def _offloaded(framework: Framework, run: Run) -> Framework:
    """How many threads of a process step what is on the host, and whether its memory is pinned."""
    offload = framework.offload
    threads = noted(r"\b(\d+) threads?\b", run.notes) or offload.threads
    pageable = re.search(r"\b(no|not|without) pinned\b", run.notes, re.I)
    pinned = not pageable and (offload.pinned or bool(said(run, r"pinned memory\b")))
    return replace(framework, offload=replace(offload, threads=threads, pinned=pinned))


def _all_wide(run: Run) -> bool:
    """Whether a run without ZeRO computed in 32 bits, which nothing casts."""
    return run.precision == "fp32" and run.zero == "0"


def _pieces(run: Run) -> int:
    """In how many pieces a loss is computed where a row says only that it is.

    As many as the vocabulary is wider than the model in Liger-Kernel
    (fused_linear_cross_entropy.py), of 256 tokens each in TRL (huggingface/trl pull request 5575),
    and eight where nobody says (torchtune, torchtitan).
    """
    words = f"{run.framework} {run.notes}"
    if pieces := noted(rf"loss in (\d+) (?:pieces|chunks)|{TILED}[ =:]*(\d+)", words):
        return pieces
    if rows := noted(r"loss in blocks of (\d+) of the vocabulary", words):
        return -(-(run.vocab or 0) // rows) or 8
    if said(run, LIGER_LOSS):
        return -(-(run.vocab or 0) // (run.hidden or 1)) or 8
    if said(run, r"TRL\b"):
        return max((run.mbs or 1) * (run.seq_len or 0) // ((run.cp or 1) * 256), 1)
    return 8


NARROW_GRADIENTS = r"bf16 gradients|gradients (reduced |accumulated |held )?in (16 bits|bf16)"
# volcengine/verl sets it for FSDP unless a configuration says otherwise
# (verl/workers/fsdp_workers.py: mixed_precision_config.get("reduce_dtype", "fp32")).
WIDE_REDUCTION = (
    r"gradients (are |were )?reduced in (fp32|32 bits)|reduces gradients in (fp32|32 bits)"
    r"|reduce[-_ ]d?type[ =:]+(torch\.)?(fp32|float32)|verl\b"
)
# Of no gradient memory is left when a forward pass begins (torch.optim: zero_grad(set_to_none)).
DROPPED_GRADIENTS = r"gradients (are |were )?(dropped|set to none)\b"
NARROW_STATES = (
    r"states (all )?(in )?(bf16|16 bits)\b|(all|pure)[- ](bf16|16[- ]bits?)\b"
    r"|bf16 weights and (bf16 )?(adamw?|optimizer) states\b"
    r"|no (fp32|32-bit) (copy|copies|master)\b"
    # AI-Hypercomputer/maxtext, configs/base.yml: mu_dtype inherits from weight_dtype, and so does
    # the second moment (optax: zeros like the parameters).
    r"|weight_dtype[ =]*b(f|float)16\b"
)
NARROW_COPY = r"bf16_master_weights|master weights in (16 bits|bf16)"
NARROW_MOMENTS = r"(bf16|16-?bit) moments|moments in (16 bits|bf16)"
OFFLOADED = (
    r"(checkpoints|(layer|decoder)(_layer)?[ _]inputs?) (are )?offloaded"
    r"|(?<!no cpu )(?<!no host )(?<!without cpu )(?<!without host )offload(ed|ing)? "
    r"(of (the \w+ and of )?)?((?!(optimizer|while|and)\b)\w+ )*"
    r"(checkpoints|(layer|decoder) inputs?)\b"
)
PARAMETERS_ON_HOST = (
    r"parameters( and (the )?optimizer)?( are| is| kept| wait)* in host memory"
    r"|offload of [\w ]*parameters|(CPU-?Offload|offload_param)\b"
)
# What FSDP is told to ignore (torch.distributed.fsdp, fully_shard: ignored_params).
WHOLE_EXPERTS = r"experts (are )?outside of FSDP"
# PyTorch's own linear layer keeps a view of its weight for the backward pass, and with it what
# ZeRO-3 gathered; DeepSpeed's in its place keeps the weight alone, unless it is turned off
# (deepspeed/runtime/zero/linear.py; partition_parameters.py: mem_efficient_linear).
KEPT_WEIGHTS = r"mem(ory)?_efficient_linear[ =:]*(off|false)\b"
LIGER_LOSS = (
    r"liger(?! kernels (but not its loss|with its plain cross-entropy))"
    r"|fused linear cross-?entropy"
)
# linkedin/Liger-Kernel, ops/cross_entropy.py: gradients are written in the place of the logits,
# which huggingface/transformers casts to 32 bits for it (loss/loss_utils.py): 2 bytes, 4, and the
# gradient in 2.
LIGER_PLAIN_LOSS = r"liger kernels with its plain cross-entropy"
# karpathy/llm.c, llmc/fused_classifier.cuh, and IST-DASLab/llmq, src/kernels/fused_classifier.cu,
# write gradients over the logits that they read.
LOSS_IN_PLACE = (
    r"fused classifier|llm\.c\b|LLM\.Q\b"
    r"|(TE|Transformer Engine) (fused )?cross[- ]?entropy|cross[- ]?entropy of TE|Primus\b(?!-)|"
    + LIGER_LOSS
)
# AI-Hypercomputer/maxtext: num_vocab_tiling.
TILED = r"(?:vocabulary tiled by|num_vocab_tiling)"
IN_PIECES = (
    rf"loss in (\w+ (pieces|chunks)|blocks)|{TILED}|chunked (loss|cross-?entropy)|" + LIGER_LOSS
)
