"""The demo's output: plain lines, or drawn tables and a progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import TextIOBase

HAS_RICH = find_spec("rich") is not None
if HAS_RICH:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.table import Table


Bar = Callable[[int, str], None]  # how many are done, and a note next to it


def choose_display(out: TextIOBase, *, plain: bool) -> Display:
    """Rich on a terminal, if it is installed; otherwise plain lines."""
    return RichDisplay(out) if HAS_RICH and out.isatty() and not plain else Display(out)


class Display:
    """For pipes, logs and tests: one line at a time, nothing rewritten."""

    def __init__(self, out: TextIOBase) -> None:
        self._out = out

    def say(self, text: str = "") -> None:
        self._out.write(f"{text}\n")
        self._out.flush()

    def table(self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        self.say(title)
        for row in (headings, *rows):
            first, *numbers = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            self.say("  ".join(["", row[0].ljust(len(first)), *numbers]))

    @contextmanager
    def bar(self, total: int) -> Iterator[Bar]:
        """Write a line for each tenth of the work, and in between at most one per second."""
        last_tenth, last_time = -1, 0.0

        def move(done: int, note: str) -> None:
            nonlocal last_tenth, last_time
            tenth, now = 10 * done // max(total, 1), time.monotonic()
            if tenth != last_tenth or now >= last_time + 1:
                last_tenth, last_time = tenth, now
                self.say(f"  {done:>6,} of {total:,}  {note}")

        yield move


class RichDisplay(Display):
    """For terminals, with the library Rich: a progress bar and drawn tables."""

    def __init__(self, out: TextIOBase) -> None:
        super().__init__(out)
        self._console = Console()

    def say(self, text: str = "") -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def table(self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(title=title, title_justify="left", title_style="bold")
        for place, heading in enumerate(headings):
            table.add_column(heading, justify="right" if place else "left")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    @contextmanager
    def bar(self, total: int) -> Iterator[Bar]:
        note_column = TextColumn("{task.fields[note]}", markup=False)
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), note_column)
        with Progress(*columns, console=self._console) as progress:
            bar = progress.add_task("", total=total, note="")
            yield lambda done, note: progress.update(bar, completed=done, note=note)
