"""What needs a terminal: a drawn table, and a bar while a long search runs."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from autopar.render.text import Table, plain

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S = 1.0


def draw(table: Table) -> None:
    """Writes a table to the terminal on standard output; NO_COLOR is heeded.

    A table wider than the terminal is written plain: its lines then wrap, not its cells.
    """
    from rich.box import ASCII, SIMPLE
    from rich.console import Console
    from rich.table import Table as Drawing
    from rich.text import Text

    console = Console(highlight=False)
    drawing = Drawing(box=SIMPLE if console.encoding.startswith("utf") else ASCII)
    for i, header in enumerate(table.headers):
        drawing.add_column(header, justify="left" if i in table.left else "right", no_wrap=True)
    for row in table.rows:
        drawing.add_row(*map(Text, row))
    if (
        console.measure(drawing, options=console.options.update(width=10_000)).maximum
        > console.width
    ):
        print(plain(table), end="\n\n")
    else:
        console.print(drawing)


class Bar:
    """A progress bar on standard error, shown once a search has lasted a second.

    Used as a context; the bar itself is what the search calls.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, total: int) -> None:
        """Shows that `done` of `total` classes are settled."""
        if time.monotonic() - self._start < PATIENCE_S:
            return
        if self._progress is None or self._task is None:
            from rich.console import Console
            from rich.progress import Progress

            self._progress = Progress(console=Console(file=sys.stderr), transient=True)
            self._task = self._progress.add_task("search", total=total)
            self._progress.start()
        self._progress.update(self._task, completed=done, total=total)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
