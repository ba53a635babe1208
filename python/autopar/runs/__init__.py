"""Measured runs: their rows, and the problem and plan that each was, as far as its row says so.

`rows` reads files, `shelf` finds in the catalog what people mean by a name, and `setups` puts a run
together of its model (`trained`), its framework (`as_run`), its `stages` and its `recompute`.
"""

from autopar.runs.rows import BadRow, Run, misspelt, parse_runs, read_runs

__all__ = ["BadRow", "Run", "misspelt", "parse_runs", "read_runs"]
