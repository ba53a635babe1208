"""Measures training steps and operators on the GPU at hand, as tables that `autopar` reads.

Writes four files to the directory: `steps.csv`, whole steps of Hugging Face's models with PyTorch
alone, as `autopar validate` reads them; `products.csv` and `attention.csv` as `autopar calibrate`
reads them; and `kernels.csv`, what passes memory, is grouped, or waits for the host. A time is the
median of several, and a product's that of a third of a second of it, as power limits it. It needs
torch and transformers; what is left when the seconds are over is not measured.

    python benches/measure_gpu.py DIRECTORY [seconds]
"""

import csv
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional

DEVICE = "cuda"
BF16 = torch.bfloat16
END = [float("inf")]


class Table:
    """A CSV file that is whole after each row."""

    def __init__(self, path: Path, columns: str) -> None:
        self.file = path.open("w", newline="")
        self.writer = csv.writer(self.file)
        self.add(*columns.split(","))

    def add(self, *cells: object) -> None:
        self.writer.writerow(cells)
        self.file.flush()
        print(*cells, flush=True)


def seconds_of(work: Callable[[], object], during: float = 0.15) -> float:
    """Returns the seconds of one call on the device, as the median of groups that last `during`."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    calls = max(1, int(during / 5 / max(time.perf_counter() - start, 1e-5)))
    groups = []
    for _ in range(5):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(calls):
            work()
        last.record()
        torch.cuda.synchronize()
        groups.append(first.elapsed_time(last) / 1e3 / calls)
    return statistics.median(groups)


# --- Whole steps


@dataclass(frozen=True)
class Case:
    """One training step. States are 16-bit throughout unless `wide`, which is autocast over 32."""

    name: str
    family: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    sequence: int
    batch: int
    experts: int = 0
    recompute: bool = False
    wide: bool = False
    fused_adam: bool = False
    compiled: bool = False
    loop: bool = False


LLAMA_1B = Case("llama-1b", "llama", 16, 2048, 8192, 32, 8, 128256, 4096, 1)
LLAMA_8B = Case("llama-8b-6l", "llama", 6, 4096, 14336, 32, 8, 32000, 4096, 1)
SMALL = Case("llama-160m", "llama", 12, 768, 2048, 12, 12, 32000, 1024, 1)
GPT = Case("gpt-1.5b-24l", "gpt2", 24, 1600, 6400, 25, 25, 50257, 1024, 8)
MIXTURE = Case("mixtral-8l", "mixtral", 8, 2048, 7168, 16, 8, 32000, 4096, 2, experts=8)

CASES = (
    replace(LLAMA_1B, name="llama-1b-b2", batch=2),
    replace(LLAMA_1B, name="llama-1b-b1"),
    replace(LLAMA_1B, name="llama-1b-b4-again", batch=4, recompute=True),
    replace(LLAMA_1B, name="llama-1b-b2-wide", batch=2, wide=True, fused_adam=True),
    replace(LLAMA_8B, name="llama-8b-6l-b1"),
    replace(LLAMA_8B, name="llama-8b-6l-b2-adam", batch=2, fused_adam=True),
    replace(LLAMA_8B, name="llama-8b-6l-b2-again", batch=2, recompute=True, fused_adam=True),
    replace(SMALL, name="llama-160m-b1"),
    replace(SMALL, name="llama-160m-b16", batch=16),
    replace(GPT, name="gpt-1.5b-24l-b8"),
    replace(MIXTURE, name="mixtral-8l-b2-grouped"),
    replace(MIXTURE, name="mixtral-8l-b2-loop", loop=True),
    replace(LLAMA_1B, name="llama-1b-b2-compiled", batch=2, compiled=True),
    replace(LLAMA_8B, name="llama-8b-6l-b2-compiled", batch=2, fused_adam=True, compiled=True),
    replace(SMALL, name="llama-160m-b1-compiled", compiled=True),
)


def model_of(case: Case) -> torch.nn.Module:
    import transformers as hf

    common = {
        "vocab_size": case.vocab,
        "hidden_size": case.hidden,
        "num_hidden_layers": case.layers,
        "num_attention_heads": case.heads,
        "num_key_value_heads": case.kv_heads,
        "intermediate_size": case.ffn,
        "max_position_embeddings": case.sequence,
        "tie_word_embeddings": False,
        "use_cache": False,
    }
    if case.family == "gpt2":
        config = hf.GPT2Config(
            vocab_size=case.vocab,
            n_embd=case.hidden,
            n_layer=case.layers,
            n_head=case.heads,
            n_positions=case.sequence,
            use_cache=False,
        )
        kind = hf.GPT2LMHeadModel
    elif case.experts:
        config = hf.MixtralConfig(
            **common, num_local_experts=case.experts, num_experts_per_tok=2, sliding_window=None
        )
        kind = hf.MixtralForCausalLM
    else:
        config = hf.LlamaConfig(**common)
        kind = hf.LlamaForCausalLM
    config._attn_implementation = "sdpa"
    if case.experts:
        config._experts_implementation = "eager" if case.loop else "grouped_mm"
    torch.set_default_dtype(torch.float32 if case.wide else BF16)
    with torch.device(DEVICE):
        model = kind(config)
    torch.set_default_dtype(torch.float32)
    model.train()
    if case.recompute:
        model.gradient_checkpointing_enable()
    if case.compiled:
        for layer in model.model.layers:
            layer.compile()
    return model


def step_of(case: Case) -> tuple[float, float, float]:
    """Returns the seconds of a step and of its optimizer, and the GiB that torch allocated."""
    model = model_of(case)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=case.fused_adam or None)
    tokens = torch.randint(case.vocab, (case.batch, case.sequence), device=DEVICE)

    def step() -> float:
        with torch.autocast(DEVICE, BF16, enabled=case.wide):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.cuda.synchronize()
        start = time.perf_counter()
        adam.step()
        torch.cuda.synchronize()
        spent = time.perf_counter() - start
        adam.zero_grad(set_to_none=True)
        return spent

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    whole, updates = [], []
    for _ in range(7):
        start = time.perf_counter()
        updates.append(step())
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - start)
    gib = torch.cuda.max_memory_allocated() / 2**30
    return statistics.median(whole), statistics.median(updates), gib


COLUMNS = (
    "id,date,model,layers,hidden,ffn_hidden,heads,kv_heads,vocab,gated_mlp,experts,topk,expert_ffn,"
    "seq_len,gbs,chip,gpus,gpus_per_node,dp,tp,pp,cp,ep,mbs,recompute,zero,precision,attention,"
    "framework,iter_time_s,mem_gb_per_gpu,mem_kind,mem_unit,notes"
)


def row_of(case: Case, chip: str, framework: str) -> tuple[object, ...]:
    """Returns the cells of a case up to what is measured of it."""
    shape = (case.layers, case.hidden, case.ffn, case.heads, case.kv_heads, case.vocab)
    experts = (case.experts, 2, case.ffn) if case.experts else ("", "", "")
    recompute = "full" if case.recompute else "none"
    return (
        *(case.name, time.strftime("%Y-%m"), case.family, *shape, int(case.family != "gpt2")),
        *(*experts, case.sequence, case.batch, chip, *(1,) * 7, case.batch, recompute, 0),
        *("bf16", "sdpa", framework),
    )


def notes_of(case: Case, update: float) -> str:
    """Returns what a case did, in the words that rows of runs have for it."""
    notes = [
        "fp32 weights under autocast" if case.wide else "states in bf16, no fp32 copy",
        "tied embeddings; dropout of 0.1; learned positions" if case.family == "gpt2" else "untied",
        "torch.compile of each layer alone" if case.compiled else "eager",
    ]
    if case.fused_adam:
        notes.append("fused AdamW")
    elif case.compiled:
        notes.append("no fused AdamW")
    if case.experts:
        notes.append("experts one after another" if case.loop else "experts by grouped_mm")
    return "; ".join([*notes, f"update {1e3 * update:.1f} ms"])


def measure_steps(table: Table, chip: str, compiled: bool) -> None:
    import transformers

    framework = f"Hugging Face transformers {transformers.__version__}, PyTorch {torch.__version__}"
    for case in (case for case in CASES if case.compiled is compiled):
        if time.monotonic() > END[0]:
            return
        cells = row_of(case, chip, framework)
        try:
            whole, update, gib = step_of(case)
            notes = notes_of(case, update)
            table.add(*cells, round(whole, 5), round(gib, 3), "allocated", "GiB", notes)
        except torch.OutOfMemoryError:
            table.add(*cells, "", "", "", "", f"{notes_of(case, 0.0)}; OOM")
        gc.collect()
        torch.cuda.empty_cache()
        torch.compiler.reset()


# --- Operators


def products() -> Iterator[tuple[int, int, int]]:
    for m, hidden, ffn in ((4096, 4096, 14336), (8192, 8192, 28672), (8192, 2048, 8192)):
        yield from ((m, hidden, hidden), (m, ffn, hidden), (m, hidden, ffn), (ffn, hidden, m))
    yield from ((8192, 8192, k) for k in (256, 512, 1024, 2048, 4096, 8192))
    yield from ((m, 4096, 4096) for m in (128, 512, 1024, 2048))
    yield from ((4096, 128256, 2048), (1024, 768, 768), (1024, 2048, 768))


def measure_products(table: Table) -> None:
    """Products in 16 bits, and in 8 with one scale a tensor."""
    for m, n, k in products():
        if time.monotonic() > END[0]:
            return
        a, b = (torch.randn(rows, k, device=DEVICE, dtype=BF16) for rows in (m, n))
        spent = seconds_of(lambda a=a, b=b: functional.linear(a, b), 0.3)
        table.add(m, n, k, "bf16", round(spent * 1e6, 2))
        x, y = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
        one = torch.ones((), device=DEVICE)
        spent = seconds_of(partial(torch._scaled_mm, x, y, one, one, out_dtype=BF16), 0.3)
        table.add(m, n, k, "fp8", round(spent * 1e6, 2))


def measure_attention(table: Table) -> None:
    """Attention of 32 heads of 64 channels and 16 of 128, over 16,384 tokens in all."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels = (("fa2", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION))
    for width, heads in ((64, 32), (128, 16)):
        for sequence in (1024, 4096, 16384):
            shape = (16384 // sequence, heads, sequence, width)
            q, k, v = (
                torch.randn(shape, device=DEVICE, dtype=BF16, requires_grad=True) for _ in range(3)
            )
            for name, backend in kernels:
                if time.monotonic() > END[0]:
                    return

                def attend(q=q, k=k, v=v) -> torch.Tensor:
                    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

                with sdpa_kernel(backend):
                    out = attend()
                    up = torch.randn_like(out)
                    forward = seconds_of(attend)
                    backward = seconds_of(
                        lambda out=out, up=up, x=(q, k, v): torch.autograd.grad(
                            out, x, up, retain_graph=True
                        )
                    )
                calls = shape[0] * heads
                for part, spent in (("forward", forward), ("backward", backward)):
                    table.add(name, part, calls, width, sequence, 1, round(spent * 1e6, 2))


# --- What passes memory, is grouped, or waits for the host


def measure_memory(table: Table) -> None:
    for mib in (1, 8, 64, 512):
        n = mib * 2**20 // 2
        a, b, wide = (
            torch.randn(n, device=DEVICE).to(kind) for kind in (BF16, BF16, torch.float32)
        )
        works: dict[str, Callable[[], object]] = {
            "copy": partial(b.copy_, a),
            "add": partial(torch.add, a, b, out=b),
            "cast to 32": partial(wide.copy_, a),
            "silu": partial(functional.silu, a),
        }
        for name, work in works.items():
            table.add(name, f"{mib} MiB", round(seconds_of(work) * 1e6, 2))
    x = torch.randn(8192, 4096, device=DEVICE, dtype=BF16, requires_grad=True)
    up = torch.randn_like(x)
    weight = torch.ones(4096, device=DEVICE, dtype=BF16, requires_grad=True)

    def norm() -> torch.Tensor:
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(BF16)

    cases: tuple[tuple[str, Callable[[], torch.Tensor]], ...] = (
        ("rms norm of separate operators", norm),
        ("functional.rms_norm", lambda: functional.rms_norm(x, (4096,), weight)),
        ("functional.layer_norm", lambda: functional.layer_norm(x, (4096,), weight)),
        ("softmax in 32 bits", lambda: functional.softmax(x, -1, dtype=torch.float32).to(BF16)),
        ("dropout", lambda: functional.dropout(x, 0.1)),
        ("gelu", lambda: functional.gelu(x, approximate="tanh")),
    )
    for name, work in cases:
        out = work()
        table.add(name + " forward", "8192 x 4096", round(seconds_of(work) * 1e6, 2))
        back = seconds_of(lambda out=out: torch.autograd.grad(out, x, up, retain_graph=True))
        table.add(name + " backward", "8192 x 4096", round(back * 1e6, 2))
    logits = torch.randn(4096, 128256, device=DEVICE, dtype=BF16, requires_grad=True)
    labels = torch.randint(128256, (4096,), device=DEVICE)
    loss = functional.cross_entropy(logits.float(), labels)
    spent = seconds_of(lambda: functional.cross_entropy(logits.float(), labels))
    table.add("cross-entropy in 32 bits forward", "4096 x 128256", round(spent * 1e6, 2))
    spent = seconds_of(lambda: torch.autograd.grad(loss, logits, retain_graph=True))
    table.add("cross-entropy in 32 bits backward", "4096 x 128256", round(spent * 1e6, 2))


def measure_experts(table: Table) -> None:
    """Grouped products of 16,384 visits, and rows of them gathered and summed where they go."""
    visits = 16384
    for experts, hidden, ffn in ((8, 4096, 14336), (64, 2048, 1408), (128, 2048, 768)):
        x = torch.randn(visits, hidden, device=DEVICE, dtype=BF16)
        w = torch.randn(experts, hidden, ffn, device=DEVICE, dtype=BF16)
        ends = torch.arange(1, experts + 1, device=DEVICE, dtype=torch.int32) * (visits // experts)
        shape = f"{experts} x {visits // experts} x {hidden} x {ffn}"
        try:
            spent = seconds_of(lambda x=x, w=w, ends=ends: torch._grouped_mm(x, w, offs=ends), 0.4)
            table.add("grouped product", shape, round(spent * 1e6, 2))
        except RuntimeError as error:
            table.add("grouped product", shape, str(error)[:80])
        order = torch.randperm(visits, device=DEVICE)
        out = torch.zeros_like(x)
        spent = seconds_of(lambda x=x, order=order: x[order])
        table.add("rows gathered by index", f"{visits} x {hidden}", round(spent * 1e6, 2))
        spent = seconds_of(lambda x=x, order=order: x.index_select(0, order))
        table.add("rows gathered by index_select", f"{visits} x {hidden}", round(spent * 1e6, 2))
        half = order // 2
        spent = seconds_of(lambda x=x, half=half, out=out: out.index_add_(0, half, x))
        table.add("rows added by index_add", f"{visits} x {hidden}", round(spent * 1e6, 2))
        wide = half[:, None].expand(-1, hidden)
        spent = seconds_of(lambda x=x, wide=wide, out=out: out.scatter_add_(0, wide, x))
        table.add("rows added by scatter_add", f"{visits} x {hidden}", round(spent * 1e6, 2))
    scores = torch.randn(8192, 128, device=DEVICE)
    table.add("topk", "8192 x 128, 8", round(seconds_of(lambda: scores.topk(8, -1)) * 1e6, 2))
    many = torch.randint(128, (65536,), device=DEVICE)
    table.add("sort", "65536", round(seconds_of(lambda: many.sort(stable=True)) * 1e6, 2))


def measure_host(table: Table) -> None:
    """The host's time of a layer too small to keep the device busy, and its kernels, by passes."""
    for compiled in (False, True):
        spent: dict[int, tuple[float, float, int, int]] = {}
        for layers in (4, 16):
            case = Case("", "llama", layers, 256, 512, 4, 4, 512, 64, 1, compiled=compiled)
            model = model_of(case)
            tokens = torch.randint(512, (1, 64), device=DEVICE)
            ahead, back = [], []
            for _ in range(25):
                model.zero_grad(set_to_none=True)
                torch.cuda.synchronize()
                start = time.perf_counter()
                loss = model(input_ids=tokens, labels=tokens).loss
                middle = time.perf_counter()
                loss.backward()
                back.append(time.perf_counter() - middle)
                ahead.append(middle - start)
            kernels = []
            for part in ("forward", "backward"):
                model.zero_grad(set_to_none=True)
                loss = model(input_ids=tokens, labels=tokens).loss if part == "backward" else None
                torch.cuda.synchronize()
                with torch.profiler.profile() as seen:
                    if loss is None:
                        model(input_ids=tokens, labels=tokens)
                    else:
                        loss.backward()
                    torch.cuda.synchronize()
                kernels.append(
                    sum(e.count for e in seen.key_averages() if e.device_type.name == "CUDA")
                )
            spent[layers] = (statistics.median(ahead[5:]), statistics.median(back[5:]), *kernels)
            torch.compiler.reset()
        a, b = spent[4], spent[16]
        for place, part in enumerate(("forward", "backward")):
            table.add(
                f"host of a layer{' compiled' if compiled else ''} {part}",
                f"{(b[place + 2] - a[place + 2]) / 12} kernels",
                round((b[place] - a[place]) / 12 * 1e6, 2),
            )
    for count in (1, 8):
        sizes = [torch.randn(4096, 4096, device=DEVICE, dtype=BF16) for _ in range(count * 8)]
        table.add(
            "foreach norm",
            f"{count * 8} x 4096 x 4096",
            round(seconds_of(lambda s=sizes: torch._foreach_norm(s)) * 1e6, 2),
        )


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    END[0] = time.monotonic() + (float(sys.argv[2]) if sys.argv[2:] else 3600.0)
    chip = torch.cuda.get_device_name() if DEVICE == "cuda" else DEVICE
    kernels = Table(folder / "kernels.csv", "what,shape,time_us")
    kernels.add("torch", torch.__version__, "")
    steps = Table(folder / "steps.csv", COLUMNS)
    products = Table(folder / "products.csv", "m,n,k,dtype,time_us")
    attention = Table(folder / "attention.csv", "kernel,pass,heads,head_dim,seq_len,causal,time_us")
    for part in (
        lambda: measure_steps(steps, chip, compiled=False),
        lambda: measure_memory(kernels),
        lambda: measure_host(kernels),
        lambda: measure_experts(kernels),
        lambda: measure_products(products),
        lambda: measure_attention(attention),
        lambda: measure_steps(steps, chip, compiled=True),
    ):
        try:
            part()
        except Exception as error:
            print("not measured:", type(error).__name__, str(error)[:300], flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
