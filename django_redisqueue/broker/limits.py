"""Queries of limits: how much of each is used, who holds it, and who waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.limits import RateNumbers, decode_rate, shown_value
from ..core.parsing import clock_ms, int_or_none, pairs
from ..core.text import printable
from ..exceptions import InvalidOption
from .base import CommandBase, QueryBase
from .keys import Keys
from .overview import Command, waited, waiting_command
from .reads import Read, Strict, query

PAGE = 100  # limits a page at the most
HOLDERS = 10  # that are named, of each limit
QUEUES = 20  # with parked lanes that are looked at, of each limit
CHUNK = 1000  # entries of an index that one page reads
MAX_AFTER = 1000  # characters
_US = 1000  # a ms

Place = tuple[str, str]  # a limit key, and a queue with lanes that wait for it


@dataclass(frozen=True, slots=True)
class Holder:
    """A job that has a slot. ``is_stuck``: it is not processing, so nothing gives the slot back."""

    job_id: str
    is_stuck: bool = False


@dataclass(frozen=True, slots=True)
class LimitState:
    """One limit, for one value of its key, at one moment by Redis's clock."""

    key: str  # <kind>:<limit>:<value>
    used: int = 0  # jobs that run; 0 for a rate
    most: int | None = None  # that may run at once; None for a rate, and when there is no limit
    rate: RateNumbers | None = None
    next_ms: int | None = None  # until the rate allows the next start
    is_full: bool = False  # the bucket of the rate: as if no job had started
    is_set: bool = False  # its number was set by hand
    holders: Sequence[Holder] = ()  # at most HOLDERS
    parked: int = 0  # lanes that wait
    queues: Sequence[str] = ()  # that have those lanes, at most QUEUES
    oldest_ms: int | None = None  # how long the first job of the lanes next in turn has waited

    @property
    def name(self) -> str:
        return limit_name(self.key)

    @property
    def is_rate(self) -> bool:
        return self.key.startswith("r:")

    @property
    def stuck(self) -> list[str]:
        return [holder.job_id for holder in self.holders if holder.is_stuck]


@dataclass(frozen=True, slots=True)
class LanePause:
    """A paused limit or share of a queue: its jobs do not start."""

    queue: str
    key: str  # a limit key, or s:<share>
    since_ms: int | None
    by: str  # who paused it, if known

    @property
    def name(self) -> str:
        return pause_name(self.key)


@dataclass(frozen=True, slots=True)
class PauseChange:
    """A pause or resumption of a queue, or of a share or limit in it (``what``)."""

    at_ms: int | None
    is_pause: bool
    what: str  # '' for the whole queue
    by: str  # who did it, if known


def _pause_change(fields: Mapping[str, str]) -> PauseChange:
    key = fields.get("key", "")
    return PauseChange(
        int_or_none(fields.get("at")), fields.get("paused") == "1", pause_name(key) if key else "",
        printable(fields.get("by", "")),
    )  # fmt: skip


def _pause(queue: str, key: str, value: str) -> LanePause:
    since, _, by = value.partition(" ")
    return LanePause(queue, key, int_or_none(since), printable(by))


def pause_name(key: str) -> str:
    """What is paused in a queue, for people: ``share gold`` or ``limit stripe:42``."""
    share = key.removeprefix("s:")
    return f"limit {limit_name(key)}" if share == key else f"share {printable(shown_value(share))}"


def limit_name(key: str) -> str:
    """A limit key for people: ``stripe:42``."""
    _, _, rest = key.partition(":")
    name, _, value = rest.partition(":")
    shown = shown_value(value)
    return printable(f"{name}:{shown}" if shown else name)


class LimitCommands(CommandBase):
    """Commands, on one connection."""

    def set_limit(self, key: str, number: str) -> bool:
        """Set the number of a limit key, or the weight of ``s:<share>``, or remove it with ''. True
        when that changed anything."""
        return bool(self._run("set_limit", key, number))

    def pause_lanes(self, queue: str, key: str, paused: bool, by: str = "") -> bool:
        """Pause or resume the jobs of a limit key or of ``s:<share>`` in a queue; True when that
        changed anything."""
        changed, more = self._run("pause_lanes", queue, key, int(paused), by)
        while more:
            _, more = self._run("pause_lanes", queue, key, int(paused), by)
        return bool(changed)

    def audit_lanes(self, queue: str = "", position: str = "") -> tuple[int, str, str]:
        """Mend up to 100 slots or lanes that were changed by hand: how many were mended, and the
        queue and the position to go on from, both '' at the end."""
        mended, queue, position = self._run("audit_lanes", queue, position)
        return mended, queue, position


class LimitQueries(QueryBase):
    """Queries, on one connection. Each costs a constant number of round trips."""

    @query
    def some_keys(self, after: str, count: int) -> Read[tuple[list[str], str]]:
        """The keys of a page, and its ``after``."""
        if len(after) > MAX_AFTER:
            raise InvalidOption("after must be what the page before gave as the next one")
        start = f"({after}!" if after else "-"  # '!' follows the blank behind a key
        entries = yield Strict(
            ("ZRANGEBYLEX", key, start, "+", "LIMIT", 0, CHUNK)
            for key in (self.keys.slots, self.keys.waiting_limits, self.keys.rates)
        )
        found = [_split(entry)[0] for some in entries for entry in some]
        full = [_split(some[-1])[0] for some in entries if len(some) == CHUNK]
        return first_keys(found, full, min(count, PAGE))

    @query
    def states(self, keys: Sequence[str]) -> Read[list[LimitState]]:
        """These limits in this order. Four round trips."""
        if not keys:
            return []
        clock, *raw = yield [("TIME",), *(c for key in keys for c in self._commands(key))]
        now_ms = clock_ms(clock)
        heads = [raw[at : at + _WIDTH] for at in range(0, len(raw), _WIDTH)]
        places = [
            (key, queue)
            for key, head in zip(keys, heads, strict=True)
            for queue in (_split(place)[1] for place in head[4] or ())
        ]
        lanes, ended = yield from self._second(heads, places)
        stuck, waits = yield from self._third(now_ms, lanes, ended)
        return [
            _state(key, now_ms, head, stuck, lanes, waits)
            for key, head in zip(keys, heads, strict=True)
        ]

    def _commands(self, key: str) -> list[Command]:
        first, last = f"[{key} ", f"({key}!"
        return [
            ("ZLEXCOUNT", self.keys.slots, first, last),
            ("ZRANGEBYLEX", self.keys.slots, first, last, "LIMIT", 0, HOLDERS),
            ("HMGET", self.keys.limits, f"={key}", key.rpartition(":")[0]),
            ("GET", self.keys.tat(key)),
            ("ZRANGEBYLEX", self.keys.waiting_limits, first, last, "LIMIT", 0, QUEUES),
        ]

    def _second(
        self, heads: Sequence[Any], places: Sequence[Place]
    ) -> Read[tuple[dict[Place, tuple[int, str]], list[str]]]:
        """The number of parked lanes at each place with the name of the next one, and the slots of
        jobs that do not run."""
        slots = [slot for head in heads for slot in head[1] or ()]
        replies = yield [
            *(_parked(self.keys, "ZCARD", *place) for place in places),
            *(_parked(self.keys, "ZRANGE", *place, 0, 0) for place in places),
            *(("HGET", self.keys.job(_split(slot)[1]), "status") for slot in slots),
        ]
        sizes, firsts = replies[: len(places)], replies[len(places) : 2 * len(places)]
        statuses = replies[2 * len(places) :]
        lanes = {
            place: (size or 0, first[0] if first else "")
            for place, size, first in zip(places, sizes, firsts, strict=True)
        }
        ended = [s for s, status in zip(slots, statuses, strict=True) if status != "processing"]
        return lanes, ended

    def _third(
        self, now_ms: int, lanes: Mapping[Place, tuple[int, str]], ended: Sequence[str]
    ) -> Read[tuple[set[str], dict[Place, int | None]]]:
        """Slots that are stuck, and how long the first job of the next lane has waited."""
        replies = yield [
            *(
                ("ZRANGE", self.keys.queue(queue).lane(lane), 0, 0)
                for (_, queue), (_, lane) in lanes.items()
            ),
            *(("ZSCORE", self.keys.slots, slot) for slot in ended),
        ]
        ids = [first[0] if first else "" for first in replies[: len(lanes)]]
        # A job may have ended between the two reads; then its slot is free now.
        held = zip(ended, replies[len(lanes) :], strict=True)
        stuck = {slot for slot, score in held if score is not None}
        jobs = yield [waiting_command(self.keys, job_id) for job_id in ids]
        waits = {
            place: waited(now_ms, [reply or ()]) for place, reply in zip(lanes, jobs, strict=True)
        }
        return stuck, waits

    @query
    def pauses(self, *queues: str) -> Read[list[LanePause]]:
        """The paused limits and shares of these queues. One round trip."""
        replies = yield [("HGETALL", self.keys.queue(queue).pauses) for queue in queues]
        return [
            _pause(queue, key, value)
            for queue, reply in zip(queues, replies, strict=True)
            for key, value in sorted(pairs(reply or ()).items())
        ]

    @query
    def pause_history(self, queue: str) -> Read[list[PauseChange]]:
        """The newest pauses and resumptions, newest first. Each is in every shard."""
        key = self.keys.queue(queue).pause_history
        (entries,) = yield [("XREVRANGE", key, "+", "-")]
        return [_pause_change(pairs(fields)) for _, fields in entries or ()]

    def parked_at(self, queue: str, lane: str) -> str:
        """The limit key that a lane of a queue waits for, or ''."""
        found: str | None = self._each([("HGET", self.keys.queue(queue).parked, lane)])[0]
        return found or ""

    def waiting_chunk(self, queue: str, lane: str, key: str) -> tuple[int, int]:
        """How many jobs a lane of a chunk task has that waits to be full, and for how many ms it
        still does."""
        asked = [
            ("TIME",), ("ZCARD", self.keys.queue(queue).lane(lane)),
            ("ZSCORE", self.keys.due_limits, key),
        ]  # fmt: skip
        clock, size, due = self._each(asked)
        return size or 0, max(0, int(float(due)) - clock_ms(clock)) if due else 0


def first_keys(known: Iterable[str], ends: Sequence[str], count: int) -> tuple[list[str], str]:
    """The first ``count`` of the ``known`` keys, and the ``after`` of the next page, '' at the end.
    ``ends``: keys behind which more may follow that are not known."""
    keys = sorted(key for key in set(known) if not ends or key <= min(ends))
    has_more = bool(ends) or len(keys) > count
    keys = keys[:count]
    return keys, keys[-1] if keys and has_more else ""


def shown_limits(found: Sequence[LimitState]) -> list[LimitState]:
    """The limits worth showing: in use, or waited for."""
    return [one for one in found if one.queues or not one.is_full]


_WIDTH = 5  # commands for a limit


def _split(entry: str) -> tuple[str, str]:
    key, _, rest = entry.partition(" ")
    return key, rest


def _parked(keys: Keys, command: str, limit_key: str, queue: str, *more: object) -> Command:
    return (command, keys.queue(queue).parked_at(limit_key), *more)


def _state(
    key: str,
    now_ms: int,
    head: Sequence[Any],
    stuck: set[str],
    lanes: Mapping[Place, tuple[int, str]],
    waits: Mapping[Place, int | None],
) -> LimitState:
    used, slots, numbers, tat, places = head
    own, common = numbers or (None, None)
    number = (common if own is None else own) or ""
    rate = decode_rate(number) if key.startswith("r:") else None
    here = [(key, _split(place)[1]) for place in places or ()]
    ages = [age for place in here if (age := waits.get(place)) is not None]
    return LimitState(
        printable(key),
        used or 0,
        None if key.startswith("r:") else int_or_none(number),
        rate,
        _next_ms(rate, tat, now_ms),
        key.startswith("r:") and tat is None,
        own is not None,
        [Holder(printable(_split(slot)[1]), slot in stuck) for slot in slots or ()],
        sum(lanes[place][0] for place in here),
        [printable(queue) for _, queue in here],
        max(ages, default=None),
    )


def _next_ms(rate: RateNumbers | None, tat: str | None, now_ms: int) -> int | None:
    """How long until a rate allows the next start, as limits.lua has it."""
    if rate is None:
        return None
    tat_us = int_or_none((tat or "").partition(" ")[0]) or 0
    allowed_us = tat_us - (rate.burst - 1) * rate.interval_us
    return max(0, -(-allowed_us // _US) - now_ms)
