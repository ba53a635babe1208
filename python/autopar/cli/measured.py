"""The commands on measurements: how far off the estimate is, and a chip fitted to them."""

import json
from pathlib import Path
from typing import Any, Literal

import click

from autopar import catalog, flags, writing
from autopar.cli.ends import DONE, WRONG_INPUT, fail, print_notes

By = Literal["source", "chip", "model"]


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option(
    "--json",
    "document",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write every row and score to a JSON file.",
)
@click.option(
    "--by",
    type=click.Choice(["source", "chip", "model"]),
    default="source",
    show_default=True,
    help="What to group the rows by.",
)
@click.option(
    "--worst",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Rows furthest off to list.",
)
@click.option("--force", is_flag=True, help="Overwrite the file of --json.")
@flags.verbose
def validate(runs: tuple[str, ...], document: Path | None, by: By, worst: int, force: bool) -> int:
    """Estimate measured RUNS (CSV files; - reads standard input) and print how far off it is.

    The columns are those of a run: layers, hidden, heads, seq_len, gbs, chip, gpus, dp, tp, pp,
    mbs, recompute, zero, iter_time_s, mem_gb_per_gpu and so on; an empty cell is unknown. Words of
    framework and notes are read too ("CUDA graphs", "grouped GEMM", "OOM"): --json tells what was
    assumed. python -c "help('autopar.runs.Run')" explains every column.
    """
    from autopar import validate as validation
    from autopar.render import errors as render
    from autopar.runs import misspelt, read_runs

    writing.check_output(document, force, "--json")
    read = [run for file in runs for run in read_runs(file)]
    rows = validation.check(read)
    print_notes([*misspelt(read), *validation.misread(rows)])
    summary = validation.summarise(rows, by)
    if document is not None:
        text = json.dumps(validation.document(rows, summary), ensure_ascii=False, indent=1)
        writing.save(f"{text}\n".encode(), document, force)
    writing.text(render.validation_text(summary, validation.worst(rows, worst), by), None, False)
    if all(row.skipped for row in rows):
        return fail("no row could be estimated; the reasons stand above", WRONG_INPUT)
    return DONE


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--chip", required=True, help="Chip to start from: a name or a TOML file.")
@click.option(
    "--figures",
    type=lambda text: tuple(item.strip() for item in text.split(",")),
    metavar="NAMES",
    help="Figures to fit, as gemm.efficiency,link; all that the measurements tell by default.",
)
@flags.output
@flags.verbose
def calibrate(
    runs: tuple[str, ...],
    chip: str,
    figures: tuple[Any, ...] | None,
    output: Path | None,
    force: bool,
) -> int:
    """Fit a chip's physical figures to measured RUNS and write its TOML file with -o.

    RUNS are CSV files as "validate" reads them, of matrix products (m,n,k,dtype,time_us), of
    causal attention (heads,head_dim,seq_len,pass,time_us), or the output of nccl-tests.
    What they cannot tell is refused by name.
    """
    from autopar import calibrate as calibration
    from autopar.render import fit as render

    writing.check_output(output, force)
    found = calibration.calibrate(
        runs, catalog.chip(chip, "--chip"), figures=figures or calibration.FIGURES
    )
    if output is not None:
        writing.save(calibration.chip_toml(found).encode(), output, force)
    writing.text(render.calibration_text(found), None, False)
    return DONE
