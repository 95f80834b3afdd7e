"""One look at the queues and the workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..store.overview import ChildOverview, Fleet, QueueOverview, Rates, rates
from ..store.reads import Reads
from ..worker.identity import parse_child

WINDOW_MS = 10_000  # over which the rates are taken


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was seen; ``rates`` stand in the order of ``queues``, None where not yet known."""

    now_ms: int
    queues: Sequence[QueueOverview]
    rates: Sequence[Rates | None]
    fleet: Fleet


class Observer:
    """Takes snapshots, and remembers those of the last seconds for the rates.

    Each costs five round trips to Redis, whatever the number of queues, workers and jobs.
    """

    def __init__(self, reads: Reads, queues: Sequence[str], children: int) -> None:
        self._reads = reads
        self._queues = queues
        self._children = children
        self._past: deque[list[QueueOverview]] = deque()

    def look(self) -> Snapshot:
        """Raises what Link raises."""
        seen = self._reads.overview(self._queues)
        fleet = self._reads.fleet(self._children)
        now_ms = seen[0].now_ms
        self._past.append(seen)
        while len(self._past) > 2 and self._past[1][0].now_ms <= now_ms - WINDOW_MS:
            self._past.popleft()
        found = [rates(before, after) for before, after in zip(self._past[0], seen, strict=True)]
        if len(self._past) > 1 and None in found:  # Redis has lost data: begin anew
            self._past = deque([seen])
        return Snapshot(now_ms, seen, found, fleet)


def worker_of(child: ChildOverview) -> str:
    """The name of the worker that a child belongs to."""
    worker = parse_child(child.child)
    return worker.name if worker else child.child


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot for scripts. Durations are seconds, ``timestamp`` is in ms as in events."""
    return {
        "timestamp": snapshot.now_ms,
        "queues": [
            {
                "name": queue.name,
                "paused": queue.is_paused,
                "counts": queue.counts,
                "totals": queue.totals,
                "oldestSeconds": _seconds(queue.oldest_ms),
                "inPerSecond": speed and round(speed.came, 3),
                "outPerSecond": speed and round(speed.ended, 3),
            }
            for queue, speed in zip(snapshot.queues, snapshot.rates, strict=True)
        ],
        "workers": {
            "children": snapshot.fleet.total,
            "alive": snapshot.fleet.alive,
            "shown": [_child(child) for child in snapshot.fleet.children],
        },
    }


def _child(child: ChildOverview) -> dict[str, Any]:
    return {
        "child": child.child,
        "worker": worker_of(child),
        "leaseSeconds": _seconds(child.lease_ms),
        "held": child.held,
        "jobId": child.job or None,
        "task": child.task or None,
        "runningSeconds": _seconds(child.since_ms),
    }


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
