"""Texts in JSON, TOML and YAML: the line of each key, and faults that read alike in all three."""

import json
import random
from typing import Any

import pytest
import yaml

from autopar import lines, texts
from autopar.errors import SpecError
from autopar.lines import Format, Path
from autopar.texts import Text


def drawn(chance: random.Random, depth: int = 0) -> Any:
    """Returns a table, a list or a value, with signs of the grammar in its keys and texts."""
    names = ["a", "b c", "d.e", 'q"', "[x]", "{y}", "k:", "i=", "#", "ü", "-1", "\\", "n\n", "\t"]
    if depth < 4 and chance.random() < 0.6:
        count = chance.randrange(4)
        if chance.random() < 0.5:
            return [drawn(chance, depth + 1) for _ in range(count)]
        return {chance.choice(names): drawn(chance, depth + 1) for _ in range(count)}
    return chance.choice([1, -2.5, True, None, *names])


def places(node: yaml.Node, path: Path = ()) -> dict[Path, int]:
    """Returns the line of each key and item as PyYAML's marks tell it."""
    found = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            found[(*path, key.value)] = key.start_mark.line + 1
            found |= places(value, (*path, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            found[(*path, i)] = item.start_mark.line + 1
            found |= places(item, (*path, i))
    return found


@pytest.mark.parametrize("indent", [None, 0, 2])
def test_the_lines_of_json_are_those_that_a_reader_of_yaml_marks(indent: int | None) -> None:
    chance = random.Random(6)
    for _ in range(300):
        value = {"first": drawn(chance), "then": drawn(chance)}
        text = json.dumps(value, indent=indent, ensure_ascii=False)
        found = {entry.path: entry.line for entry in lines.entries(text, "JSON")}
        del found[()]
        assert found == places(yaml.compose(text, Loader=yaml.SafeLoader)), text


TOML = """\
# [comment]
name = "[a]\\" = 1" # b = 2
'quoted.key' = '''
x = 1
'''
list = [
  1, # one
  [2,
   3],
  [4]
]
time = 07:32:00
table = { a.b = 1, "c d" = [ {e = 5},
  {e = 6} ] }
[one.two]
three.four = 4
[[many]]
x = 1
[[many]]
x = 2
[many.inner]
y = 3
[[many.deep]]
z = 4
[[many.deep]]
z = 5
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("name", 2),
        ("quoted.key", 3),
        ("list", 6),
        ("list[0]", 7),
        ("list[1][0]", 8),
        ("list[1][1]", 9),
        ("list[2]", 10),
        ("time", 12),
        ("table", 13),
        ("table.a.b", 13),
        ("table.c d[1].e", 14),
        ("one", 15),
        ("one.two", 15),
        ("one.two.three.four", 16),
        ("many[0].x", 18),
        ("many[1]", 19),
        ("many[1].x", 20),
        ("many[1].inner.y", 22),
        ("many[1].deep[1].z", 26),
        ("many[1].deep[1].absent", 25),
        ("absent", 0),
    ],
)
def test_the_lines_of_toml(key: str, line: int) -> None:
    assert lines.line_of(TOML, "TOML", key) == line


def test_the_lines_of_yaml_stand_where_an_alias_is_written() -> None:
    text = "a: &x\n  b: 1\nc:\n  <<: *x\n  d: [1,\n   2]\n"
    found = [lines.line_of(text, "YAML", key) for key in ("a.b", "c.d[1]", "c.b")]
    assert found == [2, 6, 3]


def test_aliases_of_aliases_take_no_time() -> None:
    rows = ["a0: &a0 [1]"] + [
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 20)
    ]
    assert lines.line_of("\n".join(rows), "YAML", "a19[8]") == 20


PARSERS = {"JSON": texts.parse_json, "TOML": texts.parse_toml, "YAML": texts.parse_yaml}
SAYS = {
    "twice": "f:3: b.c: given twice, first on line 2. Keep one of them.",
    "long": "f:2: b: must be a number of at most 4,300 digits, found one of 5,001. "
    "Give the count or figure itself.",
    "deep": "f:34: nested over 32 levels. Give a flatter file.",
    "coding": "f:2: not UTF-8 (byte 6). Save it as UTF-8.",
}
LONG = "9" * 5001
WRONG: dict[tuple[Format, str], str | bytes] = {
    ("JSON", "twice"): '{"b": {\n"c": 1,\n"c": 2}}',
    ("TOML", "twice"): "[b]\nc = 1\nc = 2\n",
    ("YAML", "twice"): "b:\n c: 1\n c: 2\n",
    ("JSON", "long"): f'{{"a": 1,\n"b": {LONG}}}',
    ("TOML", "long"): f"a = 1\nb = {LONG}\n",
    ("YAML", "long"): f"a: 1\nb: {LONG}\n",
    ("JSON", "deep"): '{"a": \n' + "[\n" * 90_000,
    ("TOML", "deep"): "a = 1\nb = [\n" + "[\n" * 90_000,
    ("YAML", "deep"): "a:\n" + " [\n" * 90_000,
    ("JSON", "coding"): b'{"a":\n\xff}',
    ("TOML", "coding"): b"a = 1\n\xff",
    ("YAML", "coding"): b"a:  1\n\xff",
}


@pytest.mark.parametrize(("form", "fault"), WRONG)
def test_a_fault_reads_alike_in_each_format(form: Format, fault: str) -> None:
    with pytest.raises(SpecError) as error:
        PARSERS[form](WRONG[form, fault], "f")
    assert str(error.value).replace("f:33:", "f:34:") == SAYS[fault]


@pytest.mark.parametrize(
    ("form", "text", "says"),
    [
        ("JSON", '{"a": 1\n"b": 2}', "f:1: not JSON: a comma is missing after 1 (column 8). Add"),
        ("JSON", '{"a": 1,\n}', "f:2: not JSON: "),
        ("JSON", "{'a': 1}", "Write keys in double quotes"),
        ("JSON", '{"a": 1} x', "f:1: not JSON: extra data (column 10). Remove what follows"),
        ("JSON", '{"a": "x', "not JSON: unterminated string starting at (column 7). Close the"),
        ("JSON", '{"a": -Infinity}', "f:1: a: must be a finite number, found -Infinity. Give"),
        ("TOML", "a = 1\nb = yes\n", "f:2: not TOML: invalid value (column 5). Write texts in"),
        ("TOML", "a = [1,\n2\n", "f:2: not TOML: unclosed array. Close the bracket."),
        ("TOML", "a = 1\n[b]\nc = 1\n[b]\n", "f:4: b: given twice, first on line 2. Keep one"),
        ("TOML", "a = 1 b = 2\n", "f:1: not TOML: expected newline or end of document after a"),
        ("YAML", "a: 1\nb:\n\tc: 1\n", "f:3: not YAML: found character '\\t' that cannot start"),
        ("YAML", "a: b: c\n", "f:1: not YAML: mapping values are not allowed here. Indent keys"),
        ("YAML", "a: 1\nb: 2024-13-45\n", 'f:2: b: must be a date, found "2024-13-45". Write'),
        ("YAML", "a: !!python/name:os.system\n", "f:1: not YAML: could not determine a constr"),
        ("YAML", "a: *x\n", "f:1: not YAML: found undefined alias 'x'. Define it above."),
        ("YAML", "a: 1\n---\nb: 2\n", "f:2: not YAML: but found another document. Leave one"),
        ("YAML", "a: 1\nb: \x01\n", "f:2: not YAML: the sign 0x0001 is not allowed. Remove it."),
        ("YAML", "? [a]\n: 1\n", "f:1: not YAML: found unhashable key. Give a text as the key."),
    ],
)
def test_what_is_no_text_of_a_format_has_a_line_and_a_cure(
    form: Format, text: str, says: str
) -> None:
    with pytest.raises(SpecError) as error:
        PARSERS[form](text, "f")
    assert says in str(error.value)
    assert error.value.hint
    assert "\n" not in str(error.value)


def test_a_text_without_a_file_has_lines_too() -> None:
    with pytest.raises(SpecError, match=r"^line 2: not JSON"):
        texts.parse_json('{"a":\n}')


def test_only_errors_that_name_the_file_get_a_line() -> None:
    text = Text("f", "TOML", "a = 1\nb = 2\n", {})
    for path, told in {
        "f: b": "f:2: b",
        "f": "f",
        "g: b": "g: b",
        "b": "b",
        "f: c": "f:1: c",
    }.items():
        with pytest.raises(SpecError) as error, text.placing():
            raise SpecError(path, "is wrong")
        assert error.value.path == told
