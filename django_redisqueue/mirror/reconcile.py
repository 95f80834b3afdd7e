"""Brings the records in line with Redis after events were lost, one bounded step at a time.

For jobs, and then for workflows, a reconcile takes two passes at the end of the stream:

1. Over everything in Redis: whatever the mirror lacks, or has differently from an earlier epoch, is
   written as if an event had arrived.
2. Over the unfinished records: one that Redis does not have is ``lost``.

Before either is written, the bridge reads everything that was in the stream when the difference was
found, and the reconcile checks again, so that nothing that an event reports is written twice.

Nothing is enqueued, and nothing in Redis changes.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

from django.db import Error
from django.db.models import QuerySet

from ..broker.entries import START, Position
from ..broker.events import EventFault, JobStreamEvent, WorkflowCounts, WorkflowStreamEvent
from ..broker.queries import Queries
from ..broker.scan import SCAN_START, JobSnapshot, Scanner, ScanPage, WorkflowSnapshot
from ..core.clock import ms_of
from ..core.codec import dumps
from ..core.statuses import (
    FINAL,
    UNFINISHED,
    Audit,
    JobReason,
    Status,
    WorkflowStatus,
    WorkflowTransition,
)
from ..models import JobRecord, WorkflowRecord
from ..models.tables import rows_after, rows_of_shard
from ..outbox.rows import ids_with_rows
from .bulk_table import ms_or_none
from .changes import LOST
from .database_errors import CONTENT_ERRORS, UNCERTAIN_REFUSALS, ErrorCause, error_cause
from .writer import BatchTooLarge, Cursor, CursorMoved, MirrorWriter

logger = logging.getLogger("django_redisqueue")

RECORDS_PER_STEP = 100
LOST_ERROR = dumps(
    {
        "type": "JobLost",
        "message": "Redis no longer has this job: its data was lost, or restored from a time "
        "before the job. Whether the job ran is not known; enqueue it again if it is still wanted",
        "traceback": "",
    }
)


class Reconciler:
    """A commit hook. An interrupted reconcile starts again, which changes nothing twice. One that
    lost its connection also starts again, because a SCAN cursor means nothing to another server."""

    def __init__(self, writer: MirrorWriter) -> None:
        self._writer = writer
        self._events = events = writer.events
        self._queries = Queries(events.connection, events.settings)
        self._scanner = Scanner(events.connection, events.settings)
        self._done_epoch = -1
        self._begun_with: tuple[int, object] | None = None  # the epoch and the socket
        self._steps: Iterator[bool] | None = None
        self._parts: Sequence[RecordReconciler[Any, Any]] = ()
        self._read_until: Position = START  # the bridge must get here before the next step

    def __call__(self, cursor: Cursor) -> bool:
        """Take a step, if one is due; True if there is more to do."""
        if cursor.epoch == self._done_epoch:
            return False
        begun_with = cursor.epoch, self._events.connection.connect()
        if begun_with != self._begun_with:
            self._begun_with, self._steps = begun_with, None
        if self._steps is None:
            if not self._writer.states.filter(unreconciled=True).exists():
                self._done_epoch = cursor.epoch
                return False
            self._begin()
        if cursor.position < self._read_until:
            return True
        return self._step(cursor)

    def is_due(self, cursor: Cursor) -> bool:
        """Whether records may lack what Redis has, as far as is known."""
        return cursor.epoch != self._done_epoch

    def _begin(self) -> None:
        age_ms = self._events.settings.audit_retention_ms
        since_ms = self._queries.now_ms() - age_ms if age_ms else 0
        scanner, common = self._scanner, (self._queries, self._writer, since_ms)
        self._parts = (
            JobReconciler(scanner.page, scanner.knows, *common),
            WorkflowReconciler(scanner.workflow_page, scanner.knows_workflows, *common),
        )
        _, self._read_until = self._events.ends()
        self._steps = (step for part in self._parts for step in part.steps())

    def _step(self, cursor: Cursor) -> bool:
        assert self._steps is not None
        for part in self._parts:
            part.cursor = cursor
        try:
            if next(self._steps):
                _, self._read_until = self._events.ends()
        except StopIteration:
            self._finish(cursor)
            return False
        except CursorMoved:
            self._steps = None
        except BaseException:
            self._steps = None
            raise
        return True

    def _finish(self, cursor: Cursor) -> None:
        self._steps = None
        self._events.wait_for_replicas()
        self._writer.states.filter(epoch=cursor.epoch).update(unreconciled=False)
        corrected = sum(part.corrected for part in self._parts)
        jobs_lost, workflows_lost = (part.lost for part in self._parts)
        #: The records equal Redis again, after a gap or after Redis went back in time. If jobs were
        #: lost, enqueue them again; otherwise no action is needed. The level is INFO if nothing was
        #: wrong.
        logger.log(
            logging.WARNING if corrected or jobs_lost or workflows_lost else logging.INFO,
            "mirror: reconciled with Redis: %d records brought up to date, %d jobs lost, "
            "%d workflows lost", corrected, jobs_lost, workflows_lost,
        )  # fmt: skip


Snapshot = TypeVar("Snapshot", JobSnapshot, WorkflowSnapshot)
Record = TypeVar("Record", JobRecord, WorkflowRecord)


class RecordReconciler(ABC, Generic[Snapshot, Record]):
    """Both passes, for jobs or for workflows; ``cursor`` is the bridge's current one.

    ``scan`` takes one step of a SCAN over Redis, and ``has`` tells which ids Redis has. Anything
    that ended before ``since_ms`` no longer has a record, although Redis may still have it.
    """

    label: str
    model: type[Record]
    event_id: str  # the field of an event that holds the record's id
    unfinished: Sequence[str]  # statuses
    begun: str  # the field by which records of a status are walked
    order: Callable[[Any], tuple[int, ...]]  # of a record's last event
    unread: Sequence[str] = ()  # large fields that are not needed

    def __init__(
        self,
        scan: Callable[[str], ScanPage[Snapshot]],
        has: Callable[[Sequence[str]], list[bool]],
        queries: Queries,
        writer: MirrorWriter,
        since_ms: int,
    ) -> None:
        self.scan: Callable[[str], ScanPage[Snapshot]] = scan
        self.has = has
        self.writer = writer
        self.since_ms = since_ms
        rows = rows_of_shard(self.model._default_manager.using(writer.alias), writer.shard)
        self.records: QuerySet[Record] = rows.defer(*self.unread)
        self.known: Mapping[str, Record] = {}  # for what was found last
        self.cursor = Cursor()
        self.corrected = self.lost = 0
        self._queries = queries

    def steps(self) -> Iterator[bool]:
        """Yields True if the bridge must read to the end of the stream before the next step."""
        at = SCAN_START
        while True:
            page = self.scan(at)
            self._report(page.problems)
            outdated = self.outdated(page.found)
            if outdated:
                yield True
                outdated = self.outdated(outdated)
                self._write([event for snapshot in outdated for event in self.events_of(snapshot)])
                self.corrected += len(outdated)
            yield False
            at = page.following
            if at == SCAN_START:
                break
        for records in self.unfinished_pages():
            missing = self._missing(records)
            if missing:
                yield True
                self._lose(self._missing(self._unchanged(missing)))
            yield False

    def outdated(self, found: Sequence[Snapshot]) -> list[Snapshot]:
        """The snapshots whose records are missing, or differ and are from an earlier epoch: a
        record of this epoch follows the events."""
        wanted = [each for each in found if self.has_record(each)]
        self.known = self.records.in_bulk([each.id for each in wanted])
        return [each for each in wanted if not self._is_current(self.known.get(each.id), each)]

    def _is_current(self, record: Record | None, snapshot: Snapshot) -> bool:
        if record is None:
            return False
        return record.epoch >= self.cursor.epoch or self.agrees(record, snapshot)

    def is_kept(self, ended_ms: int | None) -> bool:
        """Whether retention keeps a record that ended then, or has not ended (None)."""
        return ended_ms is None or ended_ms >= self.since_ms

    def unfinished_pages(self) -> Iterator[list[Record]]:
        """All unfinished records, a page at a time, in the order of an index."""
        for status in self.unfinished:
            rows = self.records.filter(status=status).order_by(self.begun, "pk")
            page = list(rows[:RECORDS_PER_STEP])
            while page:
                yield page
                following = rows_after(self.begun, getattr(page[-1], self.begun), page[-1].pk)
                page = list(rows.filter(following)[:RECORDS_PER_STEP])

    def _unchanged(self, records: Sequence[Record]) -> list[Record]:
        """The records among these that no event has changed in the meantime."""
        orders = {record.pk: self.order(record) for record in records}
        rows = self.records.filter(pk__in=orders)
        return [row for row in rows if self.order(row) == orders[row.pk]]

    def _missing(self, records: Sequence[Record]) -> list[Record]:
        known = self.has([record.id for record in records])
        return [record for record, is_known in zip(records, known, strict=True) if not is_known]

    def _lose(self, records: Sequence[Record]) -> None:
        in_outbox = ids_with_rows([record.id for record in records])  # the relay sends those again
        lost = [record for record in records if record.id not in in_outbox]
        if not lost:
            return
        now_ms = self._queries.now_ms()
        self._write([self.loss(record, now_ms) for record in lost])
        for record in lost:
            #: Redis lost an unfinished job or workflow, for example in a crash without appendfsync
            #: always. Its record has the arguments: enqueue it again if it is still wanted.
            logger.error("%s %s is lost: Redis no longer has it", self.label, record.id)
        self.lost += len(lost)

    def _write(self, events: Sequence[Any], refusals: int = 1) -> None:
        """Write events without moving the cursor, and leave out those that the database refuses.
        Raises CursorMoved, RedisQueueError or django.db.Error. The next refusal of a single event
        is number ``refusals``."""
        if not events:
            return
        try:
            self.write(events)
            return
        except BatchTooLarge as error:
            middle = error.fits
        except (*CONTENT_ERRORS, Error) as error:
            cause = error_cause(error, self.writer.alias)
            is_uncertain = cause is ErrorCause.UNCERTAIN
            if cause is ErrorCause.DATABASE or (
                is_uncertain and not self.writer.is_writable(self.cursor)
            ):
                raise
            if len(events) == 1:
                if is_uncertain and refusals < UNCERTAIN_REFUSALS:
                    self._write(events, refusals + 1)
                    return
                name = f"{self.label} {getattr(events[0], self.event_id)}"
                self._report([f"{name} cannot be reconciled: the database refuses it: {error!r}"])
                return
            middle = len(events) // 2
        self._write(events[:middle])
        self._write(events[middle:])

    def _report(self, problems: Sequence[str]) -> None:
        for problem in problems:
            #: A key of a job or workflow, or its row, could not be read or written while records
            #: were compared with Redis. The text names it; the others are not affected.
            logger.error("mirror: %s", problem)
        self.writer.count_faults([EventFault(self.cursor.position, each) for each in problems])

    @abstractmethod
    def has_record(self, snapshot: Snapshot) -> bool:
        """Whether this snapshot should have a record."""

    @abstractmethod
    def agrees(self, record: Record, snapshot: Snapshot) -> bool:
        """Whether the record agrees with the snapshot."""

    @abstractmethod
    def events_of(self, snapshot: Snapshot) -> Iterable[Any]:
        """The events that would have led to this state."""

    @abstractmethod
    def loss(self, record: Record, now_ms: int) -> Any:
        """The event that marks this record as lost."""

    @abstractmethod
    def write(self, events: Sequence[Any]) -> None:
        """Write these events without moving the cursor."""


class JobReconciler(RecordReconciler[JobSnapshot, JobRecord]):
    label, model, event_id = "job", JobRecord, "job_id"
    unfinished = [status for status in Status if status in UNFINISHED]
    begun = "enqueued_at"
    order = attrgetter("epoch", "seq")
    unread = ("payload", "result", "error", "progress", "tags")

    def has_record(self, job: JobSnapshot) -> bool:
        return _is_audited(job) and self.is_kept(job.finished_ms)

    def agrees(self, record: JobRecord, job: JobSnapshot) -> bool:
        """After a failover, a job may have ended once more, with an event of the same number."""
        finished_ms = job.finished_ms if job.status in FINAL else None
        return (record.seq, record.status, record.reason, ms_or_none(record.finished_at)) == (
            job.seq, job.status, job.reason, finished_ms
        )  # fmt: skip

    def events_of(self, job: JobSnapshot) -> Iterator[JobStreamEvent]:
        """From the fields of the hash, where the writer reads arguments, result and error."""
        at_ms = job.enqueued_ms
        if job.started_ms is not None:
            at_ms = job.started_ms
            has_run = job.status != Status.PROCESSING and job.seq > 1
            if has_run and not _is_start(self.known.get(job.id), at_ms):
                yield self._event(job, Status.PROCESSING, job.seq - 1, at_ms, {})
        is_due = job.status in (Status.SCHEDULED, Status.RETRYING)
        found = {
            "dueMs": job.due_ms if is_due else None, "reason": job.reason,
            "priority": job.priority, "requeues": job.generation,
        }  # fmt: skip
        more: dict[str, object] = {name: value for name, value in found.items() if value}
        ended_ms = at_ms if job.finished_ms is None else job.finished_ms
        yield self._event(job, job.status, job.seq, ended_ms, more)

    def _event(
        self, job: JobSnapshot, status: str, seq: int, at_ms: int, more: dict[str, object]
    ) -> JobStreamEvent:
        # The hash counts spent attempts; a running or completed one is not spent.
        attempt = job.attempts + (job.status in (Status.PROCESSING, Status.COMPLETED))
        return JobStreamEvent(
            self.cursor.position, job.id, status, job.queue, job.task, job.child, attempt, seq,
            at_ms, None, None, None, {**more, "reconciled": True},
        )  # fmt: skip

    def loss(self, record: JobRecord, now_ms: int) -> JobStreamEvent:
        # If an outbox enqueues the job again, its first event must win over this one.
        seq = 0 if record.epoch < self.cursor.epoch else record.seq + 1
        more: dict[str, object] = {"reason": JobReason.LOST}
        if record.due_at is not None:  # by which whoever enqueues the job again runs it later
            more["dueMs"] = ms_of(record.due_at)
        return JobStreamEvent(
            self.cursor.position, record.id, Status.FAILED, record.queue, record.task, "",
            record.attempts, seq, now_ms, None, None, LOST_ERROR, more,
        )  # fmt: skip

    def write(self, events: Sequence[JobStreamEvent]) -> None:
        self.writer.write(events, self.cursor, self.cursor.position)


def _is_start(record: JobRecord | None, at_ms: int) -> bool:
    """Whether the mirror has the start of the attempt that began then, but not its end."""
    if record is None or record.status != Status.PROCESSING:
        return False
    return ms_or_none(record.started_at) == at_ms


def _is_audited(job: JobSnapshot) -> bool:
    """Whether this job's last event reached the stream; emit.lua decides the same."""
    if job.audit in ("", Audit.ALL):
        return True
    if job.audit == Audit.FINAL:
        return job.status in FINAL
    return job.audit == Audit.FAILED and job.status == Status.FAILED


class WorkflowReconciler(RecordReconciler[WorkflowSnapshot, WorkflowRecord]):
    label, model, event_id = "workflow", WorkflowRecord, "workflow_id"
    unfinished = [status.value for status in WorkflowStatus if not status.is_final]
    begun = "made_at"
    order = attrgetter("epoch", "entry_ms", "entry_no")

    def has_record(self, workflow: WorkflowSnapshot) -> bool:
        return workflow.status != WorkflowStatus.BUILDING and self.is_kept(workflow.ended_ms)

    def agrees(self, record: WorkflowRecord, workflow: WorkflowSnapshot) -> bool:
        counts = _counts(record)
        return (
            (record.status, record.is_paused, counts.generation)
            == (workflow.status, workflow.is_paused, workflow.counts.generation)
            # An unfinished workflow counts its ended jobs only in Redis.
            and (not workflow.status.is_final or counts.ended == workflow.counts.ended)
        )

    def events_of(self, workflow: WorkflowSnapshot) -> list[WorkflowStreamEvent]:
        """The last event, which holds the whole state."""
        ended_ms = workflow.made_ms if workflow.ended_ms is None else workflow.ended_ms
        step = WorkflowTransition(workflow.status)
        return [
            WorkflowStreamEvent(
                self.cursor.position, workflow.id, step, ended_ms, workflow.made_ms,
                workflow.name, workflow.counts, workflow.is_paused, "reconciled",
            )
        ]  # fmt: skip

    def loss(self, record: WorkflowRecord, now_ms: int) -> WorkflowStreamEvent:
        return WorkflowStreamEvent(
            self.cursor.position, record.id, WorkflowTransition.FAILED, now_ms,
            ms_of(record.made_at), record.name, _counts(record), False, LOST,
        )  # fmt: skip

    def write(self, events: Sequence[WorkflowStreamEvent]) -> None:
        self.writer.write([], self.cursor, self.cursor.position, events)


def _counts(record: WorkflowRecord) -> WorkflowCounts:
    return WorkflowCounts(*(getattr(record, name) for name in WorkflowCounts._fields))
