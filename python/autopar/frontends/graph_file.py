"""Files of the operator level by the ending of their name: graphs, and strategies that are set."""

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike

from autopar import files, texts, wire
from autopar.errors import SpecError
from autopar.frontends import graphdef, mindspore_strategy, onnx
from autopar.frontends.draft import Reading, Shape
from autopar.graph import Graph
from autopar.sharding import FixedStrategy, Strategies

ENDINGS = (".onnx", ".pb", ".json")
# A graph document of a hundred layers has a few megabytes.
LARGEST_BYTES = 2**30


def is_graph(text: str) -> bool:
    """Returns whether a text names a graph's file, by its form alone.

    Example:
        >>> is_graph("gpt3-175b"), is_graph("net.onnx")
        (False, True)
    """
    return text.endswith(ENDINGS)


def read(
    path: str | PathLike[str],
    input_shapes: Mapping[str, Shape] | None = None,
    *,
    inference: bool = False,
) -> Reading:
    """Returns the graph of a file.

    Args:
        path: An ONNX file (`.onnx`), a frozen GraphDef (`.pb`), or a graph document (`.json`).
        input_shapes: Shapes of inputs with open dimensions; a document has none.
        inference: No gradients are computed. Otherwise a document says whether they are, and those
            of the others are implied.

    Raises:
        SpecError: The file cannot be read as a graph.
    """
    name = files.printable(path)
    if name.endswith(".onnx"):
        return onnx.read(path, input_shapes, "none" if inference else "implied")
    if name.endswith(".pb"):
        return graphdef.read(path, input_shapes, "none" if inference else "implied")
    if not name.endswith(".json"):
        raise SpecError(name, "no ending of a graph's file", f"Known: {', '.join(ENDINGS)}.")
    if input_shapes:
        raise SpecError("--input-shape", "given for a graph document", "Its shapes are settled.")
    graph = wire.loads(Graph, files.read_bytes(path, LARGEST_BYTES), name)
    return Reading(replace(graph, gradients="none") if inference else graph, ())


def read_strategies(path: str | PathLike[str], graph: Graph) -> tuple[FixedStrategy, ...]:
    """Returns the strategies that a file sets for the operators of a graph.

    Args:
        path: A document of strategies, or a strategy file of MindSpore in either form.
        graph: The graph.

    Raises:
        SpecError: The file cannot be read, or the graph has no such operator.
    """
    name = files.printable(path)
    if name.endswith(".json"):
        said = texts.parse_json(files.read_bytes(path), name)
        if not isinstance(said.value, dict) or "current_stage" not in said.value:
            with said.placing():
                return wire.read(Strategies, said.value, f"{name}: ").strategies
    return mindspore_strategy.fixed_strategies(mindspore_strategy.read(path), graph, name)
