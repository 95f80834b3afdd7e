"""The live screen. It needs the optional library rich: check HAS_RICH before creating a view."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from math import inf
from typing import IO

from .controls import Controls, Keyboard
from .events import ChannelMessage, line
from .snapshot import Snapshot
from .tables import (
    Table,
    health_lines,
    narrow_queue_table,
    narrow_worker_table,
    policy_texts,
    queue_table,
    summary,
    worker_table,
)

HAS_RICH = find_spec("rich") is not None
if HAS_RICH:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.table import Table as RichTable
    from rich.text import Text

COLOURS = {"completed": "green", "failed": "red", "cancelled": "yellow", "retrying": "magenta",
           "processing": "cyan"}  # fmt: skip
FRAME = 0.1  # s between two frames
PROBLEMS = 5  # that are shown at most
EVENTS = 5  # lines that tables leave to them at least
WORKERS = 5  # lines that queues leave to workers at least


class ScreenView:
    """Tables above, the latest events below, on the terminal's alternate screen. ``keys``: where
    keys are pressed, if that is a terminal, too."""

    def __init__(
        self, out: IO[str], address: str, queues: Sequence[str], keys: IO[str] | None
    ) -> None:
        self._console = Console(file=out)
        self._address = address
        self._live = Live(console=self._console, auto_refresh=False, screen=True)
        self._snapshot: Snapshot | None = None
        self._messages: deque[ChannelMessage] = deque(maxlen=200)
        self._failures: deque[ChannelMessage] = deque(maxlen=200)
        self._is_stale = False
        self._keyboard = Keyboard(keys) if keys is not None else None
        self._controls = Controls(queues)
        self.patience = inf if keys is None else FRAME
        self._error = ""
        self._drawn = 0.0

    @contextmanager
    def opened(self) -> Iterator[None]:
        try:
            with self._keyboard.opened() if self._keyboard else nullcontext(), self._live:
                yield
        finally:
            self._console.show_cursor(True)

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._draw()

    def show_messages(self, messages: Sequence[ChannelMessage]) -> None:
        self._messages.extend(messages)
        self._failures.extend(message for message in messages if message.is_failure)
        self._is_stale = self._is_stale or bool(messages)
        if self._is_stale and time.monotonic() - self._drawn >= FRAME:  # else a later call does it
            self._draw()

    def handle_keys(self) -> bool:
        keys = self._keyboard.pressed() if self._keyboard else []
        changed = [self._controls.press(key) for key in keys]
        if keys:
            self._draw()
        return any(changed)

    def show_outage(self, error: str) -> None:
        self._error = f"{error}; trying again"
        self._draw()

    def show_recovery(self) -> None:
        self._error = ""
        self._draw()

    def _draw(self) -> None:
        self._drawn, self._is_stale = time.monotonic(), False
        self._live.update(Group(*self._parts(self._console.height)), refresh=True)

    def _parts(self, room: int) -> Iterator[RenderableType]:
        """As much as fits: problems, queues, workers, and the latest events."""
        yield _one_line(
            f"queuemonitor  {time.strftime('%H:%M:%S')}  Ctrl-C ends  {self._address}", "bold"
        )
        if self._keyboard:
            yield _one_line(self._controls.line, "dim")
            room -= 1
        yield _one_line(self._error, "bold red")
        room -= 2
        if self._snapshot is not None:
            problems = health_lines(self._snapshot)[: min(PROBLEMS, room // 6)]
            for text in problems:
                yield _one_line(text, "bold red" if text.startswith("ERROR") else "yellow")
            room -= len(problems)
            for text in (policies := policy_texts(self._snapshot)):
                yield _one_line(text, "dim")
            room -= len(policies)
            queues = self._narrowed(queue_table, narrow_queue_table)
            workers = self._narrowed(worker_table, narrow_worker_table)
            room -= 1  # the summary
            used = min(len(queues.rows) + 2, room - min(len(workers.rows) + 2, WORKERS) - EVENTS)
            yield from _fitting(queues, used, self._selected)
            yield _one_line(summary(self._snapshot), "dim")
            room -= used
            used = min(len(workers.rows) + 2, room - EVENTS)
            yield from _fitting(workers, used)
            room -= used
        messages = self._failures if self._controls.failures_only else self._messages
        latest = list(messages)[-room:] if room > 0 else []
        for message in latest:
            text = line(message, self._console.width)
            yield _one_line(text, COLOURS.get(message.status, ""))

    @property
    def _selected(self) -> int | None:
        """The place of the queue that keys act on, if there are keys."""
        return self._controls.selected if self._keyboard else None

    def _narrowed(
        self, wide: Callable[[Snapshot], Table], narrow: Callable[[Snapshot], Table]
    ) -> Table:
        """The wide table if the terminal has room for it."""
        assert self._snapshot is not None
        table = wide(self._snapshot)
        return table if table.width + 2 <= self._console.width else narrow(self._snapshot)


def _fitting(table: Table, room: int, selected: int | None = None) -> Iterator[RenderableType]:
    """The table in at most ``room`` lines, of which the last is empty, with the selected row; a
    line says how many rows are left out."""
    fits = len(table.rows) + 2 <= room
    if not table.rows or (room < 4 and not fits):
        return
    first = 0 if fits or selected is None else max(0, selected - (room - 4))
    shown = table.rows if fits else table.rows[first : first + room - 3]
    rich = RichTable(box=None, pad_edge=False, header_style="bold underline")
    for column, heading in enumerate(table.headings):
        rich.add_column(
            heading, justify="right" if column in table.numbers else "left", no_wrap=True
        )
    for place, row in enumerate(shown, first):
        style = "reverse" if place == selected and len(table.rows) > 1 else ""
        rich.add_row(*(Text(cell) for cell in row), style=style)
    yield rich
    if not fits:
        yield _one_line(f"and {len(table.rows) - len(shown):,} more", "dim")
    yield Text("")


def _one_line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
