"""What someone runs today: a launcher's file read as a question and a plan.

A file rarely says everything. What it leaves open stays open here and is filled in by flags; what
it says twice, or against itself, is an error with the line.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autopar import files, texts
from autopar.errors import SpecError, shown
from autopar.framework import Framework
from autopar.frontends.places import Keys, Place, Places, all_keys, misspelt
from autopar.lines import lines_of, nearest
from autopar.report import Plan, Recompute
from autopar.spec import Model
from autopar.texts import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A job as a launcher's file describes it.

    Attributes:
        file: The file, as errors name it.
        framework: Name of the framework in the catalog that the launcher starts.
        model: The model, or its name in the catalog; None where the file does not say.
        question: Arguments of `planner.problem` that the file says, beside model and framework.
        plan: Arguments of `planner.plan` that the file says.
        copies: Copies of the sharded optimizer state.
        recompute: What each stage recomputes, or one setting for all; None where it does not say.
        every: Each so manieth layer of a chunk is recomputed instead; 0 for none.
        unclear: Why no plan says what the file recomputes; it is then asked for.
        changes: Fields of the framework, and of its tables, that the file sets.
        notes: What the file says and no plan can.
        places: Where it says what the plan and the question hold.
    """

    file: str
    framework: str
    model: Model | str | None = None
    question: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    copies: int = 1
    recompute: tuple[Recompute, ...] | None = None
    every: int = 0
    unclear: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    places: Places = field(default_factory=Places)

    def tuned(self, framework: Framework) -> Framework:
        """Returns the framework as the file sets it."""
        fields = {
            name: replace(getattr(framework, name), **value) if isinstance(value, dict) else value
            for name, value in self.changes.items()
        }
        return replace(framework, **fields)

    def staged(self, plan: Plan) -> Plan:
        """Returns a plan whose shards and whose stages' recompute are what the file says.

        Of more layers than a chunk has, launchers recompute all that it has, and so does the plan.

        Raises:
            SpecError: The file lists another number of stages, or copies that do not divide.
        """
        if self.copies > 1:
            if plan.dp * plan.cp % self.copies:
                what = f"{self.copies} copies do not divide dp x cp = {plan.dp * plan.cp}"
                fields = ("plan.shard_group", "plan.dp", "plan.cp")
                raise SpecError("plan", what, "Give a divisor.", fields)
            plan = replace(plan, shard_group=plan.dp * plan.cp // self.copies)
        if self.every:
            counts = [stage.layers // plan.vpp // self.every for stage in plan.stages]
            settings = tuple(Recompute("block", n) if n else Recompute() for n in counts)
        elif self.recompute is None:
            return plan
        else:
            settings = self.recompute * (plan.pp if len(self.recompute) == 1 else 1)
        if len(settings) != plan.pp:
            what = f"recompute of {len(settings)} stages, the plan has pp {plan.pp}"
            about = ("plan.stages.recompute", "plan.pp")
            raise SpecError("plan", what, "List each stage.", about)
        most = -(-max(stage.layers for stage in plan.stages) // plan.vpp)
        settings = tuple(
            replace(each, layers=min(each.layers, most))
            if each.granularity in ("block", "uniform") and each.layers
            else each
            for each in settings
        )
        stages = zip(plan.stages, settings, strict=True)
        return replace(plan, stages=tuple(replace(s, recompute=r) for s, r in stages))


class Settings:
    """A file's tables, read key by key; what was read is remembered.

    Keys are paths with dots, as `parallelism.tensor_parallel_degree`.
    """

    def __init__(self, text: Text) -> None:
        if not isinstance(text.value, dict):
            what = f"must be a table, found {shown(text.value)}"
            raise SpecError(text.file, what, "Give keys and values.")
        self.file = text.file
        self._table: dict[Any, Any] = text.value
        self._lines = lines_of(text.text, text.form)
        self._read: set[str] = set()

    def has(self, path: str) -> bool:
        """Returns whether the file gives a value that is not null."""
        return self._find(path) is not None

    def place(self, path: str) -> Place:
        """Returns where a key stands, and what it says; without a line where it is not given."""
        table, _, key = path.rpartition(".")
        inside = self._find(table) if table else self._table
        if not isinstance(inside, dict) or key not in inside:
            return Place(path)
        return Place(path, nearest(self._lines, path), shown(inside[key]))

    def count(self, path: str, default: int | None = None, least: int = 1) -> int:
        """Returns a whole number from `least`.

        Raises:
            SpecError: It is missing without a default, or is no such number.
        """
        value = self._find(path)
        if value is None:
            if default is None:
                raise self.error(path, "missing key", "Add it.")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            hint = "Give a number." if value == "auto" else "Give a count."
            what = f"must be a whole number from {least}, found {shown(value)}"
            raise self.error(path, what, hint)
        return value

    def degree(self, path: str, default: int = 1, least: int = 1) -> int:
        """Returns a whole number: the default where the key is absent, which null is not.

        Raises:
            SpecError: It is no such number.
        """
        if self.place(path).line is not None and self._find(path) is None:
            what = f"must be a whole number from {least}, found null"
            raise self.error(path, what, f"Write {default}, or leave it out.")
        return self.count(path, default, least)

    def flag(self, path: str, default: bool = False) -> bool:
        value = self._find(path)
        if value is not None and not isinstance(value, bool):
            what = f"must be true or false, found {shown(value)}"
            raise self.error(path, what, "Write one of the two, without quotes.")
        return default if value is None else value

    def word(self, path: str, known: Iterable[str], default: str) -> str:
        """Returns one of the known words."""
        value = self._find(path)
        if value is None:
            return default
        if value not in known:
            what = f"must be one of {', '.join(known)}, found {shown(value)}"
            raise self.error(path, what, "Give one of them.")
        return str(value)

    def value(self, path: str) -> Any:
        """Returns whatever stands there; None without it."""
        return self._find(path)

    def error(self, path: str, what: str, hint: str) -> SpecError:
        """Returns an error at a key, with its line."""
        line = nearest(self._lines, path)
        return SpecError(
            f"{self.file}:{line}: {path}" if line else f"{self.file}: {path}", what, hint
        )

    def refuse_misspelt(self, tables: Iterable[str], fields: Mapping[str, Keys]) -> None:
        """Refuses a key of some tables that is one of some fields' misspelt.

        Raises:
            SpecError: There is one, and the key that it is like is not given beside it.
        """
        paths = all_keys(fields)
        for table in tables:
            inside = self._find(table) if table else self._table
            before = f"{table}." if table else ""
            below = (path.removeprefix(before) for path in paths if path.startswith(before))
            names = {path.partition(".")[0] for path in below}
            for key in inside if isinstance(inside, dict) else ():
                near = None if key in names else misspelt(str(key), names - inside.keys())
                if near is not None:
                    raise self.error(f"{before}{key}", "no such key", f"Write {near}.")

    def unread(self, tables: Iterable[str]) -> list[str]:
        """Returns the keys of some tables that nothing has asked for."""
        found = []
        for path in tables:
            table = self._find(path) if path else self._table
            for key, value in table.items() if isinstance(table, dict) else ():
                name = f"{path}.{key}" if path else str(key)
                if name not in self._read and not isinstance(value, dict):
                    found.append(name)
        return found

    def _find(self, path: str) -> Any:
        self._read.add(path)
        value: Any = self._table
        walked: list[str] = []
        for key in path.split("."):
            if not isinstance(value, dict):
                what = f"must be a table, found {shown(value)}"
                raise self.error(".".join(walked), what, "Give keys and values.")
            if value.get(key) is None:
                return None
            value = value[key]
            walked.append(key)
        return value


def read_text(file: str) -> str:
    """Returns a file's text.

    Raises:
        SpecError: It cannot be read or is not UTF-8.
    """
    return texts.decoded(files.read_bytes(file), files.printable(file))


def json_settings(file: str) -> Settings:
    """Returns the settings of a JSON file."""
    return Settings(texts.parse_json(files.read_bytes(file), files.printable(file)))


def toml_settings(file: str) -> Settings:
    """Returns the settings of a TOML file."""
    return Settings(texts.parse_toml(files.read_bytes(file), files.printable(file)))


def yaml_settings(file: str) -> Settings:
    """Returns the settings of a YAML file."""
    return Settings(texts.parse_yaml(files.read_bytes(file), files.printable(file)))


def same(settings: Settings, path: str, said: int, implied: int, why: str) -> None:
    """Refuses a number that contradicts others of the file.

    Raises:
        SpecError: They differ.
    """
    if said != implied:
        raise settings.error(path, f"is {said}, but {why} is {implied}", "Make them agree.")
