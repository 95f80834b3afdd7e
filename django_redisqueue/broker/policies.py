"""Unique keys, schedules, limits and waits at a glance, for the health and the overview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.job_data import WaitKind
from ..core.parsing import score_ms
from ..core.text import printable
from .keys import Keys
from .overview import Command
from .sums import add_counts

STOPPED = 100  # schedules that are paused, or have an error, and are looked at
DUE = 10  # schedules that are due next
PLACES = 100  # limits with parked lanes in a queue that are looked at
POLICY_COMMANDS = 6 + len(WaitKind)  # of the first round trip


@dataclass(frozen=True, slots=True)
class PolicyState:
    """How many there are, and what may be wrong with them."""

    unique_keys: int = 0
    schedules: int = 0
    stopped: int = 0  # schedules that are paused, or have an error
    errors: Mapping[str, str] = field(default_factory=dict)  # schedule -> why it does not run
    due: Sequence[tuple[str, int]] = ()  # the schedules that are due next, at most DUE: name, ms
    parked: Mapping[str, int] = field(default_factory=dict)  # limit key -> lanes that wait for it
    waits: Mapping[WaitKind, int] = field(default_factory=dict)  # parked jobs by what they wait for

    @property
    def paused(self) -> int:
        return self.stopped - len(self.errors)

    def late(self, now_ms: int) -> list[tuple[str, int]]:
        """Which schedules should have had a run, and how many ms ago."""
        return [(name, now_ms - due_ms) for name, due_ms in self.due if due_ms < now_ms]

    def most_parked(self, count: int) -> list[str]:
        """The limit keys with the most parked lanes."""
        return sorted(self.parked, key=lambda key: (-self.parked[key], key))[:count]


def add_policies(found: Sequence[PolicyState]) -> PolicyState:
    """What several shards have together."""
    errors: dict[str, str] = {}
    for one in found:
        errors |= one.errors
    due = sorted((each for one in found for each in one.due), key=lambda each: each[1])
    return PolicyState(
        sum(one.unique_keys for one in found),
        sum(one.schedules for one in found),
        sum(one.stopped for one in found),
        errors,
        due[:DUE],
        add_counts(one.parked for one in found),
        add_counts(one.waits for one in found),
    )


def policy_commands(keys: Keys) -> list[Command]:
    """The first round trip."""
    return [
        ("ZCARD", keys.uniques),
        ("ZCARD", keys.schedules),
        ("ZCOUNT", keys.schedules, "inf", "inf"),
        ("ZRANGEBYSCORE", keys.schedules, "inf", "inf", "LIMIT", 0, STOPPED),
        ("ZRANGEBYSCORE", keys.schedules, "-inf", "(inf", "WITHSCORES", "LIMIT", 0, DUE),
        ("ZRANGE", keys.waiting_limits, 0, PLACES - 1),
        *(("ZCARD", keys.waits(kind)) for kind in WaitKind),
    ]


def detail_commands(keys: Keys, replies: Sequence[Any]) -> list[Command]:
    """The second round trip."""
    places = [place.partition(" ")[::2] for place in replies[5] or ()]
    return [
        *(("HGET", keys.schedule(name), "error") for name in replies[3] or ()),
        *(("ZCARD", keys.queue(queue).parked_at(key)) for key, queue in places),
    ]


def policies_of(replies: Sequence[Any], details: Sequence[Any]) -> PolicyState:
    """What both round trips have found. A reply is None for a key of a wrong type."""
    uniques, schedules, stopped, names, due, places, *waits = replies
    names, places, due = names or (), places or (), due or ()
    errors = zip(names, details[: len(names)], strict=True)
    parked: dict[str, int] = {}
    for place, lanes in zip(places, details[len(names) :], strict=True):
        key = place.partition(" ")[0]
        parked[key] = parked.get(key, 0) + (lanes or 0)
    return PolicyState(
        uniques or 0,
        schedules or 0,
        stopped or 0,
        {printable(name): printable(error) for name, error in errors if error},
        [
            (printable(name), score_ms(score))
            for name, score in zip(due[::2], due[1::2], strict=True)
        ],
        parked,
        {kind: count or 0 for kind, count in zip(WaitKind, waits, strict=True)},
    )
