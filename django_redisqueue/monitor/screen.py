"""The live screen. It needs the optional library rich: check HAS_RICH before creating a view."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import IO

from .events import ChannelMessage, line
from .snapshot import Snapshot
from .tables import Table, health_lines, policy_texts, queue_table, summary, worker_table

HAS_RICH = find_spec("rich") is not None
if HAS_RICH:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.table import Table as RichTable
    from rich.text import Text

COLOURS = {"completed": "green", "failed": "red", "cancelled": "yellow", "retrying": "magenta",
           "processing": "cyan"}  # fmt: skip
FRAME = 0.1  # s between two frames
PROBLEMS = 5  # that are shown


class ScreenView:
    """Tables above, the latest events below, on the terminal's alternate screen."""

    def __init__(self, out: IO[str], address: str) -> None:
        self._console = Console(file=out)
        self._address = address
        self._live = Live(console=self._console, auto_refresh=False, screen=True)
        self._snapshot: Snapshot | None = None
        self._messages: deque[ChannelMessage] = deque(maxlen=200)
        self._error = ""
        self._drawn = 0.0

    @contextmanager
    def opened(self) -> Iterator[None]:
        try:
            with self._live:
                yield
        finally:
            self._console.show_cursor(True)

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._draw()

    def show_messages(self, messages: Sequence[ChannelMessage]) -> None:
        self._messages.extend(messages)
        if time.monotonic() - self._drawn >= FRAME:  # else the next refresh shows them
            self._draw()

    def show_outage(self, error: str) -> None:
        self._error = f"{error}; trying again"
        self._draw()

    def show_recovery(self) -> None:
        self._error = ""
        self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        self._live.update(Group(*self._parts(self._console.height)), refresh=True)

    def _parts(self, room: int) -> Iterator[RenderableType]:
        """As much as fits: queues, then workers in at most half of the rest, then events."""
        yield _one_line(
            f"queuemonitor  {self._address}  {time.strftime('%H:%M:%S')}  Ctrl-C ends", "bold"
        )
        yield _one_line(self._error, "bold red")
        room -= 2
        if self._snapshot is not None:
            problems = health_lines(self._snapshot)[:PROBLEMS]
            for text in problems:
                yield _one_line(text, "bold red" if text.startswith("ERROR") else "yellow")
            room -= len(problems)
            for text in (policies := policy_texts(self._snapshot)):
                yield _one_line(text, "dim")
            room -= len(policies)
            queues, workers = queue_table(self._snapshot), worker_table(self._snapshot)
            yield from _fitting(queues, room - 4)
            room -= min(len(queues.rows) + 2, max(room - 4, 2))
            yield _one_line(summary(self._snapshot), "dim")
            yield from _fitting(workers, room // 2)
            room -= min(len(workers.rows) + 2, max(room // 2, 2)) + 1
        latest = list(self._messages)[-max(room - 1, 0) :] if room > 1 else []
        yield from (_one_line(line(message), COLOURS.get(message.status, "")) for message in latest)


def _fitting(table: Table, room: int) -> Iterator[RenderableType]:
    """The table in at most ``room`` lines; the last one says how many rows are left out."""
    if room < 3 or not table.rows:
        return
    fits = len(table.rows) + 1 <= room
    shown = table.rows if fits else table.rows[: room - 2]
    rich = RichTable(box=None, pad_edge=False, header_style="bold underline")
    for column, heading in enumerate(table.headings):
        rich.add_column(
            heading, justify="right" if column in table.numbers else "left", no_wrap=True
        )
    for row in shown:
        rich.add_row(*(Text(cell) for cell in row))
    yield rich
    if not fits:
        yield _one_line(f"and {len(table.rows) - len(shown):,} more", "dim")
    yield Text("")


def _one_line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
