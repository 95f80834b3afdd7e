"""Where the demo writes: plain lines here, rich ones in ``rich_display``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from io import TextIOBase
from typing import Protocol


class Bar(Protocol):
    """Moves a progress bar: how many are done, and a note beside it."""

    def __call__(self, done: int, note: str) -> None: ...


class Display(Protocol):
    """A place for lines of text, tables and one progress bar."""

    def say(self, text: str = "") -> None: ...

    def table(self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None: ...

    def bar(self, total: int) -> AbstractContextManager[Bar]: ...


def choose_display(out: TextIOBase, *, plain: bool) -> Display:
    """Rich on a terminal if it is installed, else plain lines."""
    if plain or not out.isatty() or find_spec("rich") is None:
        return PlainDisplay(out)
    from .rich_display import RichDisplay

    return RichDisplay()


class PlainDisplay:
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
        """A line for each tenth of the way, and at most one per second in between."""
        last_tenth, last_time = -1, 0.0

        def move(done: int, note: str) -> None:
            nonlocal last_tenth, last_time
            tenth, now = 10 * done // max(total, 1), time.monotonic()
            if tenth != last_tenth or now >= last_time + 1:
                last_tenth, last_time = tenth, now
                self.say(f"  {done:>6,} of {total:,}  {note}")

        yield move
