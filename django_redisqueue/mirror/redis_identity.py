"""Decides whether this is the Redis that was mirrored, and whether it still has what was read.

The mirror gives the data in Redis an id and keeps a copy. A Redis with another id is a different
one. If a Redis without an id has an event that was read, it lost the id in a failover, and gets it
again. Without such an event, it was emptied or is a different one. The mirror then stops and
reports it, because the consequence (every unfinished job is lost) is for a human to accept:
``reapqueue --accept-redis``.

In the right Redis, the stream must have the entry at the cursor, because trimming never removes it.
Without it, either the stream was trimmed past it (a gap), or the data went back in time (a failover
to an older copy), and reading continues after the last event that both have. In both cases the
epoch rises, so that whatever arrives next wins over the records, and a reconcile is due.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from datetime import UTC, datetime
from math import inf
from typing import Any

from django.db.models import F, Q, QuerySet

from ..broker.entries import START, Position, format_position, is_entry_after
from ..broker.events import StreamPage
from ..broker.scan import Scanner
from ..exceptions import WrongRedis
from ..models import JobEvent, WorkflowEvent
from ..models.tables import rows_of_shard
from .writer import Cursor, MirrorWriter

logger = logging.getLogger("django_redisqueue")

LOG_INTERVAL = 300.0  # s between two log lines about the same problem


class RedisIdentity:
    """Checks the Redis of a bridge, and finds where to continue reading."""

    def __init__(self, writer: MirrorWriter) -> None:
        self._writer = writer
        self._events = events = writer.events
        self._address = events.connection.redis_url.address
        self._scanner = Scanner(events.connection, events.settings)
        self._mirrored = MirroredEvents(writer.alias, writer.shard)
        self._logged_at: float | None = None  # while the mirror is stopped
        self._gap_logged_at = -inf
        self._rewound_to = START  # where the database was when it was last found to be older

    def check(self, cursor: Cursor) -> Cursor:
        """The cursor to continue from. Raises WrongRedis to stop the mirror; it is called again."""
        mine, (theirs, last_entry) = self._known(), self._scanner.mirrored()
        if not mine:
            return self._adopt(cursor)
        if mine != theirs:
            if theirs or self._common_point(cursor.position) == START:
                self._stop(theirs)
            self._scanner.name(mine)
        else:
            self._report_lost_commits(cursor, last_entry)
        self._logged_at = None
        self._writer.states.exclude(problem="").update(problem="")
        holds = self._has_first() if cursor.position == START else self._holds(cursor.position)
        return cursor if holds else self._recover(cursor)

    def _report_lost_commits(self, cursor: Cursor, last_entry: str) -> None:
        """Log it if Redis has recorded that events were mirrored which the database lacks."""
        if cursor.position == START or not is_entry_after(last_entry, cursor.position):
            return
        # Another bridge may have moved both since the cursor was read.
        here = self._writer.cursor().position
        if here != self._rewound_to and is_entry_after(last_entry, here):
            self._rewound_to = here
            #: The database lost its last commits, because of a failover to a standby that was
            #: behind, or a restored backup. The mirror reads the events again, but the work of
            #: exactly_once jobs may be missing: docs/outbox.md says what to do.
            logger.error(
                "mirror: the database went back in time: it had the events up to %s, and lacks "
                "those behind %s, which are read again",
                last_entry, format_position(here),
            )  # fmt: skip

    def accept(self) -> bool:
        """Follow this Redis from now on; False if the mirror already does."""
        cursor, incarnation = self._writer.cursor(), self._scanner.name()
        if self._known() == incarnation:
            return False
        position = cursor.position
        if position == START or not self._holds(position):
            position = self._common_point(position)
        return self._begin_anew(cursor, position, incarnation=incarnation, problem="")

    def _known(self) -> str:
        """The id of the mirrored data, or ''."""
        return self._writer.states.values_list("incarnation", flat=True).first() or ""

    def _adopt(self, cursor: Cursor) -> Cursor:
        """A new mirror accepts any Redis, and reconciles: the first events may already be gone."""
        self._writer.states.filter(incarnation="").update(
            incarnation=self._scanner.name(), unreconciled=True
        )
        return cursor

    def _stop(self, theirs: str) -> None:
        found = "has another installation's data" if theirs else "was emptied, or is a new one"
        problem = (
            f"the Redis at {self._address} {found}, so it is not the one that was mirrored; the "
            "mirror has stopped. If it is the right one, run reapqueue --accept-redis: unfinished "
            "jobs that it does not have are then recorded as failed (lost)"
        )
        now = time.monotonic()
        if self._logged_at is None:
            self._writer.states.update(problem=problem)
            self._logged_at = now  # the caller logs the exception
        elif now - self._logged_at >= LOG_INTERVAL:
            #: The mirror has stopped, because this Redis is not the one that it knows, or was
            #: emptied. If that is intended, run reapqueue --accept-redis; otherwise correct
            #: CONNECTION.
            logger.error("mirror: %s", problem)
            self._logged_at = now
        raise WrongRedis(problem)

    def _holds(self, position: Position) -> bool:
        """Whether the stream has the event that was read at this position."""
        page = self._events.at(position)
        if page is None:
            return False
        # An entry that another program wrote has no row, and retention deletes old rows.
        return self._mirrored.matches(page) or not self._mirrored.has(position)

    def _has_first(self) -> bool:
        """Whether the stream has the first events, or a reconcile that is due makes up for them."""
        return self._is_reconcile_due() or not self._events.is_trimmed()

    def _recover(self, cursor: Cursor) -> Cursor:
        read, first = cursor.position, self._events.first()
        if first is None or first > read:
            position, gap = self._after_gap(), {"gaps": F("gaps") + 1, "gap_at": datetime.now(UTC)}
            self._log_gap(read, first if position == START else position)
        else:
            position, gap = self._common_point(read), {}
            #: Redis lost its last writes, in a crash or a failover. Records are corrected to match
            #: it. Consider appendfsync always or WAIT_REPLICAS.
            logger.error(
                "mirror: Redis went back in time: it does not have what was read behind %s, up to "
                "%s; records are reconciled with it",
                format_position(position), format_position(read),
            )  # fmt: skip
        self._events.wait_for_replicas()
        self._begin_anew(cursor, position, **gap)
        return self._writer.cursor()

    def _after_gap(self) -> Position:
        """START, so the oldest event is next. But after a gap that is not yet reconciled, jobs end
        faster than the mirror can write: the oldest events are about to be trimmed, and reading
        them would lead to a gap at nearly every page. So the middle of the stream is next."""
        is_repeated = self._gap_logged_at > -inf and self._is_reconcile_due()
        return self._events.middle() if is_repeated else START

    def _is_reconcile_due(self) -> bool:
        return self._writer.states.filter(unreconciled=True).exists()

    def _log_gap(self, read: Position, first: Position | None) -> None:
        """Log it, but not each of the many gaps while jobs end faster than the mirror can write."""
        now = time.monotonic()
        if now - self._gap_logged_at < LOG_INTERVAL:
            return
        self._gap_logged_at = now
        #: The mirror was down for so long, or is so slow, that Redis discarded events. The history
        #: has a gap, and records are corrected from Redis. Raise EVENTS_CAP, or always keep a
        #: worker running. Further gaps within five minutes are only counted (MirrorState.gaps).
        logger.error(
            "mirror: a gap: events behind %s were trimmed before they were read (EVENTS_CAP); "
            "it continues with %s, and records are reconciled with Redis",
            format_position(read), format_position(first) if first else "what comes",
        )  # fmt: skip

    def _begin_anew(self, cursor: Cursor, position: Position, **fields: Any) -> bool:
        """Raise the epoch and request a reconcile; False if another bridge was faster."""
        here = self._writer.states.filter(
            position=format_position(cursor.position), epoch=cursor.epoch
        )
        changed = here.update(
            position=format_position(position), epoch=cursor.epoch + 1, unreconciled=True, **fields
        )
        return changed == 1

    def _common_point(self, missing: Position) -> Position:
        """The last event up to ``missing`` that was read and is still in the stream, or START.

        Usually it is the stream's newest event up to there. If other events have been written since
        by a clock that is behind, it is found by a bisection over time: everything after the first
        lost event was also lost. That may take long in a shard with few events, because a step
        looks through the rows of the others between two of its own.
        """
        newest = self._events.newest(missing)
        if newest is not None and self._mirrored.matches(newest):
            return newest.last
        first = self._events.first()
        if first is None or first > missing:
            return START

        def is_lost(ms: int) -> bool:
            position = self._mirrored.last(ms)
            return position >= first and not self._holds(position)

        instants = range(first[0], missing[0])
        ms = first[0] + bisect_left(instants, True, key=is_lost)
        for number in self._mirrored.numbers(ms):
            if (ms, number) <= missing and self._holds((ms, number)):
                return ms, number
        position = self._mirrored.last(ms - 1)
        return position if position >= first else START


class MirroredEvents:
    """The history of a shard's jobs and workflows together, by place in the stream."""

    def __init__(self, alias: str, shard: int) -> None:
        self._tables: list[QuerySet[Any]] = [
            rows_of_shard(JobEvent.objects.using(alias), shard, "job_id"),
            rows_of_shard(WorkflowEvent.objects.using(alias), shard, "workflow_id"),
        ]

    def matches(self, page: StreamPage) -> bool:
        """Whether the only event of this page has a matching row."""
        jobs, workflows = self._tables
        here = _at(page.last)
        for event in page.events:
            return jobs.filter(here, job_id=event.job_id, seq=event.seq).exists()
        for workflow_event in page.workflows:
            return workflows.filter(
                here, workflow_id=workflow_event.workflow_id, status=workflow_event.step,
                generation=workflow_event.counts.generation,
            ).exists()  # fmt: skip
        return False

    def has(self, position: Position) -> bool:
        return any(table.filter(_at(position)).exists() for table in self._tables)

    def last(self, ms: int) -> Position:
        """The place of the last row up to that time, or START."""
        return max(_last(table, ms) for table in self._tables)

    def numbers(self, ms: int) -> list[int]:
        """The second numbers of all places with that time, last first."""
        found: set[int] = set()
        for table in self._tables:
            found.update(table.filter(entry_ms=ms).values_list("entry_no", flat=True))
        return sorted(found, reverse=True)


def _at(position: Position) -> Q:
    return Q(entry_ms=position[0], entry_no=position[1])


def _last(table: QuerySet[Any], ms: int) -> Position:
    rows = table.filter(entry_ms__lte=ms).order_by("-entry_ms", "-entry_no")
    return rows.values_list("entry_ms", "entry_no").first() or START
