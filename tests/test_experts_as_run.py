"""What the words of a row say of its experts."""

import pytest

from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf
from stated import run_of


def test_experts_may_run_one_after_another(shelf: Shelf) -> None:
    def grouped(notes: str) -> bool:
        run = run_of(framework="Megatron-Core", date="2026-01", notes=notes)
        return setup(run, shelf).problem.framework.fused.grouped_gemm

    assert grouped("")
    assert not grouped("experts one after another")
    assert not grouped("no grouped product")


def test_hugging_face_s_experts_became_slices_of_one_parameter(shelf: Shelf) -> None:
    def used(date: str, notes: str = "", model: str = "Mixtral-8x7B") -> tuple[bool, bool]:
        run = run_of(framework="HF Trainer FSDP", date=date, notes=notes, model=model)
        framework = setup(run, shelf).problem.framework
        return framework.fused.grouped_gemm, framework.sliced_experts

    turn = "experts one after another"
    assert used("2025-12") == used("2025-12", turn) == (False, False)
    assert used("2026-02") == (True, False)
    assert used("2026-02", turn) == used("2025-12", turn, "gpt-oss-20b") == (False, True)
    assert used("2024-12", model="PowerMoE-3b") == (False, True)


def test_experts_are_forced_even_in_turn_by_those_who_do_so(shelf: Shelf) -> None:
    def in_turn(framework: str, notes: str = "DeepEP, experts forced even") -> bool:
        run = run_of(framework=framework, notes=notes)
        return setup(run, shelf).problem.framework.neighbouring_experts

    assert in_turn("Primus (Megatron-LM, ROCm)")
    assert in_turn("torchtitan")
    assert in_turn("NeMo AutoModel", "balanced gate")
    assert in_turn("torchtitan", "routing forced round robin")
    assert in_turn("torchtitan-npu", "balanced routing forced")
    assert in_turn("torchtitan", "moe_force_load_balance=true")
    assert not in_turn("Primus (Megatron-LM, ROCm)", "DeepEP")
    assert not in_turn("torchtitan", "tokens are not forced even")
    # Even, but in no order.
    assert not in_turn("torchtitan", "random routing")
    # Random logits.
    assert not in_turn("Megatron-LM")


def test_a_gate_without_scores_launches_no_more_than_a_fused_router(shelf: Shelf) -> None:
    def fused(notes: str, framework: str = "NeMo AutoModel (FSDP2)") -> bool:
        run = run_of(framework=framework, notes=notes, date="2026-05")
        return setup(run, shelf).problem.framework.fused.router

    assert fused("tokens forced even over experts")
    assert not fused("DeepEP")
    assert not fused("routing forced round robin", "torchtitan")


def test_rows_of_experts_are_padded_by_copies_unless_dispatcher_or_router_fill_them(
    shelf: Shelf,
) -> None:
    def pads(framework: str, notes: str = "", **cells: str) -> bool:
        run = run_of(**{"date": "2026-04"} | cells, framework=framework, notes=notes)
        return setup(run, shelf).problem.framework.pads_experts

    assert pads("Megatron-LM")
    assert pads("Megatron-LM", "DeepEP")
    assert not pads("Megatron-LM", "HybridEP")
    assert not pads("Megatron-LM", "moe-router-padding-for-quantization")
    # Recipes of Megatron-Bridge have HybridEP since release 25.11, or exchange by the library.
    assert not pads("Megatron-Bridge")
    assert pads("Megatron-Bridge", date="2025-09")
    assert pads("Megatron-Bridge", "all-to-all dispatch")
    assert not pads("Primus (Megatron-LM, ROCm)", chip="MI300X")


def test_a_capacity_alone_is_no_graph_of_the_whole_step(shelf: Shelf) -> None:
    def launch_us(notes: str) -> float:
        run = run_of(framework="Megatron-Bridge 25.09", notes=notes, date="2025-09")
        return setup(run, shelf).problem.framework.launch_us

    assert launch_us("expert capacity (tokendrop)") == launch_us("") > 0
    assert launch_us("expert capacity (tokendrop); full-iteration CUDA graph") == 0
    assert launch_us("cuda_graph: full iteration, optimizer step included") == 0
    assert launch_us("CUDA graph over the iteration") == 0


def test_experts_that_nobody_exchanges_or_counts_are_in_the_graphs_too(shelf: Shelf) -> None:
    def launch_us(notes: str, ep: str) -> float:
        mixture = {"experts": "32", "topk": "4", "expert_ffn": "2880", "ep": ep, "zero": "1"}
        run = run_of(framework="Megatron-Bridge", notes=notes, date="2026-05", **mixture)
        return setup(run, shelf).problem.framework.launch_us

    assert launch_us("fused grouped MLP (CuTe DSL), CUDA graphs", "1") == 0
    assert launch_us("fused grouped MLP (CuTe DSL), CUDA graphs", "4") > 0
    assert launch_us("CUDA graphs", "1") > 0
    assert launch_us("CUDA graphs, expert rank capacity factor 7", "4") == 0


def test_megatron_s_module_mlp_is_that_of_dense_layers(shelf: Shelf) -> None:
    def again(recompute: str) -> str:
        run = run_of(framework="Megatron-LM", date="2026-03", recompute=recompute, **MIXTURE)
        return setup(run, shelf).plan.stages[0].recompute.granularity

    assert again("selective: mlp") == again("none")
    assert again("selective: mlp, core_attn") == again("selective: core_attn") == "selective"


def variation(shelf: Shelf, framework: str, notes: str = "", **cells: str) -> float:
    """Returns by how much of their mean loads of experts vary in a row."""
    mixture = {"experts": "128", "topk": "2", "expert_ffn": "2048", "zero": "1"}
    run = run_of(**mixture | cells, framework=framework, notes=notes, date="2026-01")
    return setup(run, shelf).problem.workload.expert_load_variation


def test_loads_vary_where_routers_choose_freely_and_nobody_forces_them_even(shelf: Shelf) -> None:
    for free in ("torchtitan", "FSDP2", "DeepSpeed", "PyTorch DDP", "HF Trainer"):
        assert variation(shelf, free) == 1.0
    for even in ("Megatron-LM", "Megatron-DeepSpeed"):
        assert variation(shelf, even) == 0.0
    assert variation(shelf, "torchtitan", "no CUDA graphs") == 1.0
    assert variation(shelf, "Megatron-LM", "aux-loss-free routing") == 0.0
    for settled in (
        "loads had settled by then",
        "settled loads",
        "resumed from the checkpoint, router chooses freely",
    ):
        assert variation(shelf, "torchtitan", settled) == 0.25
    for settling in ("loads had not settled", "before loads had settled"):
        assert variation(shelf, "torchtitan", settling) == 1.0
    # MLPerf trains to a loss, and DeepSeek-V3 from the published weights.
    assert variation(shelf, "Megatron-Bridge", "MLPerf v6.0") == 1.0
    assert variation(shelf, "Megatron-Bridge", "MLPerf v6.0", model="DeepSeek-V3-671B") == 0.25
    assert variation(shelf, "Megatron-Bridge", model="DeepSeek-V3-671B") == 0.0
    assert variation(shelf, "torchtitan", experts="8") == 0.1
    assert variation(shelf, "torchtitan", expert_load_variation="0.5") == 0.5


@pytest.mark.parametrize(
    "notes",
    [
        "natural routing",
        "balance of the experts not forced",
        "routers not forced",
        "tokens are not forced even",
        "without forced balance",
        "no forced balance",
        "no random routing",
        "moe_force_load_balance=false",
        "no --moe-router-force-load-balancing",
    ],
)
def test_a_row_says_that_its_routers_choose_freely(shelf: Shelf, notes: str) -> None:
    assert variation(shelf, "Megatron-LM", notes) == 1.0


@pytest.mark.parametrize(
    "notes",
    [
        "routing FORCED round robin",
        "tokens forced even over experts",
        "tokens force-balanced",
        "balanced gate",
        "moe_force_load_balance=true",
        "debug_force_load_balance",
        "--moe-router-force-load-balancing",
        "forced load balancing",
        "load balancing forced",
        "near-uniform routing",
        "expert choice routing",
        "no natural routing",
        "not natural routing",
        "its router does not choose freely",
    ],
)
def test_a_row_says_that_its_experts_are_loaded_evenly(shelf: Shelf, notes: str) -> None:
    assert variation(shelf, "torchtitan", notes) == 0.0
    assert variation(shelf, "Megatron-LM", notes) == 0.0


def test_torchtitan_multiplied_32_bit_numbers_in_its_routers_for_half_a_year(shelf: Shelf) -> None:
    def wide(date: str) -> bool:
        run = run_of(framework="torchtitan", date=date)
        return setup(run, shelf).problem.framework.wide_router

    assert [wide(month) for month in ("2026-02", "2026-03", "2026-09", "2026-10")] == [
        False,
        True,
        True,
        False,
    ]


MIXTURE = {"experts": "8", "topk": "2", "model": "Mixtral-8x7B"}


def test_few_experts_are_loaded_evenly_but_by_routers_that_nobody_trained(shelf: Shelf) -> None:
    assert variation(shelf, "torchtitan", experts="8") == 0.1
    assert variation(shelf, "torchtitan", "20 steps from random weights", experts="8") == 1.3
    assert variation(shelf, "torchtitan", "not from random weights", experts="8") == 0.1
    assert variation(shelf, "Megatron-Bridge library recipes") == 1.0
    assert variation(shelf, "Megatron-Bridge library recipes", "forced balance") == 0.0


def test_kempnerforge_padded_experts_to_the_fullest_before_its_ragged_product(shelf: Shelf) -> None:
    def pads(date: str) -> bool:
        run = run_of(framework="KempnerForge", date=date)
        return setup(run, shelf).problem.framework.pads_to_fullest

    assert pads("2026-04")
    assert not pads("2026-10")


def test_a_bound_of_buffers_drops_no_tokens(shelf: Shelf) -> None:
    def capacity(notes: str) -> float:
        run = run_of(experts="64", topk="2", expert_ffn="2048", zero="1", notes=notes)
        mixture = setup(run, shelf).problem.model.moe
        return mixture.capacity_factor if mixture else 0.0

    assert capacity("paged stash, expert capacity bound 4") == 0.0
    assert capacity("paged stash of activations (capacity factor 4)") == 0.0
    assert capacity("expert rank capacity factor 5 for full CUDA graphs") == 0.0
    assert capacity("expert capacity, tokens dropped") == 1.0
    assert capacity("capacity factor 1.25") == 1.25


def test_paged_stashes_and_joined_experts_are_read_in_a_script_s_words(shelf: Shelf) -> None:
    def used(notes: str) -> tuple[bool, bool]:
        run = run_of(framework="Megatron-Core", date="2026-05", experts="8", topk="2", notes=notes)
        framework = setup(run, shelf).problem.framework
        return framework.stashes_experts, framework.fused.quantized_mlp

    told = "cuda_graph: full iteration; paged stashing for expert activations"
    assert used(told) == (True, False)
    assert used(f"{told}; fusions: permute, router, grouped MLP (CuTe DSL)") == (True, True)
    assert used("fused Transformer Engine ops") == (False, True)


def test_an_expert_s_tensor_parallel_ranks_have_several_names(shelf: Shelf) -> None:
    def cut(notes: str) -> int:
        row = {"experts": "8", "topk": "2", "tp": "2", "ep": "2", "notes": notes}
        return setup(run_of(**row), shelf).plan.etp

    assert (
        cut("expert tensor parallel 1") == cut("etp=1") == cut("expert-tensor-parallel-size 1") == 1
    )
    assert cut("expert tensor parallelism 2") == 2


def test_deepep_takes_nothing_that_is_padded_to_a_capacity(shelf: Shelf) -> None:
    def profile(notes: str) -> str:
        row = {"framework": "Megatron-Bridge", "experts": "8", "topk": "2", "notes": notes}
        return setup(run_of(**row, date="2026-05"), shelf).problem.framework.name

    assert profile("expert capacity factor 1.25") == "megatron-bridge-capacity"
    assert profile("DeepEP, expert capacity factor 1.25") != "megatron-bridge-capacity"
