"""Measured runs as CSV rows: one run a line, an empty cell for what nobody said.

Only cells are read here; what a row means as a problem and a plan, `setups` says. Lines above the
header that begin with `#` are comments. Columns beyond those of `Run` are kept and handed on.
"""

import csv
import io
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from os import PathLike
from typing import Any

from autopar import files
from autopar.errors import SpecError, shown
from autopar.runs import rx
from autopar.runs.releases import released

MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
PARTS_OF_A_YEAR = {
    "spring": 4,
    "mid": 7,
    "summer": 7,
    "fall": 10,
    "autumn": 10,
    "late": 11,
    "end": 12,
}
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
# The month of a run that nothing dates: later than every one that software has changed in.
PRESENT = "9999-12"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row of a file of runs; None or an empty text where the cell is empty or absent.

    Attributes:
        id: Name of the run; its line in the file unless given.
        source: Where it was published. It tells nothing of a run but that it is one of MLPerf,
            whose rules leave routing to the model.
        series: Runs that belong together; the id up to its first hyphen unless given.
        date: When it was made, as 2021-04.
        model: Name of the model.
        layers: Transformer layers.
        hidden: Width of the residual stream.
        ffn_hidden: Inner width of the MLP, or of an expert.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Width of a head.
        vocab: Rows of the embedding.
        gated_mlp: Whether the MLP has two input projections.
        experts: Routed experts of a layer.
        topk: Routed experts that a token visits.
        expert_ffn: Inner width of an expert; else the notes tell it, or the size in a model's name.
        shared_ffn: Inner width of all shared experts.
        dense_layers: Leading layers without experts.
        seq_len: Tokens of a sequence.
        gbs: Sequences of a step.
        chip: Kind of device, as people write it. Of a TPU with the memory of its chip's two devices
            `gpus` and what is told of each count chips, and are turned into devices.
        gpus: Devices.
        gpus_per_node: Devices of a node.
        internode: Network between nodes, in words.
        dp: Data-parallel replicas.
        tp: Tensor-parallel degree.
        sp: Sequence parallel.
        pp: Pipeline stages.
        vpp: Model chunks of a stage.
        cp: Context-parallel degree.
        ep: Expert-parallel degree.
        etp: Tensor-parallel degree inside an expert; else as the framework has it.
        mbs: Sequences of a micro-batch.
        schedule: Order of passes.
        recompute: What is computed again, in words.
        zero: What is sharded: 0 to 3, or fsdp.
        shard_group: Ranks over which it is sharded.
        offload_fraction: Share of the activations that wait in host memory.
        layers_per_stage: Layers of each stage, separated by hyphens.
        precision: Number format of the matrix products.
        attention: Flash, unfused, or PyTorch's own (`sdpa`), which a mask of padding slows: notes
            then say `padded to 4096 tokens with masks`.
        dropout: Whether there was dropout.
        expert_load_variation: Standard deviation of the experts' loads over their mean.
        framework: Software, in words.
        iter_time_s: Seconds of a step.
        tokens_per_s_per_gpu: Tokens a second of a device.
        model_tflops_per_gpu: 10^12 operations a second of a device, counted as the convention says.
        mfu: The same over the 16-bit peak.
        flops_convention: Which operations were counted.
        mem_gb_per_gpu: Most memory of a device.
        mem_kind: Which number that is: allocated, reserved, or smi (what the driver shows), as
            which it counts too where the notes say `method not stated`.
        mem_unit: GiB or MiB, or GB or MB of 10^9 and 10^6 bytes; GiB where it is empty.
        notes: Anything else, in words. Where they say `no optimizer`, the estimate is compared
            without the update and its state; where they say that `the update` of some kind `hardly
            counts`, without the update; where they say `memory of rank 0`, with the first stage's.
        extra: Cells of unknown columns.
    """

    id: str
    source: str = ""
    series: str = ""
    date: str = ""
    model: str = ""
    layers: int | None = None
    hidden: int | None = None
    ffn_hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    vocab: int | None = None
    gated_mlp: bool | None = None
    experts: int | None = None
    topk: int | None = None
    expert_ffn: int | None = None
    shared_ffn: int | None = None
    dense_layers: int | None = None
    seq_len: int | None = None
    gbs: int | None = None
    chip: str = ""
    gpus: int | None = None
    gpus_per_node: int | None = None
    internode: str = ""
    dp: int | None = None
    tp: int | None = None
    sp: bool | None = None
    pp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    mbs: int | None = None
    schedule: str = ""
    recompute: str = ""
    zero: str = ""
    shard_group: int | None = None
    offload_fraction: float | None = None
    layers_per_stage: str = ""
    precision: str = ""
    attention: str = ""
    dropout: bool | None = None
    expert_load_variation: float | None = None
    framework: str = ""
    iter_time_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    model_tflops_per_gpu: float | None = None
    mfu: float | None = None
    flops_convention: str = ""
    mem_gb_per_gpu: float | None = None
    mem_kind: str = ""
    mem_unit: str = ""
    notes: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def suspect(self) -> bool:
        """Whether whoever recorded the run doubts it."""
        return rx.search(r"\bSUSPECT\b", self.notes) is not None

    @property
    def shards_parameters(self) -> bool:
        """Whether its stage of ZeRO shards parameters, as FSDP and HSDP do."""
        return rx.search(r"3|[fh]sdp", self.zero, re.I) is not None

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the run is one that did not fit: what has a rate ran, whatever else did not."""
        rates = (
            self.iter_time_s,
            self.tokens_per_s_per_gpu,
            self.model_tflops_per_gpu,
            self.mfu,
        )
        told = rx.search(r"\b(OOM|out of memory)\b", self.notes) is not None
        return told and all(rate is None for rate in rates)

    @property
    def month(self) -> str:
        """The month in which the run was made or published, as 2021-04; `PRESENT` if unknown.

        Where its software is numbered by an earlier one, as NeMo 25.04 is, it is the software's; a
        paper's software is older than the paper.
        Nothing follows from a chip or a model: most runs are made long after their release.
        """
        version = rx.search(r"(?<![\d.])(2\d)\.?(0[1-9]|1[0-2])(?:[0-3]\d)?\b", self.framework)
        numbered = f"20{version[1]}-{version[2]}" if version else ""
        if self.date:
            return min(filter(None, (self.date[:7], numbered)))
        if numbered:
            return numbered
        if tagged := rx.search(r"\bv(2\d)\.(0[1-9]|1[0-2])\b", self.source):
            return f"20{tagged[1]}-{tagged[2]}"
        if paper := rx.search(r"arxiv[ :/]*(?:abs/)?(\d\d)(\d\d)\.\d{4,5}", self.source, re.I):
            return released(self.framework) or f"20{paper[1]}-{paper[2]}"
        told = _dated(self.framework) or _dated(self.source) or _met(self.source)
        texts = (f"{self.framework}; {self.source}", self.notes)
        return told or next(filter(None, map(released, texts)), PRESENT)


def _dated(text: str) -> str:
    """Returns the month that a text names, or the first of the year; empty if it names neither."""
    # As in the names of files: llama3_h100_202412_torchtitan.md.
    joined = rx.search(r"(?<![\da-z])(20[12]\d)(0[1-9]|1[0-2])(?:[0-3]\d)?(?![\da-z])", text, re.I)
    if joined:
        return f"{joined[1]}-{joined[2]}"
    # As on a ticket: 07/2026, Nov'24, '26.
    if turned := rx.search(r"(?<![\d/])(0?[1-9]|1[0-2])/(20[12]\d)(?![\d/])", text):
        return f"{turned[2]}-{int(turned[1]):02}"
    if short := rx.search(
        r"(?<![a-z\d])(?:([a-z]{3})[a-z]*[. ]*)?['\u2019](1[5-9]|2\d)\b", text, re.I
    ):
        name = (short[1] or "").lower()
        return f"20{short[2]}-{MONTHS.index(name) + 1 if name in MONTHS else 1:02}"
    dated = rx.search(
        r"(?<![a-z\d])(?:([a-z]{3})[a-z]*[ _])?(20[12]\d)(?:-(0[1-9]|1[0-2]))?(?![a-z\d])",
        text,
        re.I,
    )
    if not dated:
        return ""
    name = (dated[1] or "").lower()
    part = rx.search(rf"\b({'|'.join(PARTS_OF_A_YEAR)})\b[- ](of )?{dated[2]}", text, re.I)
    month = MONTHS.index(name) + 1 if name in MONTHS else int(dated[3] or 1)
    if part and name not in MONTHS and not dated[3]:
        month = PARTS_OF_A_YEAR[part[1].lower()]
    return f"{dated[2]}-{month:02}"


def _met(text: str) -> str:
    """Returns January of the year of a conference that a text names, as SOSP25 or NSDI '24."""
    met = rx.search(rf"\b(?:{CONFERENCES})[ -]?['\u2019]?(1[5-9]|2\d)\b", text, re.I)
    return f"20{met[1]}-01" if met else ""


CONFERENCES = (
    "SC|MICRO|SOSP|OSDI|NSDI|ATC|EuroSys|ASPLOS|ISCA|HPCA|PPoPP|MLSys|SIGCOMM|VLDB|SIGMOD|IPDPS"
    "|HPDC|ICS|ICML|ICLR|NeurIPS|NIPS|ACL|EMNLP|KDD"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A row with a cell that cannot be read.

    Attributes:
        id: Name of the run.
        series: Runs that belong together.
        error: What is wrong with the cell.
    """

    id: str
    series: str
    error: SpecError


KNOWN = {known.name: known.type for known in fields(Run) if known.name != "extra"}


def read_runs(path: str | PathLike[str]) -> list[Run | BadRow]:
    """Returns the runs of a CSV file, in the order of its lines.

    Raises:
        SpecError: The file cannot be read, is no CSV table, or has no column of a run or no row.
    """
    return parse_runs(files.read_bytes(path), files.printable(path))


def parse_runs(data: bytes, name: str) -> list[Run | BadRow]:
    """Returns the runs of a CSV text; `name` is what errors call it.

    Raises:
        SpecError: The text is not UTF-8, is no CSV table, or has no column of a run or no row.

    Example:
        >>> [run] = parse_runs(b"id,layers,tp,colour\\nmine-1,32,4,red", "runs.csv")
        >>> run.layers, run.tp, run.series, run.extra
        (32, 4, 'mine', {'colour': 'red'})
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(name, f"not UTF-8 (byte {error.start})", "Save it as UTF-8.") from None
    while text.startswith("#"):
        text = text.partition("\n")[2]
    try:
        table = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise SpecError(name, f"not CSV: {error}", "Separate cells by commas.") from None
    if not table:
        raise SpecError(name, "without a header line", "Name the columns in the first line.")
    header = [cell.strip() for cell in table[0]]
    if doubled := sorted({column for column in header if header.count(column) > 1}):
        raise SpecError(name, f"two columns named {shown(doubled[0])}", "Name each column once.")
    if not set(header) & (KNOWN.keys() - {"id", "source", "notes"}):
        what = f"no column of a run in its first line, found {shown(','.join(header))}"
        raise SpecError(name, what, "Name columns as layers,hidden,heads,seq_len,chip,tp,pp,gbs.")
    runs: list[Run | BadRow] = []
    for number, cells in enumerate(table[1:], 1):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) > len(header):
            what = f"{len(cells)} cells in a table of {len(header)} columns"
            raise SpecError(f"{name}: row {number}", what, "Quote cells that hold a comma.")
        row = dict(zip(header, (cell.strip() for cell in cells), strict=False))
        runs.append(_run(row, f"row-{number}"))
    if not runs:
        raise SpecError(name, "no row below its first line", "Write one run a line.")
    return runs


def misspelt(runs: Iterable[Run | BadRow]) -> list[str]:
    """Returns what is said of columns that are kept unread and whose names are almost a run's.

    Example:
        >>> misspelt(parse_runs(b"id,layers,iter_times\\nmine-1,32,1.5", "runs.csv"))
        ['column "iter_times" is not read; the nearest is iter_time_s']
    """
    unread = {column for run in runs if isinstance(run, Run) for column in run.extra}
    nearest = {column: get_close_matches(column, KNOWN, 1, cutoff=0.8) for column in unread}
    return [
        f"column {shown(column)} is not read; the nearest is {near[0]}"
        for column, near in sorted(nearest.items())
        if near
    ]


def _run(row: dict[str, str], name: str) -> Run | BadRow:
    """Returns the run of a row."""
    row["id"] = row.get("id") or name
    row["series"] = row.get("series") or row["id"].partition("-")[0]
    try:
        values: dict[str, Any] = {
            key: _cell(row[key], kind, key) for key, kind in KNOWN.items() if row.get(key)
        }
    except SpecError as error:
        return BadRow(id=row["id"], series=row["series"], error=error)
    extra = {key: cell for key, cell in row.items() if key not in KNOWN}
    return _by_device(Run(**values, extra=extra))


def _by_device(run: Run) -> Run:
    """Returns a run that counts chips of TPU v7 by the devices of each, as the catalog and JAX do.

    That a row counts chips its chip's memory tells, which is that of both devices.
    """
    if not rx.search(r"v7x?\b[^\d]*192 ?GB\b", run.chip, re.I):
        return run

    def twice(number: int | None) -> int | None:
        return number and 2 * number

    def half(number: float | None) -> float | None:
        return number and number / 2

    ranks = run.dp or (run.gpus or 0) // ((run.tp or 1) * (run.pp or 1) * (run.cp or 1))
    filled = run.mbs and ranks and run.gbs and run.gbs % (2 * run.mbs * ranks)
    return replace(
        run,
        chip=run.chip.replace("192", "96"),
        gpus=twice(run.gpus),
        gpus_per_node=twice(run.gpus_per_node),
        dp=twice(run.dp),
        mbs=run.mbs // 2 if run.mbs and filled and run.mbs % 2 == 0 else run.mbs,
        tokens_per_s_per_gpu=half(run.tokens_per_s_per_gpu),
        model_tflops_per_gpu=half(run.model_tflops_per_gpu),
        mem_gb_per_gpu=half(run.mem_gb_per_gpu),
    )


def _cell(text: str, kind: Any, key: str) -> Any:
    """Returns a cell that is not empty as the type of its field."""
    if kind is str:
        return text
    if kind == bool | None:
        if text.lower() in YES or text.lower() in NO:
            return text.lower() in YES
        raise SpecError(key, f"must be 1 or 0, found {shown(text)}", "Leave it empty if unknown.")
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    # Smaller than any time, larger than any count; NaN is neither.
    if number != 0 and not 1e-12 <= number < 1e15:
        what = f"must be a number from 0 to 10^15, found {shown(text)}"
        raise SpecError(key, what, "Leave it empty if unknown.")
    if kind == float | None:
        return number
    if number != int(number):
        what = f"must be a whole number, found {shown(text)}"
        raise SpecError(key, what, "Leave it empty if unknown.")
    return int(number)
