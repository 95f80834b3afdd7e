"""Everything that only looks. Costs are constant, or a page of at most 100 jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..exceptions import CorruptJob, JobNotFound, WrongKeyType
from ..jobdata import JobData, decode_job
from ..keys import QueueKeys
from ..states import Status
from .monitoring import OverviewReads
from .reader import pairs

PAGE = 100  # jobs a page at the most
MIDDLE = 101 * 2**45  # scores below it belong to priorities above 0 (place.lua)
OUTLINE = (
    "v", "task", "payload", "options", "status", "queue", "priority", "attempts", "recoveries",
    "generation", "child", "error", "reason", "progress", "enqueued_ms", "due_ms", "started_ms",
    "finished_ms", "cancel_ms", "deleted",
)  # fmt: skip
TOMBSTONE = {
    "lingers",
    "until_ms",
    "deleted",
}  # of a job that is gone (tombstone.lua, delete_job.lua)


@dataclass(frozen=True, slots=True)
class Broken:
    """A job that cannot be read, and why: a page that has one still shows the others. ``known``:
    the job without the fields that are unreadable, where no more than these are."""

    id: str
    problem: str
    known: JobData | None = None


class Reads(OverviewReads):
    """The reads, on one link."""

    def job(self, job_id: str) -> JobData:
        """One job. Raises JobNotFound or CorruptJob."""
        try:
            raw = _unless_gone(pairs(self.link.call("HGETALL", self.keys.job(job_id))))
        except WrongKeyType as error:
            raise CorruptJob(f"the key of job {job_id} holds no job: {error}") from None
        if not raw:
            raise JobNotFound(f"no job {job_id} in Redis: it never was, or retention has let it go")
        return decode_job(job_id, raw)

    def jobs(self, ids: Sequence[str]) -> list[JobData | Broken]:
        """Several jobs in one round trip; one that is gone or unreadable comes as Broken."""
        if not ids:
            return []
        try:
            replies = self.link.pipeline([("HGETALL", self.keys.job(job_id)) for job_id in ids])
        except WrongKeyType:  # one bad key must not hide a page: ask for each by itself
            return [self._job_or_problem(job_id) for job_id in ids]
        return [
            _decode(job_id, _unless_gone(pairs(reply)))
            for job_id, reply in zip(ids, replies, strict=True)
        ]

    def outlines(self, ids: Sequence[str]) -> list[JobData | Broken]:
        """``jobs`` for lists: without results, which may be large."""
        commands = [("HMGET", self.keys.job(job_id), *OUTLINE) for job_id in ids]
        found: list[JobData | Broken] = []
        for job_id, values in zip(ids, self._each(commands), strict=True):
            if values is None:
                found.append(Broken(job_id, f"the key of job {job_id} holds no job"))
                continue
            fields = zip(OUTLINE, values, strict=True)
            raw = {name: value for name, value in fields if value is not None}
            found.append(_decode(job_id, _unless_gone(raw)))
        return found

    def _job_or_problem(self, job_id: str) -> JobData | Broken:
        try:
            return self.job(job_id)
        except CorruptJob as error:
            return Broken(job_id, str(error), error.known)
        except JobNotFound as error:
            return Broken(job_id, str(error))

    def payload(self, job_id: str) -> str:
        """The real arguments, also those that are redacted: for a copy, never to be shown."""
        return self.link.call("HGET", self.keys.job(job_id), "payload") or ""

    def statuses(self, ids: Sequence[str]) -> list[str | None]:
        """The statuses of several jobs, None for one that Redis does not know."""
        if not ids:
            return []
        return self.link.pipeline([("HGET", self.keys.job(job_id), "status") for job_id in ids])

    def ids(self, queue: str, status: Status, start: int, stop: int) -> list[str]:
        """A page of a list's ids, ends included: finished newest first, else next out first.

        Those that wait are the ones of no workflow; a workflow's stand in none of a queue's keys.
        """
        key = self.keys.queue(queue)
        if status is Status.QUEUED:
            return self._queued(key, start, stop)
        command = "ZREVRANGE" if status.is_final else "ZRANGE"
        found: list[str] = self.link.call(command, getattr(key, status.value), start, stop)
        return found

    def _queued(self, key: QueueKeys, start: int, stop: int) -> list[str]:
        """By priority: those above 0, the list of priority 0 from its out end, those below 0.

        Two round trips, and no more read than the page, however deep it lies.
        """
        high, plain = self.link.pipeline(
            [("ZCOUNT", key.priority, "-inf", f"({MIDDLE}"), ("LLEN", key.queued)]
        )
        before = high + plain
        parts: list[tuple[Any, ...]] = []
        if start < high:
            parts.append(("ZRANGE", key.priority, start, min(stop, high - 1)))
        if start < before and stop >= high and plain:
            first, last = max(start - high, 0), min(stop - high, plain - 1)
            parts.append(("LRANGE", key.queued, -1 - last, -1 - first))
        if stop >= before:
            parts.append(("ZRANGE", key.priority, max(start, before) - plain, stop - plain))
        found: list[str] = []
        for part, ids in zip(parts, self.link.pipeline(parts), strict=True):
            found += ids[::-1] if part[0] == "LRANGE" else ids
        return found

    def oldest(self, queue: str, status: Status, jobs: int) -> list[str]:
        """The ids that a ``clear`` or ``requeue_oldest`` of so many would take, first one first."""
        key = self.keys.queue(queue)
        sorted_set = getattr(key, status.value)
        if status is Status.QUEUED:
            tail: list[str] = self.link.call("LRANGE", key.queued, -jobs, -1)
            if tail:
                return tail[::-1]
            sorted_set = key.priority
        oldest: list[str] = self.link.call("ZRANGE", sorted_set, 0, jobs - 1)
        return oldest


def _unless_gone(raw: dict[str, str]) -> dict[str, str]:
    return {} if "status" not in raw and raw.keys() & TOMBSTONE else raw


def _decode(job_id: str, raw: Mapping[str, Any]) -> JobData | Broken:
    if not raw:
        return Broken(job_id, "its hash is gone")
    try:
        return decode_job(job_id, raw)
    except CorruptJob as error:
        return Broken(job_id, str(error), error.known)
