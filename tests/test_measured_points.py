"""The curves of the catalog against points that others measured, each with its source."""

from statistics import fmean

import pytest

from autopar import planner


def gemm_tflops(chip: str, shape: tuple[int, int, int], precision: str = "bf16") -> float:
    m, n, k = shape
    seconds = planner.operator_seconds(chip, precision=precision, gemm=[shape])["gemm_s"][0]
    return 2 * m * n * k / seconds / 1e12


# TFLOP/s of 8192 x 8192 x k on one H800 (the TileLang benchmark). Short bursts run faster than a
# chip sustains in training, so the curve is held to these up to one factor: its shape. The factor
# is the mean over the points; anchored at the longest, fp8 falls 5 % short at k = 512.
@pytest.mark.parametrize(
    ("precision", "tolerance", "points"),
    [
        (
            "fp16",
            0.03,
            {256: 386, 512: 520, 1024: 628, 2048: 705, 4096: 736, 8192: 758, 16384: 766},
        ),
        (
            "fp8",
            0.04,
            {512: 858, 1024: 1129, 2048: 1343, 4096: 1467, 8192: 1507, 16384: 1541},
        ),
    ],
)
def test_products_with_a_short_inner_dimension_slow_down_as_measured(
    precision: str, tolerance: float, points: dict[int, int]
) -> None:
    found = {k: gemm_tflops("h800", (8192, 8192, k), precision) for k in points}
    scale = fmean(points[k] / found[k] for k in points)
    assert 1 <= scale < 1.3, "what is sustained is below the burst, not far below"
    for k, measured in points.items():
        assert found[k] * scale == pytest.approx(measured, rel=tolerance), k


# TFLOP/s of square products (zzc0721/torch-performance-test-data). The 910B2 slows from 4096 to
# 8192, which no curve here does: anchored at 8192 it is 11 % short at 4096. 1024 is left out.
@pytest.mark.parametrize(
    ("chip", "points"),
    [
        ("ascend_910b2", {2048: 248, 4096: 315, 8192: 301}),
        ("metax_c500", {2048: 151, 4096: 200, 8192: 226.7}),
    ],
)
def test_square_products_grow_with_their_size_as_measured(
    chip: str, points: dict[int, float]
) -> None:
    found = {n: gemm_tflops(chip, (n, n, n)) for n in points}
    scale = fmean(points[n] / found[n] for n in points)
    for n, measured in points.items():
        assert found[n] * scale == pytest.approx(measured, rel=0.10), n


# TFLOP/s of causal attention, forward and backward together: the bars of the FlashAttention
# repository's figures (assets/flash2_a100_fwd_bwd_benchmark.png, flash2_h100_...).
@pytest.mark.parametrize(
    ("chip", "width", "points"),
    [
        ("a100_80", 128, {512: 99, 2048: 155, 16384: 189}),
        ("a100_80", 64, {512: 88, 2048: 140, 16384: 171}),
    ],
)
def test_attention_runs_at_the_measured_rates(
    chip: str, width: int, points: dict[int, float]
) -> None:
    for sequence, measured in points.items():
        heads = 16 * 16384 // sequence * 8
        both = planner.operator_seconds(chip, attention=[(heads, width, sequence)])
        forward, backward = both["attention_s"][0]
        # 4 products' worth of pairs forward and 2.5 times that backward, half of them masked.
        flops = 3.5 * 4 * heads * sequence * sequence * width / 2
        assert flops / (forward + backward) / 1e12 == pytest.approx(measured, rel=0.02), sequence


# GB/s of bus bandwidth at 8 GB: measured by limulidae (a800, 910b) and ml-engineering (h200). A
# mesh group of four is taken to use 3/7 of the wires' rate; measured was a fifth less.
@pytest.mark.parametrize(
    ("chip", "operation", "ranks", "measured", "tolerance"),
    [
        ("a800", "all_reduce", 8, 156, 0.02),
        ("a800", "all_reduce", 4, 156, 0.02),
        ("a800", "all_reduce", 2, 143, 0.10),
        ("a800", "all_gather", 8, 151, 0.02),
        ("h200", "all_reduce", 8, 473, 0.02),
        ("h200", "all_gather", 8, 361, 0.02),
        ("ascend_910b", "all_reduce", 8, 126, 0.02),
        ("ascend_910b", "all_reduce", 4, 45, 0.25),
        ("ascend_910b", "all_reduce", 2, 18, 0.02),
        ("ascend_910b", "all_gather", 8, 130, 0.02),
        ("ascend_910b", "all_gather", 4, 48, 0.25),
    ],
)
def test_collectives_reach_the_measured_bus_bandwidth(
    chip: str, operation: str, ranks: int, measured: float, tolerance: float
) -> None:
    size = 8e9
    seconds = planner.operator_seconds(chip, collectives=[(operation, size, ranks)])
    volume = size * (ranks - 1) / ranks * (2 if operation == "all_reduce" else 1)
    found = volume / seconds["collective_s"][0] / 1e9
    assert found == pytest.approx(measured, rel=tolerance)


def bus_bandwidth(chip: str, operation: str, size: float, ranks: int) -> float:
    seconds = planner.operator_seconds(chip, collectives=[(operation, size, ranks)])
    volume = size * (ranks - 1) / ranks * (2 if operation == "all_reduce" else 1)
    return volume / float(seconds["collective_s"][0]) / 1e9


# GB/s of an all-reduce on four nodes of eight A100 (ml-engineering), and on eight nodes of H100 (an
# issue of NCCL). The 16 MiB lie where the library changes its protocol; ours has one.
@pytest.mark.parametrize(
    ("chip", "ranks", "size", "measured", "tolerance"),
    [
        ("a100_80", 32, 2**20, 17, 0.05),
        ("a100_80", 32, 2**24, 94, 0.30),
        ("h100", 64, 8e9, 350, 0.05),
    ],
)
def test_a_sum_over_nodes_reaches_the_measured_bus_bandwidth(
    chip: str, ranks: int, size: float, measured: float, tolerance: float
) -> None:
    assert bus_bandwidth(chip, "all_reduce", size, ranks) == pytest.approx(measured, rel=tolerance)


# Share of the rate of the largest message, 16 GB, that smaller ones reach on one node of eight
# (aliyun/SimAI, inputs/ratio). What is missing is the time of a collective's steps.
@pytest.mark.parametrize(
    ("operation", "ratios"),
    [
        ("all_gather", {16e6: 0.45, 64e6: 0.65, 256e6: 0.73, 1e9: 0.77, 16e9: 0.81}),
        ("all_to_all", {16e6: 0.44, 16e9: 0.78}),
    ],
)
def test_small_messages_are_slower_as_measured(operation: str, ratios: dict[float, float]) -> None:
    largest = bus_bandwidth("h100", operation, 16e9, 8)
    for size, ratio in ratios.items():
        found = bus_bandwidth("h100", operation, size, 8) / largest
        assert found == pytest.approx(ratio / ratios[16e9], rel=0.06), size


# TFLOP/s of 8-bit products of DeepSeek-V3's shapes on an H800 (deepseek-ai/DeepGEMM): its kernels
# are others than those of the sweep that made the curve, faster at depth and slower without.
def test_products_of_other_kernels_lie_about_the_curve() -> None:
    points = {
        (4096, 2112, 7168): 1058,
        (4096, 24576, 1536): 990,
        (4096, 32768, 512): 590,
        (4096, 7168, 16384): 1358,
        (4096, 4096, 7168): 1304,
        (4096, 7168, 2048): 1025,
    }
    for shape, measured in points.items():
        assert gemm_tflops("h800", shape, "fp8") == pytest.approx(measured, rel=0.15), shape
