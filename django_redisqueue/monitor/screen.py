"""The live screen and its keys: choose a queue, pause it, retry failed jobs, show only failures.

It needs the optional library rich: check HAS_RICH before creating a view.
"""

from __future__ import annotations

import os
import re
import select
import signal
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from math import inf
from typing import IO

from ..client.queue import JobQueue
from ..core import formatting
from ..exceptions import RedisQueueError
from .snapshot import Snapshot
from .views import (
    FAILURES,
    ChannelMessage,
    MonitorView,
    Table,
    health_lines,
    line,
    policy_texts,
    queue_table,
    summary,
    worker_table,
)

HELP = "up/down: queue   p: pause or resume   r: retry failed   f: failures only"
NAME = "queuemonitor"  # in the history of pauses
UP, DOWN = "\x1b[A", "\x1b[B"
_KEY = re.compile(r"\x1b\[[A-Z]|[ -~]")
HAS_RICH = find_spec("rich") is not None
if HAS_RICH:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.table import Table as RichTable
    from rich.text import Text

COLOURS = {"completed": "green", "failed": "red", "cancelled": "yellow", "retrying": "magenta",
           "processing": "cyan"}  # fmt: skip
FRAME = 0.1  # s between two frames
PROBLEMS = 5  # shown at most
EVENTS = 5  # lines that tables leave for events at least
WORKERS = 5  # lines that queues leave for workers at least


@contextmanager
def signals_held() -> Iterator[None]:
    """Deliver signals after the block. An exception from their handlers in the middle of rich's
    code could keep rich from writing, even what restores the terminal."""
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: arrived.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for each in arrived:
        signal.raise_signal(each)


@contextmanager
def keys_opened(terminal: IO[str]) -> Iterator[None]:
    """Keep the terminal from waiting for Enter and from echoing keys."""
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def pressed_keys(terminal: IO[str]) -> list[str]:
    if not select.select([terminal], [], [], 0)[0]:
        return []
    return _KEY.findall(os.read(terminal.fileno(), 1000).decode("ascii", "replace"))


class Controls:
    """What the keys have chosen, and what they do to queues."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = queues
        self.selected = 0
        self._is_asking = False  # whether it asks if it should retry
        self._done = ""
        self.failures_only = False

    @property
    def queue(self) -> str:
        return self._queues[self.selected]

    @property
    def line(self) -> str:
        """A question, the result of the last key, or the list of keys."""
        if self._is_asking:
            return f"Retry all failed jobs of {self.queue}? y/n"
        return self._done or HELP

    def press(self, key: str) -> bool:
        """Act on the key; returns whether that may have changed queues."""
        was_asking, self._is_asking, self._done = self._is_asking, False, ""
        if was_asking:
            return key in "yY" and self._act(self._retry)
        if key in (UP, "k", DOWN, "j"):
            step = 1 if key in (DOWN, "j") else -1
            self.selected = min(max(self.selected + step, 0), len(self._queues) - 1)
        elif key == "f":
            self.failures_only = not self.failures_only
            self._done = "Failed attempts only" if self.failures_only else "All events"
        elif key == "r":
            self._is_asking = True
        elif key == "p":
            return self._act(self._pause)
        return False

    def _act(self, act: Callable[[], str]) -> bool:
        try:
            self._done = act()
        except RedisQueueError as error:
            self._done = str(error)
        return True

    def _retry(self) -> str:
        return f"{formatting.jobs(JobQueue(self.queue).requeue_all())} of {self.queue} retried"

    def _pause(self) -> str:
        queue = JobQueue(self.queue)
        if queue.resume(by=NAME):
            return f"{self.queue} resumed"
        queue.pause(by=NAME)
        return f"{self.queue} paused"


class ScreenView(MonitorView):
    """Tables above, the latest events below. ``keys`` is the terminal's input, or None."""

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
        self._keys = keys
        self._controls = Controls(queues)
        self.poll_seconds = inf if keys is None else FRAME
        self._error = ""
        self._drawn = 0.0

    @contextmanager
    def opened(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.callback(self._console.show_cursor, True)
            with signals_held():
                if self._keys:
                    stack.enter_context(keys_opened(self._keys))
                stack.enter_context(self._live)
            yield

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._draw()

    def show_messages(self, messages: Sequence[ChannelMessage]) -> None:
        self._messages.extend(messages)
        self._failures.extend(message for message in messages if message.status in FAILURES)
        self._is_stale = self._is_stale or bool(messages)
        if self._is_stale and time.monotonic() - self._drawn >= FRAME:  # or a later call draws
            self._draw()

    def handle_keys(self) -> bool:
        keys = pressed_keys(self._keys) if self._keys else []
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
        with signals_held():
            self._live.update(Group(*self._parts(self._console.height)), refresh=True)

    def _parts(self, room: int) -> Iterator[RenderableType]:
        """As much as fits: problems, queues, workers, and the latest events."""
        head = [*self._head()]
        yield from head
        room -= len(head)
        if self._snapshot is not None:
            notes = [*_notes(self._snapshot, room)]
            yield from notes
            queues, workers = self._fitted(queue_table), self._fitted(worker_table)
            room -= len(notes) + 1  # the notes and the summary
            for_queues = room - min(len(workers.rows) + 2, WORKERS) - EVENTS
            for_queues = min(len(queues.rows) + 2, for_queues)
            # Keys act on the selected queue.
            selected = self._controls.selected if self._keys else None
            yield from _fitting(queues, for_queues, selected)
            yield _one_line(summary(self._snapshot), "dim")
            room -= for_queues
            for_workers = min(len(workers.rows) + 2, room - EVENTS)
            yield from _fitting(workers, for_workers)
            room -= for_workers
        yield from self._latest(room)

    def _head(self) -> Iterator[RenderableType]:
        clock = time.strftime("%H:%M:%S")
        yield _one_line(f"queuemonitor  {clock}  Ctrl-C ends  {self._address}", "bold")
        if self._keys:
            yield _one_line(self._controls.line, "dim")
        yield _one_line(self._error, "bold red")

    def _latest(self, room: int) -> Iterator[RenderableType]:
        messages = self._failures if self._controls.failures_only else self._messages
        for message in list(messages)[-room:] if room > 0 else ():
            text = line(message, self._console.width)
            yield _one_line(text, COLOURS.get(message.status, ""))

    def _fitted(self, make: Callable[..., Table]) -> Table:
        """The table, narrow if the terminal has no room for the wide one."""
        table = make(self._snapshot)
        fits = table.width + 2 <= self._console.width
        return table if fits else make(self._snapshot, is_narrow=True)


def _notes(snapshot: Snapshot, room: int) -> Iterator[RenderableType]:
    """The worst problems, and the policies in use."""
    for text in health_lines(snapshot)[: min(PROBLEMS, room // 6)]:
        yield _one_line(text, "bold red" if text.startswith("ERROR") else "yellow")
    for text in policy_texts(snapshot):
        yield _one_line(text, "dim")


def _fitting(table: Table, room: int, selected: int | None = None) -> Iterator[RenderableType]:
    """The table in at most ``room`` lines, including the selected row. The last line is empty; if
    rows are left out, the line before says how many."""
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
