"""The README's commands and outputs.

    python3 .ci/readme.py command 1   prints the first of the two set-up commands
    python3 .ci/readme.py check       compares each output shown with what its command prints now
    python3 .ci/readme.py write       puts what the commands print now in the place of what is shown

A set-up command is the only line of a sh block. An output stands in a console block under the
`$ command` that prints it; `autopar` must be on the PATH. Words are compared exactly and numbers to
seven digits, because the last bits of a logarithm are the C library's.
"""

import difflib
import math
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
CONSOLE = re.compile(r"^```console\n\$ (.*?)\n(.*?)^```$", re.M | re.S)


def setup_command(text: str, number: int) -> str:
    """Returns one of the two commands that do all the set-up, counted from 1."""
    blocks = re.findall(r"^```sh\n(.*?)\n```$", text, re.M | re.S)
    if len(blocks) != 2 or any("\n" in block for block in blocks):
        sys.exit("README.md must have two sh blocks of one line: the main job, then the tests.")
    return blocks[number - 1]


def printed(command: str) -> str:
    """Returns what a command prints on standard output now."""
    run = subprocess.run(command, shell=True, encoding="utf-8", stdout=subprocess.PIPE)
    if run.returncode != 0:
        sys.exit(f"exit code {run.returncode}: {command}")
    return run.stdout


def alike(shown: str, found: str) -> bool:
    """Tells whether two outputs differ in nothing but the last digits of numbers."""
    numbers = zip(NUMBER.findall(shown), NUMBER.findall(found), strict=False)
    return NUMBER.sub("0", shown) == NUMBER.sub("0", found) and all(
        math.isclose(float(a), float(b), rel_tol=1e-7) for a, b in numbers
    )


def check(text: str) -> None:
    """Ends with the differences if an output shown is not what its command prints."""
    outputs = CONSOLE.findall(text)
    if not outputs:
        sys.exit("README.md shows no output: expected console blocks that start with `$ command`.")
    for command, shown in outputs:
        if not alike(shown, found := printed(command)):
            print(*difflib.ndiff(shown.splitlines(), found.splitlines()), sep="\n")
            sys.exit(f"README.md is out of date: {command}\nCure: python3 .ci/readme.py write")
        print(f"as shown: {command}")


def write(text: str) -> None:
    """Writes the README with the outputs of now."""
    fresh = CONSOLE.sub(lambda m: f"```console\n$ {m[1]}\n{printed(m[1])}```", text)
    README.write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    match sys.argv[1:]:
        case ["command", "1" | "2" as number]:
            print(setup_command(text, int(number)))
        case ["check"]:
            check(text)
        case ["write"]:
            write(text)
        case _:
            sys.exit(__doc__)
