"""How far the mirror is behind, for screens: one query and one round trip."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..conf import Settings
from ..link import Link
from ..models import MirrorState
from ..store.census import Census
from ..store.events import parse_position
from .writer import SHARD


@dataclass(frozen=True, slots=True)
class Lag:
    """So many ``events`` are unread (None: not known just now); the oldest is ``seconds`` old.
    ``problem`` says why the mirror stands still, or is ''."""

    events: int | None
    seconds: float
    problem: str
    gaps: int
    gap_at: datetime | None
    left_out: int  # events without a row: unreadable, or refused by the database
    incomplete: int  # events with a row that lacks what could not be read
    epoch: int
    unreconciled: bool  # records are being compared with Redis
    updated_at: datetime | None  # when rows were last written; None: never


def mirror_lag(link: Link, settings: Settings | None = None) -> Lag:
    """The lag of the shard's mirror. Raises RedisQueueError, or django.db.Error."""
    state = MirrorState.objects.filter(shard=SHARD).first() or MirrorState(shard=SHARD)
    unread = Census(link, settings).unread(parse_position(state.position))
    return Lag(
        unread.events,
        unread.oldest_ms / 1000,
        state.problem,
        state.gaps,
        state.gap_at,
        state.left_out,
        state.incomplete,
        state.epoch,
        state.unreconciled,
        state.updated_at,
    )
