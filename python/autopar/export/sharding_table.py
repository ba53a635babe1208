"""The sharding table: which part of every parameter, input and constant each device holds, as JSON.

Ranks are mixed radix numbers of the mesh's prime axes, outermost first, as in a `Sharding`.
"""

import json
from collections.abc import Sequence
from typing import Any

from autopar import wire
from autopar.frontends.atc import Device
from autopar.sharding import Cuts, Sharding

SCHEMA = "autopar.sharding-table/1"


def table(found: Sharding, devices: Sequence[Device] = ()) -> dict[str, Any]:
    """Returns the table of a sharding.

    Args:
        found: The sharding.
        devices: What each rank is called in the cluster's file, if there is one.

    Returns:
        `mesh`; `operators` with the cuts of their inputs and outputs; `devices`, one a rank, each
        with `slices`: for each dimension of each tensor the first element and the one after the
        last.
    """
    shapes = {tensor.name: tensor.shape for tensor in found.problem.graph.tensors}
    ranks = []
    for rank in range(found.problem.cluster.devices):
        place = _coordinates(rank, found.mesh)
        entry: dict[str, Any] = {"rank": rank}
        if devices:
            entry |= wire.write(devices[rank])
        entry["slices"] = {
            tensor.name: _slices(shapes[tensor.name], tensor.axes, found.mesh, place)
            for tensor in found.tensors
        }
        ranks.append(entry)
    return {
        "schema": SCHEMA,
        "version": found.problem.version,
        "catalog": found.problem.catalog,
        "graph": found.problem.graph.name,
        "mesh": found.mesh,
        "operators": {
            operator.name: {"inputs": operator.inputs, "outputs": operator.outputs}
            for operator in found.operators
        },
        "devices": ranks,
    }


def table_bytes(found: Sharding, devices: Sequence[Device] = ()) -> bytes:
    """Returns the table as JSON text."""
    text = json.dumps(table(found, devices), ensure_ascii=False, separators=(",", ":"))
    return f"{text}\n".encode()


def _coordinates(rank: int, mesh: Sequence[int]) -> list[int]:
    """Returns where a rank stands on each axis of the mesh.

    Example:
        >>> _coordinates(6, (2, 2, 2))
        [1, 1, 0]
    """
    place = []
    for size in reversed(mesh):
        rank, here = divmod(rank, size)
        place.append(here)
    return place[::-1]


def _slices(
    shape: Sequence[int], axes: Cuts, mesh: Sequence[int], place: Sequence[int]
) -> list[list[int]]:
    """Returns the part of each dimension that a device holds.

    Example:
        >>> _slices((64, 256), ((), (1, 2)), (2, 2, 2), (0, 1, 0))
        [[0, 64], [128, 192]]
    """
    slices = []
    for size, cut in zip(shape, axes, strict=True):
        parts, part = 1, 0
        for axis in cut:
            parts, part = parts * mesh[axis], part * mesh[axis] + place[axis]
        slices.append([size // parts * part, size // parts * (part + 1)])
    return slices
