"""The catalogs: models, chips, frameworks and clusters as TOML files with their sources.

A name is looked up without regard to case, `-` and `_`, then among the aliases. A text that ends in
`.toml` or holds a path separator is a path to a file of the same form, and wherever a name does, a
path does too. The name of an entry is its file's stem.
"""

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from autopar import files, texts, wire
from autopar.cluster import AttentionRate, Chip, DeviceGroup, FabricLevel, NetworkLink
from autopar.entries import (
    ChipEntry,
    ClusterEntry,
    FrameworkEntry,
    ModelEntry,
)
from autopar.errors import SpecError, shown
from autopar.framework import Framework
from autopar.spec import Model
from autopar.texts import Text

CATALOG_DATE = "2026-11-21"
ROOT = Path(__file__).parent / "catalog"
Kind = Literal["models", "chips", "frameworks", "clusters"]
_MADE = ("text", "keys", "digest")  # What an entry has that no file says.
_OWN = ("aliases", "checked", "note")  # What a framework says of itself alone, whatever follows it.


def model(name: str, path: str = "model") -> ModelEntry:
    """Returns the model of a name in the catalog or of a TOML file.

    Args:
        name: Name, alias or path.
        path: What an error calls the place of `name`.

    Raises:
        SpecError: There is no such model, or its file is wrong.

    Example:
        >>> model("Llama2_70B").model.layers
        80
    """
    text, digest = _open("models", name, path)
    known, provenance = _split(text.value, ModelEntry)
    if "kv_heads" not in known and "heads" in known:
        known["kv_heads"] = known["heads"]
    with text.placing():
        if "head_dim" not in known:
            known["head_dim"] = _even_head_dim(known, text.file)
        spec = wire.read(Model, _named(known, text.file), f"{text.file}: ")
        parts = {"model": spec, "text": text, "keys": {}, "digest": digest}
        return _entry(ModelEntry, provenance, text.file, **parts)


def chip(name: str, path: str = "chip") -> ChipEntry:
    """Returns the chip of a name in the catalog or of a TOML file.

    Args:
        name: Name, alias or path.
        path: What an error calls the place of `name`.

    Raises:
        SpecError: There is no such chip, or its file is wrong.

    Example:
        >>> chip("h800").chip.devices_per_node
        8
    """
    return _chip(name, path, ())


def framework(name: str, path: str = "framework") -> FrameworkEntry:
    """Returns the framework of a name in the catalog or of a TOML file.

    Args:
        name: Name, alias or path.
        path: What an error calls the place of `name`.

    Raises:
        SpecError: There is no such framework, or its file is wrong.

    Example:
        >>> framework("megatron-core").framework.bytes.parameter
        2
    """
    text, table, digest = _followed(name, path, ())
    file = text.file
    known, provenance = _split(table, FrameworkEntry)
    provenance.setdefault("source", {})
    with text.placing():
        spec = wire.read(Framework, _named(known, file), f"{file}: ")
        before: dict[str, Framework] = {}
        for month, then in _tables(provenance.pop("before", {}), f"{file}: before"):
            known = _completed(then, known)
            earlier = wire.read(Framework, _named(known, file), f"{file}: before.{month}")
            before = {month: earlier, **before}
        parts = {"framework": spec, "before": before, "text": text, "digest": digest}
        return _entry(FrameworkEntry, provenance, file, **parts)


def cluster(text: str, path: str = "cluster") -> ClusterEntry:
    """Returns the kinds of device that a text names.

    Args:
        text: Chips with how many there are at most (`a800:128,h800:160`; without a number, or with
            -1, there is no limit), a cluster of the catalog, or a path to a cluster's TOML file.
        path: What an error calls the place of `text`.

    Raises:
        SpecError: There is no such chip or cluster, a count is wrong, or a file is.

    Example:
        >>> [(g.chip.name, g.limit) for g in cluster("a800:128,h800").groups]
        [('a800', 128), ('h800', None)]
    """
    if files.is_path(text) and text.endswith(".toml") and "," not in text:
        data = files.read_bytes(text)
        said = texts.parse_toml(data, files.printable(text))
        if "groups" in said.value:
            return _cluster_file(said, Path(text).parent, sha256(data))
    elif _find("clusters", text) and not _find("chips", text):
        said, digest = _open("clusters", text, path)
        return _cluster_file(said, ROOT, digest)
    groups: list[DeviceGroup] = []
    chip_texts = []
    digests = []
    for name, limit in parse_groups(text, path):
        entry = chip(name, path)
        if any(group.chip.name == entry.chip.name for group in groups):
            raise SpecError(path, f"chip {shown(name)} is listed twice", "List each chip once.")
        groups.append(DeviceGroup(chip=entry.chip, limit=limit))
        chip_texts.append(entry.text)
        digests.append(entry.digest)
    return ClusterEntry(groups=tuple(groups), chip_texts=tuple(chip_texts), digests=tuple(digests))


def parse_groups(text: str, path: str) -> list[tuple[str, int | None]]:
    """Returns the chips of a list with their limits; None is no limit.

    Raises:
        SpecError: The list is empty, or a count is not a positive whole number or -1.

    Example:
        >>> parse_groups("a800:128,h800:-1,h100", "cluster")
        [('a800', 128), ('h800', None), ('h100', None)]
    """
    form = "Write chip:count,chip:count, as a800:128,h800:160."
    if not text.strip():
        raise SpecError(path, "names no chip", form)
    groups: list[tuple[str, int | None]] = []
    for item in text.split(","):
        name, colon, count = item.strip().rpartition(":")
        if not colon or count.endswith(".toml"):
            name, count = item.strip(), "-1"
        if not name:
            raise SpecError(path, f"an item without a chip, found {shown(item)}", form)
        if not re.fullmatch(r"-1|0*[1-9][0-9]{0,18}", count, re.ASCII):
            what = f"count of {name} must be positive, or -1 for no limit, found {shown(count)}"
            raise SpecError(path, what, form)
        groups.append((name, None if count == "-1" else int(count)))
    return groups


def names(kind: Kind) -> list[str]:
    """Returns the names in a catalog, in the order of the alphabet.

    Example:
        >>> "llama2-70b" in names("models")
        True
    """
    return sorted(file.name.removesuffix(".toml") for file in (ROOT / kind).glob("*.toml"))


def version(digests: list[str]) -> str:
    """Returns the catalog's date and the hash of the files that a problem was made of."""
    if not digests:
        return CATALOG_DATE
    return f"{CATALOG_DATE} sha256:{sha256(' '.join(sorted(digests)).encode())[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _NetworkChange:
    nics_per_node: int | None = None
    nic_gbit_per_s: float | None = None
    efficiency: float | None = None
    latency_us: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupRow:
    chip: str
    limit: int | None = None
    price_per_hour: float | None = None
    network: _NetworkChange = _NetworkChange()


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClusterFile:
    groups: tuple[_GroupRow, ...]
    devices: int | None = None
    fabric: tuple[FabricLevel, ...] = ()
    between_kinds: NetworkLink | None = None
    aliases: tuple[str, ...] = ()
    source: dict[str, str] | None = None
    checked: str = ""
    note: str = ""


def _cluster_file(text: Text, folder: Path, digest: str) -> ClusterEntry:
    """Returns the cluster of a TOML file; its chips' paths start at the file's folder."""
    with text.placing():
        rows = wire.read(_ClusterFile, text.value, f"{text.file}: ")
    groups, chip_texts, digests = [], [], [digest]
    for i, row in enumerate(rows.groups):
        name = str(folder / row.chip) if files.is_path(row.chip) else row.chip
        with text.placing():
            entry = chip(name, f"{text.file}: groups[{i}].chip")
        changes = wire.write(row.network).items()
        network = replace(entry.chip.network, **{k: v for k, v in changes if v is not None})
        price = entry.chip.price_per_hour if row.price_per_hour is None else row.price_per_hour
        priced = replace(entry.chip, network=network, price_per_hour=price)
        groups.append(DeviceGroup(chip=priced, limit=row.limit))
        chip_texts.append(entry.text)
        digests.append(entry.digest)
    return ClusterEntry(
        groups=tuple(groups),
        devices=rows.devices,
        fabric=rows.fabric,
        between_kinds=rows.between_kinds,
        text=text,
        chip_texts=tuple(chip_texts),
        digests=tuple(digests),
    )


def _followed(name: str, path: str, heirs: tuple[str, ...]) -> tuple[Text, dict[str, Any], str]:
    """Returns a framework's file, its table completed by those it follows, and their digest.

    `heirs` are the files that follow this one, which it may not follow.
    """
    text, digest = _open("frameworks", name, path)
    if text.file in heirs:
        raise SpecError(path, "comes back to itself", "Follow another framework.")
    leader = text.value.get("follows")
    if not isinstance(leader, str):
        return text, text.value, digest
    with text.placing():
        place = f"{text.file}: follows"
        _, given, given_digest = _followed(leader, place, (*heirs, text.file))
    given = {key: value for key, value in given.items() if key not in _OWN}
    own, followed = text.value.get("run"), given.get("run")
    if isinstance(own, dict) and isinstance(followed, dict) and "texts" in own:
        # What has a name of its own is not what its leader is taken for.
        given["run"] = {key: value for key, value in followed.items() if key != "bases"}
    return text, _completed(text.value, given), sha256((digest + given_digest).encode())


def _tables(table: Any, path: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns the inner tables of a table by their month, the latest first."""
    if not isinstance(table, dict) or not all(isinstance(part, dict) for part in table.values()):
        raise SpecError(path, "must hold a table a month", 'Write [before."2025-04"].')
    return sorted(table.items(), reverse=True)


def _completed(own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Returns a table with the keys that it lacks as another has them, in inner tables likewise."""
    both = {**given, **own}
    for key in own.keys() & given.keys():
        if isinstance(own[key], dict) and isinstance(given[key], dict):
            both[key] = _completed(own[key], given[key])
    return both


def _chip(name: str, path: str, heirs: tuple[str, ...]) -> ChipEntry:
    """Returns a chip; `heirs` are the chips that inherit from it, which it may not inherit from."""
    text, digest = _open("chips", name, path)
    if text.file in heirs:
        raise SpecError(path, "comes back to itself", "Name a measured chip.")
    with text.placing():
        return _read_chip(text, digest, heirs)


def _read_chip(text: Text, digest: str, heirs: tuple[str, ...]) -> ChipEntry:
    """Returns the chip of a file."""
    file = text.file
    known, provenance = _split(text.value, ChipEntry)
    parents = {}
    for key in ("inherits_attention", "inherits_gemm"):
        if isinstance(parent := provenance.get(key), str):
            parents[key] = _chip(parent, f"{file}: {key}", (*heirs, file))
            digest = sha256((digest + parents[key].digest).encode())
    own = known.get("gemm", {})
    if (giver := parents.get("inherits_gemm")) and isinstance(own, dict):
        known["gemm"] = {**wire.write(giver.chip.gemm), **own}
    if "devices_per_node" in known:
        known.setdefault("link_domain", known["devices_per_node"])
    spec = wire.read(Chip, _named(known, file), f"{file}: ")
    if giver := parents.get("inherits_attention"):
        own_kernels = {rate.kernel for rate in spec.attention}
        inherited = _scaled_attention(giver.chip, spec)
        array = provenance.get("systolic", 0)
        if isinstance(array, int) and array > 0:
            inherited = _by_width(inherited, array)
        others = (rate for rate in inherited if rate.kernel not in own_kernels)
        spec = replace(spec, attention=(*spec.attention, *others))
    provenance.setdefault("confidence", {})
    provenance.setdefault("source", {})
    return _entry(ChipEntry, provenance, file, chip=spec, text=text, digest=digest)


def _scaled_attention(measured: Chip, other: Chip) -> tuple[AttentionRate, ...]:
    """Returns a chip's attention rates as another's, in the ratio of what their products sustain.

    Where the other's power limits its products more, none is above what products sustain here.

    A statement about data rather than a formula of the estimate: it stands in for a table that
    somebody would otherwise have to copy, and the chip's caveats say that it was not measured.
    """

    def peak(chip: Chip) -> float:
        return chip.peak_tflops.bf16 or chip.peak_tflops.fp16 or 0.0

    def sustained(chip: Chip) -> float:
        return peak(chip) * chip.gemm.efficiency

    if not sustained(measured):
        what = "no 16-bit peak to scale attention rates from"
        raise SpecError(f"{measured.name}: peak_tflops", what, "Give bf16 or fp16.")
    ratio = sustained(other) / sustained(measured)
    share = peak(other) / peak(measured)

    def scaled(rate: float) -> float:
        return round(min(rate * ratio, max(sustained(other), rate * share)), 1)

    return tuple(
        replace(row, tflops=tuple(scaled(rate) for rate in row.tflops))
        for row in measured.attention
    )


# Widths of a head's keys and values in DeepSeek's latent attention (arXiv:2412.19437).
LATENT_KEYS, LATENT_VALUES = 192, 128


def _by_width(rates: tuple[AttentionRate, ...], array: int) -> tuple[AttentionRate, ...]:
    """Returns attention rates as shares of the widest heads', by how far a head fills an array.

    What was measured with the widest heads stands for a head as wide as the array.
    """
    found = []
    kinds = dict.fromkeys((r.kernel, r.pass_, r.causal) for r in rates)
    for kind in kinds:
        alike = [r for r in rates if (r.kernel, r.pass_, r.causal) == kind]
        widest = max(alike, key=lambda r: r.head_dim)
        for width in sorted({array, LATENT_KEYS, 2 * array, *(r.head_dim for r in alike)}):
            heads = (LATENT_KEYS, LATENT_VALUES) if width == LATENT_KEYS else (width, width)
            share = sum(heads) / sum(-(-head // array) * array for head in heads)
            tflops = tuple(round(t * share, 1) for t in widest.tflops)
            found.append(replace(widest, head_dim=width, tflops=tflops))
    return tuple(found)


def _even_head_dim(table: dict[str, Any], file: str) -> Any:
    """Returns the head width of a model that names none: the residual stream cut into its heads."""
    hidden, heads = table.get("hidden"), table.get("heads")
    if not isinstance(hidden, int) or not isinstance(heads, int) or heads < 1:
        return 1  # Reading the table says what is wrong with either.
    if hidden % heads:
        what = f"missing, and hidden ({hidden}) is no multiple of heads ({heads})"
        raise SpecError(f"{file}: head_dim", what, "Give the width of one head.")
    return hidden // heads


def _open(kind: Kind, name: str, path: str) -> tuple[Text, str]:
    """Returns the file of a name and the SHA-256 of its bytes."""
    if files.is_path(name):
        file: str | Path = name
    elif found := _find(kind, name):
        file = found
    elif files.is_file(name):
        file = name
    else:
        raise _unknown(kind, name, path)
    data = files.read_bytes(file)
    return texts.parse_toml(data, files.printable(file)), sha256(data)


def _find(kind: Kind, name: str) -> Path | None:
    """Returns the catalog's file of a name or alias."""
    wanted = _plain(name)
    folder = ROOT / kind
    stems = names(kind)
    for stem in stems:
        if _plain(stem) == wanted:
            return folder / f"{stem}.toml"
    for stem in stems:
        data = (folder / f"{stem}.toml").read_bytes()
        # Most files do not hold the text at all and need not be parsed.
        if wanted and wanted in _plain(data.decode()) and wanted in _aliases(data, stem):
            return folder / f"{stem}.toml"
    return None


def _aliases(data: bytes, stem: str) -> list[str]:
    return [_plain(alias) for alias in texts.parse_toml(data, stem).value.get("aliases", [])]


def _unknown(kind: Kind, name: str, path: str) -> SpecError:
    """Returns the error for a name that no catalog file bears, with the nearest names."""
    from difflib import get_close_matches

    noun = kind.removesuffix("s")
    stems = names(kind)
    known = {_plain(stem): stem for stem in reversed(stems)}
    near = get_close_matches(_plain(name), list(known), n=3, cutoff=0.5)
    if near:
        hint = f"Nearest: {', '.join(known[stem] for stem in near)}."
    elif len(stems) > 20:
        hint = f'See "autopar {kind}".'
    else:
        hint = f"Known: {', '.join(stems)}."
    return SpecError(path, f"no {noun} named {shown(name)} in the catalog", hint)


def _split(table: dict[str, Any], entry: type[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the keys of a table that go to the core and those that say where they come from."""
    own = {known.name for known in fields(entry)} - {"model", "chip", "framework", *_MADE}
    known = {key: value for key, value in table.items() if key not in own}
    return known, {key: value for key, value in table.items() if key in own}


def _named(table: dict[str, Any], file: str) -> dict[str, Any]:
    """Returns a table with the name that its file gives it."""
    if "name" in table:
        raise SpecError(f"{file}: name", "unknown key", "The file's own name is the name.")
    return {"name": files.stem(file), **table}


def _entry(cls: type[wire.T], provenance: dict[str, Any], file: str, **parts: Any) -> wire.T:
    """Returns a catalog entry of parts that were read before and of its provenance."""
    read = wire.read_fields(cls, provenance, f"{file}: ", given=frozenset(parts))
    return cls(**parts, **read)


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def sha256(data: bytes) -> str:
    """Returns the digest of a file's bytes in hexadecimal."""
    import hashlib

    return hashlib.sha256(data).hexdigest()
