"""Everything that only looks. Costs are constant, or a page of at most 100 jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..conf import Settings, get_settings
from ..connection import Link
from ..exceptions import CorruptJob, JobNotFound, WrongKeyType
from ..jobdata import JobData, decode_job
from ..keys import Keys, QueueKeys
from ..states import Status

PAGE = 100  # jobs a page at the most
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

    def _job_or_problem(self, job_id: str) -> JobData | Broken:
        try:
            return self.job(job_id)
        except (CorruptJob, JobNotFound) as error:
            return Broken(job_id, str(error))

    def statuses(self, ids: Sequence[str]) -> list[str | None]:
        """The statuses of several jobs, None for one that Redis does not know."""
        if not ids:
            return []
        return self.link.pipeline([("HGET", self.keys.job(job_id), "status") for job_id in ids])

    def ids(self, queue: str, status: Status, start: int, stop: int) -> list[str]:
        """A page of a list's ids, ends included: finished newest first, else next out first."""
        if status is Status.WAITING:
            return []  # nothing waits for parents in a queue's own keys
        key = self.keys.queue(queue)
        if status is Status.QUEUED:
            return self._queued(key, start, stop)
        command = "LRANGE" if status.is_final else "ZRANGE"
        found: list[str] = self.link.call(command, getattr(key, status.value), start, stop)
        return found

    def _queued(self, key: QueueKeys, start: int, stop: int) -> list[str]:
        """By priority: those above 0, the list of priority 0 from its out end, those below 0."""
        size = stop + 1
        ranked, plain = self.link.pipeline(
            [("ZRANGE", key.priority, 0, stop, "WITHSCORES"), ("LRANGE", key.queued, -size, -1)]
        )
        middle = 101 * 2**45
        ids, scores = ranked[::2], [float(score) for score in ranked[1::2]]
        high = [job_id for job_id, score in zip(ids, scores, strict=True) if score < middle]
        low = [job_id for job_id, score in zip(ids, scores, strict=True) if score >= middle]
        found: list[str] = (high + plain[::-1] + low)[start:size]
        return found

    def stats(self, queues: Sequence[str]) -> dict[str, dict[str, int]]:
        """Counts by status of several queues, in one round trip."""
        if not queues:
            return {}
        commands: list[tuple[str, ...]] = []
        for queue in queues:
            commands += _count_commands(self.keys.queue(queue))
        replies = self.link.pipeline(commands)
        width = len(replies) // len(queues)
        return {
            queue: _counts(replies[at * width : (at + 1) * width])
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
            [("LRANGE", self.keys.processing(child), 0, -1) for child in children]
        )
        return {
            child: [entry.partition(":")[2] for entry in entries]
            for child, entries in zip(children, replies, strict=True)
        }

    def now_ms(self) -> int:
        """Redis's clock."""
        seconds, micros = self.link.call("TIME")
        return int(seconds) * 1000 + int(micros) // 1000


_COUNTED = (
    ("LLEN", "queued"),
    ("ZCARD", "priority"),
    ("ZCARD", "processing"),
    ("LLEN", "completed"),
    ("LLEN", "failed"),
    ("LLEN", "cancelled"),
    ("ZCARD", "scheduled"),
    ("ZCARD", "retrying"),
)


def _count_commands(key: QueueKeys) -> list[tuple[str, ...]]:
    return [(command, getattr(key, name)) for command, name in _COUNTED]


def _counts(replies: Sequence[int]) -> dict[str, int]:
    counts = {name: int(reply) for (_, name), reply in zip(_COUNTED, replies, strict=True)}
    counts["queued"] += counts.pop("priority")
    return counts


def _pairs(reply: Sequence[str]) -> dict[str, str]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _job(reply: Sequence[str]) -> dict[str, str]:
    raw = _pairs(reply)
    return {} if raw.keys() == TOMBSTONE else raw


def _decode(job_id: str, raw: Mapping[str, Any]) -> JobData | Broken:
    if not raw:
        return Broken(job_id, "its hash is gone")
    try:
        return decode_job(job_id, raw)
    except CorruptJob as error:
        return Broken(job_id, str(error))
