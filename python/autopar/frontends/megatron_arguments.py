"""Arguments of Megatron-LM by name, from a shell script or YAML.

A script is read, never run (`frontends.shell`). YAML is the form of Megatron-LM's functional tests
(`MODEL_ARGS` with `--name: value`) or a table of the same names.
"""

import re
from dataclasses import dataclass, replace

from autopar import files, texts
from autopar.errors import SpecError, shown
from autopar.frontends import launch, shell
from autopar.frontends.places import Place, misspelt
from autopar.lines import lines_of, nearest

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


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments by name, each with its words and its line.

    Attributes:
        file: The file, as errors name it.
        given: The words of each argument; none for a flag.
        lines: The line of each.
        start: The line of the command that they are of; 0 where they are of none.
    """

    file: str
    given: dict[str, list[str]]
    lines: dict[str, int]
    start: int = 0

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def place(self, name: str) -> Place:
        """Returns where an argument stands; without a line where it is not given."""
        if name not in self.given:
            return Place(f"--{name}")
        value = " ".join(self.given[name])
        return Place(f"--{name}", self.lines[name], value if len(value) <= 60 else "")

    def error(self, name: str, what: str, hint: str) -> SpecError:
        return SpecError(f"{self.file}:{self.lines.get(name, 1)}: --{name}", what, hint)

    def word(self, name: str, known: tuple[str, ...], default: str) -> str:
        """Returns one of the known words."""
        if name not in self.given:
            return default
        value = self._single(name)
        if value not in known:
            what = f"must be one of {', '.join(known)}, found {shown(value)}"
            raise self.error(name, what, "Give one of them.")
        return value

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        """Returns a whole number."""
        if name not in self.given:
            if default is None:
                line = f":{self.start}" if self.start else ""
                raise SpecError(f"{self.file}{line}: --{name}", "missing", "Add it.")
            return default
        value = self._single(name)
        if not re.fullmatch("[0-9]{1,18}", value) or int(value) < least:
            what = f"must be a whole number from {least}, found {shown(value)}"
            raise self.error(name, what, "Give a count.")
        return int(value)

    def number(self, name: str, default: float) -> float:
        if name not in self.given:
            return default
        try:
            return float(self._single(name))
        except ValueError:
            found = shown(self._single(name))
            raise self.error(name, f"must be a number, found {found}", "Give one.") from None

    def unread(self) -> list[str]:
        """Returns what was given that nothing here knows."""
        return sorted(
            name for name in self.given if name not in READ and not name.startswith(WITHOUT_EFFECT)
        )

    def text(self, name: str) -> str | None:
        return self._single(name) if name in self.given else None

    def _single(self, name: str) -> str:
        words = self.given[name]
        if len(words) != 1:
            found = shown(" ".join(words)) if words else "none"
            raise self.error(name, f"must have one value, found {found}", "Give one.")
        return words[0]


def read(file: str) -> Arguments:
    """Returns the arguments of a script or a YAML file, those of torchrun that say the devices too.

    Raises:
        SpecError: The file is wrong, needs a shell to be understood, or has an argument that
            Megatron-LM refuses.
    """
    place = files.printable(file)
    text = launch.read_text(file)
    is_yaml = file.endswith((".yaml", ".yml"))
    given = _from_yaml(text, place) if is_yaml else _from_script(text, place)
    for name, words in given.given.items():
        if name in REPLACED:
            what = "no longer an argument of Megatron-LM"
            raise given.error(name, what, f"Write --{REPLACED[name]}.")
        if name in UNSAID:
            raise given.error(name, "has no estimate", "Leave it out.")
        if name in FLAGS and words:
            what = f"takes no value, found {shown(' '.join(words))}"
            raise given.error(name, what, "Leave the value out.")
        near = misspelt(name, READ - given.given.keys()) if name in given.unread() else None
        if near is not None:
            raise given.error(name, "no argument of Megatron-LM", f"Write --{near}.")
    return given


def _from_yaml(text: str, place: str) -> Arguments:
    table, known = texts.parse_yaml(text, place).value, lines_of(text, "YAML")
    prefix = ""
    if isinstance(table, dict) and "MODEL_ARGS" in table:
        table, prefix = table["MODEL_ARGS"], "MODEL_ARGS."
    if not isinstance(table, dict):
        raise SpecError(place, f"must be a table, found {shown(table)}", "Give names and values.")
    arguments = Arguments(place, {}, {})
    for key, value in table.items():
        name = str(key).removeprefix("--").replace("_", "-")
        line = nearest(known, f"{prefix}{key}") or 1
        arguments.lines[name] = line
        if isinstance(value, dict):
            where = f"{place}:{line}: {key}"
            raise SpecError(where, "must be a value, found a table", "Give the arguments flat.")
        if value is None and name in READ:
            form = "true or false" if name in FLAGS else "a value"
            raise arguments.error(name, f"must be {form}, found null", "Give it, or leave it out.")
        if value is None or (value is False and name not in VALUED):
            continue
        items = value if isinstance(value, list) else [] if value is True else [value]
        arguments.given[name] = [str(item) for item in items]
    return arguments


def _from_script(text: str, place: str) -> Arguments:
    """Returns the arguments of the one command that starts a Python program, and its devices'."""
    commands = [words for words in shell.commands(text, place) if words[0].text not in SHOWN]
    started = [words for words in commands if _program(words) is not None]
    bare = [words for words in commands if words[0].text.startswith("--")]
    if not started and len(bare) == 1:
        return _named(bare[0], place)
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
    arguments = replace(_named(words[program + 1 :], place), start=words[0].line)
    for name in DEVICES & launcher.given.keys():
        arguments.given[name] = launcher.given[name]
        arguments.lines[name] = launcher.lines[name]
    return arguments


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


# Arguments of torchrun and Megatron that only a running job knows.
OPEN_VALUES = frozenset(
    "node-rank master-addr master-port rdzv-endpoint rdzv-id rdzv-backend rdzv-conf".split()
)
# Commands that only show their words.
SHOWN = {"echo", "printf", ":"}
# Arguments of torchrun that say how many devices there are.
DEVICES = {"nnodes", "nproc-per-node"}
FLAGS = frozenset(
    """
    group-query-attention use-rotary-position-embeddings swiglu squared-relu disable-bias-linear
    add-qkv-bias qk-layernorm untie-embeddings-and-output-weights multi-latent-attention
    moe-router-enable-expert-bias moe-grouped-gemm moe-enable-deepep
    moe-pad-expert-input-to-capacity sequence-parallel
    use-distributed-optimizer use-megatron-fsdp use-torch-fsdp2 optimizer-cpu-offload
    use-precision-aware-optimizer overlap-grad-reduce overlap-param-gather tp-comm-overlap
    no-overlap-p2p-communication cross-entropy-loss-fusion grad-reduce-in-bf16
    accumulate-allreduce-grads-in-fp32
    no-gradient-accumulation-fusion bf16 fp16 use-flash-attn recompute-activations
    account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split
    """.split()
)
VALUED = frozenset(
    """
    num-layers hidden-size ffn-hidden-size num-attention-heads num-query-groups kv-channels
    seq-length max-position-embeddings vocab-size padded-vocab-size make-vocab-size-divisible-by
    normalization position-embedding-type softmax-type window-size window-attn-skip-freq
    attention-dropout hidden-dropout q-lora-rank kv-lora-rank qk-head-dim qk-pos-emb-head-dim
    v-head-dim num-experts moe-router-topk moe-ffn-hidden-size moe-shared-expert-intermediate-size
    moe-layer-freq moe-expert-capacity-factor moe-token-dispatcher-type
    micro-batch-size global-batch-size
    tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size cp-comm-type
    expert-model-parallel-size expert-tensor-parallel-size num-layers-per-virtual-pipeline-stage
    num-virtual-stages-per-pipeline-rank pipeline-model-parallel-layout
    decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers
    num-distributed-optimizer-instances data-parallel-sharding-strategy fp8-format fp4-format
    attention-backend recompute-granularity recompute-method recompute-num-layers
    recompute-modules cuda-graph-impl cuda-graph-scope optimizer muon-num-ns-steps nnodes
    nproc-per-node
    """.split()
)
READ = FLAGS | VALUED
# Arguments that Megatron-LM refuses, and what it wants instead.
REPLACED = {
    "model-parallel-size": "tensor-model-parallel-size",
    "batch-size": "micro-batch-size",
    "checkpoint-activations": "recompute-activations",
}
# Arguments that no plan says.
UNSAID = {"enable-hetero", "standalone-embedding-stage", "use-dualpipev"}
