"""The question of a job as a document, gathered from names, files and degrees."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TypedDict, Unpack

from autopar import _core, catalog, files, wire
from autopar.cluster import Cluster
from autopar.entries import ClusterEntry, ModelEntry
from autopar.errors import SpecError
from autopar.framework import Framework
from autopar.frontends import hf
from autopar.spec import (
    Attention,
    Granularity,
    Model,
    Options,
    Precision,
    Problem,
    Schedule,
    Workload,
)
from autopar.texts import Text

__version__ = _core.__version__

Name = str | PathLike[str]


class Limits(TypedDict, total=False):
    """What the search may choose, as keywords; `Options` explains them."""

    top: int
    memory_margin: float
    tp: Sequence[int]
    pp: Sequence[int]
    vpp: Sequence[int]
    cp: Sequence[int]
    ep: Sequence[int]
    dp: Sequence[int]
    mbs: Sequence[int]
    sp: Sequence[bool]
    zero: Sequence[int]
    schedules: Sequence[Schedule]
    recompute: Sequence[Granularity]
    shard_group: Sequence[int]
    partial_shard_groups: bool
    activation_offload: bool
    optimizer_offload: bool
    uneven_layers: bool
    recompute_per_stage: bool
    mixed_tp: bool
    expert_tensor_parallel: bool


def problem(
    model: Name | Model,
    cluster: Name | Cluster,
    *,
    global_batch_size: int,
    sequence_length: int,
    devices: int | None = None,
    precision: Precision = "bf16",
    framework: Name | Framework = "megatron-core",
    attention: Attention = "flash",
    dropout: bool = False,
    expert_load_variation: float = 0.0,
    **limits: Unpack[Limits],
) -> Problem:
    """Returns the question as a document that holds all its inputs. The arguments are `search`'s.

    Raises:
        SpecError: A name is unknown, a file is wrong, or a value has the wrong type.

    Example:
        >>> question = problem("llama2-7b", "a800", global_batch_size=8, sequence_length=4096,
        ...                    devices=8)
        >>> question.cluster.groups[0].chip.name
        'a800'
    """
    digests: list[str] = []
    sources: list[_Source] = []
    if not isinstance(model, Model):
        model_entry = model_of(files.named(model, "model"))
        model = model_entry.model
        digests.append(model_entry.digest)
        sources.append(_Source("model", model_entry.text, model_entry.keys))
    if not isinstance(framework, Framework):
        framework_entry = catalog.framework(files.named(framework, "framework"))
        framework = framework_entry.at(precision)
        digests.append(framework_entry.digest)
        sources.append(_Source("framework", framework_entry.text))
    if not isinstance(cluster, Cluster):
        cluster_entry = catalog.cluster(files.named(cluster, "cluster"))
        _check_whole_node(cluster_entry)
        cluster = cluster_of(cluster_entry, devices)
        digests.extend(cluster_entry.digests)
        chips = enumerate(cluster_entry.chip_texts)
        sources += (_Source(f"cluster.groups[{i}].chip", text) for i, text in chips)
        if cluster_entry.text is not None:
            sources.append(_Source("cluster", cluster_entry.text))
    elif devices is not None:
        cluster = replace(cluster, devices=devices)
    workload = Workload(
        global_batch_size=global_batch_size,
        sequence_length=sequence_length,
        precision=precision,
        attention=attention,
        dropout=dropout,
        expert_load_variation=expert_load_variation,
    )
    question = Problem(
        version=__version__,
        catalog=catalog.version(digests),
        model=model,
        cluster=cluster,
        workload=workload,
        framework=framework,
        options=wire.read(Options, limits, "options"),
    )
    # Arguments come from callers without a type checker too.
    question = wire.read(Problem, wire.write(question))
    # The core checks a question with each answer; what a file says wrongly is told beforehand.
    if sources := [source for source in sources if not source.is_ours()]:
        with _placing(sources):
            _core.check_problem(wire.dumps(question))
    return question


@dataclass(frozen=True, slots=True)
class _Source:
    """A file that a part of a question comes from, with its own keys for fields of the part."""

    part: str
    text: Text
    keys: Mapping[str, str] = field(default_factory=dict)

    def is_ours(self) -> bool:
        return Path(self.text.file).is_relative_to(catalog.ROOT)


@contextmanager
def _placing(sources: list[_Source]) -> Iterator[None]:
    """Tells an error at a part of a question as one at the line of the file that it comes from."""
    try:
        yield
    except SpecError as error:
        for source in sources:
            if error.path.startswith(f"{source.part}."):
                key = error.path.removeprefix(f"{source.part}.")
                raise source.text.error(source.keys.get(key, key), error.what, error.hint) from None
        raise


def model_of(name: str) -> ModelEntry:
    """Returns the model of a name in the catalog, of a TOML file, or of a Hugging Face config.

    Raises:
        SpecError: There is no such model, or its file is wrong.
    """
    return hf.model(name) if hf.is_config(name) else catalog.model(name)


def _check_whole_node(entry: ClusterEntry) -> None:
    """Refuses a cluster of one kind with less than a node, of which plans take whole ones."""
    if len(entry.groups) == 1:
        [group] = entry.groups
        node = group.chip.devices_per_node
        if group.limit is not None and 0 < group.limit < node:
            what = f"{group.limit} {group.chip.name} are less than a node of {node}"
            hint = f"To use a part of one, give {node} of the chip and {group.limit} devices."
            raise SpecError("cluster", what, hint, ("cluster.groups[0].limit",))


def cluster_of(entry: ClusterEntry, devices: int | None = None) -> Cluster:
    """Returns a cluster of which a job uses `devices`, or all that the limits name.

    Raises:
        SpecError: Neither `devices` nor a limit for each kind is given.
    """
    if devices is None:
        devices = entry.devices
    if devices is None:
        whole = 0
        for group in entry.groups:
            if group.limit is None:
                hint = "Give devices, or a count behind the chip's name or file, as a800:256."
                what = f"{group.chip.name} has no limit to take all of"
                raise SpecError("devices", what, hint, ("cluster.devices",))
            whole += group.limit - group.limit % max(1, group.chip.devices_per_node)
        devices = whole or sum(group.limit or 0 for group in entry.groups)
    return Cluster(
        groups=entry.groups,
        devices=devices,
        fabric=entry.fabric,
        between_kinds=entry.between_kinds,
    )


def check_one_price(problem: Problem) -> None:
    """Refuses kinds of chip without a price, or with several.

    Raises:
        SpecError: Money at a device count is not proportional to time.
    """
    first = problem.cluster.groups[0].chip
    for i, group in enumerate(problem.cluster.groups):
        path = f"cluster.groups[{i}].chip.price_per_hour"
        if group.chip.price_per_hour is None:
            hint = "Give it in the chip's or the cluster's TOML file."
            raise SpecError(path, f'"{group.chip.name}" has no price', hint)
        if group.chip.price_per_hour != first.price_per_hour:
            what = f'"{group.chip.name}" has another price than "{first.name}"'
            hint = "Search each kind alone: with several prices the fastest need not be cheapest."
            raise SpecError(path, what, hint)
