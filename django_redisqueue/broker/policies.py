"""Commands and queries for policies: limits, the jobs that hold and await them, and unique keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.parsing import clock_ms, int_or_none, pairs, score_ms
from ..core.policies import RateNumbers, UniqueKey, decode_rate, shown_value
from ..core.statuses import Status
from ..core.text import printable
from ..exceptions import InvalidOption
from .base import CommandBase, Entry, QueryBase, Read, Strict, query, run, together
from .overview import read_wait

PAGE = 100  # the most limits or keys per page
HOLDERS = 10  # the most jobs to name per limit
QUEUES = 20  # the most queues with parked lanes to look at per limit
CHUNK = 1000  # the most entries of an index that one page reads
MAX_AFTER = 1000  # characters
_US = 1000  # per ms


@dataclass(frozen=True, slots=True)
class Holder:
    """A job that has a slot. ``is_stuck``: it is not processing, so nothing will free the slot."""

    job_id: str
    is_stuck: bool = False


@dataclass(frozen=True, slots=True)
class LimitState:
    """One limit, for one value of its key, at one moment by Redis's clock."""

    key: str  # <kind>:<limit>:<value>
    used: int = 0  # running jobs; 0 for a rate
    most: int | None = None  # jobs that may run at once; None for a rate, or without a limit
    rate: RateNumbers | None = None
    next_ms: int | None = None  # ms until the rate allows the next start
    is_full: bool = False  # the rate's bucket is full: as if no job had started
    is_set: bool = False  # its number was set manually
    holders: Sequence[Holder] = ()  # at most HOLDERS
    parked: int = 0  # lanes that wait
    queues: Sequence[str] = ()  # the queues of those lanes, at most QUEUES
    oldest_ms: int | None = None  # how long the first job of the next lane has waited

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
    """A pause or resume of a queue, or of one of its shares or limits (``what``)."""

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
    """What is paused in a queue, in readable form: ``share gold`` or ``limit stripe:42``."""
    share = key.removeprefix("s:")
    return f"limit {limit_name(key)}" if share == key else f"share {printable(shown_value(share))}"


def limit_name(key: str) -> str:
    """A limit key in readable form: ``stripe:42``."""
    _, _, rest = key.partition(":")
    name, _, value = rest.partition(":")
    shown = shown_value(value)
    return printable(f"{name}:{shown}" if shown else name)


class LimitCommands(CommandBase):
    def set_limit(self, key: str, number: str) -> bool:
        """Set the number of a limit key, or the weight of ``s:<share>``, or remove it with ''. True
        if that changed anything."""
        return bool(self._run("set_limit", key, number))

    def pause_lanes(self, queue: str, key: str, paused: bool, by: str = "") -> bool:
        """Pause or resume the jobs of a limit key or of ``s:<share>`` in a queue; True if that
        changed anything."""
        changed, more = self._run("pause_lanes", queue, key, int(paused), by)
        while more:
            _, more = self._run("pause_lanes", queue, key, int(paused), by)
        return bool(changed)

    def audit_lanes(self, queue: str = "", position: str = "") -> tuple[int, str, str]:
        """Repair up to 100 slots or lanes that were changed manually. Returns how many were
        repaired, and the queue and position to continue from, both '' at the end."""
        repaired, queue, position = self._run("audit_lanes", queue, position)
        return repaired, queue, position


class LimitQueries(QueryBase):
    """Queries, on one connection. Each costs a constant number of round trips."""

    @query
    def some_keys(self, after: str, count: int) -> Read[tuple[list[str], str]]:
        """The keys of a page, and its ``after``."""
        if len(after) > MAX_AFTER:
            raise InvalidOption(
                "after must be the value that the previous page returned for the next one"
            )
        start = f"({after}!" if after else "-"  # '!' sorts right after the space that follows a key
        keys = (self.keys.slots, self.keys.waiting_limits, self.keys.rates)
        entries = yield Strict(
            *(("ZRANGEBYLEX", key, start, "+", "LIMIT", 0, CHUNK) for key in keys)
        )
        found = [_split(entry)[0] for some in entries for entry in some]
        full = [_split(some[-1])[0] for some in entries if len(some) == CHUNK]
        return first_keys(found, full, min(count, PAGE))

    @query
    def states(self, keys: Sequence[str]) -> Read[list[LimitState]]:
        """These limits in this order. Four round trips."""
        return (yield from together(self._state(key) for key in keys))

    def _state(self, key: str) -> Read[LimitState]:
        first, last = f"[{key} ", f"({key}!"
        clock, used, slots, numbers, tat, places = yield [
            ("TIME",),
            ("ZLEXCOUNT", self.keys.slots, first, last),
            ("ZRANGEBYLEX", self.keys.slots, first, last, "LIMIT", 0, HOLDERS),
            ("HMGET", self.keys.limits, f"={key}", key.rpartition(":")[0]),
            ("GET", self.keys.tat(key)),
            ("ZRANGEBYLEX", self.keys.waiting_limits, first, last, "LIMIT", 0, QUEUES),
        ]
        now_ms, (own, common) = clock_ms(clock), numbers or (None, None)
        number = (common if own is None else own) or ""
        is_rate = key.startswith("r:")
        rate = decode_rate(number) if is_rate else None
        queues = [_split(place)[1] for place in places or ()]
        parked = (self._parked(key, queue, now_ms) for queue in queues)
        found: list[Any] = yield from together([self._holders(slots or ()), *parked])
        holders, *lanes = found
        return LimitState(
            printable(key),
            used or 0,
            None if is_rate else int_or_none(number),
            rate,
            _next_ms(rate, tat, now_ms),
            is_rate and tat is None,
            own is not None,
            holders,
            sum(count for count, _ in lanes),
            list(map(printable, queues)),
            max((wait_ms for _, wait_ms in lanes if wait_ms is not None), default=None),
        )

    def _holders(self, slots: Sequence[str]) -> Read[list[Holder]]:
        ids = [_split(slot)[1] for slot in slots]
        statuses = yield [("HGET", self.keys.job(job_id), "status") for job_id in ids]
        idle = [slot for slot, now in zip(slots, statuses, strict=True) if now != "processing"]
        # If a job ended between the two reads, its slot is free now.
        held = yield [("ZSCORE", self.keys.slots, slot) for slot in idle]
        stuck = {slot for slot, score in zip(idle, held, strict=True) if score is not None}
        return [Holder(printable(_split(slot)[1]), slot in stuck) for slot in slots]

    def _parked(self, key: str, queue: str, now_ms: int) -> Read[tuple[int, int | None]]:
        """How many lanes of a queue wait for a limit, and how long the first job of the next lane
        has waited."""
        keys = self.keys.queue(queue)
        lanes = keys.parked_at(key)
        size, first = yield [("ZCARD", lanes), ("ZRANGE", lanes, 0, 0)]
        found = yield [("ZRANGE", keys.lane(lane), 0, 0) for lane in first or ()]
        jobs = [job_id for ids in found for job_id in ids or ()]
        wait_ms = yield from read_wait(self.keys, now_ms, jobs)
        return size or 0, wait_ms

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
        """The latest pauses and resumes of the queue, newest first. Every shard has all of them."""
        key = self.keys.queue(queue).pause_history
        (entries,) = yield [("XREVRANGE", key, "+", "-")]
        return [_pause_change(pairs(fields)) for _, fields in entries or ()]

    def parked_at(self, queue: str, lane: str) -> str:
        """The limit key that a lane of a queue waits for, or ''."""
        return self._each([("HGET", self.keys.queue(queue).parked, lane)])[0] or ""

    def waiting_chunk(self, queue: str, lane: str, key: str) -> tuple[int, int]:
        """For a chunk lane that waits to be full: how many jobs it has, and how many more ms it
        will wait."""
        asked = [
            ("TIME",), ("ZCARD", self.keys.queue(queue).lane(lane)),
            ("ZSCORE", self.keys.due_limits, key),
        ]  # fmt: skip
        clock, size, due = self._each(asked)
        return size or 0, max(0, int(float(due)) - clock_ms(clock)) if due else 0


def first_keys(known: Iterable[str], ends: Sequence[str], count: int) -> tuple[list[str], str]:
    """The first ``count`` of the ``known`` keys, and the ``after`` of the next page, '' at the end.
    ``ends``: keys after which there may be more keys, not yet read."""
    keys = sorted(key for key in set(known) if not ends or key <= min(ends))
    has_more = bool(ends) or len(keys) > count
    keys = keys[:count]
    return keys, keys[-1] if keys and has_more else ""


def _split(entry: str) -> tuple[str, str]:
    key, _, rest = entry.partition(" ")
    return key, rest


def _next_ms(rate: RateNumbers | None, tat: str | None, now_ms: int) -> int | None:
    """The ms until a rate allows the next start, computed as in limits.lua."""
    if rate is None:
        return None
    tat_us = int_or_none((tat or "").partition(" ")[0]) or 0
    allowed_us = tat_us - (rate.burst - 1) * rate.interval_us
    return max(0, -(-allowed_us // _US) - now_ms)


def _has_let_go(
    key: str, status: str, attempts: str, recoveries: str, watched: str, unique: str
) -> bool:
    """Whether a job has a key only until it started, and has; as in unique.lua."""
    words = unique.split()
    if (key, "until_started") not in zip(words[::4], words[1::4], strict=False):
        return False
    has_run = int_or_none(attempts) or int_or_none(recoveries) or "s" in watched
    return status == Status.PROCESSING or bool(has_run)


class UniqueCommands(CommandBase):
    def release_unique(self, key: str, owner: str | None = None) -> str:
        """Free a key, or only if the job ``owner`` has it. Returns the id of the job that had it,
        or ''. That job is not affected."""
        return self._run("release_unique", key, *(() if owner is None else (owner,)))


class UniqueQueries(QueryBase):
    """Queries, on one connection. Each costs two round trips, however many keys there are."""

    @query
    def count(self) -> Read[int]:
        """How many keys are taken. Some may be free already, because their jobs are gone."""
        return (yield Strict(("ZCARD", self.keys.uniques)))[0]

    def page(self, start: int = 0, count: int = PAGE) -> list[UniqueKey]:
        """Up to ``count`` keys, oldest first, without those that have expired."""
        last = start + min(count, PAGE) - 1
        found = self.connection.call("ZRANGE", self.keys.uniques, start, last, "WITHSCORES")
        return self._read({key: score_ms(score) for key, score in pairs(found).items()})

    def first(self, count: int) -> list[UniqueKey]:
        """Like ``page`` from the first key, for any ``count``."""
        pages = (self.page(at, min(PAGE, count - at)) for at in range(0, count, PAGE))
        return [key for page in pages for key in page]

    @query
    def described(self, page: Sequence[Entry]) -> Read[dict[Entry, UniqueKey]]:
        """The keys of a page, without those that have expired. Two round trips."""
        found = yield from self._described({key: score_ms(score) for key, score in page})
        by_key = {one.key: one for one in found}
        names = {entry: printable(entry.member) for entry in page}
        return {entry: by_key[name] for entry, name in names.items() if name in by_key}

    @query
    def find(self, key: str) -> Read[UniqueKey | None]:
        """The job that has a key, or None. Three round trips."""
        [taken] = yield Strict(("ZSCORE", self.keys.uniques, key))
        found = yield from self._described({key: score_ms(taken) if taken is not None else 0})
        return found[0] if found else None

    def held_by(self, job_id: str, unique: str) -> list[UniqueKey]:
        """The keys in a job's field ``unique`` that the job still has."""
        found = self._read(dict.fromkeys(unique.split()[::4][:PAGE], 0))
        return [one for one in found if one.job_id == job_id]

    def _read(self, taken: Mapping[str, int]) -> list[UniqueKey]:
        return run(self.connection, self._described(taken))

    def _described(self, taken: Mapping[str, int]) -> Read[list[UniqueKey]]:
        """These keys, given with the times in ms at which they were taken; without free ones."""
        if not taken:
            return []
        owners, ends = yield Strict(
            ("MGET", *map(self.keys.unique, taken)), ("ZMSCORE", self.keys.unique_lifetimes, *taken)
        )
        ids = [owner.partition(" ")[0] if owner else "" for owner in owners]
        names = ("status", "task", "attempts", "recoveries", "watched", "unique")
        asked = (("HMGET", self.keys.job(one), *names) for one in ids)
        clock, *jobs = yield [("TIME",), *asked]
        now_ms, found = clock_ms(clock), []
        for (key, taken_ms), job_id, end, job in zip(taken.items(), ids, ends, jobs, strict=True):
            until_ms = None if end is None else score_ms(end)
            status, task, *ran = (printable(text or "") for text in job or [""] * len(names))
            is_over = _has_let_go(key, status, *ran) if until_ms is None else until_ms <= now_ms
            if job_id and not is_over:
                found.append(
                    UniqueKey(printable(key), printable(job_id), status, task, taken_ms, until_ms)
                )
        return found

    def aliases(self, ids: Sequence[str]) -> dict[str, str]:
        """The ids among these that lead to another job because their own was a duplicate, with the
        other job's id."""
        found = self._each([("HGET", self.keys.job(job_id), "alias") for job_id in ids])
        return {job_id: owner for job_id, owner in zip(ids, found, strict=True) if owner}

    def statuses(self, ids: Sequence[str]) -> dict[str, str]:
        """The statuses of jobs by id, '' for jobs that Redis does not have."""
        found = self._each([("HGET", self.keys.job(job_id), "status") for job_id in ids])
        return {job_id: status or "" for job_id, status in zip(ids, found, strict=True)}

    def conflict(self, job_id: str) -> tuple[str, str]:
        """A unique key of a job that another job has, and that job's id; or two empty strings."""
        text: str = self._each([("HGET", self.keys.job(job_id), "unique")])[0] or ""
        for found in self._read(dict.fromkeys(text.split()[::4], 0)):
            if found.job_id != job_id:
                return found.key, found.job_id
        return "", ""
