"""Measured operators: tables of products and attention, and what nccl-tests prints.

A table of products has the columns m, n, k and a time, one of attention heads, head_dim, seq_len
and a time; the time's column says its unit: time_us, time_ms, time_s, or tflops for a rate.
"""

import csv
import io
import math
import re
from os import PathLike
from typing import Any, Literal, get_args

from autopar import files
from autopar.errors import SpecError, shown
from autopar.fit import MeasuredAttention, MeasuredCollective, MeasuredGemm, Point
from autopar.spec import Precision

SECONDS = {"time_us": 1e-6, "time_ms": 1e-3, "time_s": 1.0}
FORMATS: dict[str, Precision] = {
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8": "fp8",
    "e4m3": "fp8",
    "nvfp4": "fp4",
    "e2m1": "fp4",
    "float32": "fp32",
    "float": "fp32",
    "tensorfloat32": "tf32",
}
Collective = Literal["all_reduce", "all_gather", "all_to_all"]
COLLECTIVES: dict[str, Collective] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "all_gather",
    "alltoall": "all_to_all",
}
NCCL_ROW = re.compile(
    r"^\s*(\d+)\s+\d+\s+(\w+)\s+(\w+)\s+-?\d+\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s", re.M
)


def read_points(path: str | PathLike[str], kernel: str = "") -> list[Point] | None:
    """Returns the measured operators of a file, or None for a file of something else.

    Args:
        path: A CSV table of products or of attention, or the output of nccl-tests.
        kernel: The attention kernel of rows that name none.

    Raises:
        SpecError: The file cannot be read, or a row of such a table is wrong.
    """
    name = files.printable(path)
    try:
        text = files.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(name, f"not UTF-8 (byte {error.start})", "Save it as UTF-8.") from None
    return parse_points(text, name, kernel)


def parse_points(text: str, name: str, kernel: str = "") -> list[Point] | None:
    """Returns the measured operators of a text; `name` is what errors call it.

    Raises:
        SpecError: A row is wrong.

    Example:
        >>> [point] = parse_points("m,n,k,dtype,time_us\\n4096,4096,4096,bf16,550", "gemm.csv")
        >>> point.what.k, round(point.seconds, 6)
        (4096, 0.00055)
    """
    if re.search(r"^#.*\balgbw\b.*\bbusbw\b", text, re.M):
        return _collectives(text, name)
    while text.startswith("#"):
        text = text.partition("\n")[2]
    try:
        table = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise SpecError(name, f"not CSV: {error}", "Separate cells by commas.") from None
    header = [cell.strip().lower() for cell in table[0]] if table else []
    is_gemm = {"m", "n", "k"} <= set(header)
    is_attention = {"heads", "head_dim", "seq_len"} <= set(header) and "layers" not in header
    if not is_gemm and not is_attention:
        return None
    if not {*SECONDS, "tflops"} & set(header):
        raise SpecError(name, "no column of a time", "Name one time_us, time_ms, time_s or tflops.")
    points = []
    for number, cells in enumerate(table[1:], 1):
        if any(cell.strip() for cell in cells):
            place = f"{name}: row {number}"
            row = dict(zip(header, (cell.strip() for cell in cells), strict=False))
            points.append((_gemm if is_gemm else _attention)(row, name, place, kernel))
    if not points:
        raise SpecError(name, "no row below the header", "Give one measurement a line.")
    return points


def _gemm(row: dict[str, str], group: str, place: str, kernel: str) -> Point:
    m, n, k = (_count(row, key, place) for key in ("m", "n", "k"))
    what = MeasuredGemm(m=m, n=n, k=k, precision=_format(row, place))
    return Point(group=group, seconds=_seconds(row, 2.0 * m * n * k, place), what=what)


def _attention(row: dict[str, str], group: str, place: str, kernel: str) -> Point:
    batch = _count(row, "batch", place) if row.get("batch") else 1
    heads, width, length = (_count(row, key, place) for key in ("heads", "head_dim", "seq_len"))
    if row.get("causal", "1").lower() not in ("1", "true", "yes"):
        raise SpecError(f"{place}.causal", "only causal attention is priced", "Leave it out.")
    words: dict[str, tuple[Any, float]] = {
        "forward": ("forward", 1.0),
        "fwd": ("forward", 1.0),
        "backward": ("backward", 2.5),
        "bwd": ("backward", 2.5),
        "both": ("both", 3.5),
    }
    passes = (row.get("pass") or "forward").lower()
    if passes not in words:
        what = f"must be forward, backward or both, found {shown(passes)}"
        raise SpecError(f"{place}.pass", what)
    if not (row.get("kernel") or kernel):
        raise SpecError(f"{place}.kernel", "missing", "The chip has no kernel to assume; name it.")
    measured = MeasuredAttention(
        kernel=row.get("kernel") or kernel,
        heads=batch * heads,
        head_dim=width,
        sequence=length,
        passes=words[passes][0],
    )
    # A masked product of scores and one of values, half of each.
    forward = 2.0 * batch * heads * length * length * width
    seconds = _seconds(row, forward * words[passes][1], place)
    return Point(group=group, seconds=seconds, what=measured)


def _count(row: dict[str, str], key: str, place: str) -> int:
    text = row.get(key, "")
    if not re.fullmatch(r"0*[1-9]\d{0,11}", text, re.ASCII):
        what = f"must be a positive whole number, found {shown(text)}"
        raise SpecError(f"{place}.{key}", what, "Give every dimension.")
    return int(text)


def _format(row: dict[str, str], place: str) -> Precision:
    text = (row.get("dtype") or row.get("precision") or "bf16").lower().removeprefix("torch.")
    known: tuple[Precision, ...] = get_args(Precision)
    for spelling, precision in (*((name, name) for name in known), *FORMATS.items()):
        if text.startswith(spelling):
            return precision
    what = f"no number format is called {shown(text)}"
    raise SpecError(f"{place}.dtype", what, f"Known: {', '.join(known)}.")


def _seconds(row: dict[str, str], flops: float, place: str) -> float:
    """Returns the row's time; that of so many operations where it gives a rate."""
    for key in (*SECONDS, "tflops"):
        if text := row.get(key):
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not 0 < value < math.inf:
                what = f"must be a positive number, found {shown(text)}"
                raise SpecError(f"{place}.{key}", what, "Leave the row out if it failed.")
            return flops / (value * 1e12) if key == "tflops" else value * SECONDS[key]
    raise SpecError(place, "no time", "Leave the row out if it failed.")


def _collectives(text: str, name: str) -> list[Point]:
    """Returns the rows of nccl-tests output, the out-of-place times.

    Columns: size in bytes (of the whole gathered or summed tensor, or all that a rank exchanges),
    count, type, operation, root, time in microseconds, algorithm and bus bandwidth
    (NVIDIA/nccl-tests, src/common.cu). The ranks stand above the table, a line each.
    """
    ranks = len(set(re.findall(r"^#\s+Rank\s+(\d+)\b", text, re.M)))
    if ranks < 2:
        what = f"{ranks} lines of a rank"
        raise SpecError(name, what, 'Keep the lines "# Rank 0 ..." that nccl-tests prints.')
    known = re.compile(f"({'|'.join(COLLECTIVES)})_perf")
    found = sorted(set(known.findall(text) or known.findall(name)))
    if len(found) > 1:
        raise SpecError(name, f"holds runs of {' and '.join(found)}", "Give a file for each.")
    points = []
    for size, _, reduction, time, algorithm, bus in NCCL_ROW.findall(text):
        if not float(time) or not int(size):
            continue
        operation = COLLECTIVES[found[0]] if found else None
        if operation is None and reduction != "none" and float(algorithm):
            # The bus carries 2 (n - 1)/n of an all-reduce's bytes and (n - 1)/n of the others'.
            double = float(bus) / float(algorithm) > 1.5 * (ranks - 1) / ranks
            operation = "all_reduce" if double else "all_gather"
        if operation is None:
            hint = "Put all_gather_perf or alltoall_perf into the file's name."
            raise SpecError(name, "does not say which collective it timed", hint)
        timed = MeasuredCollective(operation=operation, bytes=float(size), ranks=ranks)
        points.append(Point(group=name, seconds=float(time) * 1e-6, what=timed))
    if not points:
        raise SpecError(name, "no row of nccl-tests with a time", "Give its whole output.")
    return points
