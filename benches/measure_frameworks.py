"""Measures steps of torchtitan and DeepSpeed on one GPU, as a rank among others that are not there.

Collectives of the ranks' process group move nothing; what a rank would gather is filled with
copies of its own part, so that products see the numbers that they would. What is timed is one
rank's computation, its copies and its host, and nothing of a network. Writes three files to the
directory: `frameworks.csv`, whole steps and their parts; `profiles.csv`, the kernels of one step
by name; and `hosts.csv`, what the host spends on a layer, told by models of 4 and 16 layers that
are too small to keep a device busy. It needs torch, transformers, torchtitan 0.2.2 and deepspeed;
what is left when the seconds are over is not measured, and the parts are those of `PARTS`.

    python benches/measure_frameworks.py DIRECTORY [seconds] [part ...]
"""

import gc
import importlib.abc
import importlib.machinery
import os
import statistics
import sys
import time
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist

from measure_gpu import BF16, DEVICE, END, Case, Table, model_of

Parts = dict[str, Callable[[], object]]
RANKS = 8
SMALL = Case("", "llama", 4, 256, 512, 4, 4, 512, 64, 1)
LLAMA_1B = Case("llama-1b", "llama", 16, 2048, 8192, 32, 8, 128256, 4096, 2)
LLAMA_8B = Case("llama-8b-6l", "llama", 6, 4096, 14336, 32, 8, 32000, 4096, 1)
GPT = Case("gpt-1.5b", "gpt2", 24, 1600, 6400, 25, 25, 50257, 1024, 8)
MIXTRAL = Case("mixtral-2l", "mixtral", 2, 4096, 14336, 32, 8, 32000, 4096, 1, experts=8)
TITAN_SMALL = {"dim": 256, "n_heads": 4, "n_kv_heads": 4, "multiple_of": 64, "vocab_size": 512}
TITAN_1B = {
    "dim": 2048,
    "n_heads": 32,
    "n_kv_heads": 8,
    "ffn_dim_multiplier": 1.5,
    "multiple_of": 256,
}


# --- Modules that torchtitan imports, and that no step needs


class _Unneeded(types.ModuleType):
    """A module whose every name is a class that does nothing."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _unneeded(name)
        setattr(self, name, made)
        return made


class _Names(type):
    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _unneeded(name)

    def __call__(cls, *given: object, **_named: object) -> object:
        """A decorator returns what it decorates."""
        return given[0] if len(given) == 1 and callable(given[0]) else super().__call__()


def _unneeded(name: str) -> type:
    # A class that others derive from cannot have a metaclass of its own.
    made = type if name == "StatefulDataLoader" else _Names
    return made(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    NAMES = ("datasets", "torchdata", "tyro", "wandb", "tensorboard", "tomli_w", "torchft")

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in self.NAMES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Unneeded(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is in it."""


# --- Ranks that are not there


def ranks(count: int) -> None:
    """Starts a process group of `count` ranks of which only this one is there."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        if dist.get_world_size() == count:
            return
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=count, store=FakeStore())


def copy_own_parts() -> None:
    """Has a gather return the rank's own part as those of all, and a reduction its first part."""
    from torch.distributed import distributed_c10d

    gather, scatter = dist.all_gather_into_tensor, dist.reduce_scatter_tensor

    def gathered(
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: object = None,
        async_op: bool = False,
    ) -> object:
        work = gather(output_tensor, input_tensor, group=group, async_op=async_op)
        own = input_tensor
        if own.untyped_storage().data_ptr() == output_tensor.untyped_storage().data_ptr():
            own = own.clone()  # it lies in what is gathered
        output_tensor.view(-1, own.numel()).copy_(own.reshape(1, -1))
        return work

    def reduced(
        output: torch.Tensor,
        input: torch.Tensor,
        op: object = dist.ReduceOp.SUM,
        group: object = None,
        async_op: bool = False,
    ) -> object:
        work = scatter(output, input, op=op, group=group, async_op=async_op)
        output.view(-1).copy_(input.view(-1)[: output.numel()])
        return work

    for module in (dist, distributed_c10d):
        module.all_gather_into_tensor = gathered
        module.reduce_scatter_tensor = reduced


# --- What is measured of a step


class Measures:
    """The three tables."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.steps = Table(
            folder / "frameworks.csv",
            "case,step_s,forward_s,backward_s,clip_s,update_s,allocated_gib,reserved_gib,notes",
        )
        self.kernels = Table(folder / "profiles.csv", "case,kernel,count,device_us")
        self.hosts = Table(folder / "hosts.csv", "case,part,us_a_layer,kernels_a_layer")

    def step(self, case: str, make: Callable[[], Parts], profiled: bool, notes: str) -> None:
        """Times a step made of parts: whole, then each part until the device is done."""
        if time.monotonic() > END[0]:
            return
        try:
            parts = make()
            for _ in range(3):
                _run(parts)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            whole = statistics.median(_seconds(lambda: _run(parts)) for _ in range(5))
            apart: dict[str, list[float]] = {name: [] for name in parts}
            for _ in range(3):
                for name, part in parts.items():
                    apart[name].append(_seconds(part))
            memory = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            each = [
                round(statistics.median(apart[name]), 5) if name in apart else ""
                for name in ("forward", "backward", "clip", "update")
            ]
            self.steps.add(
                case, round(whole, 5), *each, *(round(b / 2**30, 3) for b in memory), notes
            )
            if profiled:
                self.profile(case, parts)
        except Exception as error:
            print("not measured:", case, type(error).__name__, str(error)[:300], flush=True)
        _clean()

    def profile(self, case: str, parts: Parts) -> None:
        """Writes the kernels of one step, those that take most first."""
        found = [
            (event.key, event.count, event.self_device_time_total)
            for event in _profiled(lambda: _run(parts))
        ]
        found.sort(key=lambda kernel: -kernel[2])
        everything = ("all", sum(k[1] for k in found), sum(k[2] for k in found))
        for name, count, spent in (everything, *found[:45]):
            self.kernels.add(case, name[:150], count, round(spent, 1))

    def host(self, case: str, make: Callable[[int], Parts]) -> None:
        """Times what the host spends on a layer, by part of a step."""
        if time.monotonic() > END[0]:
            return
        try:
            spent: dict[int, dict[str, tuple[float, int]]] = {}
            for layers in (4, 16):
                parts = make(layers)
                for _ in range(4):
                    _run(parts)
                spent[layers] = _host_of(parts)
                del parts
                _clean()
            for name in spent[4]:
                more = [(spent[16][name][i] - spent[4][name][i]) / 12 for i in (0, 1)]
                self.hosts.add(case, name, round(more[0] * 1e6, 1), round(more[1], 2))
        except Exception as error:
            print("not measured:", case, type(error).__name__, str(error)[:300], flush=True)
        _clean()


def _run(parts: Parts) -> None:
    for part in parts.values():
        part()


def _seconds(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _profiled(work: Callable[[], object]) -> list[torch.autograd.profiler_util.FunctionEventAvg]:
    with torch.profiler.profile() as seen:
        work()
        torch.cuda.synchronize()
    return [event for event in seen.key_averages() if event.device_type.name == "CUDA"]


def _host_of(parts: Parts) -> dict[str, tuple[float, int]]:
    """Returns the seconds until each part has been launched, and its kernels."""
    spent: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(15):
        for name, part in parts.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            part()
            spent[name].append(time.perf_counter() - start)
    return {
        name: (statistics.median(spent[name]), sum(event.count for event in _profiled(part)))
        for name, part in parts.items()
    }


def _clean() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    torch.compiler.reset()


# --- Frameworks


def plain(case: Case) -> Parts:
    """A step of Hugging Face's model by PyTorch alone, its gradients clipped."""
    model = model_of(case)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens = torch.randint(case.vocab, (case.batch, case.sequence), device=DEVICE)
    loss: list[torch.Tensor] = []

    def forward() -> None:
        with torch.autocast(DEVICE, BF16, enabled=case.wide):
            loss.append(model(input_ids=tokens, labels=tokens).loss)

    def update() -> None:
        adam.step()
        adam.zero_grad(set_to_none=True)

    return {
        "forward": forward,
        "backward": lambda: loss.pop().backward(),
        "clip": lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        "update": update,
    }


def deepspeed(case: Case, stage: int, fp16: bool = False) -> Parts:
    """A step of Hugging Face's model under DeepSpeed's ZeRO, with PyTorch's fused AdamW."""
    import deepspeed as library

    ranks(RANKS)
    os.environ.update(RANK="0", WORLD_SIZE=str(RANKS), LOCAL_RANK="0")
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29531")
    model = model_of(case)
    engine, *_ = library.initialize(
        model=model,
        model_parameters=model.parameters(),
        dist_init_required=False,
        config={
            "train_micro_batch_size_per_gpu": case.batch,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 1.0,
            "steps_per_print": 10**9,
            "zero_optimization": {"stage": stage},
            ("fp16" if fp16 else "bf16"): {"enabled": True},
            "optimizer": {
                "type": "AdamW",
                "params": {"lr": 1e-5, "torch_adam": True, "fused": True},
            },
        },
    )
    tokens = torch.randint(case.vocab, (case.batch, case.sequence), device=DEVICE)
    loss: list[torch.Tensor] = []
    return {
        "forward": lambda: loss.append(engine(input_ids=tokens, labels=tokens).loss),
        "backward": lambda: engine.backward(loss.pop()),
        "update": engine.step,
    }


@dataclass(frozen=True)
class Titan:
    """A model of torchtitan under FSDP2."""

    name: str
    family: str
    flavour: str
    layers: int
    sequence: int
    batch: int
    recompute: str = "none"
    compiled: bool = False
    ranks: int = RANKS
    profiled: bool = False


def titan(case: Titan, change: Mapping[str, object] | None = None) -> Parts:
    """A step of it: sharded, recomputed and compiled by torchtitan's own functions."""
    from torchtitan.components.loss import build_cross_entropy_loss
    from torchtitan.config import JobConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.utils import clip_grad_norm_

    ranks(case.ranks)
    places = ParallelDims(1, case.ranks, 1, 1, 1, 1, 1, case.ranks)
    places.build_mesh()
    job = JobConfig()
    job.training.seq_len, job.training.local_batch_size = case.sequence, case.batch
    job.compile.enable, job.compile.components = case.compiled, ["model", "loss"]
    job.activation_checkpoint.mode = case.recompute
    job.activation_checkpoint.selective_ac_option = "op"
    job.debug.moe_force_load_balance = True
    made, known, parallelize = _family(case.family)
    sizes = replace(known[case.flavour], n_layers=case.layers, **(change or {}))
    if getattr(sizes, "attn_type", "sdpa") == "flex":
        sizes = replace(sizes, attn_type="sdpa", attn_mask_type="causal")
    sizes.max_seq_len = case.sequence
    sizes.update_from_config(job)
    with torch.device("meta"):
        model = made(sizes)
    parallelize(model, places, job)
    model.to_empty(device=DEVICE)
    with torch.no_grad():
        model.init_weights(buffer_device=torch.device(DEVICE))
    model.train()
    cross_entropy = build_cross_entropy_loss(job)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), fused=True)
    shape = (case.batch, case.sequence)
    tokens, labels = (torch.randint(sizes.vocab_size, shape, device=DEVICE) for _ in range(2))
    loss: list[torch.Tensor] = []

    def update() -> None:
        adam.step()
        adam.zero_grad()

    return {
        "forward": lambda: loss.append(cross_entropy(model(tokens), labels) / tokens.numel()),
        "backward": lambda: loss.pop().backward(),
        "clip": lambda: clip_grad_norm_(list(model.parameters()), 1.0, foreach=True),
        "update": update,
    }


def _family(name: str) -> tuple[Callable[..., torch.nn.Module], dict[str, object], Callable]:
    if name == "llama3":
        from torchtitan.models import llama3

        return llama3.Transformer, llama3.llama3_args, llama3.parallelize_llama
    if name == "qwen3":
        from torchtitan.models import qwen3

        return qwen3.Qwen3Model, qwen3.qwen3_args, qwen3.parallelize_qwen3
    from torchtitan.models import deepseek_v3

    return (
        deepseek_v3.DeepSeekV3Model,
        deepseek_v3.deepseekv3_args,
        deepseek_v3.parallelize_deepseekv3,
    )


# --- What is asked


EAGER = (
    Titan("titan-8b-selective", "llama3", "8B", 32, 8192, 1, "selective", profiled=True),
    Titan("titan-8b-full", "llama3", "8B", 32, 8192, 1, "full"),
    Titan("titan-8b", "llama3", "8B", 32, 4096, 1),
    Titan("titan-1b", "llama3", "8B", 16, 4096, 2, profiled=True),
    Titan("titan-1b-of-64", "llama3", "8B", 16, 4096, 2, ranks=64),
    Titan("titan-qwen3-30b-6l", "qwen3", "30B-A3B", 6, 4096, 2, profiled=True),
    Titan("titan-qwen3-30b-6l-full", "qwen3", "30B-A3B", 6, 4096, 2, "full"),
    Titan("titan-deepseek-16b-6l", "deepseek_v3", "16B", 6, 4096, 2, profiled=True),
)


def measure_titan(measures: Measures, compiled: bool) -> None:
    for case in EAGER:
        case = replace(case, name=case.name + "-compiled") if compiled else case
        case = replace(case, compiled=compiled)
        change = TITAN_1B if case.name.startswith("titan-1b") else None
        measures.step(case.name, lambda c=case, x=change: titan(c, x), case.profiled, repr(case))


def measure_deepspeed(measures: Measures) -> None:
    again = replace(LLAMA_8B, recompute=True)
    for name, case, stage in (
        *((f"deepspeed-1b-zero-{stage}", LLAMA_1B, stage) for stage in (1, 2, 3)),
        ("deepspeed-8b-6l-zero-3-full", again, 3),
    ):
        profiled = case is LLAMA_1B
        measures.step(name, lambda c=case, s=stage: deepspeed(c, s), profiled, repr(case))
    measures.step("deepspeed-gpt-zero-2-fp16", lambda: deepspeed(GPT, 2, True), False, repr(GPT))


def measure_mixtures(measures: Measures) -> None:
    for case in (MIXTRAL, replace(MIXTRAL, name="mixtral-2l-loop", loop=True)):
        measures.step("plain-" + case.name, lambda c=case: plain(c), True, repr(case))


def measure_hosts(measures: Measures) -> None:
    measures.host("Hugging Face", lambda layers: plain(replace(SMALL, layers=layers)))
    for compiled in (False, True):
        case = Titan("", "llama3", "8B", 4, 64, 1, compiled=compiled)
        measures.host(
            f"torchtitan, FSDP2{', compiled' if compiled else ''}",
            lambda layers, c=case: titan(replace(c, layers=layers), TITAN_SMALL),
        )
    for stage in (3, 2, 1):
        measures.host(
            f"Hugging Face, DeepSpeed ZeRO-{stage}",
            lambda layers, s=stage: deepspeed(replace(SMALL, layers=layers), s),
        )


PARTS: dict[str, Callable[[Measures], None]] = {
    "deepspeed": measure_deepspeed,
    "hosts": measure_hosts,
    "mixtures": measure_mixtures,
    "titan": lambda measures: measure_titan(measures, False),
    "compiled": lambda measures: measure_titan(measures, True),
}


def main() -> None:
    END[0] = time.monotonic() + (float(sys.argv[2]) if sys.argv[2:] else 3600.0)
    sys.meta_path.insert(0, _Finder())
    copy_own_parts()
    measures = Measures(Path(sys.argv[1]))
    print(torch.__version__, torch.cuda.get_device_name(), flush=True)
    for part in sys.argv[3:] or PARTS:
        PARTS[part](measures)


if __name__ == "__main__":
    main()
