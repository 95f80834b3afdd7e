"""Everything that the verdict examines, read once, after all processes have stopped."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from redis import Redis

from django_redisqueue.broker.keys import Keys
from django_redisqueue.core.ids import shard_of_id
from django_redisqueue.models import JobEvent, OutboxJob
from tests.app.models import Counter
from tests.broker.harness import READ, shaped
from tests.mirror.mirrored_shard import differences
from tests.support.history import FINAL

from .ledger import Jump, Ledger, Place

# Keys with their TTLs in ms, types and values. An expired one has no type.
READ_PAGE = f"""{READ}
for at, key in ipairs(ARGV) do found[at] = {{ key, redis.call('PTTL', key), read(key) }} end
return found
"""
PAGE = 1000

Keyspace = dict[str, tuple[str, Any]]


class Event(NamedTuple):
    """An event of a job as stored in the mirror. ``at`` is in ms; ``ahead``: how many ms the clock
    of the single Redis was ahead of the true time; ``era``: how often it had jumped by then. A
    ``reconciled`` event was reconstructed from the job's hash."""

    seq: int
    status: str
    at: int
    ahead: int = 0
    era: int = 0
    reconciled: bool = False

    @property
    def at_redis(self) -> int:
        """The time by Redis's clock, in ms."""
        return self.at + self.ahead


@dataclass(slots=True)
class Evidence:
    """The contents of the ledger, Redis and the database. ``expiring``: keys with a TTL."""

    ledger: Ledger
    keyspace: Keyspace = field(default_factory=dict)
    expiring: set[str] = field(default_factory=set)
    events: dict[str, list[Event]] = field(default_factory=dict)  # by job
    counters: dict[str, int] = field(default_factory=dict)  # what jobs did in the database
    differences: list[str] = field(default_factory=list)  # between the mirror and Redis
    outbox: int = 0  # rows
    left: dict[str, int] = field(default_factory=dict)  # bytes by key, once all jobs are deleted
    shards: Sequence[Keys] = (Keys(),)

    @property
    def keys(self) -> Keys:
        """The keys of the first shard."""
        return self.shards[0]

    @property
    def jobs(self) -> dict[str, dict[str, str]]:
        """The hashes of jobs by id, without those that only remember an id."""
        starts = tuple(keys.job("") for keys in self.shards)
        return {
            key.rpartition(":")[2]: value
            for key, (kind, value) in self.keyspace.items()
            if key.startswith(starts) and kind == "hash" and "status" in value
        }

    def status(self, job_id: str) -> str:
        """The last status that reached the mirror."""
        events = self.events.get(job_id)
        return events[-1].status if events else "unheard of"

    def ends(self, job_id: str) -> list[Event]:
        return [event for event in self.events.get(job_id, ()) if event.status in FINAL]


def collect(ledger: Ledger, servers: Iterable[Redis], shards: Sequence[Keys]) -> Evidence:
    found = Evidence(ledger, shards=shards)
    for redis in servers:
        keyspace, expiring = read_keyspace(redis)
        found.keyspace |= keyspace
        found.expiring |= expiring
    found.events = read_events(RedisClock(ledger.jumps))
    found.counters = dict(Counter.objects.values_list("name", "value"))
    found.differences = list(differences(found.jobs))
    found.outbox = OutboxJob.objects.count()
    return found


class RedisClock:
    """Tells how far ahead the clock of the single Redis was when it wrote an event."""

    def __init__(self, jumps: Sequence[Jump]) -> None:
        self._jumps = jumps
        self._ahead = [0, *(jump.ahead for jump in jumps)]

    def read(self, shard: int, place: Place, at_ms: int) -> tuple[int, int]:
        """The number of jumps before the event at this position, and how many ms the clock was
        ahead. An event between the two readings of the stream's end may belong to either clock; its
        own ``at_ms`` decides, because the old clock only showed times from the first reading to the
        jump."""
        era = bisect_left([jump.before[shard] for jump in self._jumps], place)
        if era:
            jump = self._jumps[era - 1]
            jump_ms = jump.at // 1_000_000 + self._ahead[era - 1]
            if place <= jump.after[shard] and jump.before_ms <= at_ms <= jump_ms:
                era -= 1
        return era, self._ahead[era]


def read_events(clock: RedisClock) -> dict[str, list[Event]]:
    events: dict[str, list[Event]] = defaultdict(list)
    rows = JobEvent.objects.order_by("id").values_list(
        "job_id", "seq", "status", "at", "detail", "entry_ms", "entry_no"
    )
    for job_id, seq, status, at, detail, *place in rows.iterator():
        said_ms = in_ms(at)
        era, ahead = clock.read(shard_of_id(job_id), (place[0], place[1]), said_ms)
        is_reconciled = '"reconciled":true' in detail
        events[job_id].append(Event(seq, status, said_ms - ahead, ahead, era, is_reconciled))
    return dict(events)


def in_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def read_keyspace(redis: Redis) -> tuple[Keyspace, set[str]]:
    """Every key with its type and value, and those that expire."""
    found: Keyspace = {}
    expiring: set[str] = set()
    names = iter(sorted(redis.scan_iter("*", count=PAGE)))
    while page := list(islice(names, PAGE)):
        read: Any = redis.eval(READ_PAGE, 0, *page)
        for name, ms, *typed in read:
            if ms > 0:
                expiring.add(name)
            if typed:
                kind, value = typed
                found[name] = (kind, shaped(kind, value))
    return found, expiring


def call_of(job: dict[str, str]) -> str:
    """The producer's call that a job belongs to, from its arguments; "" for a periodic job."""
    args, kwargs = json.loads(job["payload"])
    return str(args[0] if args else kwargs.get("call", ""))
