"""The commands that show what is there: models, chips, the schemas of documents."""

import click

from autopar import catalog, entry_files, planner, writing
from autopar.cli.ends import DONE
from autopar.errors import SpecError, shown

DOCUMENTS = (
    "problem",
    "plan",
    "report",
    "estimate",
    "sizes",
    "graph",
    "sharding-problem",
    "sharding",
    "strategies",
    "servers-problem",
    "servers",
)


@click.command()
@click.argument("name", required=False)
@click.option("--example", is_flag=True, help="Print an annotated TOML file to start from.")
def models(name: str | None, example: bool) -> int:
    """List the models, or show the one of a NAME."""
    from autopar.render import text as render

    if example:
        return _print_example("model", name)
    if name is not None:
        return _print(entry_files.model_toml(planner.model_of(name)))
    found = [catalog.model(name) for name in catalog.names("models")]
    rows = [(entry, planner.model_facts(entry.model)) for entry in found]
    writing.text(render.plain(render.models_table(rows)), None, False)
    return DONE


@click.command()
@click.argument("name", required=False)
@click.option(
    "--example",
    type=click.Choice(["chip", "cluster", "framework"]),
    help="Print an annotated TOML file to start from.",
)
def chips(name: str | None, example: str | None) -> int:
    """List the chips, or show the one of a NAME."""
    from autopar.render import text as render

    if example:
        return _print_example(example, name)
    if name is not None:
        return _print(entry_files.chip_toml(catalog.chip(name)))
    found = [catalog.chip(name) for name in catalog.names("chips")]
    writing.text(render.plain(render.chips_table(found)), None, False)
    return DONE


@click.command()
@click.argument("name", required=False)
@click.option("--example", is_flag=True, help="Print an annotated TOML file to start from.")
def frameworks(name: str | None, example: bool) -> int:
    """List the training frameworks, or show the profile of a NAME."""
    from autopar.render import text as render

    if example:
        return _print_example("framework", name)
    if name is not None:
        return _print(entry_files.framework_toml(catalog.framework(name)))
    found = [catalog.framework(name) for name in catalog.names("frameworks")]
    writing.text(render.plain(render.frameworks_table(found)), None, False)
    return DONE


@click.command()
@click.argument("document", type=click.Choice(DOCUMENTS))
def schema(document: str) -> int:
    """Print the JSON Schema of a DOCUMENT."""
    from autopar import schema as schemas

    writing.document(schemas.text(schemas.DOCUMENTS[document]).rstrip(), None, False)
    return DONE


def _print_example(kind: str, name: str | None) -> int:
    if name is not None:
        what = f"given beside {shown(name)}"
        raise SpecError("--example", what, "Leave one out: a NAME's entry is an example too.")
    return _print((catalog.ROOT / "examples" / f"{kind}.toml").read_text(encoding="utf-8"))


def _print(toml: str) -> int:
    writing.text(toml.rstrip(), None, False)
    return DONE
