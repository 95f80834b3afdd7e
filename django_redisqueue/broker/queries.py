"""Queries for jobs: by id, by place in a list, and by indexed properties. Each costs a constant
number of round trips, or reads a page of at most 100 jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..core.codec import encode_stored
from ..core.ids import QUEUE_NAME
from ..core.job_data import HASH_FIELDS, JobData, JobQuery, decode_job
from ..core.parsing import MAX_EXACT, clock_ms, int_or_none, pairs, present
from ..core.statuses import FINAL, Status
from ..exceptions import CorruptJob, JobNotFound, WrongKeyType
from .base import Read, Strict, query, slices
from .keys import QueueKeys
from .overview import OverviewQueries

PAGE = 100  # the most jobs per page
MIDDLE = 101 * 2**45  # scores below it belong to priorities above 0 (place.lua)
LOOK = 10_000  # the most ids that a lookup reads from an index; Redis chooses which
RESULT_FILES_A_STEP = 100
VERBS = ("clear", "requeue")  # of continuations
STEP = 500  # ids per command, which takes Redis well under a millisecond
_CREATED = re.compile(r"(?:periodic_\w{10}|[a-z]+)_(\d+)_")  # when the id was made, in ms
# What lists need not read: large, or shown nowhere but on a job's own page
_DETAILS = {"result", "ran", "unique", "lane", "lease", "seq", "first_ms", "previous_due_ms"}
OUTLINE = (*(name for name in HASH_FIELDS if name not in _DETAILS), "deleted")
# The fields of a deleted job's hash (tombstone.lua, deletion.lua)
TOMBSTONE = {"lingers", "until_ms", "deleted", "alias"}


@dataclass(frozen=True, slots=True)
class UnreadableJob:
    """A job that cannot be read, and why. ``known``: the job without the unreadable fields, if only
    some of them are."""

    id: str
    problem: str
    known: JobData | None = None


class Continuation(NamedTuple):
    """What remains of a clear or requeue whose caller is gone (continuation.lua)."""

    token: str
    verb: str  # "clear" or "requeue"
    queue: str
    status: str
    left: int


def not_found(job_id: str) -> JobNotFound:
    return JobNotFound(f"no job {job_id} in Redis: it never existed, or retention has removed it")


class Queries(OverviewQueries):
    def job(self, job_id: str) -> JobData:
        """One job; for the id of a duplicate, the job that has the unique key. Raises JobNotFound
        or CorruptJob."""
        try:
            raw = pairs(self.connection.call("HGETALL", self.keys.job(job_id)))
        except WrongKeyType as error:
            raise CorruptJob(f"the key of job {job_id} does not hold a job: {error}") from None
        if "alias" in raw:
            return self.job(raw["alias"])
        if not (raw := _unless_gone(raw)):
            raise not_found(job_id)
        return decode_job(job_id, raw)

    def jobs(self, ids: Sequence[str]) -> list[JobData | UnreadableJob]:
        """Several jobs in one round trip; an UnreadableJob for each that is gone or corrupt."""
        replies = self._each([("HGETALL", self.keys.job(job_id)) for job_id in ids])
        return [
            _decode(job_id, None if reply is None else pairs(reply))
            for job_id, reply in zip(ids, replies, strict=True)
        ]

    @query
    def outlines(self, ids: Sequence[str]) -> Read[list[JobData | UnreadableJob]]:
        """``jobs`` without results, which may be large; for lists."""
        replies = yield [("HMGET", self.keys.job(job_id), *OUTLINE) for job_id in ids]
        return [
            _decode(job_id, None if values is None else present(OUTLINE, values))
            for job_id, values in zip(ids, replies, strict=True)
        ]

    def payload(self, job_id: str) -> str:
        """The arguments with nothing redacted: for enqueueing a copy, never for display."""
        return self.connection.call("HGET", self.keys.job(job_id), "payload") or ""

    def statuses(self, ids: Sequence[str]) -> list[str | None]:
        """The statuses of several jobs; None for one that Redis does not have."""
        commands = [("HGET", self.keys.job(job_id), "status") for job_id in ids]
        return self.connection.pipeline(commands) if commands else []

    @query
    def ids(self, queue: str, status: Status, start: int, stop: int) -> Read[list[str]]:
        """A page of a list's ids, ``stop`` included: finished jobs newest first, others next first.

        A workflow's waiting jobs are in none of a queue's lists, so they are not included.
        """
        return [job_id for _, job_id in (yield from self.ranked.read(queue, status, start, stop))]

    @query
    def ranked(
        self, queue: str, status: Status, start: int, stop: int
    ) -> Read[list[tuple[float, str]]]:
        """``ids``, each preceded by the number that orders it among those of other shards: its
        time, or for a queued job its place, because each shard has a first one."""
        key = self.keys.queue(queue)
        if status is Status.QUEUED:
            return list(enumerate((yield from self._queued(key, start, stop)), start))
        command, sign = ("ZREVRANGE", -1) if status.is_final else ("ZRANGE", 1)
        [found] = yield Strict((command, getattr(key, status.value), start, stop, "WITHSCORES"))
        return [(sign * float(score), job_id) for job_id, score in pairs(found).items()]

    def _queued(self, key: QueueKeys, start: int, stop: int) -> Read[list[str]]:
        """In order of priority: those above 0, the list of priority 0 from its tail, those below 0,
        and then those with a lane. Reads no more than the page, however deep it is."""
        high, plain, ranked = yield Strict(
            ("ZCOUNT", key.priority, "-inf", f"({MIDDLE}"),
            ("LLEN", key.queued),
            ("ZCARD", key.priority),
        )
        before, others = high + plain, plain + ranked
        parts = Strict()
        if start < high:
            parts.append(("ZRANGE", key.priority, start, min(stop, high - 1)))
        if start < before and stop >= high and plain:
            first, last = max(start - high, 0), min(stop - high, plain - 1)
            parts.append(("LRANGE", key.queued, -1 - last, -1 - first))
        if stop >= before and start < others:
            parts.append(("ZRANGE", key.priority, max(start, before) - plain, stop - plain))
        if stop >= others:
            parts.append(("ZRANGE", key.keyed, max(start - others, 0), stop - others))
        found: list[str] = []
        for part, ids in zip(parts, (yield parts), strict=True):
            found += ids[::-1] if part[0] == "LRANGE" else ids
        return found

    def oldest(self, queue: str, status: Status, jobs: int) -> list[str]:
        """The ids that ``clear`` or ``requeue_oldest`` would take, in that order."""
        key = self.keys.queue(queue)
        sorted_set = getattr(key, status.value)
        if status is Status.QUEUED:
            if tail := self.connection.call("LRANGE", key.queued, -jobs, -1):
                return tail[::-1]
            if ranked := self.connection.call("ZRANGE", key.priority, 0, jobs - 1):
                return ranked
            sorted_set = key.keyed
        return self.connection.call("ZRANGE", sorted_set, 0, jobs - 1)

    def find(self, entries: Sequence[str], query: JobQuery) -> list[JobData]:
        """The newest unfinished jobs that are in all of these index sets and match the query.

        Costs one command per 500 ids of the smallest set, up to 10,000 of them, and one command per
        job read: 100 at a time, newest first, until there are enough.
        """
        found: list[JobData] = []
        indexed = self._indexed([self.keys.index(entry) for entry in entries])
        for part in slices(sorted(indexed, key=_age, reverse=True), PAGE):
            # Leave out a job that has ended since, or whose hash is gone.
            jobs = (job for job in self.jobs(part) if isinstance(job, JobData))
            found += filter(query.matches, jobs)
            if len(found) >= query.limit:
                break
        return found[: query.limit]

    def _indexed(self, keys: Sequence[str]) -> set[str]:
        sizes = self.connection.pipeline([("SCARD", key) for key in keys])
        smallest, *others = sorted(keys, key=dict(zip(keys, sizes, strict=True)).__getitem__)
        found: set[str] = set()
        for some in self._scan(smallest):
            found.update(self._in_all(some, others))
            if len(found) >= LOOK:
                break
        return found

    def _scan(self, key: str) -> Iterator[list[str]]:
        cursor = "0"
        for _ in range(LOOK // STEP):
            cursor, ids = self.connection.call("SSCAN", key, cursor, "COUNT", STEP)
            yield ids
            if cursor == "0":
                return

    def _in_all(self, ids: Sequence[str], keys: Sequence[str]) -> list[str]:
        if not ids or not keys:
            return list(ids)
        replies = self.connection.pipeline([("SMISMEMBER", key, *ids) for key in keys])
        return [job_id for job_id, *there in zip(ids, *replies, strict=True) if all(there)]

    def abandoned_result_files(self, cursor: str) -> tuple[str, list[str]]:
        """One step of a scan of the recorded result files (it begins and ends with SCAN_START): the
        next cursor, and the files that no job will read."""
        key = self.keys.result_files
        following, flat = self.connection.call("HSCAN", key, cursor, "COUNT", RESULT_FILES_A_STEP)
        files = pairs(flat)
        commands = [
            ("HMGET", self.keys.job(job_id), "status", "deleted", "result")
            for job_id in files.values()
        ]
        replies = [reply or (None, None, None) for reply in self._each(commands)]
        names = zip(files, replies, strict=True)
        return following, [name for name, reply in names if _is_abandoned(name, *reply)]

    def abandoned_continuations(self) -> list[Continuation]:
        """The continuations whose callers seem to have gone. One round trip."""
        asked = [("TIME",), ("HGETALL", self.keys.continuations)]
        clock, fields = self.connection.pipeline(asked)
        found = (_continuation(*field, clock_ms(clock)) for field in pairs(fields).items())
        return [one for one in found if one is not None]


def _continuation(token: str, text: str, now_ms: int) -> Continuation | None:
    """None while its caller is still working on it, and for text that no script here writes."""
    parts = text.split(" ")
    if len(parts) != 5:
        return None
    verb, queue, status, left, until = parts
    jobs, until_ms = int_or_none(left, 0, MAX_EXACT), int_or_none(until, 0, MAX_EXACT)
    is_known = verb in VERBS and status in set(Status) and QUEUE_NAME.fullmatch(queue)
    if not is_known or jobs is None or until_ms is None or until_ms >= now_ms:
        return None
    return Continuation(token, verb, queue, status, jobs)


def _is_abandoned(name: str, status: str | None, deleted: str | None, result: str | None) -> bool:
    if status is None and deleted is None:
        return True
    if result == encode_stored(name):
        return False
    return status is None or status in FINAL


def _unless_gone(raw: dict[str, str]) -> dict[str, str]:
    return {} if "status" not in raw and raw.keys() & TOMBSTONE else raw


def _decode(job_id: str, raw: dict[str, str] | None) -> JobData | UnreadableJob:
    """``raw``: its hash, or None if its key holds something else."""
    if raw is None:
        return UnreadableJob(job_id, f"the key of job {job_id} does not hold a job")
    if not (raw := _unless_gone(raw)):
        return UnreadableJob(job_id, "its hash is gone")
    try:
        return decode_job(job_id, raw)
    except CorruptJob as error:
        return UnreadableJob(job_id, str(error), error.known)


def newest(jobs: Iterable[JobData]) -> list[JobData]:
    return sorted(jobs, key=lambda job: _age(job.id), reverse=True)


def _age(job_id: str) -> tuple[int, int, str]:
    """A sort key: ids by creation time, a workflow's jobs by their numbers."""
    created, number = _CREATED.match(job_id), job_id.rpartition(".")[2]
    return (int_or_none(created[1]) if created else None) or 0, int_or_none(number) or 0, job_id
