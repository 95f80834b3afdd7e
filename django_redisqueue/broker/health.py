"""The state of a shard at a glance, in two round trips: its queues and workers, and its unique
keys, schedules, limits and waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..core.job_data import WaitKind
from ..core.parsing import clock_ms, pairs, score_ms
from ..core.text import printable
from .base import Read, query, together
from .entries import START, Position, count_events, entry_id, first_position
from .overview import OverviewQueries, QueueOverview, eviction_policy, info_fields, read_queue
from .sums import add_counts, add_queues

STOPPED = 1000  # the most schedules to look at that are paused or have an error
DUE = 10  # schedules that are due next
PLACES = 100  # the most limits with parked lanes in a queue to look at
LAPSED = 100  # the most children with an expired lease to name
SERVED = 1000  # the most queues that workers announce, latest first


@dataclass(frozen=True, slots=True)
class PolicyState:
    """How many unique keys, schedules, limits and waits there are, and what may be wrong."""

    unique_keys: int = 0
    schedules: int = 0
    stopped: int = 0  # schedules that are paused, or have an error
    errors: Mapping[str, str] = field(default_factory=dict)  # schedule -> why it does not run
    due: Sequence[tuple[str, int]] = ()  # the schedules that are due next, at most DUE: name, ms
    parked: Mapping[str, int] = field(default_factory=dict)  # limit key -> lanes that wait for it
    waits: Mapping[WaitKind, int] = field(default_factory=dict)  # parked jobs by what they wait for

    @property
    def paused(self) -> int:
        """With more than STOPPED that are stopped, the others count as paused."""
        return self.stopped - len(self.errors)

    def late(self, now_ms: int) -> list[tuple[str, int]]:
        """The schedules that should have had a run, and how many ms ago."""
        return [(name, now_ms - due_ms) for name, due_ms in self.due if due_ms < now_ms]

    def most_parked(self, count: int) -> list[str]:
        return sorted(self.parked, key=lambda key: (-self.parked[key], key))[:count]


def add_policies(found: Sequence[PolicyState]) -> PolicyState:
    errors = {name: error for one in found for name, error in one.errors.items()}
    due = sorted((each for one in found for each in one.due), key=lambda each: each[1])
    return PolicyState(
        unique_keys=sum(one.unique_keys for one in found),
        schedules=sum(one.schedules for one in found),
        stopped=sum(one.stopped for one in found),
        errors=errors,
        due=due[:DUE],
        parked=add_counts(one.parked for one in found),
        waits=add_counts(one.waits for one in found),
    )


class UnreadEvents(NamedTuple):
    """The events that the mirror has not read yet: how many (None if unknown), and the age of the
    oldest."""

    events: int | None
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class ShardState:
    """The queues and the workers that serve them, at one moment by Redis's clock."""

    now_ms: int
    queues: Sequence[QueueOverview]
    former: Mapping[str, int]  # queue -> unfinished jobs
    served: frozenset[str]  # by workers that announce their queues
    has_workers: bool  # whether any child's lease is valid
    lapsed: Sequence[str]  # children, at most LAPSED
    eviction: str  # the maxmemory-policy
    unread: UnreadEvents
    policies: PolicyState
    deserted: Mapping[int, int] = field(default_factory=dict)  # shards without a worker -> jobs

    @property
    def is_staffed(self) -> bool:
        """Whether a worker is alive."""
        return self.has_workers or bool(self.served)

    @property
    def unfinished(self) -> int:
        return sum(queue.unfinished for queue in self.queues)


def add_states(found: Mapping[int, ShardState]) -> ShardState:
    """The state of several shards together. A queue is served if it is served in all of them."""
    if len(found) == 1:
        [state] = found.values()
        return state
    states = list(found.values())
    served = [state.served for state in states if state.is_staffed]
    evictions = [state.eviction for state in states if state.eviction != "noeviction"]
    deserted = {shard: state.unfinished for shard, state in found.items() if not state.is_staffed}
    return ShardState(
        now_ms=max(state.now_ms for state in states),
        queues=add_queues({shard: state.queues for shard, state in found.items()}),
        former=add_counts(state.former for state in states),
        served=frozenset.intersection(*served) if served else frozenset(),
        has_workers=bool(served),
        lapsed=sorted({child for state in states for child in state.lapsed})[:LAPSED],
        eviction=evictions[0] if evictions else "noeviction",
        unread=_add_unread([state.unread for state in states]),
        policies=add_policies([state.policies for state in states]),
        deserted=deserted if served else {},
    )


def _add_unread(found: Sequence[UnreadEvents]) -> UnreadEvents:
    counts = [one.events for one in found if one.events is not None]
    events = sum(counts) if len(counts) == len(found) else None
    return UnreadEvents(events, max(one.oldest_ms for one in found))


class HealthQueries(OverviewQueries):
    @query
    def shard_state(self, queues: Sequence[str], mirrored: Position) -> Read[ShardState]:
        """The state, with the events after ``mirrored`` that the mirror has not read.

        Costs two round trips: 17 commands per queue and 17 more, then at most 4 per queue, a count
        of each list of up to FORMER queues, and up to 1,100 for stopped schedules and parked lanes,
        all of constant or logarithmic time.
        """
        found: list[Any] = yield from together(
            [
                self._of_redis(mirrored),
                self.stranded.read(queues),
                self._policies(),
                *(read_queue(self.keys, queue) for queue in queues),
            ]
        )
        of_redis, former, policies, *of_queues = found
        return ShardState(queues=of_queues, former=former, policies=policies, **of_redis)

    def _of_redis(self, mirrored: Position) -> Read[dict[str, Any]]:
        """The parts of a ShardState other than queues and policies."""
        keys = self.keys
        start = "-" if mirrored == START else f"({entry_id(mirrored)}"
        clock, served, first, last, info, entries, total = yield [
            ("TIME",),
            ("ZRANGE", keys.serving, 0, SERVED - 1, "REV", "WITHSCORES"),
            ("ZRANGE", keys.workers, 0, LAPSED - 1, "WITHSCORES"),
            ("ZRANGE", keys.workers, 0, 0, "REV", "WITHSCORES"),
            ("INFO", "memory"),
            ("XRANGE", keys.events, start, "+", "COUNT", 1),
            ("HGET", keys.meta, "events"),
        ]
        now_ms = clock_ms(clock)
        leases = {child: score_ms(end) for child, end in pairs(first or ()).items()}
        latest = [score_ms(end) for end in pairs(last or ()).values()]
        oldest_ms = now_ms - first_position(entries[0][0])[0] if entries else 0
        return {
            "now_ms": now_ms,
            "served": frozenset(
                queue for queue, end in pairs(served or ()).items() if score_ms(end) >= now_ms
            ),
            "has_workers": any(end >= now_ms for end in latest),
            "lapsed": [printable(child) for child, end in leases.items() if end < now_ms],
            "eviction": eviction_policy(info_fields(info or "")),
            "unread": UnreadEvents(count_events(entries or (), total), max(0, oldest_ms)),
        }

    def _policies(self) -> Read[PolicyState]:
        keys = self.keys
        uniques, schedules, stopped, names, due, places, *waits = yield [
            ("ZCARD", keys.uniques),
            ("ZCARD", keys.schedules),
            ("ZCOUNT", keys.schedules, "inf", "inf"),
            ("ZRANGEBYSCORE", keys.schedules, "inf", "inf", "LIMIT", 0, STOPPED),
            ("ZRANGEBYSCORE", keys.schedules, "-inf", "(inf", "WITHSCORES", "LIMIT", 0, DUE),
            ("ZRANGE", keys.waiting_limits, 0, PLACES - 1),
            *(("ZCARD", keys.waits(kind)) for kind in WaitKind),
        ]
        names, places = names or (), [place.partition(" ")[::2] for place in places or ()]
        details = yield [
            *(("HGET", keys.schedule(name), "error") for name in names),
            *(("ZCARD", keys.queue(queue).parked_at(key)) for key, queue in places),
        ]
        errors = zip(names, details[: len(names)], strict=True)
        parked: Counter[str] = Counter()
        for (key, _), lanes in zip(places, details[len(names) :], strict=True):
            parked[key] += lanes or 0
        return PolicyState(
            unique_keys=uniques or 0,
            schedules=schedules or 0,
            stopped=stopped or 0,
            errors={printable(name): printable(error) for name, error in errors if error},
            due=[(printable(name), score_ms(score)) for name, score in pairs(due or ()).items()],
            parked=parked,
            waits={kind: count or 0 for kind, count in zip(WaitKind, waits, strict=True)},
        )
