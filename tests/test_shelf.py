"""Chips, networks and frameworks as people write them."""

from dataclasses import replace

import pytest

import autopar
from autopar import catalog
from autopar.cluster import Link
from autopar.errors import SpecError
from autopar.runs.hardware import chip_as_written, network
from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf, chip, devices, framework
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
        ("NVIDIA GH200 120GB", "gh200"),
        ("GH200 480GB", "gh200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000"),
        ("RTX 6000 Blackwell", "rtx_pro_6000"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("Intel Max 1550 tile", "max1550"),
        ("TPU v7x", "tpu_v7"),
        ("Intel Max 1550 (PVC), per tile", "max1550"),
        ("one tile of an Intel Data Center GPU Max 1550", "max1550"),
        ("AMD MI250X 128GB, 1 GCD a rank", "mi250x"),
        ("H100 96GB HBM2e, 500 W", "h100_96_500w"),
        ("A100-SXM4-80GB 400W", "a100_80"),
        ("A100 64GB custom", "a100_64"),
        ("64GB A100", "a100_64"),
        ("NVIDIA A100 PCIe, 40 GB", "a100_pcie_40"),
        ("Ascend 910C, single die", "ascend_910c"),
        ("Ascend NPU 910B", "ascend_910b"),
        ("A800 (inferred; an A100 of fewer links)", "a800"),
    ],
)
def test_chips_are_found_as_people_write_them(text: str, name: str) -> None:
    assert chip_as_written(text) == catalog.chip(name).chip


def test_a_chip_of_another_memory_has_that_memory() -> None:
    usual = catalog.chip("v100").chip
    assert chip_as_written("Tesla V100-SXM2-16GB") == replace(usual, memory_gib=16.0)
    assert chip_as_written("V100-16GB").memory_gib == 16.0
    assert chip_as_written("NVIDIA GH200 144G HBM3e").memory_gib == 144.0
    assert chip_as_written("RTX 4090, 48 GB, modified").memory_gib == 48.0


@pytest.mark.parametrize("text", ["A100 or H100", "Foo v2", "card of 80GB"])
def test_words_that_fit_no_chip_or_several_name_none(text: str) -> None:
    with pytest.raises(SpecError, match="no chip named"):
        chip_as_written(text)


def test_sixteen_v100_of_a_node_are_a_dgx2() -> None:
    run = replace(run_of(chip="V100 32GB"), gpus_per_node=16)
    assert chip(run, Shelf()).name == "v100_dgx2"


def test_kinds_of_chips_are_counted_before_or_behind_their_names() -> None:
    behind = run_of(chip="V100-16GB x12 + T4-16GB x4")
    before = replace(behind, chip="12x V100 16GB + 4 x T4")
    assert devices(before, Shelf()) == devices(behind, Shelf())
    assert devices(replace(behind, chip="12x V100 16GB and 4x T4"), Shelf())[1].limit == 4


WIRED = [
    "four devices wired to each other",
    "4-GPU NVLink all-to-all node",
    "GPUs in a node are NVLinked 4-way",
    "NVLink mesh among the node's 4 GPUs",
    "4 GPUs/node all NVLinked",
]


@pytest.mark.parametrize(
    ("notes", "topology"),
    [
        *((words, "mesh") for words in WIRED),
        ("4 GPUs per node", "switch"),
        ("nodes of 4 GPUs joined by NVLink through NVSwitch", "switch"),
        ("4-GPU nodes without NVLink", "switch"),
    ],
)
def test_boards_of_four_have_no_switch(notes: str, topology: str) -> None:
    run = replace(run_of(chip="H100 80GB", notes=notes), gpus=4, gpus_per_node=4)
    assert chip(run, Shelf()).link.topology == topology


@pytest.mark.parametrize(
    ("notes", "hosted"),
    [
        ("no P2P between the devices", True),
        ("GPUs lack peer-to-peer (traffic via host)", True),
        ("PCIe P2P: disabled", True),
        ("NCCL_P2P_DISABLE=1", True),
        ("PCIe P2P", False),
        ("P2P on", False),
    ],
)
def test_cards_that_do_not_reach_each_other_pass_the_host(notes: str, hosted: bool) -> None:
    usual = run_of(chip="A100 40GB PCIe")
    for told in (replace(usual, notes=notes), replace(usual, internode=f"1 node, {notes}")):
        slower = chip(told, Shelf()).link != chip(usual, Shelf()).link
        assert slower == hosted


@pytest.mark.parametrize(
    "notes",
    [
        "power limit of 240 W (default 350)",
        "Cards capped at 240 W rather than the stock 350",
        "Card limited to 240 W (factory 350 W)",
        "power-capped at 240 W (stock 350)",
        "nvidia-smi -pl 240W instead of 350",
        "limited to 240 watts, default is 350",
        "Card limited to 240 W (350 W stock)",
    ],
)
def test_a_card_held_to_less_power_is_slower(notes: str) -> None:
    usual = run_of(chip="RTX 3090")
    ratio = (
        chip(replace(usual, notes=notes), Shelf()).gemm.efficiency
        / chip(usual, Shelf()).gemm.efficiency
    )
    assert ratio == pytest.approx((240 / 350) ** 0.63)


@pytest.mark.parametrize(
    "notes",
    [
        "2 slices of 64 over DCN",
        "two 64-chip slices joined by DCN",
        "2 x v5e-64",
        "DCN across two slices, 64 chips apiece",
    ],
)
def test_slices_of_a_pod_are_toruses_of_their_own(notes: str) -> None:
    assert chip(run_of(chip="TPU v5e", internode=notes), Shelf()).link_domain == 64


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
        ("4 x NDR200 InfiniBand", 4, 200),
        ("2x NDR", 2, 400),
        ("RoCE, 8 NICs of 100 Gb/s", 8, 100),
        ("RDMA, one 100 Gb/s NIC", 1, 100),
        ("100Gb RDMA, 1 NIC", 1, 100),
        ("8x CX-7 400G", 8, 400),
        ("1 x 25GbE NIC per node", 1, 25),
        ("400GbE x 8", 8, 400),
        ("3.2 Tb/s a node", 8, 400),
        ("400 Gb/s for each GPU", 8, 400),
        ("2 dual-port HDR100 cards a node", 4, 100),
        ("Leonardo, 2x dual-port HDR100 per node", 4, 100),
        ("10 Gb/s Ethernet, one GPU a machine", 1, 10),
        ("single node", 8, 200),
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


@pytest.mark.parametrize(
    ("text", "chip", "efficiency", "step"),
    [
        ("4x200Gb Slingshot 11 (Alps)", "gh200", 0.73, 105),
        ("2x200Gb Slingshot 11 by sockets (Polaris)", "a100_40", 0.17, 14),
        ("8x200Gb/s Ethernet, NCCL over TCP sockets (a3-megagpu-8g)", "h100", 0.17, 14),
        ("8x200Gb Slingshot", "max1550", 0.73, 105),
    ],
)
def test_steps_over_slingshot_are_long(
    text: str, chip: str, efficiency: float, step: float
) -> None:
    # By sockets they are not known. Of Intel's chip the catalog has what the same cards carry on
    # Polaris, 0.73 of their rate and 105 us a step (argonne-lcf/alcf-nccl-tests).
    found = network(text, catalog.chip(chip).chip.network, chip)
    assert (found.efficiency, found.latency_us) == (efficiency, step)


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
    # 54.6 Gbit/s of two cards between nodes of four V100 (there too).
    usual = replace(catalog.chip("v100").chip.network, nics_per_node=2)
    found = network("Omni-Path (Jean Zay)", usual, "v100")
    assert found == replace(usual, efficiency=0.27)


def test_efa_takes_the_steps_that_were_measured() -> None:
    # 32 MB over 2 to 32 nodes of eight H100 (crazyguitar/aws-gpu-communication-benchmark).
    usual = catalog.chip("h100").chip.network
    found = network("EFA 3.2 Tb/s a node", usual)
    assert found == replace(usual, efficiency=0.84, latency_us=31.0)


def test_networks_of_google_s_nodes_take_what_gathers_over_two_of_them_took() -> None:
    # 50.2 and 188.5 GB/s (dstackai/dstack, examples of A3 High and A3 Mega).
    usual = catalog.chip("h100").chip.network
    high, mega = network("4x200Gb TCPX", usual), network("8x200Gb TCPXO", usual)
    for found, measured in ((high, 50.2), (mega, 188.5)):
        rate = found.nics_per_node * found.nic_gbit_per_s / 8 * found.efficiency
        assert rate == pytest.approx(measured, rel=0.01)


def test_old_hosts_issue_operators_more_slowly(shelf: Shelf) -> None:
    def pace(internode: str) -> float:
        return chip(run_of(chip="V100-16GB", internode=internode), shelf).host.pace

    # One step of `lightv100` without checkpoints, 1.5B, one sequence: 0.823 s, and 0.554 elsewhere.
    assert pace("25Gb Ethernet (4x p3.16xlarge)") / pace("") == pytest.approx(
        0.823 / 0.554, rel=0.02
    )
    assert pace("p3dn.24xlarge") == pace("")


def test_a_core_of_a_tpu_chip_is_half_of_it(shelf: Shelf) -> None:
    whole = catalog.chip("tpu_v3").chip
    for words in ("TPU v3", "TPU v3 32GB"):
        assert chip(run_of(chip=words, gpus_per_node="4"), shelf).peak_tflops == whole.peak_tflops
    for cells in (
        {"chip": "TPUv3-core-16GB"},
        {"chip": "TPU v3 16GB"},
        {"chip": "TPU v3-32", "gpus": "32", "dp": "16"},
    ):
        core = chip(run_of(**cells, gpus_per_node="8"), shelf)
        assert (core.peak_tflops.bf16, core.memory_bandwidth_gb_per_s) == (61.5, 450)
        assert core.memory_gib == whole.memory_gib / 2
        assert core.peak_tflops.tf32 == core.peak_tflops.bf16
        # What passes both cores passes each wire of their chip once.
        assert core.link == whole.link


def test_four_devices_without_a_switch_share_their_wires_out(shelf: Shelf) -> None:
    cells = {"gpus": "4", "gpus_per_node": "4", "chip": "H100-80GB"}

    def link(notes: str) -> tuple[str, float, float]:
        found = chip(run_of(notes=notes, **cells), shelf).link
        return found.topology, found.p2p_gb_per_s, found.all_gather_gb_per_s

    assert link("")[0] == "switch"
    # Four may be half of a machine with switches; several nodes of four are boards without.
    several = run_of(**{**cells, "gpus": "16"})
    assert chip(several, shelf).link.topology == "mesh"
    assert link("4 NVLink-connected GPUs per node")[0] == "mesh"
    topology, pair, gather = link("four devices wired to each other")
    # As the catalog has it of the H100 of MareNostrum 5: a third of the wires for each pair.
    assert (topology, pair) == ("mesh", pytest.approx(gather / 3))


def test_cards_without_peer_to_peer_pass_the_host_s_memory(shelf: Shelf) -> None:
    def summed(notes: str, kind: str = "A100-PCIE-40GB") -> float:
        cells = {"gpus_per_node": "4", "chip": kind, "notes": notes}
        return chip(run_of(**cells), shelf).link.all_reduce_gb_per_s

    # Four A100 with peer-to-peer switched off sum 64 MB in 11,369 us (besthub.dev).
    measured = 1.5 * 2**26 / 11369e-6 / 1e9
    for notes in ("no P2P between the devices", "NCCL_P2P_DISABLE=1"):
        assert summed(notes) == pytest.approx(measured, rel=0.01)
    assert summed("P2P over PCIe") > 2 * measured


def test_cards_that_pass_the_host_s_memory_anyway_are_not_slowed_by_saying_so(shelf: Shelf) -> None:
    def link(kind: str, notes: str) -> Link:
        return chip(run_of(gpus_per_node="4", chip=kind, notes=notes), shelf).link

    # GeForce and TITAN cards without NVLink have no peer-to-peer transfers (catalog/chips).
    for kind in ("RTX 4090", "RTX 3090", "TITAN RTX"):
        assert link(kind, "no P2P") == link(kind, "")
    workstation = link("RTX A6000", "no P2P")
    assert workstation.all_reduce_gb_per_s < link("RTX A6000", "").all_reduce_gb_per_s


def test_two_cards_reach_each_other_by_their_bridge(shelf: Shelf) -> None:
    def link(node: str, notes: str) -> tuple[str, float]:
        cells = {"gpus_per_node": node, "chip": "A40", "notes": notes}
        found = chip(run_of(**cells), shelf).link
        return found.topology, found.all_reduce_gb_per_s

    # 8192 rows of 4096 in 16 bits in 1.62 ms (microsoft/vidur).
    measured = 8192 * 4096 * 2 / 1.62e-3 / 1e9
    assert link("2", "an NVLink bridge") == ("mesh", pytest.approx(measured, rel=0.02))
    for node, notes in (("2", ""), ("2", "no NVLink bridge"), ("4", "NVLink bridges of pairs")):
        assert link(node, notes)[0] == "pcie"


def test_a_card_held_to_less_power_multiplies_slower(shelf: Shelf) -> None:
    def sustained(notes: str) -> float:
        found = chip(run_of(chip="RTX 3090", notes=notes), shelf)
        return found.gemm.efficiency * (found.peak_tflops.bf16 or 0.0)

    lower, held = (sustained(f"power limit of {watts} W (default 350)") for watts in (200, 240))
    assert lower < held < sustained("")
    assert sustained("power limit of 400 W (default 350)") == sustained("")


def test_slices_of_a_pod_are_joined_by_a_network(shelf: Shelf) -> None:
    def domain(kind: str, internode: str) -> tuple[int, int]:
        found = chip(run_of(chip=kind, internode=internode), shelf)
        return found.link_domain, found.devices_per_node

    assert domain("TPU v5p", "ICI 3D torus") == (8960, 4)
    assert domain("TPU v5p", "2 slices of 512 over DCN") == (512, 4)
    assert domain("TPU v6e", "two slices of 4 over DCN") == (4, 4)
    assert domain("A100", "slices of 16") == domain("A100", "")


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
        ({"framework": "Megatron-LM", "date": "2024-05", "attention": "flash"}, "megatron-2022"),
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
        ({"framework": "EasyLM", "chip": "TPU v4"}, "maxtext"),
        ({"framework": "Mesh TensorFlow"}, "mesh-transformer"),
        ({"framework": "torchprime (torch_xla 2.6)"}, "torch-xla"),
        ({"framework": "pytorch-tpu/transformers (torch_xla)", "zero": "fsdp"}, "torch-xla"),
        ({"framework": "Lingua"}, "fsdp-compiled"),
        ({"framework": "fairseq2"}, "fsdp"),
        ({"framework": "lit-llama"}, "fsdp"),
        ({"framework": "MiCS", "zero": "3"}, "deepspeed"),
        ({"framework": "LoongTrain"}, "internevo"),
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
        ({"framework": "Axolotl (FSDP2)", "zero": ""}, "fsdp"),
        ({"framework": "MindSpeed-LLM FSDP2", "zero": "fsdp"}, "fsdp"),
        ({"framework": "Accelerate (DDP, not FSDP)", "zero": ""}, "pytorch-ddp"),
        ({"framework": "HF Trainer (DDP; FSDP was slower)", "zero": ""}, "pytorch-ddp"),
        ({"framework": "DeepSpeed, faster than FSDP", "zero": ""}, "deepspeed"),
        ({"framework": "LLaMA-Factory FSDP", "zero": "hsdp"}, "fsdp"),
        ({"framework": "Axolotl (FSDP2)", "zero": "", "gpus": "1", "dp": "1"}, "pytorch-ddp"),
        ({"framework": "nanochat"}, "ddp-compiled"),
        ({"framework": "Primus (torchtitan)"}, "torchtitan-eager"),
        ({"framework": "Primus", "chip": "MI300X"}, "megatron-core-rocm"),
        ({"framework": "PyTorch Lightning"}, "fsdp"),
        ({"framework": "verl"}, "fsdp"),
        ({"framework": "verl (Megatron-Core by mbridge)", "date": "2026-02"}, "megatron-core"),
        ({"framework": "PyTorch", "zero": "0"}, "pytorch-ddp"),
        ({"framework": "PyTorch, torch.compile", "zero": "none"}, "ddp-compiled"),
        ({"framework": "PyTorch FSDP", "zero": "0"}, "fsdp"),
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
        (
            {"framework": "DeepSpeed 0.2 (ZeRO-100B) with Megatron-LM", "date": "2020-03"},
            "deepspeed-megatron-2020",
        ),
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
        ({"framework": "MindFormers", "chip": "910B"}, "mindformers"),
        ({"framework": "MindFormers", "chip": "Ascend 910B"}, "mindformers"),
        ({"framework": "MindFormers", "chip": "910A"}, "mindformers-910a"),
        ({"framework": "MindSpore", "chip": "Ascend 910"}, "mindformers-910a"),
        ({"framework": "NeMo Megatron", "date": "2022-09"}, "megatron-2022"),
        ({"framework": "DeepSpeed", "date": "2022-11", "zero": "3"}, "huggingface-2022"),
        ({"framework": "Megatron-LM core_r0.7.0"}, "megatron-core-2023"),
        ({"framework": "Megatron-LM v2.4"}, "megatron-2021"),
        ({"framework": "Zero Bubble", "date": "2022-11"}, "megatron-2022"),
        ({"framework": "HAI-LLM (DualPipe)"}, "hai-llm"),
        ({"framework": "PithTrain", "notes": "torch.compile"}, "pithtrain"),
        ({"framework": "Megatron-DeepSpeed", "chip": "Gaudi2"}, "megatron-deepspeed-gaudi"),
        (
            {"framework": "optimum-habana run_clm.py (DeepSpeed)", "chip": "Gaudi2"},
            "optimum-habana",
        ),
        ({"framework": "Optimum Habana", "chip": "Gaudi3"}, "optimum-habana-ddp"),
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
        ({"framework": "MosaicML examples MosaicGPT (Composer FSDP)"}, "mosaicgpt"),
        ({"framework": "Modalities"}, "fsdp"),
        ({"framework": "YaFSDP"}, "yafsdp"),
        ({"framework": "LMFlow", "date": "2023-08"}, "deepspeed"),
        ({"framework": "Savanna"}, "gpt-neox"),
        ({"framework": "Flax", "chip": "TPU v4"}, "maxtext"),
        ({"framework": "AXLearn", "chip": "TPU v4"}, "maxtext"),
        ({"framework": "Levanter", "chip": "TPU v4"}, "levanter"),
        ({"framework": "Levanter", "chip": "GB200"}, "levanter-gpu"),
        ({"framework": "Levanter / Grug (JAX)", "chip": "TPU v4"}, "grug"),
        ({"framework": "Levanter / grug (JAX), FA4", "chip": "GB200"}, "grug-gpu"),
        ({"framework": "AXLearn", "chip": "MI210"}, "pax"),
        ({"framework": "MaxText", "chip": "H100"}, "maxtext-gpu"),
        ({"framework": "MaxText", "chip": "L40S"}, "maxtext-gpu"),
        ({"framework": "MaxText", "chip": "H100 x 8 + A100 x 8"}, "maxtext-gpu"),
        ({"framework": "JaxPP", "chip": "H100"}, "maxtext-gpu"),
        ({"framework": "MaxText", "chip": "TPU v6e"}, "maxtext"),
        ({"framework": "ScaleTorch", "chip": "910B"}, "scaletorch"),
        ({"framework": "torchtitan Dist-MoE"}, "torchtitan-dist-moe"),
        ({"framework": "Megatron-LM core 0.16 (ms-swift)", "date": "2026-04"}, "megatron-swift"),
        ({"framework": "Megatron-SWIFT", "date": "2025-07"}, "megatron-swift"),
        ({"framework": "ms-swift", "zero": "3"}, "deepspeed"),
    ],
)
def test_a_framework_is_that_of_its_words_and_time(
    cells: dict[str, str], name: str, shelf: Shelf
) -> None:
    entry, named = framework(run_of(**cells), shelf)
    assert (entry.framework.name, named) == (name, True)


def test_sharding_is_told_before_the_time(shelf: Shelf) -> None:
    # Before PyTorch 2.11 cuDNN's attention was not the first choice: not of FSDP either.
    def first_kernel(date: str) -> str:
        run = run_of(framework="LLaMA-Factory", zero="fsdp", date=date)
        return framework(run, shelf)[0].framework.attention_kernels[0]

    assert first_kernel("2026-05") == "cudnn"
    assert first_kernel("2025-05") != "cudnn"


def test_recipes_in_mxfp8_became_one_graph_in_june_2026(shelf: Shelf) -> None:
    def used(date: str) -> tuple[str, float, bool]:
        cells = {"framework": "Megatron-Bridge", "date": date, "notes": "MXFP8"}
        found = framework(run_of(**cells), shelf)[0].framework
        return found.name, found.launch_us, found.overlap.expert

    assert used("2026-06") == used("") == ("megatron-bridge-mxfp8", 0.0, True)
    usual = catalog.framework("megatron-bridge").framework.launch_us
    assert used("2026-04") == ("megatron-bridge-mxfp8", usual, False)


def test_of_two_frameworks_what_shards_is_taken_where_something_is_sharded(shelf: Shelf) -> None:
    def named(zero: str) -> str:
        row = {"framework": "PyTorch DDP / DeepSpeed", "zero": zero, "tp": "1", "dp": "8"}
        return framework(run_of(**row), shelf)[0].framework.name

    assert named("0") == "pytorch-ddp"
    assert named("3") == "deepspeed"
