"""What a monitor shows: the state of each queue, and of each child of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..keys import Keys, QueueKeys
from ..states import Status
from .reader import counters, whole

Command = tuple[Any, ...]

COUNTED = (
    ("LLEN", "queued"),
    ("ZCARD", "priority"),
    ("ZCARD", "processing"),
    ("ZCARD", "completed"),
    ("ZCARD", "failed"),
    ("ZCARD", "cancelled"),
    ("ZCARD", "scheduled"),
    ("ZCARD", "retrying"),
    ("ZCARD", "waiting"),
)
WIDTH = len(COUNTED) + 5  # replies a queue


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """One queue at one moment.

    ``totals`` are the queue's counters since it began, by their names in its meta hash without
    ``_total``: enqueued, completed, failed, cancelled, retried, released, recovered, requeued.
    ``oldest_ms`` is how long the job next out has waited to run, None when nothing is queued.
    """

    name: str
    now_ms: int  # by Redis's clock
    counts: dict[str, int]
    totals: dict[str, int]
    paused_ms: int | None  # since when
    oldest_ms: int | None = None
    wrong_keys: tuple[str, ...] = ()  # of another type than they should be: the queue stands still

    @property
    def is_paused(self) -> bool:
        return self.paused_ms is not None

    @property
    def finished(self) -> int:
        """Jobs that have ended since the queue began (one requeued ends again)."""
        return sum(self.totals.get(name, 0) for name in ("completed", "failed", "cancelled"))

    @property
    def unfinished(self) -> int:
        """Jobs that have yet to end."""
        return sum(n for status, n in self.counts.items() if not Status(status).is_final)

    @property
    def arrived(self) -> int:
        """Jobs that have come since the queue began, those requeued among them."""
        return sum(self.totals.get(name, 0) for name in ("enqueued", "requeued"))


@dataclass(frozen=True, slots=True)
class Rates:
    """Jobs a second that came in (new, or requeued) and that ended."""

    came: float
    ended: float


def rates(before: QueueOverview, after: QueueOverview) -> Rates | None:
    """What happened between two looks at a queue; None when no time has passed, or Redis has gone
    back in it (a restart that lost data)."""
    seconds = (after.now_ms - before.now_ms) / 1000
    came, ended = after.arrived - before.arrived, after.finished - before.finished
    if seconds <= 0 or came < 0 or ended < 0:
        return None
    return Rates(came / seconds, ended / seconds)


@dataclass(frozen=True, slots=True)
class ChildOverview:
    """One child of a worker: ``lease_ms`` is what is left of its lease, below 0 once it lapsed.

    ``task`` and ``since_ms`` are those of ``job``, the first of the ``held`` jobs: what it runs now
    (an async child runs several, and a batch of short jobs counts as one).
    """

    child: str
    lease_ms: int
    held: int = 0
    job: str = ""
    task: str = ""
    since_ms: int | None = None  # how long ago the job was claimed


@dataclass(frozen=True, slots=True)
class Fleet:
    """The children whose leases end first, so that dead ones come first, and how many there are."""

    total: int
    alive: int
    children: list[ChildOverview] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ServerOverview:
    """The Redis server: sizes in bytes, ``limit`` 0 for none."""

    name: str  # "Redis" or "Valkey"
    version: str
    memory: int
    limit: int
    eviction: str  # the maxmemory-policy
    clients: int
    events: int | None  # in the stream; None: not known just now

    @property
    def may_evict(self) -> bool:
        """True when a full Redis would delete jobs instead of refusing new ones."""
        return self.eviction != "noeviction"


def server_of(info: str, events: int | None) -> ServerOverview:
    """From the text that INFO answers."""
    said = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    valkey = said.get("valkey_version", "")
    return ServerOverview(
        name="Valkey" if valkey else "Redis",
        version=valkey or said.get("redis_version", "?"),
        memory=int(said.get("used_memory", 0)),
        limit=int(said.get("maxmemory", 0)),
        eviction=said.get("maxmemory_policy", "noeviction"),
        clients=int(said.get("connected_clients", 0)),
        events=events,
    )


def count_commands(key: QueueKeys) -> list[Command]:
    return [(command, getattr(key, name)) for command, name in COUNTED]


def counts_of(replies: Sequence[int | None]) -> dict[str, int]:
    counts = {name: reply or 0 for (_, name), reply in zip(COUNTED, replies, strict=True)}
    counts["queued"] += counts.pop("priority")
    return counts


def queue_commands(key: QueueKeys) -> list[Command]:
    """All that is read of a queue in the first round trip: WIDTH replies."""
    return [
        *count_commands(key),
        ("LLEN", key.wake),
        ("HGETALL", key.meta),
        ("LINDEX", key.queued, -1),
        ("ZRANGE", key.priority, 0, 0),
        ("ZRANGE", key.priority, -1, -1),
    ]


def queue_of(
    key: QueueKeys, name: str, now_ms: int, replies: Sequence[Any]
) -> tuple[QueueOverview, list[str]]:
    """The queue without its oldest job, and the ids among which that is. None is what a key of a
    wrong type replies."""
    *counts, wake, raw, plain, first, last = replies
    names = [*(name for _, name in COUNTED), "wake", "meta"]
    asked = zip(names, (*counts, wake, raw), strict=True)
    wrong = tuple(getattr(key, which) for which, reply in asked if reply is None)
    meta = counters(raw or ())
    totals = {
        field.removesuffix("_total"): value
        for field, value in meta.items()
        if field.endswith("_total")
    }
    found = QueueOverview(
        name, now_ms, counts_of(counts), totals, meta.get("paused"), wrong_keys=wrong
    )
    return found, [job_id for job_id in (plain, *(first or ()), *(last or ())) if job_id]


def waiting_command(keys: Keys, job_id: str) -> Command:
    return ("HMGET", keys.job(job_id), "status", "enqueued_ms", "ready_ms")


def waited(now_ms: int, replies: Sequence[Sequence[str | None]]) -> int | None:
    """How long the longest of these has waited; a cancelled id that lingers does not count."""
    since = [
        whole(ready) or whole(enqueued) or now_ms
        for status, enqueued, ready in filter(None, replies)
        if status == Status.QUEUED
    ]
    return max(0, now_ms - min(since)) if since else None
