"""What a row of measured runs is taken to be."""

from dataclasses import replace

import pytest

import autopar
from autopar import catalog
from autopar.framework import Named
from autopar.report import NamedLayers, Recompute
from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf, chip_as_written, framework, network
from autopar.validate import Checked
from stated import checked, run_of


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100", "a100_80"),
        ("A100-40GB", "a100_40"),
        ("NVIDIA A100-SXM4-40GB (DGX A100)", "a100_40"),
        ("A100 (40GB)", "a100_40"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("H100-96GB (HBM2e, 500W)", "h100_96_500w"),
        ("910B", "ascend_910b"),
        ("Ascend 910B2", "ascend_910b2"),
        ("V100-32GB (DGX-2)", "v100_dgx2"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Gaudi 2", "gaudi2"),
        ("TPU v5e", "tpu_v5e"),
        ("NVIDIA H20 96GB", "h20"),
        ("MI250X", "mi250x"),
        ("RTX 4090 24GB", "rtx4090"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("910C", "ascend_910c"),
        ("Ascend 910A", "ascend_910a"),
        ("Atlas 800T A2", "ascend_910b"),
        ("NVIDIA A100-PCIE-40GB", "a100_pcie_40"),
        ("NVIDIA A100 80GB PCIe", "a100_pcie"),
        ("H100 (80GB, PCIe)", "h100_pcie"),
        ("8x A100 80GB", "a100_80"),
        ("A100-80GB (SXM, PCIe host)", "a100_80"),
        ("NVIDIA A40 48GB", "a40"),
        ("NVIDIA RTX A6000", "a6000"),
        ("A10G", "a10g"),
        ("L20", "l20"),
        ("NVIDIA GH200 Grace Hopper", "gh200"),
        ("AMD MI250", "mi250"),
        ("Tesla P100", "p100"),
        ("Habana Gaudi2", "gaudi2"),
        ("TPUv4", "tpu_v4"),
        ("Intel Data Center GPU Max 1550", "max1550"),
        ("AWS Trainium2", "trainium2"),
        ("MXC500", "metax_c500"),
        ("Moore Threads MTT S4000", "mthreads_s4000"),
        ("Kunlunxin P800", "kunlun3"),
        ("Cambricon MLU370-X8", "cambricon_mlu370"),
        ("Hygon DCU K100_AI", "hygon_k100_ai"),
        ("Cloud TPU v5p-128", "tpu_v5p"),
        ("v5litepod-256", "tpu_v5e"),
        ("HGX H100", "h100"),
        ("p4d.24xlarge", "a100_40"),
        ("NPU 910B", "ascend_910b"),
    ],
)
def test_chips_are_found_as_people_write_them(text: str, name: str) -> None:
    assert chip_as_written(text) == catalog.chip(name).chip


def test_a_chip_of_another_memory_has_that_memory() -> None:
    usual = catalog.chip("v100").chip
    assert chip_as_written("Tesla V100-SXM2-16GB") == replace(usual, memory_gib=16.0)


def test_a_chip_that_nobody_knows_names_the_nearest() -> None:
    [row] = checked({"chip": "H101"})
    assert row.skipped is not None
    assert 'no chip named "H101"' in row.skipped
    assert "h100" in row.skipped


@pytest.mark.parametrize(
    ("text", "cards", "gbit"),
    [
        ("8x200Gb HDR IB (Selene)", 8, 200),
        ("800Gb/s per node (config)", 8, 100),
        ("1600Gb RoCE/node", 8, 200),
        ("3.2Tbps fabric", 8, 400),
        ("25Gb Ethernet (4x p3.16xlarge)", 1, 25),
        ("200Gb IB", 8, 200),
        ("25GB/s per GPU", 8, 200),
        ("single node", 8, 200),
        ("Slingshot-11", 8, 200),
        ("", 8, 200),
    ],
)
def test_a_network_is_read_from_its_words(text: str, cards: int, gbit: float) -> None:
    usual = catalog.chip("a100").chip.network
    assert (usual.nics_per_node, usual.nic_gbit_per_s) == (8, 200)
    assert network(text, usual) == replace(usual, nics_per_node=cards, nic_gbit_per_s=gbit)


def test_megatron_keeps_gradients_in_16_bits_where_it_computes_in_fp16() -> None:
    # 2 bytes a parameter, 2 of its gradient and 12 of the optimizer; with bf16 4 of the gradient.
    usual = {"framework": "Megatron-LM", "tp": "1", "pp": "2", "zero": "0"}
    halves, wide = checked({**usual, "precision": "fp16"}, {**usual, "precision": "bf16"})

    def stored(row: Checked) -> list[int]:
        assert row.setup is not None
        items = autopar.estimate(row.setup.problem, row.setup.plan).stages[0].memory
        return [items.parameters, items.gradients, items.optimizer]

    parameters, gradients, optimizer = stored(halves)
    assert (gradients, optimizer) == (parameters, 6 * parameters)
    assert stored(wide) == [parameters, 2 * parameters, optimizer]


def test_sockets_leave_most_of_a_fast_ethernet_idle() -> None:
    # 0.4 of the line where one card is faster than sockets and nothing spares the processor.
    usual = catalog.chip("a100").chip.network
    shares = {
        text: network(text, usual).efficiency
        for text in ("100Gb Ethernet", "50 Gb/s Ethernet", "25Gb Ethernet", "100Gb Ethernet RoCE")
    }
    assert list(shares.values()) == [0.4, 0.4, usual.efficiency, usual.efficiency]


def test_omni_path_sustains_the_share_that_was_measured() -> None:
    # 40.5 Gbit/s of a card of 100 in an all-reduce (bigscience-workshop/bigscience).
    usual = catalog.chip("a100").chip.network
    found = network("4 x 100 Gb Omni-Path", usual)
    assert found == replace(usual, nics_per_node=4, nic_gbit_per_s=100, efficiency=0.4)


def test_efa_takes_the_steps_that_were_measured() -> None:
    # 32 MB over 2 to 32 nodes of eight H100 (crazyguitar/aws-gpu-communication-benchmark).
    usual = catalog.chip("h100").chip.network
    found = network("EFA 3.2 Tb/s a node", usual)
    assert found == replace(usual, efficiency=0.84, latency_us=31.0)


def test_a_smaller_node_has_its_share_of_the_cards(shelf: Shelf) -> None:
    chip = setup(run_of(gpus_per_node="4"), shelf).problem.cluster.groups[0].chip
    assert (chip.devices_per_node, chip.link_domain, chip.network.nics_per_node) == (4, 4, 4)


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        ({"framework": "Megatron-LM", "date": "2020-09"}, "megatron-2020"),
        ({"framework": "Megatron-LM", "date": "2021-04"}, "megatron-2021"),
        ({"framework": "Megatron-LM", "date": "2022-05"}, "megatron-2022"),
        ({"framework": "Megatron-LM", "date": "2025-01"}, "megatron-core"),
        ({"framework": "Megatron-LM", "date": "2024-05", "attention": ""}, "megatron-2022"),
        ({"framework": "Megatron-LM", "date": "2024-06"}, "megatron-core-2023"),
        (
            {"framework": "Megatron-LM", "date": "2024-05", "attention": "flash"},
            "megatron-core-2023",
        ),
        ({"framework": "Pai-Megatron-Patch (Megatron-LM 240405)"}, "megatron-core-2023"),
        ({"framework": "Megatron-core 0.6.0"}, "megatron-core-2023"),
        ({"framework": "Megatron-LM"}, "megatron-core"),
        ({"framework": "Megatron-LM", "date": "2018-01"}, "megatron-2020"),
        ({"framework": "Megatron-LM (May 2021)"}, "megatron-2021"),
        ({"framework": "Megatron-LM e156d2f", "attention": "unfused"}, "megatron-2022"),
        ({"framework": "Megatron-LM", "chip": "Tesla V100-SXM2-16GB"}, "megatron-2022"),
        ({"framework": "Colossal-AI 0.3"}, "colossalai"),
        ({"framework": "PaddleNLP, Paddle 2.5.1"}, "paddlenlp"),
        ({"framework": "LiBai 9fc504c / OneFlow 55b822e"}, "oneflow"),
        ({"framework": "Alpa (JAX/XLA)"}, "alpa"),
        ({"framework": "EasyLM"}, "maxtext"),
        ({"framework": "PyTorch DDP"}, "pytorch-ddp"),
        ({"framework": "PyTorch FSDP1"}, "fsdp"),
        ({"framework": "HF Trainer FSDP"}, "fsdp"),
        ({"framework": "HF Trainer + DeepSpeed"}, "deepspeed"),
        ({"framework": "HF Trainer + DeepSpeed (May 2021)"}, "huggingface-2021"),
        ({"framework": "LLaMA-Factory", "zero": "3"}, "deepspeed"),
        ({"framework": "XTuner", "zero": "3"}, "deepspeed"),
        ({"framework": "Axolotl", "zero": "fsdp"}, "fsdp"),
        ({"framework": "HF Trainer", "zero": ""}, "pytorch-ddp"),
        ({"framework": "metaseq"}, "metaseq"),
        ({"framework": "BMTrain"}, "bmtrain"),
        ({"framework": "PyTorch Lightning"}, "fsdp"),
        ({"framework": "PyTorch Lightning + DeepSpeed", "zero": "3"}, "deepspeed"),
        ({"framework": "PyTorch Lightning DDP", "zero": "0"}, "pytorch-ddp"),
        ({"framework": "Megatron-DeepSpeed", "precision": "fp16"}, "megatron-deepspeed"),
        ({"framework": "GPT-NeoX (DeepSpeed)", "precision": "fp16"}, "gpt-neox"),
        ({"framework": "GPT-NeoX", "precision": "bf16"}, "megatron-deepspeed-bf16"),
        (
            {"framework": "Megatron-DeepSpeed", "precision": "bf16", "model": "BLOOM-176B"},
            "bigscience-2022-bf16",
        ),
        ({"framework": "Megatron-DeepSpeed", "precision": "bf16"}, "megatron-deepspeed-bf16"),
        ({"framework": "torchtitan", "notes": "torch.compile"}, "torchtitan"),
        ({"framework": "torchtitan", "notes": "torch.compile, AsyncTP"}, "torchtitan-async-tp"),
        ({"framework": "torchtitan"}, "torchtitan-eager"),
        ({"framework": "NeMo 25.04"}, "megatron-bridge"),
        ({"framework": "Megatron-Bridge", "notes": "all-to-all"}, "megatron-bridge-all-to-all"),
        (
            {"framework": "Megatron-Bridge", "notes": "all-to-all; EP overlap"},
            "megatron-bridge-expert-overlap",
        ),
        ({"framework": "NeMo 24.07"}, "nemo"),
        ({"framework": "Megatron-LM + DeepSpeed ZeRO-3", "zero": "3"}, "deepspeed-2021"),
        ({"framework": "DeepSpeed with Megatron-LM", "zero": "3"}, "deepspeed-2021"),
        ({"framework": "Megatron-DeepSpeed (Intel Gaudi 1.18.0)"}, "megatron-deepspeed-gaudi"),
        ({"framework": "torchtitan FSDP2", "notes": "eager"}, "torchtitan-eager"),
        ({"framework": "torchtitan FSDP2", "notes": "compiled"}, "torchtitan"),
        ({"framework": "NeMo/Megatron-Core"}, "megatron-bridge"),
        ({"framework": "NeMo/Megatron-Core", "source": "v24.11.1:README.md"}, "nemo"),
        ({"framework": "torchtitan", "precision": "fp8"}, "torchtitan"),
        (
            {"framework": "torchtitan", "precision": "fp8", "notes": "AsyncTP"},
            "torchtitan-async-tp",
        ),
        (
            {"framework": "torchtitan", "precision": "fp8", "notes": "AsyncTP, fp8 rowwise"},
            "torchtitan-rowwise",
        ),
        ({"framework": "ModelLink (MindSpeed-LLM) Mcore"}, "mindspeed"),
        ({"framework": "NeMo Megatron", "date": "2022-09"}, "megatron-2022"),
        ({"framework": "DeepSpeed", "date": "2022-11", "zero": "3"}, "huggingface-2022"),
        ({"framework": "Megatron-LM core_r0.7.0"}, "megatron-core-2023"),
        ({"framework": "Megatron-LM v2.4"}, "megatron-2021"),
        ({"framework": "Zero Bubble", "date": "2022-11"}, "megatron-2022"),
        ({"framework": "HAI-LLM (DualPipe)"}, "hai-llm"),
        ({"framework": "PithTrain", "notes": "torch.compile"}, "hai-llm"),
        ({"framework": "Megatron-DeepSpeed", "chip": "Gaudi2"}, "megatron-deepspeed-gaudi"),
        ({"framework": "NeMo AutoModel (FSDP2)", "date": "2026-04"}, "nemo-automodel"),
        ({"framework": "Megatron-Bridge 25.09", "notes": "token drop"}, "megatron-bridge-capacity"),
        ({"framework": "PyTorch FSDP", "notes": "torch.compile"}, "fsdp-compiled"),
        ({"framework": "PyTorch FSDP", "notes": "no torch.compile"}, "fsdp"),
        ({"framework": "PyTorch FSDP", "notes": "eager; torch.compile in other rows"}, "fsdp"),
        ({"framework": "PyTorch FSDP", "notes": "torch.compile, eager SDPA"}, "fsdp-compiled"),
        ({"framework": "torchtitan", "notes": "compile off"}, "torchtitan-eager"),
        ({"framework": "torchtitan", "notes": "compiled: loss; MLA"}, "torchtitan-eager"),
        ({"framework": "torchtitan", "notes": "compiled: model and loss; MLA"}, "torchtitan"),
        ({"framework": "nanoGPT"}, "ddp-compiled"),
        ({"framework": "nanoGPT", "notes": "no torch.compile"}, "pytorch-ddp"),
        ({"framework": "Nanotron"}, "nanotron"),
        ({"framework": "Picotron"}, "picotron"),
    ],
)
def test_a_framework_is_that_of_its_words_and_time(
    cells: dict[str, str], name: str, shelf: Shelf
) -> None:
    entry, named = framework(run_of(**cells), shelf)
    assert (entry.framework.name, named) == (name, True)


def test_recipes_in_mxfp8_became_one_graph_in_june_2026(shelf: Shelf) -> None:
    def used(date: str) -> tuple[str, float, bool]:
        cells = {"framework": "Megatron-Bridge", "date": date, "notes": "MXFP8"}
        found = framework(run_of(**cells), shelf)[0].framework
        return found.name, found.launch_us, found.overlap.expert

    assert used("2026-06") == used("") == ("megatron-bridge-mxfp8", 0.0, True)
    usual = catalog.framework("megatron-bridge").framework.launch_us
    assert used("2026-04") == ("megatron-bridge-mxfp8", usual, False)


def test_a_framework_that_nobody_knows_is_assumed_and_said_to_be(shelf: Shelf) -> None:
    known = setup(run_of(framework="our own"), shelf)
    assert known.problem.framework.name == "megatron-core"
    assert known.assumed == ("framework=megatron-core",)
    for cells, name in (
        ({"zero": "fsdp", "tp": "1"}, "fsdp"),
        ({"zero": "fsdp"}, "torchtitan-eager"),
        ({"zero": "2", "tp": "1"}, "deepspeed"),
        ({"attention": "unfused"}, "megatron-2022"),
        ({"date": "2021-06"}, "megatron-2021"),
        ({"date": "2024-05", "attention": ""}, "megatron-core-2023"),
        ({"chip": "TPU v4"}, "maxtext"),
        ({"chip": "Ascend 910B"}, "mindspeed"),
        ({"chip": "Gaudi2"}, "megatron-deepspeed-gaudi"),
    ):
        entry, named = framework(run_of(framework="our own", **cells), shelf)
        assert (entry.framework.name, named) == (name, False)


def test_the_habits_of_a_framework_that_is_assumed_are_not_those_of_a_run(shelf: Shelf) -> None:
    cells = {"vpp": "", "pp": "2", "tp": "2", "dp": "2", "zero": "fsdp"}
    assert "vpp=1" in setup(run_of(framework="torchtitan", **cells), shelf).assumed
    assert "vpp=1" not in setup(run_of(framework="our own", **cells), shelf).assumed


def test_a_sequence_that_tensor_parallel_does_not_divide_was_not_cut(shelf: Shelf) -> None:
    known = setup(run_of(sp="", seq_len="2047"), shelf)
    assert not known.plan.sp
    assert "sp=false" in known.assumed


def test_a_stated_run_assumes_nothing(shelf: Shelf) -> None:
    known = setup(run_of(), shelf)
    assert known.assumed == ()
    assert known.open == ()
    assert known.problem.model == replace(
        catalog.model("llama2-7b").model, name="llama2-7b", max_positions=4096
    )


@pytest.mark.parametrize(
    ("cells", "layers"),
    [
        ({"pp": "4"}, (8, 8, 8, 8)),
        ({"pp": "4", "layers_per_stage": "5-9-9-9"}, (5, 9, 9, 9)),
        # Embedding and head counted as a layer each.
        ({"pp": "4", "layers_per_stage": "7-9-9-9"}, (6, 9, 9, 8)),
        # Three entries before the layers and three behind: 38 for 32.
        ({"pp": "2", "notes": "layer boundaries [0, 18, 38]"}, (15, 17)),
        ({"pp": "4", "notes": "num-layer-list 7,8,8,9"}, (7, 8, 8, 9)),
        # 30 layers, embedding and head share eight stages equally.
        ({"pp": "8", "layers": "30", "dp": "1", "tp": "1"}, (3, 4, 4, 4, 4, 4, 4, 3)),
        ({"pp": "4", "notes": "last stage has 2 blocks"}, (8, 8, 8, 8)),
        ({"pp": "4", "layers": "31", "notes": "last stage has 1 block"}, (10, 10, 10, 1)),
        ({"pp": "4", "layers": "33"}, (9, 8, 8, 8)),
    ],
)
def test_the_layers_of_each_stage(
    cells: dict[str, str], layers: tuple[int, ...], shelf: Shelf
) -> None:
    degrees = {"dp": str(8 // int(cells["pp"])), "tp": "1", "sp": "0"}
    plan = setup(run_of(**degrees | cells), shelf).plan
    assert tuple(stage.layers for stage in plan.stages) == layers


# All but the results of products.
PRODUCTS_KEPT = NamedLayers(norm=32, attention=32, activation=32)


@pytest.mark.parametrize(
    ("text", "recompute"),
    [
        ("no recompute", Recompute()),
        (
            "layernorm, moe act",
            Recompute("parts", 0, regathers=False, operators=NamedLayers(norm=32, activation=32)),
        ),
        (
            "selective (moe_act)",
            Recompute("parts", 0, regathers=False, operators=NamedLayers(activation=32)),
        ),
        (
            "layer-partial",
            Recompute("parts", 0, regathers=False, operators=NamedLayers(norm=32, activation=32)),
        ),
        ("mla_up_proj, moe_act", Recompute("selective")),
        ("gradient checkpointing", Recompute("uniform", 1)),
        ("full AC", Recompute("uniform", 1)),
        ("nothing_saveable", Recompute("uniform", 1)),
        ("minimal", Recompute("parts", 0, regathers=False, operators=PRODUCTS_KEPT)),
        ("dots_saveable", Recompute("parts", 0, regathers=False, operators=PRODUCTS_KEPT)),
        (
            "minimal_flash",
            Recompute("parts", 0, regathers=False, operators=replace(PRODUCTS_KEPT, attention=0)),
        ),
        ("SAC", Recompute("selective")),
        ("none", Recompute()),
        ("full", Recompute("uniform", 1)),
        ("1", Recompute("uniform", 1)),
        ("selective", Recompute("selective")),
        ("core attention", Recompute("selective")),
        ("block 4", Recompute("block", 4)),
        ("block/40", Recompute("block", 32)),
        ("uniform/2", Recompute("uniform", 2)),
        ("selective (every 2nd layer)", Recompute("block", 16)),
        ("25 %", Recompute("block", 8)),
        ("8 of 32 layers", Recompute("block", 8)),
    ],
)
def test_recompute_is_read_from_its_words(text: str, recompute: Recompute, shelf: Shelf) -> None:
    known = setup(run_of(recompute=text), shelf)
    assert known.plan.stages[0].recompute == recompute
    assert known.open == ()


def test_modules_that_are_computed_again_are_operators_by_name(shelf: Shelf) -> None:
    used = setup(run_of(recompute="layernorm, mla_up_proj"), shelf).problem.framework
    assert (used.selective, used.named) == ("named", Named(projections=True, norm=True))
    plain = setup(run_of(recompute="selective"), shelf).problem.framework
    assert plain.selective == "attention"


def test_what_selective_means_is_the_framework_s_choice(shelf: Shelf) -> None:
    for name, meant in [("torchtitan", "operators"), ("Megatron-LM", "attention")]:
        known = setup(run_of(recompute="selective", framework=name), shelf)
        assert known.plan.stages[0].recompute == Recompute("selective")
        assert known.problem.framework.selective == meant


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"seq_len": ""}, "seq_len: missing"),
        ({"gbs": ""}, "gbs: missing"),
        ({"chip": ""}, "chip: missing"),
        ({"dp": "", "tp": "", "pp": ""}, "dp, tp, pp: missing"),
        ({"dp": "", "tp": "3"}, "dp: missing, and tp x pp x cp = 3 does not divide"),
        ({"gpus": "16"}, "gpus: 16, where the degrees multiply to 8"),
        ({"layers": "", "model": "ours"}, "layers: missing"),
        ({"precision": "int8"}, "precision: no estimate"),
        ({"recompute": "a little"}, "recompute: no estimate"),
        ({"layers_per_stage": "16-17"}, "layers_per_stage: 33 layers in 2 stages"),
        ({"mbs": "3"}, "plan: mbs x dp = 12 does not divide the batch 64"),
        ({"iter_time_s": ""}, "nothing was measured"),
        ({"notes": "a micro-benchmark"}, "notes: part of a model timed alone"),
        ({"mem_gb_per_gpu": "60", "mem_unit": "pounds"}, "mem_unit: must be GiB or GB"),
        (
            {"iter_time_s": "", "mfu": "0.4", "flops_convention": "fast"},
            "flops_convention: no convention is called",
        ),
        (
            {"pp": "4", "tp": "1", "sp": "", "dp": "2", "layers": "31", "vpp": "",
             "layers_per_stage": "8-7-9-7", "schedule": "interleaved"},
            "vpp: missing, and no number of chunks divides",
        ),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_expressed_is_skipped_with_its_reason(
    cells: dict[str, str], reason: str
) -> None:
    [row] = checked(cells)
    assert row.skipped is not None
    assert row.skipped.startswith(reason)
    assert row.predicted_step_s is None or not cells["iter_time_s"]


def test_what_a_row_leaves_open_is_the_fastest_that_fits() -> None:
    opened, *stated = checked(
        {"mbs": "", "recompute": ""},
        *(
            {"mbs": str(mbs), "recompute": recompute}
            for mbs in (1, 2, 4, 8, 16)
            for recompute in ("none", "selective", "full")
        ),
    )
    assert opened.setup is not None
    assert opened.setup.open == ("mbs", "recompute")
    fits = [
        row.predicted_step_s
        for row in stated
        if row.estimate and not row.estimate.violations and row.predicted_step_s
    ]
    assert 0 < len(fits) < len(stated)
    assert opened.predicted_step_s == min(fits)


def test_a_larger_micro_batch_is_not_bought_with_recompute(shelf: Shelf) -> None:
    # FSDP gathers for each micro-batch, so that fewer of them with recompute would be faster.
    cells = {"model": "llama2-70b", "gpus": "128", "dp": "128", "tp": "1", "gbs": "1024"}
    known = setup(run_of(**cells, sp="0", zero="fsdp", mbs="", recompute=""), shelf)
    assert known.plan.stages[0].recompute == Recompute()
    assert known.plan.mbs < 8


def test_a_pipeline_of_torchtitan_has_a_micro_batch_for_each_stage(shelf: Shelf) -> None:
    # 64 sequences over dp 2 are 32 a replica; in 4 micro-batches they are 8 each.
    cells = {"pp": "4", "dp": "2", "tp": "1", "sp": "0", "gbs": "64", "framework": "torchtitan"}
    known = setup(run_of(**cells, mbs="", vpp="", schedule="interleaved"), shelf)
    assert (known.plan.mbs, known.plan.vpp) == (8, 2)
    assert known.open == ("mbs", "vpp")


def test_an_open_setting_is_the_framework_s_habit_where_it_has_one(shelf: Shelf) -> None:
    cells = {"pp": "4", "dp": "2", "tp": "1", "sp": "0", "vpp": "", "framework": "torchtitan"}
    known = setup(run_of(**cells), shelf)
    assert known.plan.vpp == 1
    assert known.open == ("vpp",)


@pytest.mark.parametrize(("date", "logit_bytes"), [("2025-03", 14), ("2025-04", 4), ("", 4)])
def test_a_run_had_its_framework_as_it_was_then(shelf: Shelf, date: str, logit_bytes: int) -> None:
    run = run_of(framework="torchtitan", notes="torch.compile", date=date)
    assert setup(run, shelf).problem.framework.held.logit_bytes == logit_bytes


def test_offloaded_activations_are_a_share_of_every_layer_s(shelf: Shelf) -> None:
    waiting = setup(run_of(offload_fraction="0.3"), shelf)
    assert waiting.problem.framework.held.offloaded_share == 0.3
    assert waiting.plan.stages[0].offload == 0


def test_the_width_of_gradients_is_read_from_words(shelf: Shelf) -> None:
    def said(notes: str) -> tuple[int, int]:
        stored = setup(run_of(notes=notes), shelf).problem.framework.bytes
        return stored.gradient, stored.gradient_sent

    assert said("") == said("bf16 gradient accumulation") == (4, 4)
    assert said("synthetic data, bf16 gradients") == (2, 2)
    assert said("gradients reduced in 16 bits") == (2, 2)


def test_the_capacity_of_experts_is_read_from_words(shelf: Shelf) -> None:
    def said(notes: str) -> float:
        run = run_of(experts="8", topk="2", notes=notes)
        moe = setup(run, shelf).problem.model.moe
        assert moe is not None
        return moe.capacity_factor

    assert said("") == said("dropless; no token drop") == said("memory capacity 80 GB") == 0
    assert said("token-drop capacity factor 1.0") == said("expert capacity (tokendrop)") == 1
    assert said("dense_matmul, capacity_factor=1.25") == said("capacity of 1.25") == 1.25


def test_a_row_may_name_a_grouped_product_of_its_experts(shelf: Shelf) -> None:
    def said(notes: str) -> bool:
        return setup(
            run_of(framework="FSDP", notes=notes), shelf
        ).problem.framework.fused.grouped_gemm

    assert [said(notes) for notes in ("", "no grouped GEMM", "grouped GEMM", "grouped_mm")] == [
        False, False, True, True,
    ]  # fmt: skip


def test_parameters_that_a_row_shards_are_gathered_in_every_pass(shelf: Shelf) -> None:
    def said(zero: str) -> str:
        run = run_of(framework="InternEvo", zero=zero)
        return setup(run, shelf).problem.framework.gathers

    assert (said("1"), said("3")) == ("step", "step_in_pipeline")


def test_a_fused_kernel_of_another_part_says_nothing_of_attention(shelf: Shelf) -> None:
    def said(notes: str) -> str:
        return setup(run_of(attention="", notes=notes), shelf).problem.workload.attention

    assert said("unfused rotary positions") == "flash"
    assert said("unfused attention") == said("flash attention off") == "unfused"


def test_a_compiled_model_that_is_sharded_is_fsdp_s(shelf: Shelf) -> None:
    run = run_of(framework="Accelerate FSDP2, torch.compile", zero="fsdp")
    assert setup(run, shelf).problem.framework.name == "fsdp-compiled"


@pytest.mark.parametrize(
    ("notes", "vocab", "pieces"),
    [
        ("", "32000", 1),
        ("loss in eight pieces", "32000", 8),
        ("loss in 4 chunks", "32000", 4),
        ("no Liger", "32000", 1),
        # As many as the vocabulary is wider than 4,096.
        ("Liger kernels", "32000", 8),
        ("Liger kernels", "128256", 32),
        # Two sequences of 4,096 tokens in pieces of 256.
        ("TRL SFTTrainer, chunked cross-entropy", "32000", 32),
    ],
)
def test_a_loss_may_be_computed_in_pieces(
    notes: str, vocab: str, pieces: int, shelf: Shelf
) -> None:
    run = run_of(framework="FSDP", notes=notes, vocab=vocab, mbs="2", seq_len="4096", cp="1")
    assert setup(run, shelf).problem.framework.held.loss_pieces == pieces


def test_parameters_that_stay_whole_until_the_backward_pass_are_sharded_as_in_zero_2(
    shelf: Shelf,
) -> None:
    def said(notes: str) -> int:
        return setup(run_of(framework="FSDP", zero="fsdp", notes=notes), shelf).plan.zero

    assert said("") == said("resharded after forward") == 3
    assert said("reshard_after_forward never") == said("parameters not resharded") == 2


def test_states_may_all_be_narrow(shelf: Shelf) -> None:
    for notes in ("parameters, gradients and AdamW states all bf16", "pure bf16"):
        used = setup(run_of(framework="FSDP", notes=notes), shelf).problem.framework.bytes
        assert (used.parameter, used.gradient, used.gradient_sent, used.optimizer) == (2, 2, 2, 4)
    usual = setup(run_of(framework="FSDP", notes="AdamW states in fp32"), shelf).problem.framework
    assert usual.bytes.optimizer > 4


def test_offloaded_checkpoints_wait_on_the_host(shelf: Shelf) -> None:
    def share(notes: str, told: str = "") -> float:
        run = run_of(notes=notes, offload_fraction=told)
        return setup(run, shelf).problem.framework.held.offloaded_share

    assert share("activation checkpoints offloaded to host") == 1
    assert share("offload of the optimizer and of checkpoints") == 1
    assert share("activation checkpoints offloaded to host", "0.25") == 0.25
    assert share("no checkpoints offloaded") == share("optimizer offloaded") == 0


def test_a_shard_group_may_lie_inside_a_node(shelf: Shelf) -> None:
    wide = {"gpus": "32", "dp": "32", "tp": "1", "sp": "0"}
    notes = "optimizer sharded over 4 GPUs inside a node"
    assert setup(run_of(**wide), shelf).plan.shard_group == 32
    assert setup(run_of(**wide, notes=notes), shelf).plan.shard_group == 4
    assert setup(run_of(**wide | {"zero": "hsdp"}), shelf).plan.shard_group == 8


def test_a_run_without_degrees_is_data_parallel_where_it_is_sharded_so(shelf: Shelf) -> None:
    degrees = dict.fromkeys(("dp", "tp", "pp", "cp", "sp", "vpp"), "")
    known = setup(run_of(**degrees | {"zero": "fsdp"}), shelf)
    assert (known.plan.dp, known.plan.zero, known.assumed) == (8, 3, ("dp=8",))


def test_one_rank_shards_nothing(shelf: Shelf) -> None:
    plan = setup(run_of(gpus="2", dp="1"), shelf).plan
    assert (plan.zero, plan.shard_group) == (0, 1)
