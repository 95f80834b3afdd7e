"""Snapshots of the queues and the workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import close_old_connections

from ..broker import sums
from ..broker.connection import RedisConnection
from ..broker.health import ShardState
from ..broker.overview import ChildOverview, Fleet, QueueOverview, Rates, rates
from ..broker.policies import LimitState
from ..broker.queries import PAGE
from ..broker.shards import AllShards
from ..health.policies import SCHEDULE_LATE
from ..health.report import HealthReport, read_health
from ..health.report import as_json as health_json
from ..worker.identity import name_and_number

WINDOW_MS = 10_000  # that rates are measured over


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at one moment. ``rates`` are in the order of ``queues``, None if not yet known."""

    shard: ShardState  # all shards together
    queues: Sequence[QueueOverview]
    rates: Sequence[Rates | None]
    fleet: Fleet
    health: HealthReport


class Observer:
    """Takes snapshots, and keeps those of the last seconds for the rates.

    Each costs five round trips to Redis, nine while lanes are parked, and the queries of the health
    report, whatever the number of queues, workers and jobs.
    """

    def __init__(self, connection: RedisConnection, queues: Sequence[str]) -> None:
        self._connection = connection
        self.queues = queues
        self._past: deque[list[QueueOverview]] = deque()

    def observe(self) -> Snapshot:
        """Take a snapshot. Raises RedisQueueError."""
        close_old_connections()  # the database may have closed one
        health = read_health(self._connection)
        shard = health.facts.shard
        if shard is None:
            assert health.facts.redis_error is not None
            raise health.facts.redis_error
        by_name = {queue.name: queue for queue in shard.queues}
        seen = [by_name[name] for name in self.queues]
        shards = AllShards(self._connection.at)
        shards.missing.update(health.facts.missing)
        fleet = sums.fleet(shards, PAGE)
        self._past.append(seen)
        while len(self._past) > 2 and self._past[1][0].now_ms <= shard.now_ms - WINDOW_MS:
            self._past.popleft()
        found = [rates(before, after) for before, after in zip(self._past[0], seen, strict=True)]
        if len(self._past) > 1 and None in found:  # Redis has lost data: start over
            self._past = deque([seen])
        findings = tuple(each for each in health.findings if each.queue in ("", *self.queues))
        return Snapshot(shard, seen, found, fleet, replace(health, findings=findings))


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot for scripts. Durations are in seconds; ``timestamp`` is in ms, as in events."""
    return {
        "timestamp": snapshot.shard.now_ms,
        "health": health_json(snapshot.health),
        "queues": [
            {
                "name": queue.name,
                "paused": queue.is_paused,
                "counts": queue.counts,
                "totals": queue.totals,
                "oldestSeconds": _seconds(queue.oldest_ms),
                "inPerSecond": speed and round(speed.arrived, 3),
                "outPerSecond": speed and round(speed.ended, 3),
            }
            for queue, speed in zip(snapshot.queues, snapshot.rates, strict=True)
        ],
        "policies": _policies(snapshot.shard, snapshot.health.facts.limits),
        "workers": {
            "children": snapshot.fleet.total,
            "alive": snapshot.fleet.alive,
            "shown": [_child(child) for child in snapshot.fleet.children],
        },
    }


def _policies(shard: ShardState, limits: Sequence[LimitState]) -> dict[str, Any]:
    found, now_ms = shard.policies, shard.now_ms
    return {
        "uniqueKeys": found.unique_keys,
        "schedules": {
            "total": found.schedules,
            "paused": found.paused,
            "errors": dict(found.errors),
            "late": [
                {"name": name, "seconds": _seconds(ms + SCHEDULE_LATE)}
                for name, ms in found.late(now_ms - SCHEDULE_LATE)
            ],
            "due": [
                {"name": name, "seconds": _seconds(due_ms - now_ms)} for name, due_ms in found.due
            ],
        },
        "waits": dict(found.waits),
        "limits": [
            {
                "name": state.name, "used": state.used, "most": state.most,
                "rate": str(state.rate) if state.rate else None,
                "nextStartSeconds": _seconds(state.next_ms),
                "holders": [holder.job_id for holder in state.holders],
                "parkedLanes": state.parked, "oldestSeconds": _seconds(state.oldest_ms),
            }
            for state in limits
        ],
    }  # fmt: skip


def _child(child: ChildOverview) -> dict[str, Any]:
    return {
        "child": child.child,
        "worker": name_and_number(child.child)[0],
        "leaseSeconds": _seconds(child.lease_ms),
        "held": child.held,
        "jobId": child.job or None,
        "task": child.task or None,
        "runningSeconds": _seconds(child.since_ms),
    }


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
