"""Which operators ran as one kernel, and which kernel attention was, by the words of a row."""

import re
from dataclasses import replace

from autopar.framework import Fp8Scaling, Framework, Fused, OperandsAcross
from autopar.runs import rx
from autopar.runs.attention import by_flex_attention, kernel_words
from autopar.runs.joined import joined
from autopar.runs.rows import Run
from autopar.runs.said import HF, TAKEN_BACK, TRAINS_THEIRS, on, said
from autopar.runs.shelf import Shelf, chip_entry
from autopar.spec import Attention


def fused(framework: Framework, run: Run) -> Framework:
    """Operators in one kernel each.

    Liger-Kernel joins norms, rotary embeddings and activations, and so does Transformer Engine
    under PyTorch, whose layers pack projections and share key heads too. A fused Adam is Hugging
    Face's own since PyTorch 2.8. What a row lists as fused is each one.
    """
    one = framework.fused
    if framework.launch_us and said(run, OBSERVED):
        framework = replace(framework, launch_us=framework.launch_us + OBSERVED_US)
    if one.norm == "eager" and _layers_of_transformer_engine(run):
        framework = replace(framework, projections="packed", repeats_key_heads=False)
        one = replace(one, norm="fused", activation=True, gate=True, rope="by_token")
    if on(f"{run.framework}; {run.notes}", r"(?<![a-z])liger"):
        one = replace(one, norm="fused", activation=True, gate=True, rope="fused")
    if said(run, r"(triton|turbo) (layer|rms)?[- ]?norms?\b"):
        one = replace(one, general_norms="absent")
    added = False if rx.search(ADDED_APART, run.notes, re.I) else joined(run, "accumulation")
    if added is not None:
        one = replace(one, gradient_accumulation=added)
    if one.norm != "tuned" and joined(run, "norm"):
        one = replace(one, norm="fused")
    if joined(run, "activation"):
        # A kernel of bias and GELU takes no gate in.
        plain = said(run, r"(\w+[- ])?gelu\b") and not said(run, r"(swi-?glu|ge-?glu|activation)")
        one = replace(one, activation=True, gate=one.gate or not plain)
    if _tanh_of_gpt2(run):
        one = replace(one, gelu=False)
    if joined(run, "rope"):
        apex = framework.name.startswith(("megatron", "nemo"))
        one = replace(one, rope="by_token" if apex else "fused")
    if one.rope in ("eager", "separate", "compiled") and said(run, COMPLEX_ROTATION):
        one = replace(one, rope="complex")
    if framework.name.startswith("megatron-core") and rx.search(
        LOCAL_LAYERS, f"{run.framework}; {run.notes}", re.I
    ):
        one = replace(one, norm="native" if run.month >= NATIVE_NORM_SINCE else "eager")
        one = replace(one, rope="unfused")
    if said(run, NORMED_ROTATION):
        one = replace(one, normed_rotation=True)
    titan = framework.name.startswith("torchtitan")
    halves = rx.search(ROTATES_HALVES, run.model, re.I)
    if titan and one.rope == "complex" and halves:
        one = replace(one, rope="widened" if run.month >= WIDE_ROTATION_SINCE else "eager")
    elif titan and one.rope == "compiled" and not halves:
        one = replace(one, rope="complex")
    elif one.rope == "eager" and rx.search(r"\bOLMo", run.model, re.I):
        # allenai/OLMo, olmo/model.py (rope_full_precision) and Hugging Face's modeling_olmo.py cast
        # queries and keys to 32 bits and back.
        one = replace(one, rope="widened")
    one = _apart(_scripted(framework.name, one, run), run)
    if rx.search(ALL_APART, run.notes, re.I):
        framework = replace(framework, projections="apart")
    elif rx.search(GATE_APART, run.notes, re.I) or (
        framework.projections == "apart" and said(run, HEADS_PACKED)
    ):
        framework = replace(framework, projections="gate_apart")
    if said(run, JOINED_GRAPH):
        one = replace(one, activation=True, rope="compiled", optimizer="compiled")
    by_default = run.month >= FUSED_ADAM_SINCE and said(run, r"(HF|Hugging ?Face) Trainer|TRL\b")
    if by_default or said(run, FUSED_ADAM):
        apart = one.optimizer in ("separate", "by_tensor")
        one = replace(one, optimizer="native" if apart else one.optimizer)
    if rx.search(SEPARATE_ADAM, run.notes, re.I):
        one = replace(one, optimizer="separate")
    if rx.search(ADAM_BY_TENSOR, run.notes, re.I):
        one = replace(one, optimizer="by_tensor")
    if rx.search(UNCLIPPED, run.notes, re.I):
        framework = replace(framework, clips_gradients=False)
    if said(run, COMPILED_STEP):
        one = replace(one, optimizer="compiled")
    if said(run, GROUPED):
        one = replace(one, grouped_gemm=True)
    hugging_face = said(run, HF)
    if hugging_face and run.month >= HF_GROUPED_SINCE:
        one = replace(one, grouped_gemm=True)
    if rx.search(EXPERTS_IN_TURN, run.notes, re.I):
        one = replace(one, grouped_gemm=False, looped_gemm=False)
        sliced = run.month >= HF_GROUPED_SINCE or rx.search(SLICED_IN_RELEASE_4, run.model, re.I)
        framework = replace(framework, sliced_experts=bool(hugging_face and sliced))
    if said(run, ONE_KERNEL_FOR_EXPERTS):
        one = replace(one, grouped_gemm=True, looped_gemm=False)
    if said(run, QUANTIZED_MLP):
        one = replace(one, quantized_mlp=True)
    if rx.search(SORTS_TOKENS, run.model, re.I):
        framework = replace(framework, looks_up_tokens=False, sliced_experts=not one.grouped_gemm)
    if said(run, WIDE_EXPERTS):
        framework = replace(framework, wide_experts=True)
    if joined(run, "permutation") is False:
        one = replace(one, permutation=False)
    if said(run, EMBEDS_BY_PRODUCT):
        framework = replace(framework, embeds_by_product=True)
    framework = _tiled(framework, run)
    one = replace(one, router=_router(one.router, run))
    if rx.search(MX, run.precision, re.I) or said(run, rf"{MX}\b"):
        framework = _in_blocks(framework, run)
    elif framework.fp8_scaling in ("delayed", "current"):
        told = (scaling for scaling, words in SCALINGS.items() if said(run, words))
        framework = replace(framework, fp8_scaling=next(told, framework.fp8_scaling))
        if framework.fp8_scaling == "block" and framework.name.startswith("megatron-bridge"):
            framework = _kept_in_16_bits(framework)
    if said(run, r"lumen\b") and framework.fp8_scaling in ("delayed", "current"):
        across = OperandsAcross(input_gradient=1, weight_gradient=2)
        if not said(run, ONE_FORMAT):
            across = OperandsAcross(weight_gradient=1)
        framework = replace(framework, operands_across=across)
    return replace(framework, fused=one)


def _layers_of_transformer_engine(run: Run) -> bool:
    """Whether layers are those of Transformer Engine, not its attention, loss or recipes alone.

    Hugging Face's models beside it have its linear layers, and their own norms and activations.
    """
    named = rx.search(
        rf"{TAKEN_BACK}{ENGINE}(?! (attention|attn|fp8|cross|off))", run.framework, re.I
    )
    named = named if not said(run, HF) else None
    return bool(
        named or said(run, rf"with {ENGINE}|{ENGINE}('s)?[ .]({LAYERS})|layers of {ENGINE}")
    )


# Weight gradients that a product does not add to the stored ones.
ADDED_APART = r"\bgradients not added by (the )?products\b"
ENGINE = r"(TE|Transformer[- ]?Engine)\b"
LAYERS = r"(transformer[- ]?)?(layers?|modules?|blocks?)\b"
COMPLEX_ROTATION = r"complex (rotary|RoPE|rotations?)\b|(rotary|RoPE)\b[^;.]{0,25}\bcomplex\b"
# NVIDIA/Megatron-LM, gpt_layer_specs.py: without Transformer Engine or Apex, whose kernels join
# norms and rotations, norms are torch.nn's; that is one kernel since PyTorch 2.9.
LOCAL_LAYERS = r"\blocal (\([^)]*\) )?(layers|spec)\b|transformer[-_ ]impl[ =:]*local\b"
NATIVE_NORM_SINCE = "2025-10"
FUSED_ADAM = (
    r"fused[-_ ]?((torch|pytorch|apex) )?(adamw?|optimi[sz]er)\b"
    r"|adamw?[-_a-z]*( states| moments| m/v)?[ ,]?\(?(is |was )?(fused|fused=true)\b(?!=)"
    r"|adamw?[ (:]+fused ?= ?true|fused ?= ?true,? adamw?|adamw?_torch_fused|adamw?_is_fused: true"
    r"|8-?bit adam"
)
SEPARATE_ADAM = (
    r"\b(no|not|without|non)[- ]fused ?(adamw?|optimi[sz]er)\b|\bunfused (adamw?|optimi[sz]er)\b"
    r"|\b(adamw?|optimi[sz]er)( (is|was|steps?))*[ (:]*(not fused|unfused|in separate operators)"
)
CLIPPING = r"(gradient|grad)[- _]?(norm[- _]?)?clip(ping)?|clip[-_ ]?grad(ients?)?([-_ ]norm_?)?"
UNCLIPPED = (
    rf"\b(no|without|lacks?|never) ({CLIPPING})\b"
    rf"|\b({CLIPPING})[ =:]*((is|was|are|were|set|turned|to) )*"
    r"(off|none|disabled|commented out|not (used|applied|set)|0(\.0*)?(?![\d.]*\d))(?!\w)"
)
# pytorch/pytorch, torch/optim/adamw.py: only if neither fused nor foreach is given does it choose.
ADAM_BY_TENSOR = (
    r"\b(for-?loop|foreach ?= ?false|single-tensor) adamw?\b"
    r"|\badamw?\b[^;.]{0,40}\b(foreach ?= ?false|(parameter|tensor) by (parameter|tensor))\b"
    r"|\badamw?[^;.]{0,12}\bfused ?[=:] ?false\b"
)
# A whole step under a compiler, the optimizer's with the passes.
COMPILED_STEP = (
    r"(torch[._ ])?compil(ed?|ation|ing) (of )?(the )?((whole|full|entire) )?(train(ing)?[- _])?"
    r"step\b"
    r"|(whole|full|entire) (train(ing)? )?step (is |was )?(torch\.)?(compiled|jitted)\b"
)
GROUPED = r"(moe[-_])?grouped[- _]?(gemm|mm|matmul|products?)\b"
MX = r"(mx-?fp8|fp8[-_ ]mx|mx[- ]?float8)"
_GATE, _UP = r"(gate|w1)([-_ ]proj)?", r"(up|w[23])([-_ ]proj(ection)?s?)?"
GATE_APART = (
    rf"\b{_GATE}( and | ?/ ?| ?& ?|\+){_UP}( (=|is|are|as|run|kept|left|in|two|separately))* "
    r"(apart|separate(ly)?|(two|separate|2) (gemms?|products?|matmuls?|linears?|calls)"
    r"|not (fused|merged|packed|joined))\b"
    rf"|\b(separate|unmerged|unpacked) {_GATE}( and | ?/ ?| ?& ?|\+){_UP}"
)
_HEADS = r"\bq(kv|( ?/ ?|, )k( ?/ ?|,? and |, )v)"
ALL_APART = (
    rf"\b(separate|unmerged|unpacked) {_HEADS}\b|{_HEADS}( projections?)? (is |are |kept |left )*"
    r"(apart|separate|not (fused|merged|packed))\b"
    r"|\bprojections (are |left |kept )?(apart|separate)\b"
)


# Lightning-AI/litgpt, litgpt/model.py: queries, keys and values are one linear layer, gate and up
# two.
HEADS_PACKED = (
    r"(fused|packed|merged|combined) w?qkv\b(?!([ -]\w+)? ?(rope|rotary|norms?)\b)"
    r"|w?qkv (projections? )?(is |are )?(packed|fused|merged)\b|lit-?gpt\b"
)

# Lumen transposes weights and the output's gradient where that has a format of its own, and nothing
# where all are e4m3 (ZhangDanyang-AMD/Lumen, lumen/ops/quantize/linear.py: gemm_per_tensor_mixed,
# gemm_wgrad_mixed, _gemm_wgrad_hipblas).
ONE_FORMAT = r"e4m3 (both ways|fwd ?[+/&] ?bwd|forward and backward)\b"

# Transformer Engine's kernels of experts' products with what is beside them, in MXFP8
# (NVTE_CUTEDSL_FUSED_GROUPED_MLP).
QUANTIZED_MLP = (
    r"fused grouped MLP\b|cute-?dsl[ _]fused[ _]grouped[ _]mlp\b"
    r"|grouped MLP \(?((by|in|with|via) )?cute[- ]?dsl\b"
    # NVIDIA/Megatron-LM arguments: --use-transformer-engine-op-fuser, which joins what it can.
    r"|(TE|Transformer ?Engine)('s)? (ops|operations|op[- ]fuser)\b"
    r"|use[-_]transformer[-_]engine[-_]op[-_]fuser\b"
)

# Recipes of Transformer Engine and of pytorch/ao, as Megatron-LM's --fp8-recipe and rows name them.
SCALINGS: dict[Fp8Scaling, str] = {
    "delayed": r"(delayed ?(tensor )?scal(ing|es)|fp8[-_ ]recipe[ =:]+delayed|fp8[-_ ]ds)\b",
    "current": r"((Float8)?current ?scaling|dynamic scaling|tensor-?wise|fp8[-_ ]cs)\b",
    # Checkpoints and FSDP may be by blocks too, of layers.
    "block": r"(fp8|float8|8-bit)[-_ ](recipe[ =:]+)?block-?wise\b(?! (act|check|recomp|wrap))"
    r"|block-?wise[- ](fp8|float8|8-bit|scal(ing|es)|recipe|quanti\w+)\b"
    r"|(Float8)?block[- ]?scaling\b",
}


# A mode of PyTorch that counts operations takes every operator through Python, in each pass: 27 us
# more of the host (torch.utils.flop_counter under PyTorch 2.15, timed on a processor of a cloud: 29
# us where an operator alone took 2 to 4).
OBSERVED = (
    r"(operations|FLOPs)( (are|were))? (counted )?(by|with|from|through) (an? |the )?"
    r"(op(erator)?s?|torch|flop)\b[- ]?(count(er|ing))?|flop[-_ ]?counter([-_ ]?mode)?\b"
    r"|FLOPs op-counted\b"
)
OBSERVED_US = 27.0


def grouped(framework: Framework, run: Run, shelf: Shelf) -> Framework:
    """PyTorch's own grouped product, which is a loop where its chip has no kernel for it.

    One was written for compute capability 9 and 10. On other chips by NVIDIA the host reads how
    many rows each group has and launches a product for each (pytorch/pytorch, native/cuda/
    GroupedBlas.cpp: _grouped_mm_cuda; native/GroupedMMUtils.h: _grouped_mm_fallback; issue 186620).
    """
    own = framework.name.startswith(GROUPS_BY_PYTORCH) and framework.fused.grouped_gemm
    found = shelf.chips.get(run.chip)
    if not own or not found or said(run, ONE_KERNEL_FOR_EXPERTS):
        return framework
    chip = chip_entry(found.name, shelf)
    if chip.vendor != "NVIDIA" or chip.architecture == "hopper":
        return framework
    if chip.architecture == "blackwell" and not chip.chip.name.startswith("rtx"):
        return framework
    return replace(framework, fused=replace(framework.fused, looped_gemm=True))


GROUPS_BY_PYTORCH = (
    "torchtitan",
    "fsdp",
    "pytorch-ddp",
    "ddp-compiled",
    "kempnerforge",
    "prime-rl",
)


# pytorch/torchtitan: models of Qwen3 and gpt-oss rotate halves of a head, in 32 bits since pull
# request 2575 of March 2026; its others turn neighbouring channels as complex numbers, which no
# compiler joins ("Torchinductor does not support code generation for complex operators", as it
# warns; the product's own kernel takes its time in a compiled Llama of 0.2.2 under PyTorch 2.11).
ROTATES_HALVES = r"qwen|gpt-?oss"
WIDE_ROTATION_SINCE = "2026-04"


def _tanh_of_gpt2(run: Run) -> bool:
    """Whether Hugging Face's GPT-2, GPT-J or GPT-Neo, or minGPT, computed GELU term by term.

    They call it `gelu_new` and, since the latter was rewritten in July 2022, NewGELU
    (karpathy/minGPT, mingpt/model.py).
    """
    if rx.search(r"\bmin-?gpt\b", f"{run.framework} {run.model}", re.I):
        return run.month >= "2022-07"
    return bool(said(run, HF) and rx.search(r"\bgpt-?(2|j|neo)\b", run.model, re.I))


def _tiled(framework: Framework, run: Run) -> Framework:
    """Tiles of grouped products on TPUs: as a row tells, none without a kernel for them.

    Tokamax takes those of its table (openxla/tokamax, ragged_dot/pallas_mosaic_tpu.py), which
    divide the widths, as who tunes them has them do.
    """
    if not framework.grouped_tile_rows:
        return framework
    if rx.search(NO_GROUPED_KERNEL, run.notes, re.I):
        return replace(framework, grouped_tile_rows=0, grouped_tile_width=0)
    if told := rx.search(r"\btiles of (\d+) rows", run.notes, re.I):
        framework = replace(framework, grouped_tile_rows=int(told[1]))
    if said(
        run, r"tuned tiles?\b|til(es?|ing)( sizes?)? ((is|are|were|was) )?tuned\b|tokamax gmm\b"
    ):
        framework = replace(framework, grouped_tile_width=0)
    return framework


NO_GROUPED_KERNEL = r"\bno grouped kernels?\b"


def _router(usual: bool, run: Run) -> bool:
    """Whether a router was fused: as a row says, and in no recipe of a library, else as usual."""
    told = joined(run, "router")
    if told is not None:
        return told
    if said(run, SYNC_FREE):
        return True
    return usual and not said(run, LIBRARY_RECIPE)


def _in_blocks(framework: Framework, run: Run) -> Framework:
    """MXFP8: a scale is of a block, and parameters travel in 16 bits, as they are cast afterwards.

    NVIDIA/Megatron-LM from core_v0.14 on (distributed_data_parallel.py, start_param_sync: they are
    cast "from bf16 to MXFP8 during copy"), where it does not shard them itself. The scripts of NeMo
    gather them after the passes then (NVIDIA/NeMo, scripts/performance/helpers.py of 2.4 to 2.7).
    """
    gathers, overlap = framework.eight_bit_gathers, framework.overlap
    if not run.shards_parameters:
        gathers = replace(gathers, parameters=False)
        if rx.match(r"NeMo\b", run.framework, re.I):
            overlap = replace(overlap, parameter_gather=False)
    return replace(framework, fp8_scaling="block", eight_bit_gathers=gathers, overlap=overlap)


def _kept_in_16_bits(framework: Framework) -> Framework:
    """Parameters under scales of blocks, of which Megatron-Bridge's recipe keeps no casts.

    src/megatron/bridge/training/mixed_precision.py, bf16_with_fp8_subchannel_scaling_mixed:
    fp8_param_gather=False.
    """
    gathers = replace(framework.eight_bit_gathers, parameters=False)
    held = replace(framework.held, narrow_weights=False)
    return replace(framework, eight_bit_gathers=gathers, held=held)


def _scripted(name: str, one: Fused, run: Run) -> Fused:
    """Kernels that TorchScript made, under a PyTorch that makes none of it.

    Megatron-LM before its core chose a compiler joined bias and GELU, and bias, dropout and
    addition, by torch.jit.script and nvFuser (megatron/model/fused_bias_gelu.py, transformer.py;
    initialize.py: set_jit_fusion_options). PyTorch 2.2 has that switch do nothing and no other
    fuser is left on (pytorch/pytorch pull request 110124; torch/csrc/jit/python/init.cpp:
    _jit_set_nvfuser_enabled), so that each operation, the terms of GELU too, is a kernel.
    """
    if name not in SCRIPTED:
        return one
    version = rx.search(r"\bPyTorch (\d+)\.(\d+)", f"{run.framework} {run.notes}")
    joins = (
        (int(version[1]), int(version[2])) < (2, 2) if version else run.month < SCRIPTS_APART_SINCE
    )
    return (
        one
        if joins
        else replace(one, activation=False, gelu=False, gelu_again=True, residual=False)
    )


# Profiles whose code calls torch.jit.script itself (NVIDIA/Megatron-LM until 473225f9 of 19 January
# 2024: "Add jit_fuser to switch between torch.jit.script and torch.compile"; its forks since).
SCRIPTED = ("megatron-2022", "megatron-deepspeed", "megatron-deepspeed-bf16", "gpt-neox")
# The month after PyTorch 2.2 came out, of 30 January 2024.
SCRIPTS_APART_SINCE = "2024-03"


def _apart(one: Fused, run: Run) -> Fused:
    """What a script leaves in separate operators, and a softmax that it fuses alone."""
    if joined(run, "activation") is False:
        one = replace(one, activation=False)
    if joined(run, "rope") is False:
        one = replace(one, rope="eager")
    if joined(run, "norm") is False:
        one = replace(one, norm="eager")
    residual, softmax = joined(run, "residual"), joined(run, "softmax")
    if residual is not None:
        one = replace(one, residual=residual)
    return one if softmax is None else replace(one, softmax="fused" if softmax else "separate")


def listed_kernels(run: Run) -> str:
    """Returns what a row lists as fused kernels."""
    found = said(run, r"fused (?:triton )?kernels? (?:\((?P<listed>[^)]*)\)|for (?P<named>[^;]*))")
    return found["listed"] or found["named"] if found else ""


# One kernel for all experts, not a product each: AMD-AGI/Primus, technical guide of MoE training;
# shawntan/scattermoe (arXiv:2403.08245); databricks/megablocks (arXiv:2211.15841).
ONE_KERNEL_FOR_EXPERTS = (
    r"turbo[-_ ]grouped[- _]?gemm|grouped[- _]?gemm( of| by| from|:| =|=)+ ?(flydsl|turbo)"
    r"|flydsl('s)? grouped[- _]?gemm|scattermoe\b|megablocks\b"
)

# MindSpore joins elementwise operators in kernels of its own at this level (mindspore.cn, jit_level
# of JitConfig: graph kernel fusion), not below it.
JOINED_GRAPH = r"((jit|graph)[ _]level|graph mode)[ =:]+O1\b"

# Megatron's grouped products before those of Transformer Engine (megatron/core/transformer/moe/
# experts.py of core 0.12: GroupedMLP) know 16 bits alone.
WIDE_EXPERTS = (
    r"(moe_use_)?legacy[-_ ]grouped[- _]?gemm"
    r"|\bexperts( and head|' products)? (in )?(bf16|16 bits)\b"
)

# huggingface/transformers since release 5: experts are slices of one parameter, by default read by
# one grouped product (modeling_utils.py: get_correct_experts_implementation). Before, gpt-oss and
# Llama 4 alone had such parameters.
HF_GROUPED_SINCE = "2026-01"
SLICED_IN_RELEASE_4 = r"gpt-?oss|llama-?4"
EXPERTS_IN_TURN = (
    r"\bexperts?\b( \([^)]*\))?( (are|is|were|run|runs|ran|computed|processed|executed))*"
    r" (one (after (an|the )other|by one|at a time)|sequentially|serially|in turn"
    r"|in a ((python|for|sequential|serial)[- ]?)*loop)\b"
    r"|\b((python|for)[- ]?)*loops? over (the |all )?experts\b"
    r"|\b((python|HF|for)[- ]?)+experts? loops?\b"
    r"|\bloop(ed)? experts\b|\bSequentialMLP\b"
    r"|\b(no|without|w/o) (--)?(moe[-_])?grouped[-_ ]?(product|gemm|mm|matmul)"
    r"|\b(moe[-_])?grouped[-_ ]?(gemm|mm|matmul)( flag| option)?[ =:]*((is|was) )?"
    r"(off|false|missing|absent|disabled|not (used|set|passed))\b"
    r"|\bexperts_implementation[ =:\"']+eager\b"
)

# Models whose code sorts tokens and splits them between experts, under a loop too, each a slice of
# one parameter (huggingface/transformers, modeling_granitemoe.py: GraniteMoeParallelExperts,
# F.linear(input_list[i], self.weight[i])), as ibm/PowerMoE-3b is made of.
SORTS_TOKENS = r"\b(granite|power)[- ]?moe"

# NVIDIA/Megatron-LM arguments: --moe-router-fusion, off by default, needs Transformer Engine 2.7.
# AMD-AGI/Primus fuses it in each stage of its MoE without waits (_get_sync_free_moe_options).
SYNC_FREE = r"(turbo[-_ ])?sync[-_ ]free[-_ ]MoE"
# NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/recipes: moe_router_fusion is False.
LIBRARY_RECIPE = r"(library|pretrain|default|stock|shipped) recipes?\b|\w+_pretrain(_config\w*)?\b"

# axolotl-ai-cloud/axolotl pull request 3680, AMD-AGI/Primus-Turbo: one kernel for both.
NORMED_ROTATION = (
    r"fused_attn_kernel\b"
    r"|fused (QK|q/k|query[-/ ]key)[- ](RMS)?[- ]?norms? (and|with|\+) (RoPE|rotary)\b"
    r"|(QK|q/k|query[-/ ]key)[- ](RMS)?[- ]?norms? (and|with|\+) (RoPE|rotary( positions)?)"
    r"( (are|is|were|was))? fused\b"
)

# huggingface/transformers (training_args.py: default_optim) takes PyTorch's fused AdamW where that
# is 2.8 or later, of August 2025.
FUSED_ADAM_SINCE = "2025-08"


def attended(framework: Framework, run: Run, attention: Attention) -> Framework:
    """The kernels of attention that a row names, else of its time under a profile of none."""
    kernels = framework.attention_kernels
    words = "" if "grug-fa4" in kernels else f"{run.framework} {run.attention} {run.notes}"
    if release := rx.search(FLASH_RELEASE, words, re.I):
        kernels = KERNELS[next(filter(None, release.groups()))] + kernels
    if rx.search(WITHOUT_CUDNN, run.notes, re.I):
        kernels = tuple(one for one in kernels if not one.startswith("cudnn"))
    if said(run, WIDE_SUMS):
        kernels = tuple(one for one in kernels if one != "aiter-a16")
    if said(run, COMPOSABLE):
        kernels = ("fa2", *(one for one in kernels if not one.startswith("aiter")))
    elif said(run, AITER):
        if said(run, NARROW_SUMS):
            kernels = ("aiter-a16", *kernels)
        own = tuple(one for one in kernels if one.startswith("aiter")) or ("aiter",)
        others = (one for one in kernels if one not in own)
        kernels = (*own, *(one for one in others if not one.startswith("aotriton")))
    if by_flex_attention(run):
        kernels = ("flex", *kernels)
    if said(run, TRITON) and rx.search(r"\blumen\b", run.framework, re.I):
        kernels = ("lumen-triton", *kernels)
    if rx.search(PALLAS if run.attention == "" else r"\bpallas\b", kernel_words(run), re.I):
        kernels = ("pallas", *kernels)
    if rx.search(r"\bsplash\b", f"{run.attention} {run.notes}", re.I):
        kernels = tuple(k for k in kernels if k != "tpu-flash")
    if blocks := rx.search(SPLASH_BLOCKS, f"{run.attention} {run.notes}", re.I):
        rows = next(filter(None, blocks.groups()))
        framework = replace(framework, attention_block=int(rows))
        timed = f"splash-{rows}"
        kernels = tuple(k for k in kernels if k == timed or not k.startswith("splash-"))
    if rx.search(rf"{TAKEN_BACK}sdpa\b", run.attention or run.notes, re.I) and _masked(run):
        faster = ("cudnn_masked",) if "cudnn" in kernels else ()
        kernels = (*faster, "efficient_masked", "npu_masked", *kernels)
    framework = _key_heads(framework, run, attention)
    if said(run, GATHERED_ROWS) and framework.attention_layouts == 0:
        framework = replace(framework, attention_layouts=1)
    if attention == "flash" and not framework.attention_kernels:
        first = KERNELS["1"] if run.month < SECOND_FLASH else ()
        kernels = (*kernels, *first, "fa2")
    return replace(framework, attention_kernels=kernels)


# NVIDIA/TransformerEngine, attention backends: NVTE_FUSED_ATTN=0 leaves FlashAttention.
WITHOUT_CUDNN = r"\bNVTE_FUSED_ATTN ?[=:] ?0\b"
# Dao-AILab/flash-attention, flash_attn/bert_padding.py: queries, keys and values are gathered to a
# batch without padding, and the result is scattered back, though a mask leaves nothing out.
GATHERED_ROWS = r"unpad_input\b"


def _key_heads(framework: Framework, run: Run, attention: Attention) -> Framework:
    """Whether Hugging Face's models repeat key heads to all query heads before attention.

    For scores that are stored they do; for PyTorch's own attention before release 4.55 of August
    2025, and with a mask since (integrations/sdpa_attention.py: use_gqa_in_sdpa). For the package
    flash-attn Llama and Granite never did, Mistral, Mixtral and Qwen2 before release 4.48 of
    January 2025 (modeling_mistral.py of 4.46: MistralFlashAttention2). FlexAttention takes
    fewer key heads itself (integrations/flex_attention.py: enable_gqa).
    """
    if said(run, r"key heads repeated\b"):
        return replace(framework, repeats_key_heads=True)
    if said(run, HF) and by_flex_attention(run):
        return replace(framework, repeats_key_heads=False)
    own = framework.name.startswith(("fsdp", "pytorch-ddp", "ddp-compiled", "deepspeed"))
    if not (own and said(run, HF)) or framework.projections != "apart":
        return framework
    if attention == "unfused":
        repeats = True
    elif rx.search(rf"{TAKEN_BACK}(flash|fa[ -]?v?[1234]\b)", run.attention or run.notes, re.I):
        repeats = run.month < "2025-01" and bool(rx.search(REPEATED_FOR_FLASH, run.model, re.I))
    else:
        repeats = run.month < "2025-08" or _masked(run)
    return replace(framework, repeats_key_heads=repeats)


REPEATED_FOR_FLASH = r"mistral|mixtral|qwen-?2"
# AI-Hypercomputer/maxtext, layers/embeddings.py: tokens, compared with an iota, times the table.
EMBEDS_BY_PRODUCT = r"use_iota_embed\b"


def _masked(run: Run) -> bool:
    """Whether attention's mask is a tensor, as Hugging Face's models make one of what is padded.

    PyTorch's own attention takes FlashAttention for none, cuDNN where that is preferred, else a
    slower kernel, which skips nothing (pytorch/pytorch, sdp_utils_cpp.h: check_for_attn_mask;
    huggingface/transformers, masking_utils.py). For a while its Llama and what was written after
    that made one for every batch; layers with a window have one (_ignore_causal_mask_sdpa there:
    local_attention_size), as five of six in Gemma 3.
    """
    padded = (
        r"(right-|left-)?pad(s|ded|ding)?(( or |/)(cut|truncated))?( [\w-]+){0,2} (up )?(to|at)"
        r" (the )?(full|longest|max|\d{3,})"
    )
    always = run.month in ALWAYS_MASKED and rx.search(ALWAYS_MASKED_MODELS, run.model, re.I)
    windowed = (run.seq_len or 0) > 1024 and rx.search(r"\bgemma-?3\b", run.model, re.I)
    if said(run, f"{HF}|{TRAINS_THEIRS}") and (always or windowed or said(run, padded)):
        return True
    return bool(said(run, rf"padded\b[^;]*\bwith masks?\b|{DENSE_MASK}|{PADDING_MASK}"))


PADDING_MASK = (
    r"SDPA (with|under) (an? |the )?(explicit|padding|attention|dense) masks?\b"
    r"|(right-|left-)?pad(s|ded|ding)\b[^;]*\b(with|under|pass(es|ing|ed)|giv(es|ing)|plus|and) "
    r"(an? |the |its )?(attention|padding|explicit) masks?\b"
)
DENSE_MASK = r"masks? (is|are) (a )?dense tensors?\b(?![^;]*\b(only|baselines?|others?)\b)"


# Releases 4.38 to 4.40 of huggingface/transformers, 21 February to 17 May 2024: issue 30010, pull
# requests 30070 (undone by 30314 before 4.40) and 30317.
ALWAYS_MASKED = ("2024-03", "2024-04", "2024-05")
ALWAYS_MASKED_MODELS = r"llama|gemma|command-?r|olmo"


# FlashAttention-2 (arXiv:2307.08691) is of July 2023. FlashAttention-4 has no rates of its own
# here; its authors' are close to cuDNN's of the time.
SECOND_FLASH = "2023-07"
# AI-Hypercomputer/maxtext: sa_block_q and its kin. A kernel's name has the blocks it was timed in.
SPLASH_BLOCKS = (
    r"\bsplash\b[\w ]*?(?:[,:;(])? ?(?:(?:in|with|of|tuned) )*(?:"
    r"block(?:s|[-_ ]?sizes?)?(?: of| =|:|=)? ?(\d{3,})|(\d{3,})[- ](?:wide )?blocks?)"
    r"|\bsa_block_q(?:_dkv)?[ =:\"']+(\d{3,})"
)
FLASH_RELEASE = (
    rf"{TAKEN_BACK}(?:fa|(?:use[-_ ])?flash[-_ ]?att(?:entio)?n)"
    r"(?:[-_ ]*\(?(?:v|version |==)?([1-4])(?:\.\d[\d.]*)?\b|[^;.,]{0,8}\(v([1-4])\b"
    r"|=([1-4])\.\d)"
)
PALLAS = (
    r"\bpallas\b[\w ]*\bflash|\bflash[\w ]*\(pallas\b|\bpallas att"
    r"|\bflash[- ]?att\w* (kernels? )?(is |are )?(in|of|by|from|written in) pallas\b"
)
# Primus takes AITER's kernels under each of its frameworks, torchtitan too (AMD-AGI/Primus,
# examples/torchtitan/configs: use_turbo_attention). The third version of Transformer Engine's
# composable kernels is theirs too (ROCm/TransformerEngine: NVTE_CK_USES_BWD_V3).
AITER = r"(aiter|primus|(composable kernels?|ck) v3)\b"
# Its second version, with that switched off.
COMPOSABLE = r"(composable kernels?|ck) v2\b"
# Its backward pass that adds up the queries' gradient in 16 bits (fmha_bwd_..._a16).
NARROW_SUMS = r"aiter\W{0,3}a16\b"
# Lumen's own kernel, its default until September 2026 (ZhangDanyang-AMD/Lumen@ba4d359).
TRITON = r"(triton (flash[- ]?)?attention|attention in triton)\b"
# And in 32 bits, as Lumen calls it (ROCm/aiter, aiter/ops/mha.py: flash_attn_func).
WIDE_SUMS = r"aiter\W{0,3}a32\b|\blumen\b"
KERNELS = {"1": ("fa1",), "2": ("fa2",), "3": ("fa3",), "4": ("cudnn",)}
