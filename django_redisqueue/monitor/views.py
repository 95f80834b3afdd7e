"""Shows events and snapshots as lines, JSON or tables. The live screen is in ``screen``."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import IO, Any

from ..broker.overview import ChildOverview, QueueOverview, Rates
from ..core import formatting
from ..core.codec import loads
from ..core.parsing import int_or_none
from ..core.statuses import Status
from ..core.text import MAX_LENGTH, sanitize
from ..health.policies import SCHEDULE_LATE, policy_lines
from ..worker.identity import name_and_number
from .snapshot import Snapshot, as_json

COUNTS = (
    Status.QUEUED, Status.PROCESSING, Status.SCHEDULED, Status.WAITING, Status.RETRYING,
    Status.COMPLETED, Status.FAILED, Status.CANCELLED,
)  # fmt: skip
NARROW_COUNTS = {
    "queued": (Status.QUEUED,), "running": (Status.PROCESSING,),
    "later": (Status.SCHEDULED, Status.WAITING, Status.RETRYING),
    "done": (Status.COMPLETED,), "failed": (Status.FAILED,),
}  # fmt: skip
EXTRAS = ("reason", "recoveries", "dueMs")
FAILURES = ("failed", "retrying")  # statuses of failed attempts
NARROW = 100  # columns; narrower lines begin with the job, and shorten tasks to the last name
MAX_FINDING = 500  # characters
NARROW_NAME = 16  # characters of a name in a narrow table, plus "…"
# For unknown values "-", because some terminals have no UTF-8.
duration = partial(formatting.duration, missing="-")
rate = partial(formatting.rate, missing="-")


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """A message on the channel. ``event`` is None when the text is not a JSON object."""

    text: str
    event: Mapping[str, Any] | None

    @property
    def status(self) -> str:
        return str((self.event or {}).get("status", ""))


def parse(text: str) -> ChannelMessage:
    try:
        event = loads(text)
    except ValueError:
        event = None
    return ChannelMessage(text, event if type(event) is dict else None)


def line(message: ChannelMessage, columns: int = NARROW) -> str:
    """The event on one line, without control characters. With few columns, the most important
    parts come first."""
    event = message.event
    if event is None:
        return f"unreadable message on the channel: {sanitize(message.text)}"
    worker = str(event.get("workerId") or "").partition(".")[0]
    queue, task, job = (sanitize(event.get(name, "?")) for name in ("queue", "task", "jobId"))
    is_narrow = columns < NARROW
    parts = [
        _clock(event.get("timestamp")),
        sanitize(event.get("status", "?")).ljust(10),
        *([job, task.rpartition(".")[2], queue] if is_narrow else [queue, task, job]),
        *([f"attempt {sanitize(event['attempt'])}"] if event.get("attempt") else []),
        *([f"by {sanitize(worker)}"] if worker else []),
        *_progress(event.get("progress")),
        *(f"{name} {sanitize(event[name])}" for name in EXTRAS if name in event),
    ]
    return (" " if is_narrow else "  ").join(parts)


def _progress(progress: object) -> list[str]:
    if not isinstance(progress, dict):
        return []
    done, total = sanitize(progress.get("done", "?")), sanitize(progress.get("total", "?"))
    return [f"{done}/{total} {sanitize(progress.get('note', ''))}".rstrip()]


def _clock(ms: object) -> str:
    if not isinstance(ms, int | float) or not 0 <= ms < 2**48:
        return "--:--:--"
    return time.strftime("%H:%M:%S", time.localtime(ms / 1000))


class MonitorView(ABC):
    """Where a monitor shows what it reads. ``poll_seconds``: the seconds after which
    ``handle_keys`` must be called, or infinity."""

    poll_seconds = inf

    def handle_keys(self) -> bool:
        """Act on pressed keys; returns whether that may have changed queues."""
        return False

    def opened(self) -> AbstractContextManager[object]:
        """Take over the terminal for the duration of the context."""
        return nullcontext()

    @abstractmethod
    def show_snapshot(self, snapshot: Snapshot) -> None: ...

    @abstractmethod
    def show_messages(self, messages: Sequence[ChannelMessage]) -> None: ...

    @abstractmethod
    def show_outage(self, error: str) -> None:
        """Redis does not answer."""

    @abstractmethod
    def show_recovery(self) -> None:
        """Redis answers again; events in between were not received."""


class WriterView(MonitorView):
    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def _write(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()


class LineView(WriterView):
    """Lines for pipes and logs: each event, and queues and workers whenever they change."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__(out)
        self._shown: dict[str, object] = {"health": set()}

    def show_snapshot(self, snapshot: Snapshot) -> None:
        clock = _clock(snapshot.shard.now_ms)
        for queue, speed in zip(snapshot.queues, snapshot.rates, strict=True):
            if self._has_changed(f"queue {queue.name}", (queue.counts, queue.is_paused)):
                self._write(f"{clock}  {_queue_line(queue, speed)}")
        workers = Counter(
            sanitize(name_and_number(child.child)[0])
            + ("" if child.lease_ms >= 0 else " (expired)")
            for child in snapshot.fleet.children
        )
        if self._has_changed("workers", workers):
            each = ", ".join(f"{name} {number}" for name, number in sorted(workers.items()))
            self._write(f"{clock}  workers: {summary(snapshot)}{f': {each}' if each else ''}")
        if self._has_changed("policies", _policy_state(snapshot)):
            for text in policy_texts(snapshot):
                self._write(f"{clock}  {text}")
        # By id and queue, because the texts contain numbers that change constantly.
        health = {(finding.id.value, finding.queue) for finding in snapshot.health.problems}
        if self._has_changed("health", health):
            for line_ in health_lines(snapshot) or ["ok"]:
                self._write(f"{clock}  health: {line_}")

    def _has_changed(self, what: str, state: object) -> bool:
        """Whether this state differs from that in the last snapshot."""
        before, self._shown[what] = self._shown.get(what), state
        return state != before

    def show_messages(self, messages: Sequence[ChannelMessage]) -> None:
        if messages:
            self._write("\n".join(map(line, messages)))

    def show_outage(self, error: str) -> None:
        self._write(f"{sanitize(error)}; trying again")

    def show_recovery(self) -> None:
        self._write("Redis answers again; events in between were not received")


def _policy_state(snapshot: Snapshot) -> object:
    """The policies without instants and durations, which change constantly."""
    found = snapshot.shard.policies
    limits = [(state.key, state.used, state.parked) for state in snapshot.health.facts.limits]
    late = [name for name, _ in found.late(snapshot.shard.now_ms - SCHEDULE_LATE)]
    return found.unique_keys, found.schedules, found.stopped, late, found.waits, limits


def _queue_line(queue: QueueOverview, speed: Rates | None) -> str:
    counts = ", ".join(f"{queue.counts[status]:,} {status}" for status in COUNTS)
    came, ended = (speed.arrived, speed.ended) if speed else (None, None)
    return (
        f"queue {sanitize(queue.name)}{' (paused)' if queue.is_paused else ''}: {counts}; "
        f"in {rate(came)}/s, out {rate(ended)}/s, oldest {duration(queue.oldest_ms)}"
    )


class JsonView(WriterView):
    """One JSON object per line."""

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self._dump({"type": "refresh", **as_json(snapshot)})

    def show_messages(self, messages: Sequence[ChannelMessage]) -> None:
        for message in messages:
            if message.event is None:
                self._dump({"type": "unreadable", "text": message.text})
            else:
                self._dump({"type": "event", "event": message.event})

    def show_outage(self, error: str) -> None:
        self._dump({"type": "trouble", "message": error})

    def show_recovery(self) -> None:
        self._dump({"type": "back"})

    def _dump(self, document: object) -> None:
        self._write(json.dumps(document))  # ASCII, so a terminal has nothing to interpret


def render_tables(snapshot: Snapshot) -> str:
    lines = [*queue_table(snapshot).lines(), "", summary(snapshot)]
    lines += [*health_lines(snapshot), *policy_texts(snapshot)]
    if snapshot.fleet.children:
        lines += ["", *worker_table(snapshot).lines()]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Table:
    """Headings and rows; ``numbers`` are the columns that are aligned to the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: range

    def lines(self) -> Iterator[str]:
        """The table as plain text."""
        for row in [self.headings, *self.rows]:
            cells = (
                cell.rjust(width) if column in self.numbers else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, self._widths, strict=True))
            )
            yield "  ".join(cells).rstrip()

    @property
    def width(self) -> int:
        """The width of a line, with one space between two columns."""
        return sum(self._widths) + len(self.headings) - 1

    @property
    def _widths(self) -> list[int]:
        columns = zip(self.headings, *self.rows, strict=True)
        return [max(map(len, column)) for column in columns]


def queue_table(snapshot: Snapshot, *, is_narrow: bool = False) -> Table:
    """A row for each queue; ``is_narrow``: with fewer columns and short names, for 80 columns."""
    columns = NARROW_COUNTS if is_narrow else {status: (status,) for status in COUNTS}
    rows = []
    for queue, speed in zip(snapshot.queues, snapshot.rates, strict=True):
        paused = " (paused)" if queue.is_paused else ""
        room = NARROW_NAME - len(paused) if is_narrow else MAX_LENGTH
        counts = [sum(queue.counts[one] for one in statuses) for statuses in columns.values()]
        rows.append(
            [
                sanitize(queue.name, room) + paused,
                *(f"{count:,}" for count in counts),
                rate(speed.arrived if speed else None),
                rate(speed.ended if speed else None),
                duration(queue.oldest_ms),
            ]
        )
    headings = ["queue", *columns, "in/s", "out/s", "oldest"]
    return Table(headings, rows, range(1, len(headings)))


def worker_table(snapshot: Snapshot, *, is_narrow: bool = False) -> Table:
    """A row for each child that claims jobs, dead ones first."""
    make_row = _narrow_worker_row if is_narrow else _worker_row
    rows = [make_row(child) for child in sorted(snapshot.fleet.children, key=_sort_key)]
    if is_narrow:
        return Table(["worker", "runs", "job", "for"], rows, range(0))
    return Table(["worker", "child", "lease", "runs", "job", "for"], rows, range(1, 3))


def _worker_row(child: ChildOverview) -> list[str]:
    more = f" and {child.held - 1:,} more" if child.held > 1 else ""
    worker, number = map(sanitize, name_and_number(child.child))
    return [
        worker,
        number,
        duration(child.lease_ms) if child.lease_ms >= 0 else "expired",
        (sanitize(child.task) or "unknown") if child.job else "idle",
        sanitize(child.job) + more,
        duration(child.since_ms) if child.job else "",
    ]


def _narrow_worker_row(child: ChildOverview) -> list[str]:
    task = sanitize(child.task.rpartition(".")[2], NARROW_NAME) or "unknown"
    runs = task if child.job else "idle"
    worker, number = name_and_number(child.child)
    return [
        f"{sanitize(worker, NARROW_NAME - 5)} {sanitize(number, 4)}",
        runs if child.lease_ms >= 0 else f"expired: {runs}"[: NARROW_NAME + 1],
        sanitize(child.job),
        duration(child.since_ms) if child.job else "",
    ]


def _sort_key(child: ChildOverview) -> tuple[bool, str, int, str]:
    """Dead children first, then by worker and number, so that rows keep their places."""
    worker, number = name_and_number(child.child)
    return child.lease_ms >= 0, worker, int_or_none(number) or 0, child.child


def summary(snapshot: Snapshot) -> str:
    """The number of children, and of those that the table leaves out."""
    fleet = snapshot.fleet
    if not fleet.total:
        return "no worker is alive: start one with manage.py runworker"
    dead = fleet.total - fleet.alive
    hidden = fleet.total - len(fleet.children)
    return (
        f"{fleet.alive:,} children of workers alive"
        + (f", {dead:,} with an expired lease" if dead else "")
        + (f"; {hidden:,} not shown" if hidden else "")
    )


def health_lines(snapshot: Snapshot) -> list[str]:
    return [
        f"{finding.level.upper()}: {sanitize(f'{finding.text} {finding.remedy}', MAX_FINDING)}"
        for finding in snapshot.health.problems
    ]


def policy_texts(snapshot: Snapshot) -> list[str]:
    """A line for each kind of policy in use."""
    lines = policy_lines(snapshot.health.facts)
    return [f"{label.lower()}: {sanitize(text, MAX_FINDING)}" for label, text in lines]
