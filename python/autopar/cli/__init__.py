"""The command line: flags in, documents or text out.

Exit codes: 0 done, 1 no plan exists, 2 wrong input, 70 a defect, 130 stopped.
"""

import logging
import sys
from io import TextIOWrapper

import click

from autopar import catalog, files, planner
from autopar.cli import catalogs, jobs, launchers, measured, operators
from autopar.cli.ends import DEFECT, DONE, STOPPED, WRONG_INPUT, fail, forget
from autopar.cli.search import search
from autopar.errors import AutoparError


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns its exit code; whatever goes wrong is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal without UTF-8 shows what it cannot as an escape.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has what it wanted.
        forget(sys.stdout)
        return DONE
    except (KeyboardInterrupt, click.Abort):
        return fail("stopped", STOPPED)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "autopar"
        hint = f'{_flag_instead(error)}See "{command} --help".'
        return fail(f"{error.format_message()} {hint}", WRONG_INPUT)
    except click.ClickException as error:
        return fail(error.format_message(), WRONG_INPUT)
    except AutoparError as error:
        return fail(str(error), WRONG_INPUT)
    except OSError as error:
        place = f"{files.printable(error.filename)}: " if error.filename else ""
        return fail(f"{place}{error.strerror or error}", WRONG_INPUT)
    except Exception as error:
        logging.getLogger("autopar").info("defect", exc_info=True)
        return fail(f"{error} (a defect of autopar; -v shows where)", DEFECT)


def _flag_instead(error: click.UsageError) -> str:
    """Returns how to give a model that stands by itself where a command has a flag for it."""
    takes = [name for p in error.ctx.command.params for name in p.opts] if error.ctx else []
    flag = next((name for name in ("--model", "--model-name") if name in takes), None)
    if flag is None or "unexpected extra argument" not in error.message:
        return ""
    return f"A model is given as {flag} NAME. "


def _run(arguments: list[str]) -> int:
    """Runs a command without click's own handling of errors, which takes several lines."""
    try:
        with autopar.make_context("autopar", arguments) as context:
            return autopar.invoke(context) or DONE
    except click.exceptions.Exit as end:
        return end.exit_code


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import version

        package = version("autopar")
        print(f"autopar {package}, catalog {catalog.CATALOG_DATE}, core {planner.__version__}")
        ctx.exit()


@click.group(
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    commands=[
        search,
        jobs.estimate,
        jobs.apss,
        launchers.export,
        jobs.rerun,
        measured.validate,
        measured.calibrate,
        operators.shard,
        operators.servers,
        operators.atc,
        catalogs.models,
        catalogs.chips,
        catalogs.frameworks,
        catalogs.schema,
    ],
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Print the versions of the package, the catalog and the core.",
)
def autopar() -> None:
    """Find the fastest way to train a large language model on a cluster."""
