"""Shell scripts as words: what a shell would pass, what stays open, where each word stands."""

from pathlib import Path

import pytest

from autopar.frontends import shell


def words_of(script: str, file: str = "f") -> list[list[str]]:
    """Returns the commands of a script that run `run`, a word that is open in angle brackets."""
    found = [words for words in shell.commands(script, file) if words[0].text == "run"]
    return [[f"<{w.text}>" if w.open else w.text for w in words[1:]] for words in found]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("run a  'b c' \"d e\" f\\ g", ["run", "a", "b c", "d e", "f g"]),
        ("A=1; run $A ${A}2 '$A'", ["run", "1", "12", "$A"]),
        ("A='x y'; run $A \"$A\"", ["run", "x", "y", "x y"]),
        ("A=(x 'y z'); run ${A[@]} \"${A[@]}\"", ["run", "x", "y", "z", "x", "y z"]),
        ("A=(x)\nA+=(y)\nrun ${A[*]}", ["run", "x", "y"]),
        ("run ${NONE:-7} # no", ["run", "7"]),
        ("N=8\nM=4\nrun $((N*M)) $(( $N / 2 ))", ["run", "32", "4"]),
        ("run a \\\n  b > out 2>&1", ["run", "a", "b"]),
        ("export A=3 B=4\nrun $A $B", ["run", "3", "4"]),
        ('cat <<EOF\nrun "not this\nEOF\nrun it', ["run", "it"]),
        ('run "$@" end', ["run", "end"]),
        ("run --n 4 > log 2>&1 &", ["run", "--n", "4"]),
        ("run 2>err --n 4 2 | cat", ["run", "--n", "4", "2"]),
        ("A=1 &&\nB=2\nrun $A $B", ["run", "1", "2"]),
    ],
)
def test_a_script_becomes_the_words_that_a_shell_would_pass(script: str, words: list[str]) -> None:
    found = [word for words in shell.commands(script, "f") for word in words]
    texts = [word.text for word in found if word.text != "cat"]
    assert texts == words
    assert not any(word.open for word in found)


@pytest.mark.parametrize(
    "script", ["run $NONE", "run $(nproc)", "run `nproc`", "run ${A#x}",
               "if true; then A=1; fi\nrun $A", "for A in 1 2; do run $A; done",
              'A=(1); if true; then A+=(2); fi\nrun "${A[@]}"', "A=1; test && A=2; run $A",
              "A=1; test || A=2; run $A", "cd /x &&\nA=2\nrun $A", "A=1; (A=2); run $A",
              "A=1; A=2 & run $A", "A=1; A=2 | cat; run $A", "A=1; read A; run $A",
              "A=1; unset A; run $A", "A=1; let A=2; run $A", "A=1; eval A=$2; run $A",
              "A=1; printf -v A 2; run $A", "A=$(get --n 4); run $A"]
)  # fmt: skip
def test_what_only_a_running_shell_knows_stays_open(script: str) -> None:
    found = [words for words in shell.commands(script, "f") if words[0].text == "run"]
    assert [[bool(word.open) for word in words] for words in found] == [[False, True]]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        # A function does what its body does, where it is called, and not where it is written.
        ("f() { A=2; }; A=1; f; run $A", ["2"]),
        ("f() { A=2; }; A=1; run $A", ["1"]),
        ("function f { A=2; }\nA=1\nf\nrun $A", ["2"]),
        ("function f()\n{\n  A=2\n}\nA=1; f; run $A", ["2"]),
        ("f() { run --n $A; }; A=1; f", ["--n", "1"]),
        ("f() { local A=2; B=3; }; A=1; f; run $A $B", ["1", "3"]),
        ("f() { A=2; }; A=1; if x; then f; fi; run $A", ["<$A>"]),
        ("f() { A=2; }; A=1; test && f; run $A", ["<$A>"]),
        ("f() { if x; then A=2; fi; }; A=1; f; run $A", ["<$A>"]),
        ("f() { if x; then return; fi; A=2; }; A=1; f; B=3; run $A $B", ["<$A>", "3"]),
        ("f() { read A; }; A=1; f; run $A", ["<$A>"]),
        ('f() { run "$@"; }; f --n 4', ["<$@>"]),
        ("f() { f; f; }; A=1; f; run $A", ["<$A>"]),
        # A file that is sourced may set whatever was set before, and what nobody sets.
        ("A=1; source none.sh; run $A ${B:-2}", ["<$A>", "<${B:-2}>"]),
        ("A=1; . none.sh; A=2; run $A", ["2"]),
        ("A=1; source $FILE; run $A", ["<$A>"]),
        ("A=1; source env/bin/activate; run $A", ["1"]),
        ('A=1; eval "$(x)"; run $A', ["<$A>"]),
        # Arithmetic, defaults that are kept, arguments that are replaced, and those of one command.
        ("A=1; ((A *= 2)); run $A", ["<$A>"]),
        (": ${A:=4}; run $A", ["4"]),
        ('set -- --n 4; run "$@"', ["<$@>"]),
        ("A=1; A=2 x; run $A", ["1"]),
        ("B='x $C'; A=\"--n $D --m $E\"; run $A", ["--n", "<$D>", "--m", "<$E>"]),
    ],
)
def test_what_sets_a_variable_from_elsewhere_is_followed_or_leaves_it_open(
    script: str, words: list[str]
) -> None:
    assert words_of(script) == [words]


@pytest.mark.parametrize(
    ("source", "text", "words"),
    [
        ("source env.sh", "#!/bin/bash\nA=2\nexport B='x y'\n", ["2", "x", "y"]),
        (". ./env.sh", "A=2 B=3", ["2", "3"]),
        ('source "$(dirname "$0")/env.sh"', "A=2; B=$A", ["2", "2"]),
        ('source $(dirname "${BASH_SOURCE[0]}")/env.sh', "A=2; B=3", ["2", "3"]),
        ("[ -f env.sh ] && source env.sh", "A=2; B=3", ["<$A>", "<$B>"]),
        # What does more than set variables is not followed.
        ("source env.sh", "A=2; B=3; module load cuda", ["<$A>", "<$B>"]),
        ("source env.sh", "A=2; if x; then B=3; fi", ["<$A>", "<$B>"]),
        ("source env.sh", "A=2; B=3; source more.sh", ["<$A>", "<$B>"]),
        ("source env.sh", "A='2", ["<$A>", "<$B>"]),
    ],
)
def test_a_file_beside_the_script_that_only_sets_variables_is_read(
    source: str, text: str, words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "env.sh").write_text(text)
    assert words_of(f"A=1\n{source}\nrun $A $B", str(tmp_path / "run.sh")) == [words]


def test_a_word_stands_on_the_line_on_which_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("\n\nE='--e 5'")
    script = """ARGS="
  --a 1 \\
  --b 2
"
LIST=(
  --c 3  # a comment
)
source env.sh
run $ARGS ${LIST[@]} \\
  --d 4 $E
"""
    found = shell.commands(script, str(tmp_path / "run.sh"))[-1]
    lines = {word.text: word.line for word in found if word.text.startswith("--")}
    assert lines == {"--a": 2, "--b": 3, "--c": 6, "--d": 10, "--e": 8}
