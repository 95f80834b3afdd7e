"""How far the mirror is behind, by one query and one round trip."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..broker.connection import RedisConnection
from ..broker.entries import parse_position
from ..broker.scan import Scanner
from ..models import MirrorState


@dataclass(frozen=True, slots=True)
class MirrorLag:
    """The state of a shard's mirror. ``events``: the number of unread events, None if unknown;
    ``seconds``: the age of the oldest; ``problem``: why the mirror has stopped, or ''."""

    events: int | None
    seconds: float
    problem: str
    gaps: int
    gap_at: datetime | None
    left_out: int  # events without a row: unreadable, or refused by the database
    incomplete: int  # events with a row that lacks what could not be read
    epoch: int
    unreconciled: bool  # a reconcile is due or running
    updated_at: datetime | None  # when rows were last written; None: never


def mirror_lag(connection: RedisConnection) -> MirrorLag:
    """The lag of the shard's mirror. Raises RedisQueueError, or django.db.Error."""
    shard = connection.shard
    state = MirrorState.objects.filter(shard=shard).first() or MirrorState(shard=shard)
    unread = Scanner(connection).unread(parse_position(state.position))
    return MirrorLag(
        unread.events, unread.oldest_ms / 1000, state.problem, state.gaps, state.gap_at,
        state.left_out, state.incomplete, state.epoch, state.unreconciled, state.updated_at,
    )  # fmt: skip
