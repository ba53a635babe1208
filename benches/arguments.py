"""The argument that the benches have in common."""

import argparse


def parser(what: str | None, usual: int) -> argparse.ArgumentParser:
    """Returns a reader of a bench's arguments: how often it repeats each run, `usual` by default.

    Args:
        what: The bench's docstring, which --help shows.
        usual: Repeats that nobody asked for.
    """
    found = argparse.ArgumentParser(
        description=what, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("repeats", nargs="?", type=_count, default=usual, help="runs of each")
    return found


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:10]) <= 1000):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 1,000, found {text!r}")
    return int(text)
