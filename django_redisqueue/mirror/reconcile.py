"""Brings the rows to what Redis says, after events were lost: on request, a bounded step at a time.

Two walks, both at the end of the stream. Over all jobs in Redis: one that the mirror does not know,
or knows otherwise from before, is written as if an event had told of it. Then over the records that
have not finished: one that Redis does not know is ``lost``, if it still is so after everything that
was in the stream by then has been read. Then both again for workflows. Nothing is enqueued, and
nothing in Redis is changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from django.db.models import Q, QuerySet

from ..codec import dumps
from ..conf import Settings
from ..link import Link
from ..models import JobRecord, MirrorState
from ..outbox import stored_among
from ..states import FINAL, UNFINISHED, Audit, JobReason, Status
from ..store.census import SCAN_START, Census, Sighting
from ..store.events import START, Event, Events, Position
from ..store.reads import Reads
from .flowreconcile import FlowReconciler
from .parts import report, write_in_parts
from .writer import SHARD, Cursor, Overtaken, Writer

logger = logging.getLogger("django_redisqueue")

PAGE = 100  # records a step
OPEN = [status for status in Status if status in UNFINISHED]  # in the order of the walk
LOST = dumps(
    {
        "type": "JobLost",
        "message": "Redis does not know this job any more: its data was lost, or went back to a "
        "time before the job. Whether it ran is not known; enqueue it again if it is still wanted",
        "traceback": "",
    }
)


class Row(NamedTuple):
    """A record that has not finished."""

    id: str
    enqueued_at: datetime
    epoch: int
    seq: int
    queue: str
    task: str
    attempts: int


class Reconciler:
    """A follower of the bridge. Interrupted, it begins anew, which changes nothing twice."""

    def __init__(self, link: Link, settings: Settings) -> None:
        self._events = Events(link, settings)
        self._writer = Writer(self._events)
        self._census = Census(link, settings)
        self._reads = Reads(link, settings)
        self._sound_epoch = -1  # in which nothing is due
        self._cursor = Cursor(epoch=-1)
        self._restart()

    def _restart(self) -> None:
        self._steps: Iterator[None] | None = None
        self._tail: Position = START
        self._corrected = self._lost = 0
        self._flows = FlowReconciler(self._census, self._writer, lambda: self._cursor)

    def __call__(self, cursor: Cursor) -> bool:
        """A step, if one is due; True when there is more to do."""
        if cursor.epoch == self._sound_epoch:
            return False
        if cursor.epoch != self._cursor.epoch:
            self._restart()
        self._cursor = cursor
        if self._steps is None:
            if not self._is_due():
                self._sound_epoch = cursor.epoch
                return False
            self._steps, self._tail = self._walk(self._reads.now_ms()), self._end()
        if cursor.position < self._tail:
            return True  # first everything that was in the stream
        try:
            next(self._steps)
        except StopIteration:
            self._finish(cursor)
            return False
        except Overtaken:
            self._restart()
        except BaseException:
            self._restart()
            raise
        return True

    def _is_due(self) -> bool:
        states = MirrorState.objects.using(self._writer.alias)
        return states.filter(shard=SHARD, unreconciled=True).exists()

    def _finish(self, cursor: Cursor) -> None:
        states = MirrorState.objects.using(self._writer.alias)
        states.filter(shard=SHARD, epoch=cursor.epoch).update(unreconciled=False)
        corrected, lost = self._corrected + self._flows.corrected, self._lost
        logger.log(
            logging.WARNING if corrected or lost or self._flows.lost else logging.INFO,
            "mirror: reconciled with Redis: %d records brought up to date, %d jobs lost, "
            "%d workflows lost", corrected, lost, self._flows.lost,
        )  # fmt: skip
        self._restart()

    def _walk(self, begun_ms: int) -> Iterator[None]:
        """The steps; whoever takes the next one waits until ``_tail`` has been read."""
        at = SCAN_START
        while True:
            at, jobs, problems = self._census.page(at)
            report(problems, self._writer, self._cursor)
            older = [job for job in jobs if job.enqueued_ms < begun_ms]
            self._correct([job for job in older if _is_audited(job)])
            yield
            if at == SCAN_START:
                break
        for status in OPEN:
            yield from self._walk_records(status)
        yield from self._flows.walk(begun_ms, self._read_on)

    # -- what Redis knows

    def _correct(self, jobs: Sequence[Sighting]) -> None:
        """Records of an epoch before say what was; those of this one follow the events."""
        epoch = self._cursor.epoch
        known = self._records([job.id for job in jobs])
        wrong = []
        for job in jobs:
            row = known.get(job.id)
            if row is None or (row[0] < epoch and row[1:] != (job.seq, job.status)):
                wrong.append(job)
        if wrong:
            events = [event for job in wrong for event in self._events_of(job)]
            self._write(events)
            self._corrected += len(wrong)

    def _records(self, ids: Sequence[str]) -> dict[str, tuple[int, int, str]]:
        rows = JobRecord.objects.using(self._writer.alias).filter(pk__in=ids)
        return {row[0]: row[1:] for row in rows.values_list("pk", "epoch", "seq", "status")}

    def _events_of(self, job: Sighting) -> Iterator[Event]:
        """What events would have said, as far as the hash tells; bodies are read from there."""
        at_ms = job.enqueued_ms
        if job.started_ms is not None:
            at_ms = job.started_ms
            if job.status != Status.PROCESSING and job.seq > 1:
                yield self._event(job, Status.PROCESSING, job.seq - 1, at_ms, {})
        more: dict[str, object] = {}
        if job.due_ms is not None and job.status in (Status.SCHEDULED, Status.RETRYING):
            more["dueMs"] = job.due_ms
        if job.reason:
            more["reason"] = job.reason
        if job.priority:
            more["priority"] = job.priority
        if job.generation:
            more["requeues"] = job.generation
        ended_ms = at_ms if job.finished_ms is None else job.finished_ms
        yield self._event(job, job.status, job.seq, ended_ms, more)

    def _event(
        self, job: Sighting, status: str, seq: int, at_ms: int, more: dict[str, object]
    ) -> Event:
        runs = job.status in (Status.PROCESSING, Status.COMPLETED)  # else the attempt is spent
        return Event(
            self._cursor.position, job.id, status, job.queue, job.task, job.child,
            job.attempts + runs, seq, at_ms, None, None, None, {**more, "reconciled": True},
        )  # fmt: skip

    def _write(self, events: Sequence[Event]) -> None:
        write_in_parts(events, self._writer, self._cursor)

    # -- what it does not know

    def _walk_records(self, status: Status) -> Iterator[None]:
        after: tuple[datetime, str] | None = None
        while rows := self._page(status, after):
            after = rows[-1].enqueued_at, rows[-1].id
            missing = self._missing(rows)
            if missing:
                self._read_on()
                yield
                self._lose(missing)
            yield

    def _page(self, status: Status, after: tuple[datetime, str] | None) -> list[Row]:
        rows = JobRecord.objects.using(self._writer.alias).filter(status=status)
        if after is not None:
            at, pk = after
            rows = rows.filter(Q(enqueued_at__gt=at) | Q(enqueued_at=at, pk__gt=pk))
        return _rows(rows.order_by("enqueued_at", "pk")[:PAGE])

    def _missing(self, rows: Sequence[Row]) -> list[Row]:
        known = self._census.knows([row.id for row in rows])
        return [row for row, is_known in zip(rows, known, strict=True) if not is_known]

    def _lose(self, suspects: Sequence[Row]) -> None:
        """Those that have not moved although everything has been read, and are still unknown."""
        again = JobRecord.objects.using(self._writer.alias).filter(
            pk__in=[row.id for row in suspects], status__in=OPEN
        )
        missing = self._missing([row for row in _rows(again) if row in suspects])
        stored = stored_among([row.id for row in missing])  # the relay sends those again
        missing = [row for row in missing if row.id not in stored]
        if not missing:
            return
        now_ms = self._reads.now_ms()
        lost = [self._loss(row, now_ms) for row in missing]
        self._write(lost)
        for event in lost:
            logger.error("job %s is lost: Redis does not know it any more", event.job_id)
        self._lost += len(lost)

    def _loss(self, row: Row, now_ms: int) -> Event:
        # Should the job be enqueued again (by an outbox), its first event must win over this one.
        seq = 0 if row.epoch < self._cursor.epoch else row.seq + 1
        return Event(
            self._cursor.position, row.id, Status.FAILED, row.queue, row.task, "", row.attempts,
            seq, now_ms, None, None, LOST, {"reason": JobReason.LOST},
        )  # fmt: skip

    def _read_on(self) -> None:
        self._tail = self._end()

    def _end(self) -> Position:
        return self._events.last() or START


def _rows(records: QuerySet[JobRecord]) -> list[Row]:
    return [Row(*values) for values in records.values_list(*Row._fields)]


def _is_audited(job: Sighting) -> bool:
    """As emit.lua has it."""
    if job.audit in ("", Audit.ALL):
        return True
    if job.audit == Audit.FINAL:
        return job.status in FINAL
    return job.audit == Audit.FAILED and job.status == Status.FAILED
