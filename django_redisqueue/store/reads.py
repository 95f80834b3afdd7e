"""Everything that only looks. Costs are constant, or a page of at most 100 jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..conf import Settings, get_settings
from ..connection import Link
from ..exceptions import CorruptJob, JobNotFound, WrongKeyType
from ..jobdata import JobData, decode_job
from ..keys import Keys, QueueKeys
from ..states import Status
from .overview import (
    WIDTH,
    ChildOverview,
    Fleet,
    QueueOverview,
    ServerOverview,
    count_commands,
    counts_of,
    queue_commands,
    queue_of,
    server_of,
    waited,
    waiting_command,
)

PAGE = 100  # jobs a page at the most
FLEET = 10_000  # children that are put in order
MIDDLE = 101 * 2**45  # scores below it belong to priorities above 0 (place.lua)
OUTLINE = (
    "v", "task", "payload", "options", "status", "queue", "priority", "attempts", "recoveries",
    "generation", "child", "error", "reason", "progress", "enqueued_ms", "due_ms", "started_ms",
    "finished_ms", "cancel_ms",
)  # fmt: skip
TOMBSTONE = {"lingers"}  # all that forget.lua leaves of a job whose id may still be asked for


@dataclass(frozen=True, slots=True)
class Broken:
    """A job that can not be shown, and why: a page that has one still shows the others."""

    id: str
    problem: str


class Reads:
    """The reads, on one link."""

    def __init__(self, link: Link, settings: Settings | None = None) -> None:
        self.link = link
        self.settings = settings or get_settings()
        self.keys = Keys(self.settings.prefix)

    def job(self, job_id: str) -> JobData:
        """One job. Raises JobNotFound or CorruptJob."""
        try:
            raw = _job(self.link.call("HGETALL", self.keys.job(job_id)))
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
        return [_decode(job_id, _job(raw)) for job_id, raw in zip(ids, replies, strict=True)]

    def outlines(self, ids: Sequence[str]) -> list[JobData | Broken]:
        """``jobs`` for lists: without results, which may be large."""
        commands = [("HMGET", self.keys.job(job_id), *OUTLINE) for job_id in ids]
        found: list[JobData | Broken] = []
        for job_id, values in zip(ids, self._each(commands), strict=True):
            if values is None:
                found.append(Broken(job_id, f"the key of job {job_id} holds no job"))
                continue
            pairs = zip(OUTLINE, values, strict=True)
            found.append(_decode(job_id, {name: v for name, v in pairs if v is not None}))
        return found

    def _job_or_problem(self, job_id: str) -> JobData | Broken:
        try:
            return self.job(job_id)
        except (CorruptJob, JobNotFound) as error:
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
        command = "LRANGE" if status.is_final else "ZRANGE"
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
        if status in (Status.SCHEDULED, Status.RETRYING):
            return self.ids(queue, status, 0, jobs - 1)
        tail: list[str] = self.link.call("LRANGE", getattr(key, status.value), -jobs, -1)
        if tail or status is not Status.QUEUED:
            return tail[::-1]
        ranked: list[str] = self.link.call("ZRANGE", key.priority, 0, jobs - 1)
        return ranked

    def stats(self, queues: Sequence[str]) -> dict[str, dict[str, int]]:
        """Counts by status of several queues, in one round trip."""
        if not queues:
            return {}
        commands: list[tuple[str, ...]] = []
        for queue in queues:
            commands += count_commands(self.keys.queue(queue))
        replies = self.link.pipeline(commands)
        width = len(replies) // len(queues)
        return {
            queue: counts_of(replies[at * width : (at + 1) * width])
            for at, queue in enumerate(queues)
        }

    def meta(self, queue: str) -> dict[str, int]:
        """A queue's counters since it began, and ``paused`` (the instant in ms) if it is."""
        raw = _pairs(self.link.call("HGETALL", self.keys.queue(queue).meta))
        return {name: int(value) for name, value in raw.items()}

    def workers(self) -> list[tuple[str, int]]:
        """All children with the instant their lease ends, in ms. Costs as much as there are
        children.
        """
        reply = self.link.call("ZRANGE", self.keys.workers, 0, -1, "WITHSCORES")
        return [
            (child, int(float(until))) for child, until in zip(reply[::2], reply[1::2], strict=True)
        ]

    def held(self, children: Sequence[str]) -> dict[str, list[str]]:
        """The ids each of these children holds."""
        if not children:
            return {}
        replies = self.link.pipeline(
            [("LRANGE", self.keys.held(child), 0, -1) for child in children]
        )
        return {
            child: [entry.partition(":")[2] for entry in entries]
            for child, entries in zip(children, replies, strict=True)
        }

    def overview(self, queues: Sequence[str]) -> list[QueueOverview]:
        """What a monitor shows of these queues: counts, counters, paused, oldest age.

        Costs two round trips, of at most 16 commands a queue, each of constant or logarithmic
        time. Two looks give ``rates`` (of ``store.overview``).
        """
        commands = [
            command for queue in queues for command in queue_commands(self.keys.queue(queue))
        ]
        (seconds, micros), *replies = self.link.pipeline([("TIME",), *commands])
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        found = [
            queue_of(queue, now_ms, replies[at * WIDTH : (at + 1) * WIDTH])
            for at, queue in enumerate(queues)
        ]
        asked = [waiting_command(self.keys, job_id) for _, ids in found for job_id in ids]
        answers = iter(self._each(asked))
        return [
            replace(queue, oldest_ms=waited(now_ms, [next(answers) or () for _ in ids]))
            for queue, ids in found
        ]

    def fleet(self, limit: int = PAGE, start: int = 0) -> Fleet:
        """``limit`` children from ``start`` on, and what each runs: first those whose lease has
        lapsed, then by name, so that a page stays the same while leases are renewed.

        Costs three round trips, of at most three commands a child shown; the first grows with the
        fleet (0.1 ms for 1,000 children) up to FLEET of them.
        """
        every, total, (seconds, micros) = self.link.pipeline(
            [
                ("ZRANGE", self.keys.workers, 0, FLEET - 1, "WITHSCORES"),
                ("ZCARD", self.keys.workers),
                ("TIME",),
            ]
        )
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        all_leases = {child: int(float(end)) - now_ms for child, end in _pairs(every).items()}
        ordered = sorted(all_leases, key=lambda child: (all_leases[child] > 0, child))
        leases = {child: all_leases[child] for child in ordered[start : start + limit]}
        held = self.link.pipeline(
            [
                ("ZCOUNT", self.keys.workers, now_ms, "+inf"),
                *(("LRANGE", self.keys.held(child), 0, 0) for child in leases),
                *(("LLEN", self.keys.held(child)) for child in leases),
            ]
        )
        alive, firsts, counts = held[0], held[1 : 1 + len(leases)], held[1 + len(leases) :]
        jobs = [first[0].partition(":")[2] if first else "" for first in firsts]
        asked = [("HMGET", self.keys.job(job), "task", "started_ms") for job in jobs if job]
        answers = iter(self._each(asked))
        return Fleet(
            total,
            alive,
            [
                _child(now_ms, child, lease_ms, count, job, next(answers) if job else None)
                for (child, lease_ms), count, job in zip(leases.items(), counts, jobs, strict=True)
            ],
        )

    def server(self) -> ServerOverview:
        """What Redis says of itself, and how many events its stream holds. One round trip."""
        info, events = self.link.pipeline([("INFO",), ("XLEN", self.keys.events)])
        return server_of(info, events)

    def _each(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """A pipeline in which a key of the wrong type is None, and hides nothing else."""
        if not commands:
            return []
        try:
            return self.link.pipeline(commands)
        except WrongKeyType:
            return [self._or_none(command) for command in commands]

    def _or_none(self, command: Sequence[Any]) -> Any:
        try:
            return self.link.call(*command)
        except WrongKeyType:
            return None

    def now_ms(self) -> int:
        """Redis's clock."""
        seconds, micros = self.link.call("TIME")
        return int(seconds) * 1000 + int(micros) // 1000


def _pairs(reply: Sequence[str]) -> dict[str, str]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _job(reply: Sequence[str]) -> dict[str, str]:
    raw = _pairs(reply)
    return {} if raw.keys() == TOMBSTONE else raw


def _child(
    now_ms: int, child: str, lease_ms: int, held: int, job: str, raw: Sequence[str | None] | None
) -> ChildOverview:
    task, started = raw or ("", None)
    since_ms = max(0, now_ms - int(started)) if started else None
    return ChildOverview(child, lease_ms, held, job, task or "", since_ms)


def _decode(job_id: str, raw: Mapping[str, Any]) -> JobData | Broken:
    if not raw:
        return Broken(job_id, "its hash is gone")
    try:
        return decode_job(job_id, raw)
    except CorruptJob as error:
        return Broken(job_id, str(error))
