"""Random scripts: what is known of their variables is what bash makes of them."""

import os
import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest

from autopar.frontends import shell

NAMES = "ABCD"
SCRIPTS = 40
# What bash runs in place of what a script would start: it prints its words.
START = "FUNCNEST=8; f() { :; }\ng() { :; }\nrun() { printf '%s\\0' \"$@\" END; }\n. ./run.sh\n"


def value(random: Random) -> str:
    name, digit = random.choice(NAMES), random.randint(1, 9)
    return random.choice(
        (str(digit), f'"x {digit}"', "'q $A'", f'"${name} y"', f"${{{name}:-{digit}}}", f"${name}",
         f"$(({digit}*3))", f"$(echo {digit})", "a\\ b")
    )  # fmt: skip


def simple(random: Random) -> str:
    name, given = random.choice(NAMES), value(random)
    return random.choice(
        (f"{name}={given}", f"{name}={given}", f"{name}+={given}", f"{name}=({given} {given})",
         f"{name}+=({given})", f"export {name}={given}", f"(({name}=2))", f"unset {name}",
         f": ${{{name}:=3}}", f"{name}={given} true", f'{name}="${{B[@]}} z"',
         "source one.sh", "f", "g", f"eval {name}=4", f"read {name} <<< 7")
    )  # fmt: skip


def statement(random: Random, depth: int = 0) -> str:
    inner = simple(random) if depth > 1 else statement(random, depth + 1)
    known = random.choice(("true", "false"))
    forms = [
        *(simple(random) for _ in range(16)), f"if {known}; then\n{inner}\nfi",
        f"for {random.choice(NAMES)} in 1 2; do {inner}\ndone", f"{known} && {simple(random)}",
        f"{known} || {simple(random)}", f"({simple(random)})", ". ./two.sh",
        f"{{ {simple(random)}; }}", f"{simple(random)} | cat",
    ]  # fmt: skip
    if depth == 0:
        first = random.choice(("", f"local A={value(random)}\n", f"if {known}; then return; fi\n"))
        name = random.choice(("f()", "g ()", "function f"))
        forms += [f"{name} {{\n{first}{inner}\n}}"] * 3
    return random.choice(forms)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("seed", range(3))
def test_what_is_known_of_a_variable_is_what_bash_says(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    known = 0
    for _ in range(SCRIPTS):
        (tmp_path / "one.sh").write_text(f"A={value(random)}\nexport B={value(random)}\n")
        (tmp_path / "two.sh").write_text(f"C={value(random)}\nfalse && D=3\n")
        lines = [statement(random) for _ in range(random.randint(3, 6))]
        lines += [f'run {name} "${{{name}[@]}}" ${name}' for name in NAMES]
        text = "\n".join(lines) + "\n"
        (tmp_path / "run.sh").write_text(text)
        done = subprocess.run(
            ["bash", "-c", START], cwd=tmp_path, env={"PATH": os.environ["PATH"]},
            capture_output=True, timeout=10, text=True, check=False,
        )  # fmt: skip
        printed = done.stdout.split("END\0")[-5:-1]
        if len(printed) < len(NAMES):
            # A loop of functions that call each other.
            continue
        found = shell.commands(text, str(tmp_path / "run.sh"))[-4:]
        for words, said in zip(found, printed, strict=True):
            if not any(word.open for word in words):
                known += 1
                assert [word.text for word in words[1:]] == said.split("\0")[:-1], text
    # Not for want of anything known.
    assert known > SCRIPTS / 2
