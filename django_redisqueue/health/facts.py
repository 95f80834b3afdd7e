"""One bounded read of Redis and the database: all that the findings are derived from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from django.db import Error as DatabaseError
from django.db import connections, router, transaction
from django.db.models import Count, Min, Model, Q, Sum
from django.utils import timezone

from ..broker.base import Read
from ..broker.connection import RedisConnection
from ..broker.entries import START, parse_position
from ..broker.health import HealthQueries, ShardState, add_states
from ..broker.policies import LimitState
from ..broker.shards import AllShards
from ..broker.sums import limit_states
from ..conf import Settings, get_settings
from ..exceptions import RedisQueueError
from ..models import MirrorState, OutboxJob, Rollup
from ..models.tables import has_table
from ..outbox.rows import unrelayed

FAILURES_OVER = timedelta(minutes=15)
LIMITS = 10
OUTBOX_ROWS = 10_000  # counted at most per outbox, oldest first: an outage may leave millions
MIRROR_STATE = "state of the mirror"  # in ``Facts.unreadable``
OUTBOX_OF = "outbox of database "  # there, followed by the alias


@dataclass(frozen=True, slots=True)
class OutboxFacts:
    """The jobs of one database that Redis does not have yet, at most OUTBOX_ROWS of them."""

    alias: str
    waiting: int
    refused: int  # jobs that Redis refuses for good
    oldest: timedelta | None  # how long the oldest has waited; None if the outbox is empty


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known at one moment. For a source that cannot be read there is an error instead."""

    settings: Settings
    now: datetime
    shard: ShardState | None = None  # all shards together; None: Redis does not answer
    redis_error: RedisQueueError | None = None  # why there is no shard
    missing: Mapping[int, RedisQueueError] = field(default_factory=dict)  # shards without answers
    limits: Sequence[LimitState] = ()  # those with the most parked lanes, at most LIMITS
    mirrors: Sequence[MirrorState] = ()  # of each shard; none without the mirror
    ended: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # queue: completed, failed
    outboxes: Sequence[OutboxFacts] = ()
    unreadable: Mapping[str, DatabaseError] = field(default_factory=dict)  # by source


def read_facts(connection: RedisConnection) -> Facts:
    """Read the facts: two round trips to Redis (six while lanes are parked), two queries, and one
    for each database with an outbox, however many queues, workers and jobs there are. Errors of
    Redis and the databases are facts as well."""
    settings, now = get_settings(), timezone.now()
    unreadable: dict[str, DatabaseError] = {}
    mirrors: Sequence[MirrorState] = ()
    ended: Mapping[str, tuple[int, int]] = {}
    outboxes: list[OutboxFacts] = []
    if settings.mirror:
        with _noting(unreadable, MIRROR_STATE), savepoint(MirrorState):
            mirrors = _mirrors(settings.shards)
        with _noting(unreadable, "number of failed jobs"), savepoint(Rollup):
            ended = _ended(now)
    for alias in connections:
        with _noting(unreadable, f"{OUTBOX_OF}{alias}"):
            if has_table(OutboxJob, alias):
                outboxes.append(_outbox(alias, now))
    shards = AllShards(connection.at, range(settings.shards))
    known = Facts(
        settings, now, missing=shards.missing, mirrors=mirrors, ended=ended,
        outboxes=outboxes, unreadable=unreadable,
    )  # fmt: skip
    try:
        shard, limits = _of_shards(shards, settings, mirrors)
    except RedisQueueError as error:
        return replace(known, redis_error=error)
    return replace(known, shard=shard, limits=limits)


def _of_shards(
    shards: AllShards, settings: Settings, mirrors: Sequence[MirrorState]
) -> tuple[ShardState, list[LimitState]]:
    positions = {one.shard: parse_position(one.position) for one in mirrors}
    queues = sorted(settings.queues)

    def state(one: RedisConnection) -> Read[ShardState]:
        position = positions.get(one.shard, START)
        return HealthQueries(one, settings).shard_state.read(queues, position)

    found = shards.read(state).by_shard
    whole = add_states(found)
    parked = {shard: one.policies.parked for shard, one in found.items()}
    return whole, limit_states(shards, parked, whole.policies.most_parked(LIMITS))


@contextmanager
def _noting(unreadable: dict[str, DatabaseError], what: str) -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        unreadable[what] = error


def _mirrors(shards: int) -> list[MirrorState]:
    """The row of each shard; an unsaved one before the mirror has written anything."""
    rows = {row.shard: row for row in MirrorState.objects.filter(shard__lt=shards)}
    return [rows.get(shard) or MirrorState(shard=shard) for shard in range(shards)]


def _ended(now: datetime) -> dict[str, tuple[int, int]]:
    rows = Rollup.objects.filter(minute__gt=now - FAILURES_OVER, minute__lte=now)
    sums = rows.values_list("queue").annotate(Sum("completed"), Sum("failed"))
    return {queue: (completed, failed) for queue, completed, failed in sums}


def _outbox(alias: str, now: datetime) -> OutboxFacts:
    rows, is_waiting = unrelayed(alias)[:OUTBOX_ROWS], Q(problem="")
    with savepoint(OutboxJob, alias):
        found = rows.aggregate(
            waiting=Count("pk", filter=is_waiting),
            refused=Count("pk", filter=~is_waiting),
            oldest=Min("created_at", filter=is_waiting),
        )
    oldest = found.pop("oldest")
    return OutboxFacts(alias, **found, oldest=oldest and now - oldest)


def savepoint(model: type[Model], alias: str = "") -> AbstractContextManager[object]:
    """Let queries fail without breaking a transaction that the caller may be in."""
    alias = alias or router.db_for_read(model)
    is_open = connections[alias].in_atomic_block
    return transaction.atomic(using=alias) if is_open else nullcontext()
