"""Graph files by the ending of their name: ONNX, frozen TensorFlow, or a graph document."""

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike

from autopar import files, wire
from autopar.errors import SpecError, shown
from autopar.frontends import graphdef, onnx
from autopar.frontends.draft import Reading, Shape
from autopar.graph import Gradients, Graph

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
    gradients: Gradients | None = None,
) -> Reading:
    """Returns the graph of a file.

    Args:
        path: An ONNX file (`.onnx`), a frozen GraphDef (`.pb`), or a graph document (`.json`).
        input_shapes: Shapes of inputs with open dimensions; a document has none.
        gradients: Whether gradients are computed; what a document says, and none for the others,
            unless given.

    Raises:
        SpecError: The file cannot be read as a graph.
    """
    name = files.printable(path)
    if name.endswith(".onnx"):
        return onnx.read(path, input_shapes, gradients or "none")
    if name.endswith(".pb"):
        return graphdef.read(path, input_shapes, gradients or "none")
    if not name.endswith(".json"):
        what = f"no ending of a graph's file: {shown(name)}"
        raise SpecError(name, what, f"Known: {', '.join(ENDINGS)}.")
    if input_shapes:
        raise SpecError("--input_shape", "given for a graph document", "Its shapes are settled.")
    graph = wire.loads(Graph, files.read_bytes(path, LARGEST_BYTES), f"{name}: ")
    return Reading(graph if gradients is None else replace(graph, gradients=gradients), ())
