"""The commands that show what is there: models, chips, the schemas of documents."""

from typing import Any

import click

from autopar import catalog, planner, wire, writing
from autopar.cli.ends import DONE

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
        return _print_example("model")
    if name is not None:
        entry = planner.model_of(name)
        return _print_entry(wire.write(entry.model), wire.write(entry), "model")
    entries = [catalog.model(name) for name in catalog.names("models")]
    rows = [(entry, planner.model_facts(entry.model)) for entry in entries]
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
        return _print_example(example)
    if name is not None:
        entry = catalog.chip(name)
        return _print_entry(wire.write(entry.chip), wire.write(entry), "chip")
    entries = [catalog.chip(name) for name in catalog.names("chips")]
    writing.text(render.plain(render.chips_table(entries)), None, False)
    return DONE


@click.command()
@click.argument("document", type=click.Choice(DOCUMENTS))
def schema(document: str) -> int:
    """Print the JSON Schema of a DOCUMENT."""
    from autopar import schema as schemas

    writing.document(schemas.text(schemas.DOCUMENTS[document]).rstrip(), None, False)
    return DONE


def _print_example(kind: str) -> int:
    text = (catalog.ROOT / "examples" / f"{kind}.toml").read_text(encoding="utf-8")
    writing.text(text.rstrip(), None, False)
    return DONE


def _print_entry(spec: dict[str, Any], entry: dict[str, Any], kind: str) -> int:
    """Writes an entry of a catalog, a key a line."""
    provenance = {key: value for key, value in entry.items() if key != kind}
    for key, value in (spec | provenance).items():
        writing.text(f"{key}: {value}", None, False)
    return DONE
