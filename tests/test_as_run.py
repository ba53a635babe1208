"""What the words of a row say of its framework."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from autopar.framework import Framework, Graphs
from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf
from stated import run_of


def test_the_width_of_moments_is_read_from_words(shelf: Shelf) -> None:
    def said(notes: str, framework: str = "Megatron-Core") -> int:
        run = run_of(notes=notes, framework=framework)
        return setup(run, shelf).problem.framework.bytes.optimizer

    # A 32-bit copy and two moments of 32, 16 or 8 bits.
    assert said("") == 12
    assert said("moments in 16 bits") == said("bf16 moments") == 8
    assert said("8-bit Adam") == 6
    # torchtune's have 16 bits as it is, and no copy.
    assert said("", "torchtune") == said("bf16 moments", "torchtune") == 4
    assert said("8-bit Adam", "torchtune") == 2
    # Two moments of 16 bits and a copy as wide, DeepSpeed's; and no copy.
    assert said("bf16 weights and AdamW states, bf16_master_weights_and_grads", "DeepSpeed") == 6
    assert said("bf16 weights and AdamW states") == said("pure bf16") == 4


def test_gradients_in_16_bits_may_be_added_to_wider_sums(shelf: Shelf) -> None:
    def said(notes: str, framework: str) -> tuple[int, int]:
        stored = setup(run_of(notes=notes, framework=framework), shelf).problem.framework.bytes
        return stored.gradient, stored.gradient_sent

    assert said("", "Megatron-Core") == (4, 4)
    assert said("gradients reduced in bf16", "Megatron-Core") == (2, 2)
    # DeepSpeed's bf16 optimizer: 16 bits, and 32 of the sum.
    assert said("", "GPT-NeoX") == (6, 4)
    assert said("gradients reduced in bf16", "GPT-NeoX") == (6, 2)


def test_what_a_process_has_for_the_optimizer_on_the_host_is_read_from_words(
    shelf: Shelf,
) -> None:
    def said(notes: str, framework: str = "DeepSpeed") -> tuple[int, bool]:
        offload = setup(run_of(notes=notes, framework=framework), shelf).problem.framework.offload
        return offload.threads, offload.pinned

    assert said("") == (1, False)
    assert said("offload of the optimizer, 26 threads, pinned memory") == (26, True)
    assert said("", "Megatron-DeepSpeed") == (0, False)
    assert said("offload of the optimizer by 1 thread of a rank", "Megatron-DeepSpeed")[0] == 1


def test_one_rank_keeps_a_stage_that_sends_gradients_to_the_host(shelf: Shelf) -> None:
    def stage(notes: str, framework: str = "DeepSpeed") -> int:
        run = run_of(notes=notes, framework=framework, zero="3", dp="1", tp="1", gpus="1")
        return setup(run, shelf).plan.zero

    assert stage("") == stage("optimizer in host memory", "FSDP2") == 0
    assert stage("optimizer in host memory") == 3


def test_plain_linear_layers_keep_gathered_weights_where_nothing_is_computed_again(
    shelf: Shelf,
) -> None:
    def live(notes: str, recompute: str = "none") -> int:
        run = run_of(notes=notes, framework="DeepSpeed", recompute=recompute)
        return setup(run, shelf).problem.framework.held.live_parameters

    assert live("") == live("memory_efficient_linear off", "full") == 10**9
    assert live("memory_efficient_linear off") > 10**12
    assert live("stage3_max_live_parameters 100000") == 10**5


def test_the_host_s_part_follows_what_is_said_of_graphs(shelf: Shelf) -> None:
    def said(notes: str, framework: str = "Megatron-Bridge") -> float:
        run = run_of(framework=framework, notes=notes, date="2026-07")
        return setup(run, shelf).problem.framework.launch_us

    assert said("CUDA graph of the whole iteration") == 0.0
    assert said("MXFP8") == 0.0  # the recipes of that time replay a step as one graph
    assert said("MXFP8, no CUDA graphs") == said("MXFP8, CUDA graphs of attention") == said("")
    assert said("MXFP8, partial CUDA graphs") == said("MXFP8, TE graphs of router") == said("")
    assert said("") > 0.0
    # What compiles a step to one program has no graphs to lose.
    assert said("no CUDA graphs", "MaxText") == 0.0


def test_a_graph_level_joins_elementwise_operators(shelf: Shelf) -> None:
    def said(notes: str) -> tuple[bool, str]:
        run = run_of(framework="MindFormers", notes=notes, chip="910B")
        fused = setup(run, shelf).problem.framework.fused
        return fused.activation, fused.rope

    assert said("jit level O0") == said("jit level O2") == said("") == (False, "separate")
    assert said("jit level O1") == said("full recompute; graph level O1") == (True, "compiled")


def test_hugging_face_computes_gelu_of_gpt2_term_by_term(shelf: Shelf) -> None:
    def one_operator(model: str, framework: str = "Hugging Face, PyTorch") -> bool:
        run = run_of(framework=framework, model=model, gated_mlp="0")
        return setup(run, shelf).problem.framework.fused.gelu

    assert not one_operator("GPT-2 1.5B")
    assert not one_operator("GPT-J-6B")
    assert one_operator("GPT-NeoX-20B")
    assert one_operator("Falcon-7B")
    assert one_operator("GPT-2 1.5B", "nanoGPT, no torch.compile")


def test_mingpt_computes_gelu_term_by_term_since_it_was_rewritten(shelf: Shelf) -> None:
    def one_operator(date: str) -> bool:
        run = run_of(framework="FSDP with minGPT", model="GPT 3B", gated_mlp="0", date=date)
        return setup(run, shelf).problem.framework.fused.gelu

    assert one_operator("2022-03")
    assert not one_operator("2022-10")


def test_autocast_has_powers_in_32_bits(shelf: Shelf) -> None:
    def wide(framework: str, notes: str = "") -> bool:
        run = run_of(framework=framework, model="GPT-2", gated_mlp="0", zero="", notes=notes)
        return setup(run, shelf).problem.framework.fused.gelu_in_fp32

    assert wide("HF Trainer DDP")
    assert not wide("HF Trainer DDP", "states all in bf16")
    assert not wide("Hugging Face FSDP")
    assert wide("Hugging Face FSDP", "FSDP in fp16 under autocast")


def test_layers_written_for_a_rank_s_share_have_no_distributed_tensors(shelf: Shelf) -> None:
    def said(framework: str, date: str = "2025-12") -> float:
        run = run_of(framework=framework, date=date, tp=2)
        return setup(run, shelf).problem.framework.distributed_tensor_us

    assert said("torchtitan (eager)") > said("FSDP2") > 0.0
    assert said("torchtitan (eager)", "2026-05") < said("torchtitan (eager)")
    assert said("FSDP2, no DTensor") == said("torchtitan, torch.compile") == said("Megatron") == 0.0


def test_what_a_script_leaves_open_is_read_from_words(shelf: Shelf) -> None:
    def said(notes: str) -> tuple[bool, bool, str, str, bool]:
        run = run_of(framework="Megatron-Core", notes=notes, date="2025-06")
        used = setup(run, shelf).problem.framework
        hidden = used.overlap.gradient_reduce, used.overlap.parameter_gather
        return (*hidden, used.context_exchange, used.fused.rope, used.overlap.expert)

    assert said("") == (True, True, "ring", "fused", False)
    assert said("no overlap of gradients or parameters")[:2] == (False, False)
    assert said("overlap of gradients and parameters")[:2] == (True, True)
    assert said("overlapped distributed optimizer")[:2] == (True, True)
    assert said("cp_comm_type a2a")[2] == "heads"
    assert said("rotary embedding not fused")[3] == "eager"
    assert said("overlap_moe_expert_parallel_comm")[4]
    assert said("expert overlap")[4]
    assert not said("expert overlap off")[4]
    assert said("all-to-all overlapped")[4]
    assert not said("all-to-all not overlapped")[4]
    assert not said("all-to-all overlapped with computation (moe-alltoall-overlap-comm)")[4]


def test_a_gate_is_joined_where_a_row_joins_the_whole_activation(shelf: Shelf) -> None:
    def gate(notes: str) -> bool:
        run = run_of(framework="Megatron-DeepSpeed", precision="fp16", notes=notes)
        return setup(run, shelf).problem.framework.fused.gate

    assert all(map(gate, ("fused swiglu", "Liger kernels")))
    assert not any(map(gate, ("", "fused bias-gelu")))


def test_operators_that_a_script_leaves_apart_are_read_from_words(shelf: Shelf) -> None:
    def said(notes: str) -> tuple[bool, str, str, str, str]:
        run = run_of(framework="ModelLink", chip="910B", notes=notes)
        used = setup(run, shelf).problem.framework
        one = used.fused
        return one.activation, one.rope, one.norm, one.softmax, used.projections

    usual = said("")
    assert said("activations in separate operators") == (False, *usual[1:])
    assert said("rotary embedding in separate operators")[1] == "eager"
    assert said("activations and norms in separate operators")[::2][:2] == (False, "eager")
    assert said("softmax in one kernel; gate and up apart")[3:] == ("fused", "gate_apart")


def test_parameters_that_stay_gathered_in_8_bits_lie_so(shelf: Shelf) -> None:
    def said(notes: str, zero: str = "2") -> tuple[bool, int, int]:
        run = run_of(framework="FSDP2 compiled", precision="fp8", notes=notes, zero=zero)
        used = setup(run, shelf).problem.framework
        held = used.held
        return used.eight_bit_gathers.parameters, held.gathered_copy_bytes, held.fp8_weight_bytes

    assert said("float8 all-gather") == (True, 1, 1)
    assert said("float8 all-gather, fp8 weights cast again in backward") == (True, 1, 0)
    assert said("float8 all-gather", "fsdp") == said("", "fsdp") == said("")


def test_experts_may_lie_outside_of_what_is_sharded(shelf: Shelf) -> None:
    def said(notes: str) -> bool:
        run = run_of(framework="FSDP2", notes=notes)
        return setup(run, shelf).problem.framework.held.whole_experts

    assert said("experts outside of FSDP")
    assert not said("")


def test_what_is_computed_again_may_be_all_but_attention(shelf: Shelf) -> None:
    # MaxText's custom policies that keep what attention made, on the device or on the host.
    run = run_of(framework="MaxText", recompute="all but attention")
    found = setup(run, shelf)
    assert found.problem.framework.selective == "named"
    again = found.problem.framework.named
    assert (again.norm, again.projections, again.expansion, again.activation) == (True,) * 4
    assert not again.attention
    assert found.plan.stages[0].recompute.granularity == "selective"
    # AXLearn's keeps what the projections made, and computes attention again.
    run = run_of(framework="AXLearn", recompute="all but attention's projections")
    again = setup(run, shelf).problem.framework.named
    assert (again.norm, again.attention, again.expansion, again.activation) == (True,) * 4
    assert not again.projections


def test_what_a_policy_of_jax_keeps_is_read_by_its_tensors(shelf: Shelf) -> None:
    def said(recompute: str = "", notes: str = "") -> tuple[set[str], set[str], float]:
        run = run_of(framework="MaxText", recompute=recompute, notes=notes)
        found = setup(run, shelf)
        framework = found.problem.framework
        kept = {name for name, again in asdict(framework.named).items() if not again}
        on_host = {name for name, waits in asdict(framework.held.offloaded).items() if waits}
        assert found.plan.stages[0].recompute.granularity == "selective"
        assert "recompute" not in found.open
        return kept, on_host, framework.held.offloaded_share

    products = {"projections", "output", "expansion", "contraction"}
    attention = {"projections", "output"}
    assert said("minimal") == said("dots_saveable") == (products, set(), 0)
    assert said("minimal_flash") == (products | {"attention"}, set(), 0)
    assert said("minimal_offloaded") == (products, products, 0)
    assert said("save_dot_except_mlpwi") == (attention | {"contraction"}, set(), 0)
    assert said("qkv_proj_offloaded") == ({"projections"}, {"projections"}, 0)
    # Of one's own: what goes to the host, in words or as arguments.
    listed = "custom remat, offloaded to host: decoder_layer_input,out_proj,q,k,v"
    arguments = "remat_policy=custom decoder_layer_input=offload out_proj=offload "
    arguments += "query_proj=offload key_proj=offload value_proj=offload context=remat"
    assert said(notes=listed) == said("full", arguments)
    assert said(notes=listed) == (attention, attention | {"input"}, 0)
    kept = "remat custom: kept on device are layer input, context, q, k, v, qkv"
    assert said(notes=kept) == ({"projections", "attention"}, set(), 0)
    # Keys and values without queries spare no projection; experts' results may wait too.
    some = "remat custom: layer input and mlpwo offloaded to host, k and v kept"
    assert said(notes=some) == ({"contraction"}, {"input", "contraction"}, 0)


def test_states_have_the_width_of_maxtext_s_weights(shelf: Shelf) -> None:
    def said(notes: str) -> tuple[int, int, int]:
        stored = setup(run_of(framework="MaxText", notes=notes), shelf).problem.framework.bytes
        return stored.parameter, stored.gradient, stored.optimizer

    assert said("weight_dtype bfloat16") == said("weight_dtype=bf16") == (2, 2, 4)
    assert said("weight_dtype=float32") == (2, 4, 10)


def test_heads_of_further_tokens_keep_logits_of_their_own(shelf: Shelf) -> None:
    def said(framework: str, notes: str) -> int:
        run = run_of(framework=framework, notes=notes)
        return setup(run, shelf).problem.framework.held.logit_bytes

    alone = said("MaxText", "")
    assert said("MaxText", "one MTP layer besides") == 2 * alone
    assert said("MaxText", "2 multi-token prediction layers") == 3 * alone
    assert said("torchtitan", "one MTP layer besides") == said("torchtitan", "")


def test_who_reduces_gradients_once_a_step_is_read_from_words(shelf: Shelf) -> None:
    def said(framework: str, notes: str = "", **cells: str) -> bool:
        run = run_of(framework=framework, notes=notes, **cells)
        return setup(run, shelf).problem.framework.reduces_once

    assert said("HF Trainer FSDP")
    assert said("LitGPT")
    assert said("PyTorch FSDP", "gradients accumulate under no_sync")
    assert not said("PyTorch FSDP")
    assert not said("PyTorch FSDP", "without no_sync")
    assert not said("LitGPT", gbs="4")  # nothing to accumulate
    last = "gradients reduced with the last micro-batch"
    assert said("torchtitan", last)
    assert not said("torchtitan")
    # DeepSpeed reduces them in every backward pass.
    assert not said("HF Trainer + DeepSpeed ZeRO-3")


def test_tiles_of_grouped_products_are_read_from_words(shelf: Shelf) -> None:
    def tiles(notes: str, chip: str = "TPU v5p") -> tuple[int, int]:
        used = setup(run_of(framework="MaxText", notes=notes, chip=chip), shelf).problem.framework
        return used.grouped_tile_rows, used.grouped_tile_width

    assert tiles("") == (512, 1024)
    assert tiles("megablox with tuned tiles") == (512, 0)
    assert tiles("tokamax gmm in tiles of 256 rows") == (256, 0)
    assert tiles("ragged_dot, no grouped kernel") == (0, 0)
    assert tiles("tiles of 256 rows", "H100") == (0, 0)


def test_kernels_are_read_from_words(shelf: Shelf) -> None:
    def said(notes: str) -> tuple[str, ...]:
        run = run_of(framework="FSDP", notes=notes, date="2025-12")
        used = setup(run, shelf).problem.framework
        return (*used.attention_kernels, used.fused.norm, used.fused.rope)

    usual = said("")
    # PyTorch's own attention: AOTriton on AMD's devices, FlashAttention-2 on NVIDIA's.
    assert usual[:2] == ("aotriton", "fa2")
    assert said("FlashAttention 4")[:3] == ("cudnn", "aotriton", "fa2")
    assert said("FA3")[:3] == ("fa3", "aotriton", "fa2")
    assert said("AITER")[:2] == ("aiter", "fa2")
    assert said("Composable Kernel v3")[:2] == ("aiter", "fa2")
    assert said("attention of TE (AITER, a16)")[0] == "aiter-a16"
    for framework in ("MaxText", "Megatron-LM (ROCm)"):
        amd = run_of(framework=framework, notes="AITER", chip="MI355X", date="2026-06")
        assert setup(amd, shelf).problem.framework.attention_kernels[:2] == ("aiter-a16", "aiter")
        wide = setup(replace(amd, notes="AITER, a32"), shelf).problem.framework
        assert wide.attention_kernels[0] == "aiter"
    wide = setup(replace(amd, notes="Lumen"), shelf).problem.framework
    assert wide.attention_kernels[0] == "aiter"
    assert said("no AITER") == said("no Liger") == usual
    sparse = run_of(framework="Megatron-LM", date="2026-01", notes="permutation not fused")
    assert not setup(sparse, shelf).problem.framework.fused.permutation
    fused = run_of(framework="Megatron-LM", date="2026-01", notes="no unfused permutation")
    assert setup(fused, shelf).problem.framework.fused.permutation
    assert said("Liger kernels")[-2:] == ("fused", "fused")


def test_a_loss_is_in_separate_operators_where_nothing_says_that_it_is_fused(shelf: Shelf) -> None:
    def said(framework: str, notes: str = "") -> tuple[bool, int]:
        used = setup(run_of(framework=framework, notes=notes), shelf).problem.framework
        return used.fused.cross_entropy, used.held.logit_bytes

    # 16-bit logits and their 32-bit copy, whose exponentials take its place; joined by the compiler
    # 2 bytes more.
    assert said("Megatron-LM") == (False, 6)
    assert said("Megatron-LM", "fused cross entropy") == (True, 8)
    assert said("Megatron-LM", "no fused cross entropy") == (False, 6)
    assert said("Pai-Megatron-Patch") == (True, 8)
    assert said("Primus (Megatron-LM)") == said("Megatron-LM", "TE cross-entropy") == (True, 2)
    assert said("Megatron-LM with Primus-Turbo") == (False, 6)
    assert said("Primus (Megatron-LM)", "loss in separate operators") == (False, 6)
    assert said("NeMo 24.07")[0]


def test_hugging_face_s_loss_is_that_of_its_time(shelf: Shelf) -> None:
    def said(date: str, notes: str = "", framework: str = "HF Trainer FSDP", **cells: str) -> int:
        run = run_of(framework=framework, notes=notes, date=date, **cells)
        return setup(run, shelf).problem.framework.held.logit_bytes

    # Logits of 32 bits, a shifted copy and its log-softmax as the loss is worked out; since labels
    # are shifted log-softmax, its gradient and that of the logits as the backward pass begins.
    assert (said("2024-05"), said("2025-06")) == (12, 12)
    # One kernel works on the shifted copy of 32 bits; since release 4.46 on 16-bit logits.
    kernel = "fused Triton kernels for RoPE and cross entropy"
    assert (said("2024-05", kernel), said("2025-06", kernel)) == (8, 4)
    assert said("2025-06", framework="PyTorch FSDP") == 12
    # GPT-2 casts nothing.
    assert said("2022-10", framework="DeepSpeed", model="GPT-2 XL") == 8


def test_softmax_is_as_wide_as_what_it_reads_where_nothing_casts_it(shelf: Shelf) -> None:
    def wide(framework: str, model: str, zero: str = "", notes: str = "") -> bool:
        run = run_of(framework=framework, model=model, zero=zero, notes=notes)
        return setup(run, shelf).problem.framework.softmax_in_fp32

    assert not wide("DeepSpeed", "GPT-2 XL")
    assert not wide("fairseq with fairscale FSDP", "GPT-3 13B", "fsdp")
    # Llama's code casts it, mixed precision does, and Megatron's own kernel.
    assert wide("DeepSpeed", "Llama-2-7B")
    assert wide("PyTorch DDP", "GPT-2 XL")
    assert wide("Megatron-LM", "GPT-2 XL")
    # Where the row says how wide it is.
    assert wide("MindFormers", "Llama-2-7B", notes="softmax in fp32")
    assert not wide("MindFormers", "Llama-2-7B", notes="softmax in fp16")


def test_a_loss_in_one_kernel_reads_16_bits(shelf: Shelf) -> None:
    def said(framework: str, notes: str = "") -> tuple[bool, int]:
        used = setup(run_of(framework=framework, notes=notes), shelf).problem.framework
        assert used.fused.cross_entropy == used.loss_in_16_bits
        return used.loss_in_16_bits, used.held.logit_bytes

    # 16-bit logits with gradients as wide beside them, or in their place.
    assert (
        said("PyTorch DDP", "Xentropy") == said("PyTorch DDP", "fused cross entropy") == (True, 4)
    )
    assert said("llm.c", "a fused classifier") == said("LLM.Q (CUDA/C++)") == (True, 2)
    assert said("PyTorch DDP", "Liger kernels") == (True, 2)
    assert said("PyTorch DDP", "no Liger kernels") == said("PyTorch DDP")
    assert not said("PyTorch DDP")[0]


def test_reentrant_checkpoints_around_what_fsdp_wrapped_gather_for_themselves(shelf: Shelf) -> None:
    def again(framework: str, notes: str) -> bool:
        run = run_of(
            framework=framework, zero="fsdp", recompute="full", notes=notes, date="2024-12"
        )
        return setup(run, shelf).problem.framework.recompute_gathers

    assert again("Accelerate FSDP", "HF gradient checkpointing")
    assert again("PyTorch FSDP", "torch.compile; reentrant checkpoints")
    assert not again("Accelerate FSDP2", "HF gradient checkpointing")
    assert not again("PyTorch FSDP", "non-reentrant checkpoints")
    assert not again("PyTorch FSDP", "")


def test_hugging_face_s_checkpoints_ran_a_layer_to_its_end(shelf: Shelf) -> None:
    def early(notes: str, date: str = "2024-12") -> bool:
        run = run_of(framework="PyTorch FSDP", recompute="full", notes=notes, date=date)
        return setup(run, shelf).problem.framework.recompute_stops_early

    assert early("")
    assert not early("HF gradient checkpointing")
    assert early("HF gradient checkpointing", "2026-03")
    assert not early("reentrant checkpoints", "2026-03")
    assert early("non-reentrant checkpoints")


def test_the_release_of_flash_attention_is_read_or_of_the_time(shelf: Shelf) -> None:
    def used(**cells: str) -> tuple[str, ...]:
        return setup(run_of(**cells), shelf).problem.framework.attention_kernels

    old = {"framework": "Megatron-DeepSpeed", "date": "2023-05"}
    assert used(**old, attention="unfused") == ()
    assert used(**old, attention="flash") == ("fa1", "fa2")
    assert used(**old | {"date": "2023-08"}, attention="flash") == ("fa2",)
    assert used(**old, attention="FlashAttention 3") == ("fa3", "fa1", "fa2")
    late = {"framework": "Megatron-LM", "date": "2026-07"}
    assert used(**late)[0] != "fa2" == used(**late, attention="flash attention 2")[0]
    later = {"framework": "FSDP", "date": "2023-12"}
    assert used(**later, attention="flash attention 1") == ("fa1", *used(**later))
    # What a job names it takes, also where its profile would take a faster one.
    assert used(framework="Megatron-LM", date="2026-04", attention="flash attention 2")[0] == "fa2"


def test_splash_attention_has_the_blocks_that_a_row_names(shelf: Shelf) -> None:
    def used(notes: str = "") -> tuple[int, str]:
        run = run_of(framework="MaxText", chip="TPU v5p", notes=notes)
        framework = setup(run, shelf).problem.framework
        return framework.attention_block, framework.attention_kernels[0]

    assert used() == (512, "splash-512")
    assert used("splash attention in blocks of 2048") == (2048, "splash")
    assert used("tokamax splash in blocks of 512") == used()

    def kernel(notes: str) -> str:
        run = run_of(framework="torchprime", notes=notes)
        return setup(run, shelf).problem.framework.attention_kernels[0]

    assert (kernel("flash kernel"), kernel("splash kernel")) == ("tpu-flash", "splash-512")


def test_pytorch_s_attention_with_a_mask_is_another_kernel(shelf: Shelf) -> None:
    def used(notes: str, date: str, attention: str = "sdpa") -> tuple[str, ...]:
        run = run_of(framework="PyTorch FSDP", attention=attention, notes=notes, date=date)
        return setup(run, shelf).problem.framework.attention_kernels

    masked = "padded to 4096 tokens with masks"
    skips_nothing = ("efficient_masked", "npu_masked")
    assert used(masked, "2025-11") == (*skips_nothing, *used("", "2025-11"))
    assert used(masked, "2026-05")[:2] == ("cudnn_masked", "efficient_masked")
    assert used(masked, "2025-11", "flash") == used("", "2025-11", "flash")
    assert used("padded to 4096 tokens without masks", "2025-11") == used("", "2025-11")
    # Hugging Face's models make one of what is padded.
    padded = "HF Trainer; samples padded to the longest"
    assert used(padded, "2025-11")[0] == "efficient_masked"
    assert used("samples padded to the longest", "2025-11") == used("", "2025-11")
    assert used("attention masks are dense tensors", "2025-11") == used(masked, "2025-11")


def test_operators_in_one_kernel_are_read_from_words(shelf: Shelf) -> None:
    def used(notes: str = "", framework: str = "FSDP", date: str = "2025-01") -> Framework:
        return setup(run_of(framework=framework, notes=notes, date=date), shelf).problem.framework

    plain = used()
    assert plain.fused.norm == "eager"
    assert not any((plain.fused.activation, plain.fused.residual))
    assert plain.fused.optimizer == "separate"
    assert used("fused LayerNorm").fused == replace(plain.fused, norm="fused")
    assert used("fused bias-GELU").fused == replace(plain.fused, activation=True)
    assert used("fused dropout").fused == replace(plain.fused, residual=True)
    assert used("fused AdamW").fused == replace(plain.fused, optimizer="native")
    # Its modules under FSDP, not the whole of what stands beside them.
    under = used("layers with Transformer Engine")
    joined = replace(plain.fused, norm="fused", activation=True, rope="fused")
    assert (under.fused, under.projections, under.repeats_key_heads) == (joined, "packed", False)
    assert used("layers without Transformer Engine").fused == plain.fused
    # Hugging Face's default since PyTorch 2.8.
    assert used(framework="HF Trainer FSDP", date="2025-09").fused.optimizer == "native"
    assert used(framework="HF Trainer FSDP", date="2025-07").fused.optimizer == "separate"
    assert used(framework="torchtune").fused.optimizer == "native"
    assert used(framework="nanoGPT").fused.optimizer == "native"
    assert used(framework="nanoGPT", notes="no fused AdamW").fused.optimizer == "separate"
    # DeepSpeed's own kernel stays its own.
    assert used("fused AdamW", framework="DeepSpeed").fused.optimizer == "fused"


def test_a_row_names_the_scaling_of_its_8_bits(shelf: Shelf) -> None:
    def scaling(**words: str) -> str:
        return setup(run_of(precision="fp8", **words), shelf).problem.framework.fp8_scaling

    # Megatron's default, and what recipes had before Megatron-Bridge and have since.
    assert scaling() == "delayed"
    assert scaling(framework="NeMo 25.04", date="2025-04") == "delayed"
    assert scaling(framework="Megatron-Bridge 25.11", date="2025-11") == "current"
    assert scaling(framework="Megatron-Bridge 25.11", notes="delayed scaling") == "delayed"
    assert scaling(notes="current scaling (fp8_cs)") == scaling(notes="tensorwise") == "current"
    assert scaling(notes="current scaling instead of delayed scaling") == "current"
    assert scaling(notes="dynamic scaling") == "current"
    for block in ("fp8 blockwise", "blockwise fp8", "block-wise scaling", "Float8BlockScaling"):
        assert scaling(notes=block) == "block"


@pytest.mark.parametrize(
    "notes",
    [
        "expert overlap, delayed wgrad",
        "delayed-wgrad",
        "wgrad delayed",
        "gradient all-reduce delayed to the last micro-batch",
        "faster than delayed scaling",
        "block-wise activation checkpointing",
        "blockwise recompute",
        "fp8; blockwise wrapping",
        "unlike fp8 blockwise",
        "dynamic loss scaling",
    ],
)
def test_what_is_not_of_8_bits_names_no_scaling(shelf: Shelf, notes: str) -> None:
    for framework, usual in (("megatron-core", "delayed"), ("Megatron-Bridge 25.11", "current")):
        run = run_of(precision="fp8", framework=framework, date="2025-11", notes=notes)
        assert setup(run, shelf).problem.framework.fp8_scaling == usual


def test_experts_of_the_older_grouped_products_are_in_16_bits(shelf: Shelf) -> None:
    def wide(notes: str) -> bool:
        return setup(run_of(precision="fp8", notes=notes), shelf).problem.framework.wide_experts

    assert wide("legacy grouped GEMM, DeepEP")
    assert wide("fp8 on dense linears (experts bf16)")
    assert not wide("turbo grouped GEMM")


ALL = Graphs(attention=True, router=True, mlp=True)


@pytest.mark.parametrize(
    ("notes", "graphs"),
    [
        ("", Graphs()),
        ("no CUDA graphs", Graphs()),
        ("recompute, CUDA graphs, fusion not in the table", Graphs()),
        ("CUDA graphs", ALL),
        ("fused norms, TE CUDA graphs", ALL),
        ("CUDA graphs of attention and router (TE)", Graphs(attention=True, router=True)),
        ("graphs of attention, router, preprocess; mock data", Graphs(attention=True, router=True)),
        ("TE CUDA graphs for router and preprocess", Graphs(router=True)),
        ("router and what precedes the exchange in CUDA graphs", Graphs(router=True)),
        ("graphs of the router; graphs of attention too", Graphs(attention=True, router=True)),
        ("feed-forward in CUDA graphs", Graphs(mlp=True)),
        ("the attention part captured in graphs", Graphs(attention=True)),
        ("rate read off a graph", Graphs()),
    ],
)
def test_what_was_a_graph_is_read_from_words(shelf: Shelf, notes: str, graphs: Graphs) -> None:
    run = run_of(framework="Megatron-Bridge", chip="H100", notes=notes, date="2026-01")
    assert setup(run, shelf).problem.framework.graphs == graphs


def test_recipes_for_grace_have_graphs_where_nobody_says(shelf: Shelf) -> None:
    def usual(chip: str, notes: str = "", model: str = "llama2-7b") -> Graphs:
        run = run_of(
            framework="Megatron-Bridge", chip=chip, notes=notes, date="2026-01", model=model
        )
        return setup(run, shelf).problem.framework.graphs

    assert usual("GB200") == usual("GB300-288GB") == Graphs(attention=True, router=True)
    assert usual("GB200", "no CUDA graphs") == usual("B200") == Graphs()
    # gpt-oss has some on GB300 alone.
    assert usual("GB200", model="GPT-OSS-120B") == Graphs()
    assert usual("GB300-288GB", model="GPT-OSS-120B") == usual("GB200")


def test_megatron_on_amd_sums_gradients_apart_from_their_product(shelf: Shelf) -> None:
    def fused(chip: str, framework: str) -> bool:
        run = run_of(framework=framework, chip=chip, date="2026-01")
        return setup(run, shelf).problem.framework.fused.gradient_accumulation

    assert fused("H100", "Megatron-LM")
    assert not fused("MI300X", "Megatron-LM")
    assert not fused("MI355X", "Primus (Megatron-LM, ROCm)")


def test_a_router_is_fused_where_its_row_or_a_recipe_says_so(shelf: Shelf) -> None:
    def fused(framework: str, notes: str = "", date: str = "2026-04") -> bool:
        run = run_of(framework=framework, date=date, notes=notes)
        return setup(run, shelf).problem.framework.fused.router

    assert not fused("Megatron-LM")
    assert fused("Megatron-LM", "router fusion")
    assert fused("Primus (Megatron-LM, ROCm)", "sync-free MoE stage 1")
    assert fused("Megatron-Bridge")
    assert not fused("Megatron-Bridge", "router not fused")
    assert not fused("Megatron-Bridge", "all-to-all; recipe moonlight_16b_pretrain")
    assert fused("Megatron-Bridge", "library recipe; fused router")
    assert not fused("NeMo 25.07", date="2025-07")


def test_the_grouped_product_of_primus_turbo_is_one_kernel(shelf: Shelf) -> None:
    def looped(notes: str) -> bool:
        run = run_of(framework="Primus (Megatron-LM, ROCm)", chip="MI355X", notes=notes)
        return setup(run, shelf).problem.framework.fused.looped_gemm

    assert looped("grouped GEMM")
    assert not looped("turbo grouped GEMM, fused activation")
    assert not looped("as before with grouped GEMM of FlyDSL")


def test_a_profile_s_own_graphs_stay_where_a_row_says_nothing(tmp_path: Path, shelf: Shelf) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('follows = "megatron-core"\n[graphs]\nmlp = true\n[source]\ngraphs = "mine"\n')
    mine = setup(run_of(framework=str(file), chip="H100"), shelf).problem.framework
    assert mine.graphs == Graphs(mlp=True)
    assert mine.fused.looped_gemm


def test_parameters_and_the_optimizer_may_be_in_host_memory(shelf: Shelf) -> None:
    def there(notes: str) -> tuple[bool, bool]:
        found = setup(run_of(framework="FSDP", notes=notes), shelf)
        return found.problem.framework.held.parameters_on_host, found.plan.optimizer_offload

    assert there("parameters and optimizer in host memory (CPU Adam)") == (True, True)
    assert there("FSDP with CPUOffload") == (True, True)
    assert there("parameters kept in host memory") == (True, False)
    assert there("optimizer states are in host memory") == (False, True)
    assert there("checkpoints in host memory") == there("no CPUOffload") == (False, False)


def test_what_is_listed_as_fused_kernels_is_each_one(shelf: Shelf) -> None:
    def used(notes: str) -> Framework:
        return setup(run_of(framework="FSDP", notes=notes), shelf).problem.framework

    plain, listed = used("").fused, used("fused kernels (RoPE, RMSNorm, cross entropy)").fused
    assert (plain.norm, plain.rope, plain.cross_entropy) == ("eager", "eager", False)
    assert (listed.norm, listed.rope, listed.cross_entropy) == ("fused", "fused", True)
    assert not listed.activation
    assert used("without fused kernels (RoPE, RMSNorm)").fused == plain


def test_experts_may_be_one_kernel(shelf: Shelf) -> None:
    for words in ("ScatterMoE kernels", "MegaBlocks"):
        cells = {"framework": "FSDP", "experts": "8", "topk": "2", "notes": words}
        fused = setup(run_of(**cells), shelf).problem.framework.fused
        assert (fused.grouped_gemm, fused.looped_gemm) == (True, False)
