"""Huawei ATC's graph-parallel options: its flags and its two option files, checked by its rules.

Source: the pages of `--distributed_cluster_build`, `--cluster_config`, `--enable_graph_parallel`
and `--graph_parallel_option_path` in the ATC guide of CANN 8.0 on hiascend.com; defaults that they
do not state are those of `GraphParallelOption` in the open header of Ascend/metadef.
"""

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Literal

from autopar import catalog, files, texts, wire
from autopar.cluster import Cluster, DeviceGroup
from autopar.entries import ChipEntry
from autopar.errors import SpecError, shown
from autopar.graph import Gradients
from autopar.sharding import ShardingOptions
from autopar.wire import join

Framework = Literal["tensorflow", "onnx"]
Method = Literal["dp", "ilp"]

FRAMEWORKS: dict[int, Framework] = {3: "tensorflow", 5: "onnx"}
LOGS = ("debug", "info", "warning", "error", "null")
METHODS: dict[str, Method] = {"O1": "dp", "O2": "ilp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSharding:
    """What data-parallel devices keep a part of, in semi-automatic mode.

    Attributes:
        optimizer_state_sharding: The optimizer's state.
        gradient_sharding: The gradients.
        model_weight_sharding: The weights.
        model_weight_prefetch: Whether weights are gathered ahead of their use.
        model_weight_prefetch_buffer_size: Megabytes for weights gathered ahead; 0 sets no limit but
            the memory that is left.
    """

    optimizer_state_sharding: bool = False
    gradient_sharding: bool = False
    model_weight_sharding: bool = False
    model_weight_prefetch: bool = True
    model_weight_prefetch_buffer_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallel:
    """Tensor parallelism.

    Attributes:
        tensor_parallel_size: Devices, those of the cluster's file.
    """

    tensor_parallel_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphParallel:
    """How a graph is to be partitioned.

    Attributes:
        auto: Whether all is chosen; nothing else may then be given.
        opt_level: O1 is dynamic programming, O2 integer linear programming.
        tensor_parallel_option: Tensor parallelism; off if absent.
        tensor_sharding: What data-parallel devices keep a part of.
    """

    auto: bool
    opt_level: Literal["O1", "O2"] = "O2"
    tensor_parallel_option: TensorParallel | None = None
    tensor_sharding: TensorSharding | None = None

    @property
    def method(self) -> Method:
        """The solver that the level names."""
        return METHODS[self.opt_level]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionFile:
    """The file of `--graph_parallel_option_path`."""

    graph_parallel_option: GraphParallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device of the cluster's file; its rank is its place in the list.

    Attributes:
        node_id: Node.
        item_id: Card in the node.
        device_id: Device on the card; None where a card is one device.
    """

    node_id: int
    item_id: int
    device_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The file of `--cluster_config`.

    Attributes:
        devices: All devices, by node, card and device.
        nodes: Number of nodes; all have equally many devices.
        item_type: What the file calls the chip.
    """

    devices: tuple[Device, ...]
    nodes: int
    item_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a command asks.

    Attributes:
        model: Path of the graph.
        framework: Whose form it has.
        option: How it is to be partitioned.
        topology: Over which devices.
        chip: Which kind of device.
        output: Path that results are named after.
        notes: Names that stand for something else.
    """

    model: str
    framework: Framework
    option: GraphParallel
    topology: Topology
    chip: ChipEntry
    output: str
    notes: tuple[str, ...] = ()

    @property
    def gradients(self) -> Gradients:
        """Whether training is asked about: gradients or optimizer state are to be divided."""
        return "implied" if any(option.zero for option in self.options) else "none"

    @property
    def options(self) -> tuple[ShardingOptions, ...]:
        """What the solver may choose; in automatic mode several, of which the best is taken.

        There every size of tensor parallelism is tried: all devices as one axis that operators
        divide among their dimensions, and groups of each size beside their copies, taken whole.
        """
        if self.option.auto:
            # Where weights are divided, once gathered ahead and once not: a buffer takes memory.
            ways: tuple[tuple[int, int | None], ...] = (
                (0, None),
                (1, None),
                (2, None),
                (3, None),
                (3, 0),
            )
            count = len(self.topology.devices)
            sizes = [size for size in range(2, count) if count % size == 0]
            meshes = [(count // size, size) for size in sizes]
            return tuple(
                ShardingOptions(zero=stage, prefetch_mb=mb, mesh=mesh, refine=not mesh)
                for mesh in ((), *meshes)
                for stage, mb in ways
            )
        sharding = self.option.tensor_sharding or TensorSharding()
        stages = (
            sharding.optimizer_state_sharding,
            sharding.gradient_sharding,
            sharding.model_weight_sharding,
        )
        tensor_parallel = self.option.tensor_parallel_option is not None
        buffer = sharding.model_weight_prefetch_buffer_size
        return (
            ShardingOptions(
                method=self.option.method,
                zero=max((stage for stage, on in enumerate(stages, 1) if on), default=0),
                prefetch_mb=buffer if sharding.model_weight_prefetch else None,
                others="search" if tensor_parallel else "data_parallel",
            ),
        )

    @property
    def cluster(self) -> Cluster:
        """The devices, as many in a node as the topology says."""
        chip, count = self.chip.chip, len(self.topology.devices)
        inside = count // self.topology.nodes
        if self.topology.nodes > 1 and inside != chip.devices_per_node:
            cards = max(1, chip.network.nics_per_node * inside // chip.devices_per_node)
            chip = replace(
                chip,
                devices_per_node=inside,
                link_domain=inside,
                network=replace(chip.network, nics_per_node=cards),
            )
        return Cluster(groups=(DeviceGroup(chip=chip, limit=count),), devices=count)


def question(
    *,
    model: str,
    framework: int,
    output: str,
    soc_version: str,
    distributed_cluster_build: int = 0,
    enable_graph_parallel: int = 0,
    cluster_config: str | None = None,
    graph_parallel_option_path: str | None = None,
) -> Question:
    """Returns what ATC's flags and option files ask for.

    Raises:
        SpecError: A flag or a file breaks a rule of ATC, or asks for what is not partitioning.
    """
    if framework not in FRAMEWORKS:
        what = f"must be 3 (TensorFlow) or 5 (ONNX), found {framework}"
        hint = (
            "Export the model to ONNX." if framework in (0, 1) else "Give the number of its form."
        )
        raise SpecError("--framework", what, hint)
    switches = {
        "--distributed_cluster_build": distributed_cluster_build,
        "--enable_graph_parallel": enable_graph_parallel,
    }
    for flag, value in switches.items():
        if value not in (0, 1):
            raise SpecError(flag, f"must be 0 or 1, found {value}", "1 enables it.")
    if enable_graph_parallel and not distributed_cluster_build:
        what = "needs --distributed_cluster_build=1"
        raise SpecError("--enable_graph_parallel", what, "Give both.")
    if not enable_graph_parallel:
        if graph_parallel_option_path is not None:
            what = "needs --distributed_cluster_build=1 and --enable_graph_parallel=1"
            raise SpecError("--graph_parallel_option_path", what, "Give all three.")
        what = "must be 1: autopar partitions a graph and compiles none"
        raise SpecError("--enable_graph_parallel", what, "Give 1, or run ATC itself.")
    if cluster_config is None:
        what = "missing; --enable_graph_parallel=1 needs it"
        raise SpecError("--cluster_config", what, "Give the file of the cluster's topology.")
    if graph_parallel_option_path is None:
        what = "missing; --enable_graph_parallel=1 needs it"
        hint = "Give the file of the partitioning options."
        raise SpecError("--graph_parallel_option_path", what, hint)
    paths = {
        "--model": model,
        "--output": output,
        "--cluster_config": cluster_config,
        "--graph_parallel_option_path": graph_parallel_option_path,
    }
    for flag, path in paths.items():
        _check_path(flag, path)
    chip = catalog.chip(soc_version, "--soc_version")
    topology = read_topology(files.read_bytes(cluster_config), cluster_config)
    data = files.read_bytes(graph_parallel_option_path)
    option = read_option(data, graph_parallel_option_path)
    tensor_parallel = option.tensor_parallel_option
    size = tensor_parallel.tensor_parallel_size if tensor_parallel else None
    if size is not None and size != len(topology.devices):
        what = f"must be the {len(topology.devices)} devices of {cluster_config}, found {size}"
        key = "graph_parallel_option.tensor_parallel_option.tensor_parallel_size"
        said = texts.parse_json(data, graph_parallel_option_path)
        raise said.error(key, what, "Change one of the two files.")
    notes = []
    if _plain(chip.chip.name) != _plain(soc_version):
        notes.append(f"{soc_version} is {chip.chip.name}")
    if _plain(topology.item_type) != _plain(soc_version):
        notes.append(f"{cluster_config} has {topology.item_type}; --soc_version is used")
    return Question(
        model=model,
        framework=FRAMEWORKS[framework],
        option=option,
        topology=topology,
        chip=chip,
        output=output,
        notes=tuple(notes),
    )


def read_option(text: str | bytes, file: str = "") -> GraphParallel:
    """Returns the options of a file of `--graph_parallel_option_path`, which errors call `file`.

    Raises:
        SpecError: The text is not JSON, or breaks a rule.

    Example:
        >>> read_option('{"graph_parallel_option": {"auto": true}}').auto
        True
    """
    said = texts.parse_json(text, file, "Give a JSON file as ATC's guide shows it.")
    with said.placing():
        return _option(said.value, f"{file}: " if file else "")


def _option(table: Any, path: str) -> GraphParallel:
    option = wire.read(OptionFile, table, path).graph_parallel_option
    place = join(path, "graph_parallel_option")
    if option.auto:
        for key in table["graph_parallel_option"]:
            if key != "auto":
                what = "given beside auto true, which chooses all"
                raise SpecError(f"{place}.{key}", what, "Leave it out, or give auto false.")
    if option.tensor_parallel_option and option.tensor_parallel_option.tensor_parallel_size == 0:
        where = f"{place}.tensor_parallel_option.tensor_parallel_size"
        raise SpecError(where, "must be positive, found 0", "Give the devices of the cluster.")
    return option


def read_topology(text: str | bytes, file: str = "") -> Topology:
    """Returns the devices of a file of `--cluster_config`, which errors call `file`.

    Cards are devices, except where `item_def` lists the devices of a card (inference cards). Keys
    that describe a node otherwise (links, memory, addresses of services) are not read.

    Raises:
        SpecError: The text is not JSON, lacks what ATC requires, or its nodes differ in size.

    Example:
        >>> card = '{"item_id": 0}, {"item_id": 1}'
        >>> node = '{"node_id": 0, "node_type": "ATLAS800", "ipaddr": "127.0.0.1", "port": 2509,'
        >>> text = f'{{"cluster": [{{"cluster_nodes": [{node} "item_list": [{card}]}}]}}],'
        >>> len(read_topology(text + '"item_def": [{"item_type": "Ascend910"}]}').devices)
        2
    """
    said = texts.parse_json(text, file, "Give a JSON file as ATC's guide shows it.")
    with said.placing():
        return _topology(said.value, f"{file}: " if file else "")


def _topology(table: Any, path: str) -> Topology:
    kinds = list(_tables(table, "item_def", path))
    item_types = [_text(kind, "item_type", where) for kind, where in kinds]
    if len(set(item_types)) > 1:
        what = f"has {', '.join(sorted(set(item_types)))}"
        raise SpecError(join(path, "item_def"), what, "Give devices of one kind.")
    parts: list[int | None] = [None]
    kind, where = kinds[0]
    if "device_list" in kind:
        listed = _tables(kind, "device_list", where)
        parts = [wire.whole(device, "device_id", place) for device, place in listed]
        _check_distinct(parts, join(where, "device_list"), "device_id")
    cards: dict[int, list[int]] = {}
    for cluster, where in _tables(table, "cluster", path):
        for node, place in _tables(cluster, "cluster_nodes", where):
            node_id = wire.whole(node, "node_id", place)
            if node_id in cards:
                raise SpecError(
                    f"{place}.node_id", f"{node_id} is given twice", "Number the nodes."
                )
            if _text(node, "node_type", place).upper().startswith(("ATLAS800", "ATLAS900")):
                _text(node, "ipaddr", place)
                wire.whole(node, "port", place)
            if not isinstance(node.get("is_local", True), bool):
                what = f"must be true or false, found {shown(node['is_local'])}"
                raise SpecError(f"{place}.is_local", what)
            items = [
                wire.whole(item, "item_id", at) for item, at in _tables(node, "item_list", place)
            ]
            _check_distinct(items, f"{place}.item_list", "item_id")
            if cards and len(items) != len(next(iter(cards.values()))):
                first = next(iter(cards))
                what = f"has {len(items)} items, node {first} has {len(cards[first])}"
                raise SpecError(f"{place}.item_list", what, "Give every node equally many.")
            cards[node_id] = sorted(items)
    devices = tuple(
        Device(node_id=node, item_id=item, device_id=part)
        for node in sorted(cards)
        for item in cards[node]
        for part in parts
    )
    return Topology(devices=devices, nodes=len(cards), item_type=item_types[0])


def _check_path(flag: str, path: str) -> None:
    """Refuses a path with characters that ATC refuses."""
    allowed = r"A-Za-z0-9_.\-/\u3400-\u4dbf\u4e00-\u9fff"
    if not path or not PurePosixPath(path).name:
        raise SpecError(flag, f"names no file, found {shown(path)}", "Give a path with a name.")
    if wrong := re.search(f"[^{allowed}]", path):
        what = f"{shown(path)} has the character {shown(wrong[0])}"
        hint = "Allowed are letters, digits, _ - . and Chinese characters."
        raise SpecError(flag, what, hint)


def _plain(name: str) -> str:
    return re.sub("[-_]", "", name).lower()


def _check_distinct(values: list[Any], path: str, key: str) -> None:
    repeated = [value for value in values if values.count(value) > 1]
    if repeated:
        raise SpecError(path, f"{key} {repeated[0]} is given twice", "Number them apart.")


def _tables(value: Any, key: str, path: str) -> list[tuple[dict[str, Any], str]]:
    """Returns the tables of a list that must have one, each with its path."""
    listed = wire.given(value, key, path)
    if not isinstance(listed, list) or not listed:
        what = f"must be a list of tables, found {shown(listed)}"
        raise SpecError(join(path, key), what, "Give one at least.")
    tables = [(item, f"{join(path, key)}[{index}]") for index, item in enumerate(listed)]
    for item, where in tables:
        if not isinstance(item, dict):
            raise SpecError(where, f"must be a table, found {shown(item)}", "Give keys and values.")
    return tables


def _text(table: dict[str, Any], key: str, path: str) -> str:
    value = wire.given(table, key, path)
    if not isinstance(value, str) or not value:
        raise SpecError(
            join(path, key), f"must be a text, found {shown(value)}", "Write it in quotes."
        )
    return value
