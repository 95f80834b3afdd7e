"""A page of past events: from the stream, or from the mirror for what the stream has trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Q

from ..broker.events import START, Position
from ..broker.feed import Ends, EventFeed, EventLine
from ..core.clock import ms_of
from ..core.codec import dumps, loads
from ..models import JobEvent
from ..models.shards import rows_of_shard

PAGE = 500  # events


@dataclass(frozen=True, slots=True)
class EventPage:
    """The next events, and whether events before them are missing."""

    events: Sequence[EventLine]
    gap: bool = False


def next_page(feed: EventFeed, after: Position, ends: Ends | None = None) -> EventPage:
    """The events after ``after``, oldest first; empty when there are no more yet.

    Takes two round trips to Redis, one if the ends of the stream are known, and up to three queries
    for a position before the stream.
    """
    first, last = ends or feed.ends()
    if after == last != START:
        return EventPage([])
    if first != START and after > last:  # Redis has lost data, or the client made it up
        return EventPage([(last, "")], gap=True)
    if after >= first != START:
        return EventPage(feed.page(after, PAGE))
    rows = _mirrored(feed.connection.shard, after, first)
    gap = after != START and not _reaches_back_to(after) and (bool(rows) or first != START)
    return EventPage(rows or feed.page(after, PAGE), gap)


def _mirrored(shard: int, after: Position, before: Position) -> list[EventLine]:
    rows = rows_of_shard(JobEvent._default_manager.all(), shard, "job_id")
    rows = rows.filter(entry_ms__gte=after[0])
    rows = rows.exclude(entry_ms=after[0], entry_no__lte=after[1])
    if before != START:
        rows = rows.filter(
            Q(entry_ms__lt=before[0]) | Q(entry_ms=before[0], entry_no__lt=before[1])
        )
    return [
        ((row.entry_ms, row.entry_no), _as_emitted(row))
        for row in rows.order_by("entry_ms", "entry_no")[:PAGE]
    ]


def _reaches_back_to(position: Position) -> bool:
    """Whether the mirror still has what is as old. Rows of any shard tell, because they are deleted
    by their age."""
    ms, number = position
    known = Q(entry_ms__lt=ms) | Q(entry_ms=ms, entry_no__lte=number)
    return JobEvent._default_manager.filter(known).exists()


def _as_emitted(row: JobEvent) -> str:
    """The event as emit.lua writes it."""
    event: dict[str, Any] = {
        "jobId": row.job_id, "status": row.status, "queue": row.queue, "task": row.task,
        "workerId": row.worker, "attempt": row.attempt, "seq": row.seq,
        "timestamp": ms_of(row.at),
    }  # fmt: skip
    try:
        detail = dict(loads(row.detail)) if row.detail else {}
    except (ValueError, TypeError) as error:
        detail = {"unreadable": f"its detail cannot be read: {error}"}
    return dumps(event | detail)
