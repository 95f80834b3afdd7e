"""The live screen, with the optional library rich: look at HAS_RICH before making a view."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import IO

from .events import Heard, line
from .snapshot import Snapshot
from .tables import Table, queue_table, summary, worker_table

HAS_RICH = find_spec("rich") is not None
if HAS_RICH:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.table import Table as RichTable
    from rich.text import Text

COLOURS = {"completed": "green", "failed": "red", "cancelled": "yellow", "retrying": "magenta",
           "processing": "cyan"}  # fmt: skip
FRAME = 0.1  # s between two drawings when events come fast


class ScreenView:
    """Tables above, the latest events below, on the terminal's other screen."""

    def __init__(self, out: IO[str], address: str) -> None:
        self._console = Console(file=out)
        self._address = address
        self._live = Live(console=self._console, auto_refresh=False, screen=True)
        self._snapshot: Snapshot | None = None
        self._events: deque[Heard] = deque(maxlen=200)
        self._trouble = ""
        self._drawn = 0.0

    @contextmanager
    def opened(self) -> Iterator[None]:
        try:
            with self._live:
                yield
        finally:
            self._console.show_cursor(True)

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._draw()

    def tell(self, events: Sequence[Heard]) -> None:
        self._events.extend(events)
        if time.monotonic() - self._drawn >= FRAME:  # else the next refresh shows them
            self._draw()

    def trouble(self, words: str) -> None:
        self._trouble = f"{words}; trying again"
        self._draw()

    def back(self) -> None:
        self._trouble = ""
        self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        self._live.update(Group(*self._parts(self._console.height)), refresh=True)

    def _parts(self, room: int) -> Iterator[RenderableType]:
        """As much as fits: queues, then workers in at most half of what is left, then events."""
        yield _one_line(
            f"queuemonitor  {self._address}  {time.strftime('%H:%M:%S')}  Ctrl-C ends", "bold"
        )
        yield _one_line(self._trouble, "bold red")
        room -= 2
        if self._snapshot is not None:
            queues, workers = queue_table(self._snapshot), worker_table(self._snapshot)
            yield from _fitting(queues, room - 4)
            room -= min(len(queues.rows) + 2, max(room - 4, 2))
            yield _one_line(summary(self._snapshot), "dim")
            yield from _fitting(workers, room // 2)
            room -= min(len(workers.rows) + 2, max(room // 2, 2)) + 1
        latest = list(self._events)[-max(room - 1, 0) :] if room > 1 else []
        yield from (_one_line(line(heard), COLOURS.get(heard.status, "")) for heard in latest)


def _fitting(table: Table, room: int) -> Iterator[RenderableType]:
    """The table in at most ``room`` lines, its last one saying what was left out."""
    if room < 3 or not table.rows:
        return
    fits = len(table.rows) + 1 <= room
    shown = table.rows if fits else table.rows[: room - 2]
    rich = RichTable(box=None, pad_edge=False, header_style="bold underline")
    for place, heading in enumerate(table.headings):
        rich.add_column(
            heading, justify="right" if place in table.numbers else "left", no_wrap=True
        )
    for row in shown:
        rich.add_row(*(Text(cell) for cell in row))
    yield rich
    if not fits:
        yield _one_line(f"and {len(table.rows) - len(shown):,} more", "dim")
    yield Text("")


def _one_line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
