"""Queries for monitors: the state of each queue, of the workers' children, and of Redis itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..core.ids import claims_jobs
from ..core.parsing import clock_ms, counters, int64_or_none, pairs, score_ms
from ..core.statuses import Status
from ..core.text import printable
from ..exceptions import WrongKeyType
from .base import Command, QueryBase, Read, Strict, query, together
from .entries import count_events
from .failures import explain_type
from .keys import Keys, QueueKeys
from .replies import id_in

COUNTED = (
    ("LLEN", "queued"), ("ZCARD", "priority"), ("ZCARD", "keyed"), ("ZCARD", "processing"),
    ("ZCARD", "completed"), ("ZCARD", "failed"), ("ZCARD", "cancelled"), ("ZCARD", "scheduled"),
    ("ZCARD", "retrying"), ("ZCARD", "waiting"),
)  # fmt: skip
FLEET = 10_000  # the most children to sort
FORMER = 100  # the most queues to look at that are no longer in the settings
MAX_NAME = 150  # characters of the name of who paused a queue


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """One queue at one moment. ``totals``: its counters since it began, enqueued, completed,
    failed, cancelled, retried, released, recovered and requeued."""

    name: str
    now_ms: int  # by Redis's clock
    counts: dict[str, int]
    totals: dict[str, int]
    paused_ms: int | None  # since when
    oldest_ms: int | None = None  # how long the next job has waited; None: nothing is queued
    wrong_keys: tuple[str, ...] = ()  # keys of the wrong type, which block the queue
    paused_by: str = ""  # who paused it, if known
    shards: tuple[int, ...] = ()  # the shards whose jobs these are, if this is a sum

    @property
    def is_paused(self) -> bool:
        return self.paused_ms is not None

    @property
    def finished(self) -> int:
        """Jobs that have ended since the queue began. A requeued job counts again."""
        return sum(self.totals.get(name, 0) for name in ("completed", "failed", "cancelled"))

    @property
    def unfinished(self) -> int:
        return unfinished(self.counts)

    @property
    def arrived(self) -> int:
        """Jobs that were enqueued or requeued since the queue began."""
        return sum(self.totals.get(name, 0) for name in ("enqueued", "requeued"))


@dataclass(frozen=True, slots=True)
class Rates:
    """Jobs a second that arrived (new or requeued) and that ended."""

    arrived: float
    ended: float


def rates(before: QueueOverview, after: QueueOverview) -> Rates | None:
    """The rates between two overviews of a queue; None when no time has passed, the shards differ,
    or Redis went back in time (a restart that lost data)."""
    seconds = (after.now_ms - before.now_ms) / 1000
    arrived, ended = after.arrived - before.arrived, after.finished - before.finished
    if before.shards != after.shards or seconds <= 0 or arrived < 0 or ended < 0:
        return None
    return Rates(arrived / seconds, ended / seconds)


@dataclass(frozen=True, slots=True)
class ChildOverview:
    """One child of a worker. ``lease_ms``: the time left of its lease, negative once expired.

    ``job``, with its ``task`` and ``since_ms``, is the first of the ``held`` jobs: the one that the
    child is running (an async child runs several, and a batch of short jobs counts as one).
    """

    child: str
    lease_ms: int
    held: int = 0
    job: str = ""
    task: str = ""
    since_ms: int | None = None  # how long ago the job was claimed


@dataclass(frozen=True, slots=True)
class Leases:
    """The ms left of children's leases, negative once they have expired, and how many children
    there are."""

    total: int
    alive: int
    left: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Some children, dead ones first, and how many there are in all."""

    total: int
    alive: int
    children: list[ChildOverview] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ServerOverview:
    """The Redis server. Sizes are bytes; a ``limit`` of 0 means no limit."""

    run_id: str  # of the server's current run: shards with the same run id share a server
    name: str  # "Redis" or "Valkey"
    version: str
    memory: int
    limit: int
    eviction: str  # the maxmemory-policy
    clients: int
    events: int | None  # in the streams of its shards; None if unknown
    shards: tuple[int, ...]

    @property
    def may_evict(self) -> bool:
        """True when a full Redis would delete jobs instead of refusing new ones."""
        return self.eviction != "noeviction"


class OverviewQueries(QueryBase):
    @query
    def stats(self, queues: Sequence[str]) -> Read[dict[str, dict[str, int]]]:
        """Counts by status of several queues, in one round trip."""
        counts = yield from together(
            read_counts(self.keys.queue(queue), is_strict=True) for queue in queues
        )
        return dict(zip(queues, counts, strict=True))

    @query
    def length(self, queue: str, status: Status) -> Read[int]:
        """How many ids a list has. The list of queued jobs includes lingering cancelled ids."""
        key = self.keys.queue(queue)
        names = ("queued", "priority", "keyed") if status is Status.QUEUED else (status.value,)
        counted = ((command, getattr(key, name)) for command, name in COUNTED if name in names)
        return sum((yield Strict(*counted)))

    def former_queues(self, queues: Collection[str]) -> list[str]:
        """The queues that Redis has besides these: removed from QUEUES, or another project's."""
        [names] = self._each([("SMEMBERS", self.keys.queues)])
        return sorted(name for name in names or () if name not in queues)

    @query
    def stranded(self, queues: Collection[str]) -> Read[dict[str, int]]:
        """The former queues that still have unfinished jobs, and how many: up to FORMER queues
        other than ``queues``. Two round trips."""
        [names] = yield [("SMEMBERS", self.keys.queues)]
        former = sorted(set(names or ()).difference(queues))[:FORMER]
        counts = yield from together(read_counts(self.keys.queue(queue)) for queue in former)
        left = {queue: unfinished(one) for queue, one in zip(former, counts, strict=True)}
        return {printable(queue): jobs for queue, jobs in left.items() if jobs}

    @query
    def meta(self, queue: str) -> Read[dict[str, int]]:
        """A queue's counters since it began, and ``paused`` (the instant in ms) if it is."""
        [raw] = yield Strict(("HGETALL", self.keys.queue(queue).meta))
        return counters(raw)

    @query
    def workers(self) -> Read[list[tuple[str, int]]]:
        """All children, with the times in ms at which their leases end. The cost grows with their
        number."""
        key = self.keys.workers
        ends, kind = yield [("ZRANGE", key, 0, -1, "WITHSCORES"), ("TYPE", key)]
        if ends is None:
            raise WrongKeyType(explain_type(key, kind, "zset"))
        return [(printable(child), score_ms(until)) for child, until in pairs(ends).items()]

    def held(self, children: Sequence[str]) -> dict[str, list[str]]:
        if not children:
            return {}
        replies = self.connection.pipeline(
            [("LRANGE", self.keys.child_processing(child), 0, -1) for child in children]
        )
        return {
            child: [id_in(entry) for entry in entries]
            for child, entries in zip(children, replies, strict=True)
        }

    @query
    def overview(self, queues: Sequence[str]) -> Read[list[QueueOverview]]:
        """The state of these queues as a monitor shows it. Costs two round trips of at most 21
        commands per queue, each of constant or logarithmic time."""
        return (yield from together(read_queue(self.keys, queue) for queue in queues))

    @query
    def leases(self, *, all_roles: bool = False) -> Read[Leases]:
        """The time left of the leases of up to FLEET children that claim jobs, or of all children.
        The cost grows with their number (0.1 ms for 1,000)."""
        now, every, total = yield Strict(
            ("TIME",),
            ("ZRANGE", self.keys.workers, 0, FLEET - 1, "WITHSCORES"),
            ("ZCARD", self.keys.workers),
        )
        now_ms = clock_ms(now)
        read = pairs(every)
        left = {
            child: score_ms(end) - now_ms
            for child, end in read.items()
            if all_roles or claims_jobs(child)
        }
        total -= len(read) - len(left)
        # Those beyond FLEET have the longest leases.
        return Leases(total, total - sum(1 for ms in left.values() if ms < 0), left)

    @query
    def children(self, left: Mapping[str, int]) -> Read[dict[str, ChildOverview]]:
        """These children by name, given with the time left of their leases, and the jobs that they
        run. Two round trips."""
        found = yield from together(self._child(child, ms) for child, ms in left.items())
        return dict(zip(left, found, strict=True))

    def _child(self, child: str, lease_ms: int) -> Read[ChildOverview]:
        key = self.keys.child_processing(child)
        clock, held, first = yield Strict(("TIME",), ("LLEN", key), ("LRANGE", key, 0, 0))
        job = id_in(first[0]) if first else ""
        # Without a job it asks for the key of no job, which does not exist.
        [details] = yield [("HMGET", self.keys.job(job), "task", "started_ms")]
        task, started = details or (None, None)
        started_ms = int64_or_none(started)
        since_ms = None if started_ms is None else max(0, clock_ms(clock) - started_ms)
        return ChildOverview(
            printable(child), lease_ms, held, printable(job), printable(task or ""), since_ms
        )

    @query
    def reports(self, workers: Sequence[str]) -> Read[list[str | None]]:
        """The reports of these workers, as JSON. One round trip."""
        if not workers:
            return []
        [found] = yield [("MGET", *map(self.keys.worker, workers))]
        return list(found or [None] * len(workers))

    @query
    def server(self) -> Read[ServerOverview]:
        """The state of the Redis server, and how many events its stream holds. One round trip."""
        info, total, entries = yield Strict(
            ("INFO",),
            ("HGET", self.keys.meta, "events"),
            ("XRANGE", self.keys.events, "-", "+", "COUNT", 1),
        )
        server = info_fields(info)
        valkey = server.get("valkey_version", "")
        return ServerOverview(
            run_id=server.get("run_id", ""),
            name="Valkey" if valkey else "Redis",
            version=valkey or server.get("redis_version", "?"),
            memory=int(server.get("used_memory", 0)),
            limit=int(server.get("maxmemory", 0)),
            eviction=eviction_policy(server),
            clients=int(server.get("connected_clients", 0)),
            events=count_events(entries, total),
            shards=(self.connection.shard,),
        )


def info_fields(info: str) -> dict[str, str]:
    """The reply to INFO."""
    return dict(line.split(":", 1) for line in info.splitlines() if ":" in line)


def eviction_policy(info: Mapping[str, str]) -> str:
    return info.get("maxmemory_policy", "noeviction")


def read_counts(key: QueueKeys, *, is_strict: bool = False) -> Read[dict[str, int]]:
    commands = [*_lengths(key), ("HGET", key.meta, "lingering")]
    *lengths, lingering = yield Strict(*commands) if is_strict else commands
    return _counts(lengths, int64_or_none(lingering))


def _lengths(key: QueueKeys) -> list[Command]:
    return [(command, getattr(key, name)) for command, name in COUNTED]


def _counts(lengths: Sequence[int | None], lingering: int | None) -> dict[str, int]:
    """The counts, without cancelled ids left in the list of queued jobs (cancel_job.lua)."""
    counts = {name: length or 0 for (_, name), length in zip(COUNTED, lengths, strict=True)}
    counts["queued"] = max(0, counts["queued"] - (lingering or 0))
    counts["queued"] += counts.pop("priority") + counts.pop("keyed")
    return counts


def unfinished(counts: Mapping[str, int]) -> int:
    """How many jobs have not ended yet, from counts by status."""
    return sum(count for status, count in counts.items() if not Status(status).is_final)


def read_queue(keys: Keys, name: str) -> Read[QueueOverview]:
    """A queue, in two round trips. A key of the wrong type is named and hides nothing else."""
    key = keys.queue(name)
    clock, plain, first, last, keyed, *replies = yield [
        ("TIME",),
        ("LINDEX", key.queued, -1),
        ("ZRANGE", key.priority, 0, 0),
        ("ZRANGE", key.priority, -1, -1),
        ("ZRANGE", key.keyed, 0, 0),
        *_lengths(key),
        ("LLEN", key.wake),
        ("HGETALL", key.meta),
    ]
    *lengths, _, raw = replies
    names = (*(counted for _, counted in COUNTED), "wake", "meta")
    wrong = [one for one, reply in zip(names, replies, strict=True) if reply is None]
    meta, now_ms = counters(raw or ()), clock_ms(clock)
    ends = (plain, *(first or ()), *(last or ()), *(keyed or ()))
    oldest_ms = yield from read_wait(keys, now_ms, [job_id for job_id in ends if job_id])
    return QueueOverview(
        name,
        now_ms,
        _counts(lengths, meta.get("lingering")),
        {
            field.removesuffix("_total"): value
            for field, value in meta.items()
            if field.endswith("_total")
        },
        meta.get("paused"),
        oldest_ms,
        tuple(getattr(key, one) for one in wrong),
        printable(pairs(raw or ()).get("paused_by", "")[:MAX_NAME]),
    )


def read_wait(keys: Keys, now_ms: int, ids: Sequence[str]) -> Read[int | None]:
    """The longest wait among these jobs. A cancelled id still in the list does not count."""
    jobs = yield [("HMGET", keys.job(one), "status", "enqueued_ms", "ready_ms") for one in ids]
    since = [
        int64_or_none(ready) or int64_or_none(enqueued) or now_ms
        for status, enqueued, ready in filter(None, jobs)
        if status == Status.QUEUED
    ]
    return max(0, now_ms - min(since)) if since else None
