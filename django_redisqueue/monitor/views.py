"""Ways of showing what goes on: plain lines and JSON here, the live screen in ``screen``."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Protocol

from ..store.overview import QueueOverview, Rates
from ..texts import harmless
from .events import Heard, line
from .snapshot import Snapshot, as_json, worker_of
from .tables import COUNTS, queue_table, summary, worker_table
from .words import duration, rate


class View(Protocol):
    """What a monitor tells."""

    def opened(self) -> AbstractContextManager[object]:
        """From here to its end the view has the terminal."""

    def show(self, snapshot: Snapshot) -> None: ...

    def tell(self, events: Sequence[Heard]) -> None: ...

    def trouble(self, words: str) -> None:
        """Redis is away."""

    def back(self) -> None:
        """It answers again; what happened in between was not heard."""


class _Writer:
    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def opened(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _write(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()


class LineView(_Writer):
    """Lines for pipes and logs: each event, and a queue or the workers when they have changed."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__(out)
        self._states: dict[str, object] = {}
        self._workers: Counter[str] | None = None

    def show(self, snapshot: Snapshot) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(snapshot.now_ms / 1000))
        for queue, speed in zip(snapshot.queues, snapshot.rates, strict=True):
            state = (queue.counts, queue.is_paused)
            if self._states.get(queue.name) != state:
                self._states[queue.name] = state
                self._write(f"{clock}  {_queue_line(queue, speed)}")
        workers = Counter(
            f"{harmless(worker_of(child))}{'' if child.lease_ms >= 0 else ' (lapsed)'}"
            for child in snapshot.fleet.children
        )
        if workers != self._workers:
            self._workers = workers
            each = ", ".join(f"{name} {number}" for name, number in sorted(workers.items()))
            self._write(f"{clock}  workers: {summary(snapshot)}{f': {each}' if each else ''}")

    def tell(self, events: Sequence[Heard]) -> None:
        if events:
            self._write("\n".join(map(line, events)))

    def trouble(self, words: str) -> None:
        self._write(f"{harmless(words)}; trying again")

    def back(self) -> None:
        self._write("Redis answers again; events in between were not heard")


def _queue_line(queue: QueueOverview, speed: Rates | None) -> str:
    counts = ", ".join(f"{queue.counts[status]:,} {status}" for status in COUNTS)
    came, ended = (speed.came, speed.ended) if speed else (None, None)
    return (
        f"queue {harmless(queue.name)}{' (paused)' if queue.is_paused else ''}: {counts}; "
        f"in {rate(came)}/s, out {rate(ended)}/s, oldest {duration(queue.oldest_ms)}"
    )


class JsonView(_Writer):
    """One JSON object a line: an event, a refresh, or trouble."""

    def show(self, snapshot: Snapshot) -> None:
        self._dump({"type": "refresh", **as_json(snapshot)})

    def tell(self, events: Sequence[Heard]) -> None:
        for heard in events:
            if heard.event is None:
                self._dump({"type": "unreadable", "text": heard.text})
            else:
                self._dump({"type": "event", "event": heard.event})

    def trouble(self, words: str) -> None:
        self._dump({"type": "trouble", "message": words})

    def back(self) -> None:
        self._dump({"type": "back"})

    def _dump(self, document: object) -> None:
        self._write(json.dumps(document))  # ASCII: nothing in it is for a terminal to act on


def once(snapshot: Snapshot) -> str:
    """Both tables as plain text."""
    lines = [*queue_table(snapshot).lines(), "", summary(snapshot)]
    if snapshot.fleet.children:
        lines += ["", *worker_table(snapshot).lines()]
    return "\n".join(lines)
