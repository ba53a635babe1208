"""Over how many ranks states are sharded and where the optimizer is, as people write it."""

import re
from dataclasses import replace

import pytest

from autopar import catalog
from autopar.runs.shards import KEPT_WHOLE, in_known_words, shard_group
from autopar.runs.stored import optimizer_on_host
from stated import run_of


@pytest.mark.parametrize(
    ("notes", "group"),
    [
        ("HSDP, shard degree 16", 16),
        ("HSDP: fsdp=16 x data=4", 16),
        ("HSDP: FSDP groups of 16", 16),
        ("HSDP: ici/dcn FSDP group 16, DP 4 on top", 16),
        ("Hybrid sharding: FSDP group of 8 inside the node, replicated outside", 8),
        ("zero-1 w/ states split intra-node (8), replicated inter-node", 8),
        ("shard groups: P,G over 4 ranks, OS over 8", 4),
        ("sharding_strategy=hsdp (shard=8 intra-node, replicate across)", 8),
        ("an FSDP axis of 16, replicated outside it", 16),
        ("HSDP: fsdp 16 x 4 replicas", 16),
        ("shard group 32", 32),
        ("data_parallel_shard_degree 16, data_parallel_replicate_degree 4", 16),
        ("zero1 group size 8", 8),
        ("FSDP over 16 chips, data-parallel replicas above", 16),
        ("weights split 32 ways with 2 replicas", 32),
        ("HYBRID_SHARD, shard group = one 8-GPU node", 8),
        ("HYBRID_SHARD within the node", 8),
        ("FSDP within each node, DDP between", 8),
        ("sharded over 4 devices inside a node", 4),
        ("FSDP across all ranks", 64),
        ("expert FSDP degree 4", 64),
        ("fsdp=48", 64),
        ("fsdp 2 x 4", 64),
        ("FSDP2", 64),
    ],
)
def test_ranks_that_shard_are_those_of_a_group(notes: str, group: int) -> None:
    run = replace(run_of(), zero="fsdp", notes=notes)
    assert shard_group(run, 64, catalog.chip("h100").chip) == group


def test_weights_are_sharded_over_the_ranks_of_context_parallelism_too() -> None:
    run = replace(run_of(), zero="fsdp", notes="context parallel 4, fsdp 8", cp=4)
    assert shard_group(run, 64, catalog.chip("h100").chip) == 32


def test_shards_within_a_slice_of_a_pod() -> None:
    run = replace(run_of(), zero="fsdp", notes="FSDP within each slice, DP over DCN", tp=2)
    device = replace(catalog.chip("tpu_v5e").chip, link_domain=64)
    assert shard_group(run, 128, device) == 32


@pytest.mark.parametrize(
    "notes",
    [
        "optimizer in host memory",
        "offload of the parameters and the optimizer",
        "Adam offloaded to CPU",
        "params and all optimizer state live in pinned host RAM",
        "optimizer and params on CPU",
        "params+optimizer live on host",
        "Adam moments swapped to host RAM",
        "optimizer_cpu_offload: true",
        "--optimizer-cpu-offload",
        "optimizer_memory_host_offload=true",
        "offload_optimizer to cpu",
        "DeepSpeedCPUAdam",
        "ZeRO-Offload",
        "FSDP CPUOffload",
    ],
)
def test_an_optimizer_on_the_host_is_said(notes: str) -> None:
    assert optimizer_on_host(replace(run_of(), notes=notes))


@pytest.mark.parametrize(
    "notes",
    [
        "no optimizer offload",
        "no CPU Adam",
        "optimizer_cpu_offload: false",
        "optimizer_offload=off",
        "offload_optimizer_device: none",
        "optimizer on the GPU; checkpoints offloaded to CPU",
        "activations offloaded to CPU, Adam fused",
        "optimizer step 21.8 ms",
        "SparseCore offload of collectives",
    ],
)
def test_an_optimizer_on_the_device_is_not_taken_for_one_on_the_host(notes: str) -> None:
    assert not optimizer_on_host(replace(run_of(), notes=notes))


@pytest.mark.parametrize(
    ("notes", "kept"),
    [
        ("reshard_after_forward=never", True),
        ("reshard_after_forward=False", True),
        ("fsdp shard_grad_op", True),
        ("weights stay gathered between passes", True),
        ("not resharded after forward", True),
        ("reshard_after_forward on", False),
        ("resharded after forward", False),
    ],
)
def test_weights_that_stay_gathered(notes: str, kept: bool) -> None:
    assert bool(re.search(KEPT_WHOLE, notes, re.I)) == kept


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("FULL_SHARD", "fsdp"),
        ("hybrid shard", "hsdp"),
        ("SHARD_GRAD_OP", "2"),
        ("os_g", "2"),
        ("optimizer states", "1"),
        ("NO_SHARD", "0"),
        ("no distributed optimizer", "0"),
        ("DDP, not FSDP", "0"),
        ("ZeRO-1, no FSDP", "1"),
        ("FSDP without a distributed optimizer", "fsdp"),
        *((same, same) for same in ("", "fsdp2", "zero-3", "dist-opt", "ddp", "1")),
    ],
)
def test_strategies_have_names_of_their_frameworks(text: str, known: str) -> None:
    assert in_known_words(replace(run_of(), zero=text)).zero == known


def test_further_words_of_a_strategy_are_notes() -> None:
    run = in_known_words(replace(run_of(), zero="FSDP SHARD_GRAD_OP"))
    assert re.search(KEPT_WHOLE, run.notes, re.I)
    assert "fsdp" in run.zero.lower()
    assert optimizer_on_host(in_known_words(replace(run_of(), zero="ZeRO-3 offload")))
