"""The sharding table: which part of every parameter, input and constant each device holds, as JSON.

Ranks are mixed radix numbers of the mesh's prime axes, outermost first, as in a `Sharding`.
"""

import json
from collections.abc import Sequence
from typing import Any

from autopar import planner, wire
from autopar.frontends.atc import Device
from autopar.sharding import Sharding

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
    ranks = []
    for rank, slices in enumerate(planner.slices(found)):
        entry: dict[str, Any] = {"rank": rank}
        if devices:
            entry |= wire.write(devices[rank])
        ranks.append(entry | {"slices": slices})
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
