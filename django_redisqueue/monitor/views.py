"""Ways to show events and snapshots: plain lines and JSON here, the live screen in ``screen``."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import IO, Protocol

from ..broker.overview import QueueOverview, Rates
from ..core.text import sanitize
from ..health.policies import SCHEDULE_LATE
from .events import ChannelMessage, line
from .snapshot import Snapshot, as_json, worker_of
from .tables import (
    COUNTS,
    duration,
    health_lines,
    policy_texts,
    queue_table,
    rate,
    summary,
    worker_table,
)


class MonitorView(Protocol):
    """Where a monitor shows what it reads.

    ``patience``: the seconds after which it wants to be asked for keys, or infinity.
    """

    patience: float

    def handle_keys(self) -> bool:
        """Do what keys ask; whether that may have changed queues."""

    def opened(self) -> AbstractContextManager[object]:
        """Take over the terminal for the duration of the context."""

    def show_snapshot(self, snapshot: Snapshot) -> None: ...

    def show_messages(self, messages: Sequence[ChannelMessage]) -> None: ...

    def show_outage(self, error: str) -> None:
        """Redis does not answer."""

    def show_recovery(self) -> None:
        """Redis answers again; events in between were not received."""


class _Writer:
    patience = inf

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def opened(self) -> AbstractContextManager[object]:
        return nullcontext()

    def handle_keys(self) -> bool:
        return False

    def _write(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()


class LineView(_Writer):
    """Lines for pipes and logs: each event, and queues and workers whenever they have changed."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__(out)
        self._states: dict[str, object] = {}
        self._workers: Counter[str] | None = None
        self._health: set[tuple[str, str]] = set()
        self._policies: object = None

    def show_snapshot(self, snapshot: Snapshot) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(snapshot.now_ms / 1000))
        for queue, speed in zip(snapshot.queues, snapshot.rates, strict=True):
            state = (queue.counts, queue.is_paused)
            if self._states.get(queue.name) != state:
                self._states[queue.name] = state
                self._write(f"{clock}  {_queue_line(queue, speed)}")
        workers = Counter(
            f"{sanitize(worker_of(child))}{'' if child.lease_ms >= 0 else ' (lapsed)'}"
            for child in snapshot.fleet.children
        )
        if workers != self._workers:
            self._workers = workers
            each = ", ".join(f"{name} {number}" for name, number in sorted(workers.items()))
            self._write(f"{clock}  workers: {summary(snapshot)}{f': {each}' if each else ''}")
        policies = _policy_state(snapshot)
        if policies != self._policies:
            self._policies = policies
            for text in policy_texts(snapshot):
                self._write(f"{clock}  {text}")
        # By id and queue, because the texts have numbers that change all the time.
        health = {(finding.id.value, finding.queue) for finding in snapshot.health.problems}
        if health != self._health:
            self._health = health
            for line_ in health_lines(snapshot) or ["ok"]:
                self._write(f"{clock}  health: {line_}")

    def show_messages(self, messages: Sequence[ChannelMessage]) -> None:
        if messages:
            self._write("\n".join(map(line, messages)))

    def show_outage(self, error: str) -> None:
        self._write(f"{sanitize(error)}; trying again")

    def show_recovery(self) -> None:
        self._write("Redis answers again; events in between were not received")


def _policy_state(snapshot: Snapshot) -> object:
    """Without instants and durations, which change all the time."""
    facts = snapshot.health.facts
    if facts.shard is None:
        return None
    found = facts.shard.policies
    limits = [(state.key, state.used, state.parked) for state in facts.limits]
    late = [name for name, _ in found.late(facts.shard.now_ms - SCHEDULE_LATE)]
    return found.unique_keys, found.schedules, found.stopped, late, found.waits, limits


def _queue_line(queue: QueueOverview, speed: Rates | None) -> str:
    counts = ", ".join(f"{queue.counts[status]:,} {status}" for status in COUNTS)
    came, ended = (speed.arrived, speed.ended) if speed else (None, None)
    return (
        f"queue {sanitize(queue.name)}{' (paused)' if queue.is_paused else ''}: {counts}; "
        f"in {rate(came)}/s, out {rate(ended)}/s, oldest {duration(queue.oldest_ms)}"
    )


class JsonView(_Writer):
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
    """Both tables as plain text."""
    lines = [*queue_table(snapshot).lines(), "", summary(snapshot)]
    lines += [*health_lines(snapshot), *policy_texts(snapshot)]
    if snapshot.fleet.children:
        lines += ["", *worker_table(snapshot).lines()]
    return "\n".join(lines)
