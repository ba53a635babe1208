"""Megatron-LM's arguments, from a shell script or YAML, as a question and a plan.

A script is read, never run (`frontends.shell`). YAML is the form of Megatron-LM's functional tests
(`MODEL_ARGS` with `--name: value`) or a table of the same names. The rules are those of
`megatron/training/arguments.py`.
"""

import re
from dataclasses import dataclass
from typing import Any

from autopar import files, texts, wire
from autopar.errors import SpecError, shown
from autopar.frontends import launch, shell
from autopar.frontends.launch import Launch
from autopar.report import Recompute
from autopar.spec import Model

# Arguments that change neither the time nor the memory of a step, by how they begin.
WITHOUT_EFFECT = (
    "adam-", "async-save", "clip-grad", "ckpt-", "data-", "dataloader", "dist-ckpt",
    "distributed-backend", "distributed-timeout", "eval-", "exit-", "finetune", "global-train",
    "init-method", "initial-loss", "load", "log-", "loss-scale", "lr", "manual-gc", "master-",
    "merge-file", "min-lr", "min-loss", "mock-data", "moe-aux-loss", "moe-router", "no-load",
    "no-save", "norm-epsilon", "num-workers", "optimizer-name", "override-opt", "per-split",
    "reset-", "rotary-base", "rotary-percent", "save", "seed", "split", "start-weight",
    "tensorboard", "test-data", "timing", "tokenizer", "train-", "use-checkpoint", "use-mcore",
    "use-rope-scaling", "valid-data", "vocab-file", "wandb", "weight-decay",
)  # fmt: skip


# Modules of selective recompute that drop their output, and what the framework names them.
MODULES = {"layernorm": "norm", "moe_act": "activation"}


def read(file: str) -> Launch:
    """Returns the job that a script or a YAML file of Megatron-LM starts.

    Raises:
        SpecError: The file is wrong, contradicts itself, or needs a shell to be understood.
    """
    place = files.printable(file)
    text = launch.read_text(file)
    if file.endswith((".yaml", ".yml")):
        arguments, devices = _from_yaml(text, place), None
    else:
        arguments, devices = _from_script(text, place)
    return _launch(arguments, devices)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments by name, each with its words and its line.

    Attributes:
        file: The file, as errors name it.
        given: The words of each argument; none for a flag.
        lines: The line of each.
    """

    file: str
    given: dict[str, list[str]]
    lines: dict[str, int]

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def error(self, name: str, what: str, hint: str = "") -> SpecError:
        return SpecError(f"{self.file}:{self.lines.get(name, 1)}: --{name}", what, hint)

    def word(self, name: str, known: tuple[str, ...], default: str) -> str:
        """Returns one of the known words."""
        if name not in self.given:
            return default
        value = self._single(name)
        if value not in known:
            raise self.error(name, f"must be one of {', '.join(known)}, found {shown(value)}")
        return value

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        """Returns a whole number."""
        if name not in self.given:
            if default is None:
                raise SpecError(f"{self.file}: --{name}", "missing", "Add it.")
            return default
        value = self._single(name)
        if not re.fullmatch("[0-9]{1,18}", value) or int(value) < least:
            what = f"must be a whole number from {least}, found {shown(value)}"
            raise self.error(name, what)
        return int(value)

    def number(self, name: str, default: float) -> float:
        if name not in self.given:
            return default
        try:
            return float(self._single(name))
        except ValueError:
            found = shown(self._single(name))
            raise self.error(name, f"must be a number, found {found}") from None

    def text(self, name: str) -> str | None:
        return self._single(name) if name in self.given else None

    def _single(self, name: str) -> str:
        words = self.given[name]
        if len(words) != 1:
            raise self.error(name, f"must have one value, found {len(words)}")
        return words[0]


def _from_yaml(text: str, place: str) -> Arguments:
    table = texts.parse_yaml(text, place).value
    if isinstance(table, dict) and "MODEL_ARGS" in table:
        table = table["MODEL_ARGS"]
    if not isinstance(table, dict):
        raise SpecError(place, f"must be a table, found {shown(table)}", "Give names and values.")
    given: dict[str, list[str]] = {}
    lines: dict[str, int] = {}
    for key, value in table.items():
        name = str(key).removeprefix("--").replace("_", "-")
        lines[name] = launch.line_of(text, str(key).removeprefix("--"))
        if isinstance(value, dict):
            where = f"{place}:{lines[name]}: {key}"
            raise SpecError(where, "must be a value, found a table", "Give the arguments flat.")
        if value is None or value is False:
            continue
        items = value if isinstance(value, list) else [] if value is True else [value]
        given[name] = [str(item) for item in items]
    return Arguments(place, given, lines)


def _from_script(text: str, place: str) -> tuple[Arguments, int | None]:
    """Returns the arguments of the one command that starts a Python program, and its devices."""
    started = [words for words in shell.commands(text, place) if _program(words) is not None]
    bare = [words for words in shell.commands(text, place) if words[0].text.startswith("--")]
    if not started and len(bare) == 1:
        return _named(bare[0], place), None
    # Of several only one trains: others prepare data or convert checkpoints.
    training = [words for words in started if any(_is_training(word) for word in words)]
    chosen = started if len(started) == 1 else training
    if len(chosen) != 1:
        lines = ", ".join(str(words[0].line) for words in chosen or started)
        where = f" in lines {lines}" if started else ""
        what = f"starts {len(chosen) or len(started)} Python programs that may train{where}"
        raise SpecError(place, what, "Give a file in which one has --micro-batch-size.")
    [words] = chosen
    program = _program(words) or 0
    launcher = _named([word for word in words[1:program] if word.text != "-m"], place)
    return _named(words[program + 1 :], place), _devices(launcher)


def _program(words: list[shell.Word]) -> int | None:
    """Returns where a command names its Python program, if it does and gives it arguments."""
    for i, word in enumerate(words[:-1]):
        if word.text.endswith(".py"):
            return i
    return None


def _is_training(word: shell.Word) -> bool:
    """Returns whether a word is the argument that every training program of Megatron-LM has."""
    return word.text.partition("=")[0].replace("_", "-") == "--micro-batch-size"


def _named(words: list[shell.Word], place: str) -> Arguments:
    """Returns words as arguments; a word that is open is an error where it may name one."""
    given: dict[str, list[str]] = {}
    lines: dict[str, int] = {}
    name = ""
    for word in words:
        if word.open and (not name or word.begins_open) and _may_name(word, name):
            why = f", {word.why}" if word.why else ""
            what = f"{shown(word.open)} cannot be resolved without running the script{why}"
            raise SpecError(f"{place}:{word.line}", what, "Write its value into the file.")
        if word.text.startswith("--") and len(word.text) > 2:
            name, equals, value = word.text.removeprefix("--").partition("=")
            name = name.replace("_", "-")
            given[name] = [value] if equals else []
            lines[name] = word.line
        elif name:
            given[name].append(word.text)
    return Arguments(place, given, lines)


def _may_name(word: shell.Word, name: str) -> bool:
    """Returns whether an open word may stand for arguments, or for a value that is read."""
    if not name:
        return word.begins_open
    known = name in READ or not name.startswith(WITHOUT_EFFECT)
    return known and name not in OPEN_VALUES


def _devices(launcher: Arguments) -> int | None:
    if "nproc-per-node" not in launcher:
        return None
    nodes = launcher.count("nnodes", 1)
    return nodes * launcher.count("nproc-per-node")


# Arguments of torchrun and Megatron that only a running job knows.
OPEN_VALUES = frozenset(
    "node-rank master-addr master-port rdzv-endpoint rdzv-id rdzv-backend rdzv-conf".split()
)
READ = frozenset(
    """
    num-layers hidden-size ffn-hidden-size num-attention-heads group-query-attention
    num-query-groups kv-channels seq-length max-position-embeddings vocab-size padded-vocab-size
    make-vocab-size-divisible-by normalization position-embedding-type
    use-rotary-position-embeddings swiglu squared-relu disable-bias-linear add-qkv-bias
    qk-layernorm untie-embeddings-and-output-weights softmax-type window-size
    window-attn-skip-freq attention-dropout hidden-dropout multi-latent-attention q-lora-rank
    kv-lora-rank qk-head-dim qk-pos-emb-head-dim v-head-dim num-experts moe-router-topk
    moe-ffn-hidden-size moe-shared-expert-intermediate-size moe-layer-freq
    moe-router-enable-expert-bias moe-grouped-gemm moe-token-dispatcher-type
    moe-enable-deepep micro-batch-size global-batch-size tensor-model-parallel-size
    pipeline-model-parallel-size context-parallel-size cp-comm-type expert-model-parallel-size
    expert-tensor-parallel-size num-layers-per-virtual-pipeline-stage
    num-virtual-stages-per-pipeline-rank pipeline-model-parallel-layout
    decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers sequence-parallel
    use-distributed-optimizer num-distributed-optimizer-instances use-megatron-fsdp
    data-parallel-sharding-strategy use-torch-fsdp2 optimizer-cpu-offload
    use-precision-aware-optimizer overlap-grad-reduce overlap-param-gather tp-comm-overlap
    no-overlap-p2p-communication cross-entropy-loss-fusion grad-reduce-in-bf16
    no-gradient-accumulation-fusion bf16 fp16 fp8-format attention-backend use-flash-attn
    recompute-granularity recompute-method recompute-num-layers recompute-modules
    recompute-activations optimizer nnodes nproc-per-node
    """.split()
)


def _launch(given: Arguments, devices: int | None) -> Launch:
    unread = sorted(
        name for name in given.given if name not in READ and not name.startswith(WITHOUT_EFFECT)
    )
    notes = [f"not read: {', '.join(f'--{name}' for name in unread)}"] if unread else []
    question: dict[str, Any] = {
        "global_batch_size": given.count("global-batch-size"),
        "sequence_length": given.count("seq-length"),
        "precision": _precision(given),
        "attention": _attention(given),
        "dropout": any(
            given.number(f"{kind}-dropout", 0.1) > 0 for kind in ("attention", "hidden")
        ),
    }
    if devices is not None:
        question["devices"] = devices
    return Launch(
        file=given.file,
        framework="megatron-core",
        model=_model(given) if "vocab-size" in given or "padded-vocab-size" in given else None,
        question=question,
        plan=_plan(given, notes),
        copies=given.count("num-distributed-optimizer-instances", 1),
        recompute=(_recompute(given),),
        changes=_changes(given),
        notes=tuple(notes),
    )


def _precision(given: Arguments) -> str:
    if "bf16" in given and "fp16" in given:
        raise given.error("fp16", "given beside --bf16", "Give one of them.")
    if "fp8-format" in given:
        return "fp8"
    return "bf16" if "bf16" in given else "fp16" if "fp16" in given else "fp32"


def _attention(given: Arguments) -> str:
    known = ("auto", "flash", "fused", "unfused", "local")
    backend = given.word("attention-backend", known, "auto")
    return "unfused" if backend in ("unfused", "local") else "flash"


def _plan(given: Arguments, notes: list[str]) -> dict[str, Any]:
    tp = given.count("tensor-model-parallel-size", 1)
    cp = given.count("context-parallel-size", 1)
    plan: dict[str, Any] = {
        "tp": tp,
        "sp": "sequence-parallel" in given and tp > 1,
        "cp": cp,
        "mbs": given.count("micro-batch-size"),
        **_stages(given),
        **_sharding(given),
    }
    if "sequence-parallel" in given and tp == 1:
        notes.append("--sequence-parallel is off with one tensor-parallel rank")
    if "num-experts" in given:
        plan["ep"] = given.count("expert-model-parallel-size", 1)
        plan["etp"] = given.count("expert-tensor-parallel-size", tp)
    plan["optimizer_offload"] = "optimizer-cpu-offload" in given
    return plan


def _stages(given: Arguments) -> dict[str, Any]:
    """Returns the stages, their chunks and their layers."""
    pp, layers = given.count("pipeline-model-parallel-size", 1), given.count("num-layers")
    chunked = [
        name
        for name in (
            "num-layers-per-virtual-pipeline-stage",
            "num-virtual-stages-per-pipeline-rank",
            "pipeline-model-parallel-layout",
        )
        if name in given
    ]
    if len(chunked) > 1:
        raise given.error(chunked[1], f"given beside --{chunked[0]}", "Give one of them.")
    if layout := given.text("pipeline-model-parallel-layout"):
        stages = _layout(given, layout, pp)
        held = [sum(stage) for stage in stages]
        if sum(held) != layers:
            what = f"holds {sum(held)} layers, --num-layers is {layers}"
            raise given.error("pipeline-model-parallel-layout", what, "Make them agree.")
        return {"pp": pp, "vpp": len(stages[0]), "layers": held}
    ends = {
        0: "decoder-first-pipeline-num-layers",
        -1: "decoder-last-pipeline-num-layers",
    }
    fixed = {end: given.count(name) for end, name in ends.items() if name in given}
    middle, rest = pp - len(fixed), layers - sum(fixed.values())
    if rest < 0 or (middle > 0 and rest % middle) or (middle == 0 and rest):
        what = f"{rest} layers do not divide into {middle} equal stages"
        raise given.error("pipeline-model-parallel-size", what, "Change the layers of an end.")
    held = [rest // middle if middle else 0] * pp
    for end, count in fixed.items():
        held[end] = count
    vpp = given.count("num-virtual-stages-per-pipeline-rank", 1)
    if "num-layers-per-virtual-pipeline-stage" in given:
        size = given.count("num-layers-per-virtual-pipeline-stage")
        if fixed or held[0] % size:
            what = f"{size} does not divide the {held[0]} layers of every stage"
            raise given.error("num-layers-per-virtual-pipeline-stage", what)
        vpp = held[0] // size
    return {"pp": pp, "vpp": vpp, "layers": held}


def _layout(given: Arguments, layout: str, pp: int) -> list[list[int]]:
    """Returns the layers of each chunk of each stage: E embedding, t layer, L loss, | a border."""
    name = "pipeline-model-parallel-layout"
    text = layout.replace(" ", "").replace(",", "")
    while match := re.search(r"\(([^()]*)\)(?:\*(\d{1,4}))?", text):
        text = text[: match.start()] + match[1] * int(match[2] or 1) + text[match.end() :]
    text = re.sub(r"([EtL|])\*(\d{1,4})", lambda m: m[1] * int(m[2]), text)
    if not re.fullmatch(r"E[t|]*L", text):
        raise given.error(name, f"no layout, found {shown(layout)}", "Write it as Et*3|t*4L.")
    chunks = [part.count("t") for part in text.split("|")]
    if len(chunks) % pp:
        raise given.error(name, f"{len(chunks)} chunks on {pp} stages", "Give whole rounds.")
    return [chunks[stage::pp] for stage in range(pp)]


def _sharding(given: Arguments) -> dict[str, Any]:
    """Returns the ZeRO stage."""
    zero = 1 if "use-distributed-optimizer" in given else 0
    if "use-torch-fsdp2" in given:
        zero = 3
    if "use-megatron-fsdp" in given:
        stages = {"no_shard": zero, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
        zero = stages[given.word("data-parallel-sharding-strategy", tuple(stages), "no_shard")]
    return {"zero": zero}


def _recompute(given: Arguments) -> Recompute:
    kind = given.word("recompute-granularity", ("full", "selective"), "none")
    if "recompute-activations" in given:
        kind = "selective"
    method = given.word("recompute-method", ("block", "uniform"), "")
    if kind == "full":
        if not method:
            raise given.error("recompute-granularity", "full without --recompute-method")
        layers = given.count("recompute-num-layers")
        return Recompute("block" if method == "block" else "uniform", layers)
    if method:
        raise given.error("recompute-method", f"given with granularity {kind}", "Leave it out.")
    return Recompute("selective") if kind == "selective" else Recompute()


def _modules(given: Arguments) -> dict[str, Any]:
    """Returns what selective recompute computes again, as the framework says it."""
    if _recompute(given).granularity != "selective":
        return {}
    modules = given.given.get("recompute-modules", ["core_attn"])
    if modules == ["core_attn"]:
        return {"selective": "attention"}
    if not modules or not set(modules) <= MODULES.keys():
        what = f"must be core_attn, or of {', '.join(MODULES)}, found {shown(' '.join(modules))}"
        raise given.error("recompute-modules", what, "Others have no estimate.")
    some = ("moe-layer-freq", "moe-shared-expert-intermediate-size")
    if "moe_act" in modules and ("num-experts" not in given or any(n in given for n in some)):
        what = "moe_act is estimated where every layer has experts, and none that all tokens share"
        raise given.error("recompute-modules", what, "Leave it out.")
    return {"selective": "named", "named": {MODULES[module]: True for module in modules}}


def _changes(given: Arguments) -> dict[str, Any]:
    """Returns what the arguments set of the framework."""
    context = {"p2p": "ring", "all_gather": "gather", "a2a": "heads"}
    dispatch = {"alltoall": "copies", "allgather": "gather", "flex": "copies"}
    tokens = given.word("moe-token-dispatcher-type", tuple(dispatch), "allgather")
    once = tokens == "flex" and "moe-enable-deepep" in given
    sent = 2 if "grad-reduce-in-bf16" in given else 4
    return {
        **_modules(given),
        "context_exchange": context[given.word("cp-comm-type", tuple(context), "p2p")],
        "expert_dispatch": "once_a_node" if once else dispatch[tokens],
        "overlap": {
            "gradient_reduce": "overlap-grad-reduce" in given,
            "parameter_gather": "overlap-param-gather" in given,
            "tensor": "pipelined" if "tp-comm-overlap" in given else "backward",
            "pipeline": "no-overlap-p2p-communication" not in given,
        },
        "fused": {
            "cross_entropy": "cross-entropy-loss-fusion" in given,
            "grouped_gemm": "moe-grouped-gemm" in given,
            "gradient_accumulation": "no-gradient-accumulation-fusion" not in given,
        },
        "bytes": {"gradient": sent, "gradient_sent": sent},
    }


def _model(given: Arguments) -> Model:
    hidden, heads = given.count("hidden-size"), given.count("num-attention-heads")
    gated = "swiglu" in given
    # Megatron's own default: two thirds of four times the width, in steps of 64.
    width = int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden
    kinds = ("learned_absolute", "rope", "yarn")
    position = given.word("position-embedding-type", kinds, "learned_absolute")
    rotary = position != "learned_absolute" or "use-rotary-position-embeddings" in given
    layer_norm = given.word("normalization", ("LayerNorm", "RMSNorm"), "LayerNorm") == "LayerNorm"
    rows = given.count("max-position-embeddings")
    bias = "disable-bias-linear" not in given
    latent = "multi-latent-attention" in given
    nope, rope = given.count("qk-head-dim", 128), given.count("qk-pos-emb-head-dim", 64)
    if heads and hidden % heads and "kv-channels" not in given:
        what = f"{heads} heads do not divide --hidden-size {hidden}"
        raise given.error("num-attention-heads", what, "Give --kv-channels.")
    fields: dict[str, Any] = {
        "name": given.file,
        "layers": given.count("num-layers"),
        "hidden": hidden,
        "ffn_hidden": given.count("ffn-hidden-size", width),
        "heads": heads,
        "kv_heads": given.count("num-query-groups", 1)
        if "group-query-attention" in given
        else heads,
        "head_dim": nope + rope if latent else given.count("kv-channels", hidden // heads),
        "vocab": given.count("vocab-size", given.count("padded-vocab-size", 0, least=0)),
        "max_positions": rows,
        "norm": "layernorm" if layer_norm else "rmsnorm",
        "norm_bias": layer_norm,
        "position": "rope" if rotary else "learned",
        "position_rows": 0 if rotary else rows,
        "activation": "swiglu" if gated else "relu2" if "squared-relu" in given else "gelu",
        "tied_embeddings": "untie-embeddings-and-output-weights" not in given,
        "qkv_bias": bias or "add-qkv-bias" in given,
        "o_bias": bias,
        "mlp_bias": bias,
        "qk_norm": "head" if "qk-layernorm" in given and not latent else "none",
        "attention_sinks": given.text("softmax-type") == "learnable",
    }
    if latent:
        fields["mla"] = {
            "q_lora_rank": given.count("q-lora-rank", 0, least=0),
            "kv_lora_rank": given.count("kv-lora-rank", 32),
            "qk_nope_dim": nope,
            "qk_rope_dim": rope,
            "v_dim": given.count("v-head-dim", 128),
        }
    if (size := given.text("window-size")) is not None:
        left = re.match(r"\(?(\d{1,9}),", size)
        if left is None:
            raise given.error("window-size", f"must be left,right, found {shown(size)}")
        every = given.count("window-attn-skip-freq", 0, least=0)
        fields["window"] = {"size": int(left[1]) + 1, "global_every": every}
    if "num-experts" in given:
        fields["moe"] = _experts(given, bias)
    return wire.read(Model, fields, f"{given.file}: model")


def _experts(given: Arguments, bias: bool) -> dict[str, Any]:
    layers = given.count("num-layers")
    pattern = given.text("moe-layer-freq") or "1"
    if pattern.isdecimal() and int(pattern) > 0:
        # Megatron counts from the first layer: with 2 the layers 0, 2, 4 have experts.
        sparse = [layer % int(pattern) == 0 for layer in range(layers)]
    else:
        sparse = _pattern(given, pattern)
    if len(sparse) != layers:
        what = f"lists {len(sparse)} of {layers} layers"
        raise given.error("moe-layer-freq", what, "List each layer.")
    first = next((layer for layer, has in enumerate(sparse) if has), layers)
    for dense, every in [(first, 1), *((0, n) for n in range(2, layers + 1))]:
        if sparse == [i >= dense and (i + 1) % every == 0 for i in range(layers)]:
            break
    else:
        what = "must be dense layers first, or experts in every n-th layer"
        raise given.error("moe-layer-freq", f"{what}, found {shown(pattern)}")
    return {
        "experts": given.count("num-experts"),
        "topk": given.count("moe-router-topk", 2),
        "expert_ffn": given.count("moe-ffn-hidden-size", given.count("ffn-hidden-size", 1)),
        "shared_ffn": given.count("moe-shared-expert-intermediate-size", 0, least=0),
        "first_dense": dense if every == 1 else 0,
        "every": every,
        "router_bias": "moe-router-enable-expert-bias" in given,
        "expert_bias": bias,
    }


def _pattern(given: Arguments, pattern: str) -> list[bool]:
    """Returns the layers that a sum of repeated lists marks, as ([0]*3+[1]*58)."""
    text = re.sub(r"\s", "", pattern)
    text = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    marks: list[bool] = []
    for part in text.split("+"):
        match = re.fullmatch(r"\(?\[([01](?:,[01])*)\](?:\*(\d{1,4}))?\)?", part)
        if match is None:
            raise given.error("moe-layer-freq", f"no list of 0 and 1, found {shown(pattern)}")
        marks += [mark == "1" for mark in match[1].split(",")] * int(match[2] or 1)
    return marks
