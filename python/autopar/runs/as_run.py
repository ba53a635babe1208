"""A framework as one measured run had it, by the words of its row."""

import re
from dataclasses import replace

from autopar.entries import FrameworkEntry
from autopar.framework import Framework, Graphs, Named, NumberBytes
from autopar.runs import losses, operators, remat, rx, stored
from autopar.runs.attention import by_flex_attention
from autopar.runs.exchange import dispatched
from autopar.runs.orthogonal import orthogonal
from autopar.runs.rows import PRESENT, Run
from autopar.runs.said import HF, OFF, on, said
from autopar.runs.shelf import FULLY_SHARDED, Shelf, words_of
from autopar.spec import Attention

NORMS = set(words_of("norm norms layernorm rmsnorm"))
ACTIVATIONS = set(words_of("act activation activations swiglu gelu"))
FILLERS = set(words_of("moe and only"))
PROJECTIONS = "mla_up_proj"
BEFORE_FUSED = "2022-12"
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
    if run.month == PRESENT and entry.run.attention == attention == "unfused":
        # The profile was chosen for a time before fused attention; so are its kernels.
        run = replace(run, date=BEFORE_FUSED)
    framework = dispatched(_overlapped(_dispatched_as_usual(entry, run), run), run)
    framework = operators.fused(framework, run)
    framework = operators.grouped(framework, run, shelf)
    framework = _recomputed(operators.attended(framework, run, attention), run)
    framework = _graphed(_launched(framework, entry, run, shelf), entry, run, shelf)
    framework = _reproducible(_normed(framework, entry, run, shelf), run)
    framework = losses.loss(losses.softmax(_mixed(framework, run), run), entry, run)
    framework = losses.pieces(stored.stored(framework, run), run)
    framework = orthogonal(stored.offloaded(framework, run), run)
    if framework.casts_weights or said(run, r"autocast\b"):
        # What it takes a power of it casts to 32 bits (pytorch/pytorch, ATen/autocast_mode.h: pow).
        framework = replace(framework, fused=replace(framework.fused, gelu_in_fp32=True))
    if framework.gathers == "step" and run.shards_parameters:
        # A profile of ZeRO-1 says nothing of parameters that a row's own stage shards.
        framework = replace(framework, gathers="step_in_pipeline")
    if framework.name.startswith("fsdp") and said(run, PARAMETERS_OF_THEIR_OWN):
        copies = replace(framework.shard_copies, gathered=True)
        framework = replace(framework, shard_copies=copies)
    if framework.name.startswith("fsdp") and run.sp is False and said(run, HF):
        # Plans that name linear layers alone, each of which prepares its own input
        # (pytorch/pytorch, torch/distributed/tensor/parallel/style.py: ColwiseParallel).
        framework = replace(framework, shared_edges=False)
    several = run.gbs != (run.dp or 1) * (run.mbs or 0)
    fully_sharded = framework.name.startswith(("fsdp", "torchtitan"))
    once = said(run, UNSYNCHRONISED) if fully_sharded else said(run, ACCUMULATES_FIRST)
    if several and once:
        framework = replace(framework, reduces_once=True)
    if said(run, COPIES_SUMMED_ONCE):
        framework = replace(framework, sums_copies_each_pass=False)
    if said(run, KEEPS_EXPERTS):
        framework = replace(framework, keeps_grouped_products=True)
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
    r"|reduc\w+ (((is|are|was|were) )?(deferred|delayed|postponed)|left|only)"
    r" (to|until|till|with|at|after|in) the (last|final)\b"
    r"|reduc\w+ once,? (on|to|until|with|at|after|in) the (last|final)\b"
)
# allenai/OLMo-core, train_module/transformer/train_module.py: set_requires_all_reduce(is_last_mb).
COPIES_SUMMED_ONCE = r"OLMo[- ]?core\b|set_requires_all_reduce\b"
# Whoever adds PyTorch's grouped products to what recompute of single operators saves.
KEEPS_EXPERTS = (
    r"(saves|keeps|saving|keeping) (the )?(experts?'? )?grouped[- _]?(gemm|mm|matmul|product)s?\b"
)
# PaddlePaddle/PaddleNLP, paddlenlp/trainer/training_args.py, of its parallel configurations.
ACCUMULATES_FIRST = r"gradient_sync_after_accumulate\b"


def _overlapped(framework: Framework, run: Run) -> Framework:
    """What a script says: gradients and parameters behind or after passes, context by heads."""
    if said(run, SCATTERS_EACH_PASS):
        overlap = replace(framework.overlap, gradient_reduce=bool(said(run, SEVERAL_QUEUES)))
        return replace(framework, gathers="micro_batch", overlap=overlap)
    if told := rx.search(BESIDE_THE_PASSES, run.notes, re.I):
        beside = not told[1]
        gathered = framework.overlap.parameter_gather if told[2] else beside
        overlap = replace(framework.overlap, gradient_reduce=beside, parameter_gather=gathered)
        framework = replace(framework, overlap=overlap)
    elif rx.search(REDUCED_IN_THE_OPEN, run.notes, re.I):
        overlap = replace(framework.overlap, gradient_reduce=False)
        framework = replace(framework, overlap=overlap)
    overlap = framework.overlap
    summed, whole = (on(run.notes, flag) for flag in BESIDE_BY_FLAG)
    overlap = replace(
        overlap,
        gradient_reduce=overlap.gradient_reduce if summed is None else summed,
        parameter_gather=overlap.parameter_gather if whole is None else whole,
    )
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
KEYS_IN_A_RING = (
    r"(context by (a )?|zigzag[- _])ring(?![a-z])|ring-flash-attn\b|megatron_cp_algo\b"
    r"|ring[- ](based )?([CS]P|context( parallel(ism)?)?)\b|(double|two[- ]level)[- ]ring\b"
    r"|(CP|context parallel(ism)?) (by|in|over|with|as|is|uses) (a |the )?"
    r"((double|two-level) )?ring\b"
)
# What PyTorch calls so is attention in blocks, whose keys it gathers.
RING_ATTENTION = r"(?<!for )(?<!zigzag )ring attention\b(?! of PyTorch)"


def _of_mindspeed(framework: Framework, run: Run) -> Framework:
    """What a script of MindSpeed-LLM sets: MC2, and latent attention without padding."""
    overlap = framework.overlap
    # A table of all its models says MC2, which scripts of the legacy kind mostly leave out.
    switch = r"use[-_](ascend[-_])?mc2\b"
    named = on(run.notes, switch if framework.name == "mindspeed-legacy" else rf"{switch}|\bMC2\b")
    if named is False or on(run.notes, rf"{switch}|\bMC2\b") is False:
        overlap = replace(overlap, tensor="none")
    elif named:
        overlap = replace(overlap, tensor="pipelined")
    if said(run, r"mla-fa-without-pad\b"):
        framework = replace(framework, attention_padding=0)
    return replace(framework, overlap=overlap)


# NVIDIA/Megatron-LM arguments: --overlap-grad-reduce and --overlap-param-gather are off by default.
# An OverlappedDistributedOptimizer is alibaba/Megatron-LLaMA's, of before these.
_FLAGS = r"overlap[-_](?:grad[-_]reduce|param[-_]gather)\b"
_AMONG = rf"(?:\s*(?:[/,&+]|and|nor)\s*-*{_FLAGS})?"  # One word may be of both.
BESIDE_BY_FLAG = tuple(
    rf"overlap[-_]{one}\b{_AMONG}" for one in ("(grad[-_]reduce|comm)", "param[-_]gather")
)
_REDUCTION = r"grad(?:ient)?s?(?: (?:reduc\w+|all-?reduc\w+|sync\w*))?"
REDUCED_IN_THE_OPEN = (
    rf"\b{_REDUCTION} (?:(?:is|are|was|were) )?(?:not|(?:is|are|was|were)n't) overlapped\b"
    r"|\b(?:no|without) grad[- _]reduc\w+ overlap\b"
    rf"|\bno (?:\w+ )?overlap for (?:the )?{_REDUCTION}\b"
    rf"|\bnothing (?:to )?(?:overlaps?|hides?) (?:(?:the|a|bare) )*{_REDUCTION}\b"
)
# alibaba/Megatron-LLaMA, megatron/optimizer/overlapped_dist_optimizer.py: each micro-batch scatters
# its gradients, beside the passes unless the device has one queue (its issues 26 and 43), as
# scripts of Megatron-LM ask for.
SCATTERS_EACH_PASS = r"megatron-llama\b.*\boverlapped[- ]distributed[- ]optimizer\b"
SEVERAL_QUEUES = r"CUDA_DEVICE_MAX_CONNECTIONS ?(unset|=? ?([02-9]|1\d))"
BESIDE_THE_PASSES = (
    r"\b((?:no|without|neither) )?(?:overlap of gradients (?:(alone)|(?:or|and|nor) parameters)"
    r"|grad[- _]reduc\w+ (?:n?or|and) param\w*[- _]gather\w* overlap"
    r"|overlapped distributed optimizer)\b"
)


def _launched(framework: Framework, entry: FrameworkEntry, run: Run, shelf: Shelf) -> Framework:
    """Returns the framework with the host's time for what a row says was launched otherwise.

    Without distributed tensors or Transformer Engine's modules the host has less to do, and with a
    graph of the whole step nothing. Where a row says that there was none, or of a part of the
    layers alone, a profile that assumes one has the host's time of the profile that it follows.
    """
    if rx.search(OWN_SHARDS, f"{run.framework} {run.notes}", re.I):
        framework = replace(framework, distributed_tensor_us=0.0, distributed_heads_us=0.0)
    if said(run, BLOCKS):
        framework = replace(framework, blocking_launches=True)
    if rx.search(PLAIN_MODULES, f"{run.framework} {run.notes}", re.I):
        plain = next(e for e in shelf.frameworks if e.framework.name == "megatron-2022")
        framework = replace(
            framework, launch_us=min(framework.launch_us, plain.framework.launch_us)
        )
    if rx.search(NOT_ALL_IN_GRAPHS, f"{run.framework} {run.notes}", re.I):
        # Recipes with parts of layers in graphs have experts' products apart from what is beside
        # them (NVIDIA/Megatron-LM, examples/moe_recipes/qwen3_30b/gb200: partial_cg, paged_stash).
        leader = next((e for e in shelf.frameworks if e.framework.name == entry.follows), entry)
        if not said(run, operators.QUANTIZED_MLP):
            framework = replace(framework, fused=replace(framework.fused, quantized_mlp=False))
        framework = replace(framework, stashes_experts=False)
        return replace(framework, launch_us=framework.launch_us or leader.framework.launch_us)
    if said(run, ALL_IN_ONE_GRAPH) or _counts_stay(run):
        return replace(
            framework,
            stashes_experts=framework.stashes_experts or bool(said(run, PAGED_STASH)),
            launch_us=0.0,
            compiled_layer_us=0.0,
            dispatch_launch_us=0.0,
            sharded_layer_us=0.0,
        )
    if rx.search(WITHOUT_PYTHON, run.framework, re.I):
        compiled = next(e for e in shelf.frameworks if e.framework.name == "llmq")
        launch_us = min(framework.launch_us, compiled.framework.launch_us)
        return replace(framework, launch_us=launch_us)
    if rx.search(r"TinyLlama|Lingua", run.framework, re.I):
        # Neither kernels that somebody wrote nor a model compiled as a whole are compiled layers.
        return replace(framework, compiled_layer_us=0.0)
    if framework.name == "ddp-compiled" and said(run, r"compile of each layer\b"):
        by_layer = next(e for e in shelf.frameworks if e.framework.name == "fsdp-compiled")
        framework = replace(framework, compiled_layer_us=by_layer.framework.compiled_layer_us)
    return framework


def _counts_stay(run: Run) -> bool:
    """Whether graphs are said of a layer whose tokens no host counts.

    So it is where no rank exchanges experts that one kernel computes, or where a rank's tokens fill
    a buffer whose bound was set.
    """
    if (run.experts or 0) < 2 or not said(run, r"CUDA[- ]?graphs?\b"):
        return False
    alone = (run.ep or 1) == 1 and said(run, operators.QUANTIZED_MLP)
    return bool(alone or said(run, r"buffer bound\b"))


# Trainers of which no line is Python, as karpathy/llm.c.
WITHOUT_PYTHON = r"\bllm\.c\b|(?<![a-z])(C|C\+\+|Rust)(/| and | \+ )CUDA\b"
BLOCKS = (
    r"(?<!unset )CUDA_LAUNCH_BLOCKING\b"
    r"(?![ =:]*((is|was) )?(0|false|off|unset|disabled|not (set|used))\b)"
)
PLAIN_MODULES = (
    r"\b(no|not|without|w/o) (TE|Transformer ?Engine)\b(?! (graphs?|cross))"
    r"|\b(TE|Transformer ?Engine) (is |was )?(off|disabled|not used)\b"
    r"|\btransformer[-_ ]impl[ =:\"']*local\b"
)
OWN_SHARDS = r"\b(no|not|without|w/o) DTensors?\b"
NOT_ALL_IN_GRAPHS = (
    r"\b(no|not|without|w/o|partial|TE) (any )?((TE|CUDA)[- ])*graphs?\b"
    r"|\bgraphs? \(?(of |for |on )?(the )?(moe_)?(attn|attention|router|preprocess|experts|norms?)"
    r"|\bCUDA[- ]?graphs?( capture)? ((are|is|were|was|got|silently) )*"
    r"(off|disabled|not used|none)\b"
    r"|\bcuda[-_]graph[-_](impl|scope)[ =:\"'\[]*(none|attn|moe|transformer[-_]engine|te\b)"
    r"|\bTE-scoped CUDA[- ]graphs?"
)
PAGED_STASH = r"paged[- ]stash(es|ing)?\b"
ALL_IN_ONE_GRAPH = (
    r"(with|under|using|((full|whole|entire)[- ])(iteration|step|training step)?) ?CUDA[- ]?graphs?"
    r"|CUDA[- ]?graphs? (of|over|for) (the |an? )?((whole|entire|full|training) )*(iteration|step)"
    r"|cuda[-_]graphs?([-_](scope|impl))?[ =:\"'\[]*(full|whole|entire)[-_ ]iteration"
    r"|\b(whole|entire|full)[- ](step|iteration)s? (is |was |are )?(captured |held )?in (a |one )"
    r"(single )?CUDA[- ]?graph"
)


def _graphed(framework: Framework, entry: FrameworkEntry, run: Run, shelf: Shelf) -> Framework:
    """Parts of a layer that were CUDA graphs: as a row says, else as was usual on its chip.

    Where it names none they are all that precedes the exchange of experts. A graph of nothing that
    runs, as one that a rate was read off, is no such.
    """
    told = [
        found
        for clause in rx.split(r";|\.(?!\w)", f"{run.framework};{run.notes}")
        if not rx.search(r"\bnot (in|told|stated|printed)\b", clause, re.I)
        for found in rx.finditer(GRAPHS, clause, re.I)
        if found["none"] or rx.search(rf"{PART}|CUDA|HIP|\bTE\b", found[0], re.I)
    ]
    none = [bool(found["none"] or OFF.match(found.string[found.end() :])) for found in told]
    if not told:
        chip = shelf.chips.get(run.chip)
        if chip is None or chip.name not in entry.run.graphs_on:
            return framework
        if any(model in run.model.lower() for model in entry.run.graphs_not_of.get(chip.name, ())):
            return framework
        return replace(framework, graphs=Graphs(attention=True, router=True))
    words = " ".join(found[0] for found, off in zip(told, none, strict=True) if not off)
    every = bool(words) and not rx.search(PART, words, re.I)

    def graphed(part: str) -> bool:
        return every or bool(rx.search(part, words, re.I))

    graphs = Graphs(
        attention=graphed(r"\batt"), router=graphed("router|preprocess"), mlp=graphed("feed|mlp")
    )
    return replace(framework, graphs=graphs)


PART = r"(?:(?:moe_?)?(?:att(?:entio)?n|router|preprocess\w*|feed-forward|mlp))"
_BEFORE = (
    rf"(?:(?:{PART}|part|captured|and|the|what|precedes|exchange|in|TE|CUDA|HIP|scoped)[ ,_/+-]+)*"
)
_BEHIND = rf"(?:[ ,(=:_/+\[\"'-]+(?:of|for|on|in|and|the|scopes?|covering|{PART})(?![a-z]))*"
GRAPHS = (
    rf"(?P<none>\b(?:no|not|without|w/o) (?:any )?)?{_BEFORE}"
    rf"(?<![a-z])graph(?:s|ed)?(?![a-z]){_BEHIND}"
)


def _dispatched_as_usual(entry: FrameworkEntry, run: Run) -> Framework:
    """A profile's framework, whose recipes of some models name no dispatcher in 16 bits."""
    if run.precision != "bf16" or all(m not in run.model.lower() for m in entry.run.copies_of):
        return entry.framework
    return replace(entry.framework, expert_dispatch="copies")


def _normed(framework: Framework, entry: FrameworkEntry, run: Run, shelf: Shelf) -> Framework:
    """Norms of cuDNN in place of Transformer Engine's, as a row says or as was usual for its model.

    cuDNN builds its kernels for the width that it is asked for.
    """
    chip = shelf.chips.get(run.chip)
    narrow = run.precision.startswith(("fp8", "mxfp8"))
    models = entry.run.cudnn_norms_of.get(framework.fp8_scaling, ()) if narrow else ()
    usual = chip is not None and chip.name in entry.run.cudnn_norms_on
    if said(run, CUDNN_NORMS) or (usual and any(m in run.model.lower() for m in models)):
        return replace(framework, fused=replace(framework.fused, general_norms="absent"))
    return framework


def _reproducible(framework: Framework, run: Run) -> Framework:
    """Kernels that give the same bits in each run, as a row says.

    PyTorch's switch for them fills new tensors too; PaddlePaddle's does not.
    """
    if not said(run, REPRODUCIBLE):
        return framework
    megatron = framework.name.startswith(("megatron", "nemo"))
    spared = megatron and run.month >= FILLED_BEFORE
    fills = not spared and not framework.name.startswith("paddle")
    return replace(framework, ordered_attention=True, fills_tensors=fills)


REPRODUCIBLE = r"(use_)?deterministic[-_ ](kernel|mode|algorithm|training|attention)s?"
# NVIDIA/Megatron-LM pull request 7093.
FILLED_BEFORE = "2026-09"

CUDNN_NORMS = r"cuDNN'?s? (layer|rms)?[- ]?norms?\b|NVTE_NORM_(FWD|BWD)_USE_CUDNN\b"


def _recomputed(framework: Framework, run: Run) -> Framework:
    """What is computed again by name: Megatron's modules of latent attention, or all but attention.

    Up-projections come with what stands beside them: norms and activations as named. Hugging Face's
    checkpoints were reentrant ones, which run a layer to its end, and lie around the layers that
    FSDP wrapped: what recompute gathered is freed and gathered again (huggingface/transformers,
    trainer.py, warns of it; issue 30404).

    FlexAttention that is compiled by itself (pytorch/torchtitan, models/common/attention.py:
    wrap_inductor_compiled_regions) is one operator to a checkpoint that is not, whose results are
    all kept since pull request 2357 of February 2026 (distributed/activation_checkpoint.py:
    inductor_compiled_code); what its backward pass reads is one of them, inputs too, as a run of
    PyTorch 2.15 shows.
    """
    own = said(run, HF) and said(run, HF_CHECKPOINTS)
    hugging_face = run.month < STOPS_EARLY_SINCE and own
    if run.month >= STOPS_EARLY_SINCE and said(run, HF):
        framework = replace(framework, recompute_stops_early=True)
    titan = framework.name.startswith("torchtitan") and not framework.keeps_biased_products
    if titan and rx.search(r"Qwen-?3", run.model, re.I):
        # Until that pull request the list of its models had no exchange.
        framework = replace(framework, reruns_exchange=True)
    if framework.keeps_biased_products and not framework.fused.residual and by_flex_attention(run):
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


HF_CHECKPOINTS = (
    r"(HF|Hugging ?Face)('s)? (grad(ient)?[-_ ])?(checkpointing|ckpt)"
    r"|gradient[-_ ]checkpointing (of|by|via|through|from) (HF|Hugging)"
    # Its own name for it.
    r"|gradient_checkpointing(_enable)?\b(?![ =:\"']*(false|off|no)\b)"
)
# huggingface/transformers (modeling_utils.py: use_reentrant): True in release 4, False in 5, which
# is of January 2026.
STOPS_EARLY_SINCE = "2026-01"


def _mixed(framework: Framework, run: Run) -> Framework:
    """Automatic mixed precision: of torchtitan without FSDP, and over an embedding in 16 bits.

    Where nothing shards or cuts a model torchtitan computes under torch.autocast (its pull request
    1303 of June 2025: maybe_enable_amp; pull request 2458 of early 2026 ended that, and has FSDP's
    hooks in place of DDP's), and so does what kept that code, as a row says. The stream of
    activations is as wide as what the embedding gives.
    """
    whole = (run.tp or 1) * (run.pp or 1) * (run.cp or 1) == 1 and run.zero == "0"
    whole &= run.precision != "fp32" and not rx.search(FULLY_SHARDED, run.framework, re.I)
    then = AUTOCAST_SINCE <= run.month < REPLICATES_SINCE or said(run, r"autocast\b")
    if whole and then and framework.name.startswith("torchtitan"):
        narrow = NumberBytes(parameter=6, gradient=4, gradient_sent=4, optimizer=8)
        held = replace(framework.held, fp32_residual=True, bucket_copies=True)
        framework = replace(framework, casts_weights=True, bytes=narrow, held=held)
        framework = replace(framework, hooks_replicas=False)
    if said(run, AMP_O1) and framework.name.startswith(("nemo", "megatron")):
        narrow = NumberBytes(parameter=6, gradient=4, gradient_sent=4, optimizer=8)
        framework = replace(framework, casts_weights=True, bytes=narrow)
    by_script = framework.name in ("pytorch-ddp", "ddp-compiled") and not said(run, HF)
    named = replace(run, notes=f"{run.model}; {run.notes}")
    if said(named, NARROW_STREAM) or (by_script and said(run, NARROW_EMBEDDING)):
        framework = replace(framework, held=replace(framework.held, fp32_residual=False))
    return framework


# NVIDIA/NeMo, examples/nlp/language_modeling/conf/megatron_gpt_config.yaml: megatron_amp_O2 is off,
# so that weights of 32 bits are cast in each pass; its recipes set it.
AMP_O1 = r"AMP O1\b|megatron_amp_O2[ =:]*false\b"
AUTOCAST_SINCE = "2025-06"
REPLICATES_SINCE = "2026-04"
# karpathy/nanochat, nanochat/gpt.py: transformer.wte.to(dtype=torch.bfloat16), and autoresearch;
# openai/parameter-golf, train_gpt.py: all but its linear layers are.
NARROW_STREAM = (
    r"nanochat|autoresearch|parameter[- ]golf"
    r"|residual( stream)? ((is|was) )?((kept|held|stays) )?(in )?(bf16|16 bits)\b"
)
# Of a script that is nobody else's, not of positions.
NARROW_EMBEDDING = (
    r"(?<!rotary )(?<!position )(?<!positional )embedding (left |kept )?in (bf16|16 bits)\b"
    r"|(bf16|16-bit) (token )?embedding\b"
)
