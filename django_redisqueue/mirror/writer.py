"""Writes one page of events: rows and cursor in one transaction, or nothing. On SQLite, which
allows one writer at a time, transactions leave room for those of other connections."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from django.db import Error, connections, router, transaction
from django.db.models import F, Model, QuerySet

from ..broker.connection import RedisConnection
from ..broker.entries import START, Position, format_position, parse_position
from ..broker.events import EventFault, EventStream, JobStreamEvent, WorkflowStreamEvent
from ..conf import Settings
from ..core.codec import dumps, loads
from ..core.parsing import storable
from ..models import (
    ErrorGroup,
    JobEvent,
    JobRecord,
    MirrorState,
    Rollup,
    WorkflowEvent,
    WorkflowRecord,
)
from .aggregates import ErrorBatch, RollupBatch
from .bulk_table import BulkTable, InstantAdapter, Values, instant_adapter, ms_or_none
from .changes import (
    JobChange,
    KnownJob,
    KnownWorkflow,
    WorkflowChange,
    collapse_jobs,
    collapse_workflows,
)

logger = logging.getLogger("django_redisqueue")

MAX_BODY_BYTES = 8_000_000  # of arguments, results and errors that a page reads from jobs' hashes

Shape = tuple[bool, tuple[str, ...]]  # insert (or update), and the columns
PAUSE_FACTOR = 4  # times the length of the last transaction
OTHERS_ACTIVE = 5.0  # s for which a commit by another connection counts


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last mirrored event, and the epoch."""

    position: Position = START
    epoch: int = 0


class CursorMoved(Exception):
    """Another bridge has moved the cursor. Nothing was written: read the cursor again."""


class BatchTooLarge(Exception):
    """The events would read more than MAX_BODY_BYTES from jobs' hashes. Nothing was written: write
    only the first ``fits`` events."""

    def __init__(self, fits: int) -> None:
        super().__init__(fits)
        self.fits = fits


class MirrorWriter:
    """Writes the events of one shard into the alias that ``db_for_write`` names for JobRecord."""

    def __init__(self, connection: RedisConnection, settings: Settings | None = None) -> None:
        self.shard = connection.shard
        self.events = events = EventStream(connection, settings)
        self.alias = router.db_for_write(JobRecord)
        self._jobs = JobWriter(self.alias, events)
        self._workflows = WorkflowWriter(self.alias)
        self._rollups = BulkTable(Rollup, self.alias)
        self._errors = BulkTable(ErrorGroup, self.alias)
        self._known_errors: set[str] = set()
        self._throttle = SqliteThrottle(self.alias)

    def cursor(self) -> Cursor:
        """The cursor in the database; creates its row."""
        state, _ = MirrorState.objects.using(self.alias).get_or_create(shard=self.shard)
        return Cursor(parse_position(state.position), state.epoch)

    def write(
        self,
        jobs: Sequence[JobStreamEvent],
        at: Cursor,
        to: Position,
        workflows: Sequence[WorkflowStreamEvent] = (),
        faults: Sequence[EventFault] = (),
    ) -> Cursor:
        """Write these events, count their ``faults``, and move the cursor from ``at`` to ``to``.

        Raises CursorMoved, BatchTooLarge and NotReplicated. Known records are read before the
        transaction, to keep it short: another bridge that writes in between moves the cursor. A
        reconcile does not move it, and therefore compares the known records again.
        """
        is_reconcile = to == at.position
        rollups, errors = RollupBatch(), ErrorBatch(self._errors, self._known_errors)
        instants = instant_adapter(self.alias)
        job_rows, body_faults = self._jobs.prepare(jobs, at.epoch, instants, rollups, errors)
        workflow_rows = self._workflows.prepare(workflows, at.epoch, instants)
        self.events.wait_for_replicas()
        self._throttle.wait()
        with transaction.atomic(self.alias):
            if not self._move(at, to):
                raise CursorMoved
            begun = time.monotonic()
            self._jobs.write(job_rows, recheck=is_reconcile)
            rollups.write(self._rollups)
            errors.write(instants)
            self._workflows.write(workflow_rows, recheck=is_reconcile)
            self.count_faults([*faults, *body_faults])
        self._throttle.record(time.monotonic() - begun)
        for fault in body_faults:
            #: The arguments, result or error of a job could not be read from Redis, so its record
            #: lacks them. Another program has changed the job's key.
            logger.error("mirror: %s", fault.problem)
        return replace(at, position=to)

    @property
    def states(self) -> QuerySet[MirrorState]:
        """The shard's row, as a queryset."""
        return MirrorState.objects.using(self.alias).filter(shard=self.shard)

    def _move(self, at: Cursor, to: Position) -> bool:
        """Must come first in the transaction: it locks out other bridges, which then fail here."""
        here = self.states.filter(position=format_position(at.position), epoch=at.epoch)
        now = datetime.now(UTC)
        return here.update(position=format_position(to), problem="", updated_at=now) == 1

    def count_faults(self, faults: Sequence[EventFault]) -> None:
        """Count the events that the tables lack or show incompletely, and keep the last problem."""
        if not faults:
            return
        last, left_out = faults[-1], sum(fault.is_left_out for fault in faults)
        self.states.update(
            left_out=F("left_out") + left_out,
            incomplete=F("incomplete") + len(faults) - left_out,
            fault=storable(f"{format_position(last.position)}: {last.problem}"),
            fault_at=datetime.now(UTC),
        )

    def is_writable(self, at: Cursor) -> bool:
        """Whether the database takes an ordinary write on a new connection."""
        connections[self.alias].close()
        try:
            with transaction.atomic(self.alias):
                self._move(at, at.position)
        except Error:
            return False
        return True


@dataclass(slots=True)
class PreparedRows:
    """What a transaction writes for one kind of record."""

    known: Mapping[str, Any] = field(default_factory=dict)  # the records before, by id
    ids: Sequence[str] = ()
    records: dict[Shape, list[Values]] = field(default_factory=lambda: defaultdict(list))
    history: Sequence[Values] = ()


class RecordWriter:
    """The records and the history of jobs, or of workflows: ``prepare`` before the transaction,
    ``write`` inside it."""

    record: type[Model]
    event: type[Model]
    event_columns: tuple[str, ...]

    def __init__(self, alias: str) -> None:
        self._records = BulkTable(self.record, alias)
        self._history = BulkTable(self.event, alias)

    def write(self, rows: PreparedRows, *, recheck: bool) -> None:
        """Raises CursorMoved if, with ``recheck``, the records have changed."""
        if recheck and self.known(rows.ids) != rows.known:
            raise CursorMoved
        for (is_new, columns), values in rows.records.items():
            (self._records.insert if is_new else self._records.update)(columns, values)
        self._history.insert(self.event_columns, rows.history)

    def known(self, ids: Sequence[str]) -> Mapping[str, Any]:
        raise NotImplementedError


class JobWriter(RecordWriter):
    record, event = JobRecord, JobEvent
    event_columns = (
        "job_id", "status", "queue", "task", "worker", "attempt", "epoch", "seq", "at", "detail",
        "entry_ms", "entry_no",
    )  # fmt: skip

    def __init__(self, alias: str, events: EventStream) -> None:
        super().__init__(alias)
        self._events = events

    def prepare(
        self,
        events: Sequence[JobStreamEvent],
        epoch: int,
        instants: InstantAdapter,
        rollups: RollupBatch,
        errors: ErrorBatch,
    ) -> tuple[PreparedRows, list[EventFault]]:
        """The rows, and the faults found in the jobs' hashes."""
        rows = PreparedRows()
        if not events:
            return rows, []
        rows.ids = list({event.job_id for event in events})
        rows.known = self.known(rows.ids)
        changes = collapse_jobs(events, rows.known, epoch, rollups.sums)
        faults = self._fill(changes, events)
        errors.add(changes)
        for job_id, change in changes.items():
            columns, values = _record_values(job_id, change, instants)
            rows.records[change.is_new, columns].append(values)
        rows.history = [_job_event_values(event, epoch, instants) for event in events]
        return rows, faults

    def known(self, ids: Sequence[str]) -> dict[str, KnownJob]:
        rows = self._records.select(ids).values_list(
            "pk", "epoch", "seq", "status", "queued_at", "started_at"
        )
        return {
            pk: KnownJob(epoch, seq, status, ms_or_none(queued), ms_or_none(started))
            for pk, epoch, seq, status, queued, started in rows
        }

    def _fill(
        self, changes: Mapping[str, JobChange], events: Sequence[JobStreamEvent]
    ) -> list[EventFault]:
        """Read from the jobs' hashes what the events lack."""
        ids = [job_id for job_id, change in changes.items() if change.needs_body]
        fits = self._count_fitting(ids)
        if fits < len(ids):
            first = next(at for at, event in enumerate(events) if event.job_id == ids[fits])
            raise BatchTooLarge(max(1, first))  # at 0 is an event that changes nothing
        faults = []
        for job_id, body in zip(ids, self._events.bodies(ids), strict=True):
            changes[job_id].fill(body)
            if body.faults:
                problem = f"in the hash of job {job_id}, {'; '.join(body.faults)}"
                faults.append(EventFault(changes[job_id].event.position, problem))
        return faults

    def _count_fitting(self, ids: Sequence[str]) -> int:
        """How many of these jobs' bodies fit into one page. Asking for sizes costs a round trip, so
        it is skipped if even the largest bodies would fit."""
        if len(ids) * self._events.largest_body <= MAX_BODY_BYTES:
            return len(ids)
        left = MAX_BODY_BYTES
        for at, size in enumerate(self._events.sizes(ids)):
            left -= size
            if left < 0 < at:
                return at
        return len(ids)


JOB_INSTANTS = frozenset({"enqueued_at", "queued_at", "due_at", "started_at", "finished_at"})
JOB_DETAILS = ("reason", "dueMs", "progress", "recoveries", "requeues", "priority", "reconciled")
_JOB_DEFAULTS = {field.name: field.get_default() for field in JobRecord._meta.concrete_fields}
_JOB_COLUMNS = tuple(_JOB_DEFAULTS)


def _record_values(
    job_id: str, change: JobChange, instants: InstantAdapter
) -> tuple[tuple[str, ...], Values]:
    """Columns and values: all of them for a new record, only the changed ones otherwise."""
    fields = change.fields
    fields["epoch"], fields["seq"] = change.order
    for name in fields.keys() & JOB_INSTANTS:
        fields[name] = instants(fields[name])
    if change.is_new:
        return _JOB_COLUMNS, [*{**_JOB_DEFAULTS, **fields, "id": job_id}.values()]
    return tuple(fields), [*fields.values(), job_id]


def _job_event_values(event: JobStreamEvent, epoch: int, instants: InstantAdapter) -> Values:
    return (
        event.job_id, event.status, event.queue, event.task, event.worker, event.attempt, epoch,
        event.seq, instants(event.at_ms), _detail(event), *event.position,
    )  # fmt: skip


def _detail(event: JobStreamEvent) -> str:
    """JSON of everything that the other columns do not hold, or ''."""
    more, error = event.more, event.error
    if not more and error is None:
        return ""
    found = {name: more[name] for name in JOB_DETAILS if name in more}
    if error is not None:
        found["error"] = error
        with suppress(ValueError):  # another program wrote it: it is shown as it is
            found["error"] = loads(error)
    return storable(dumps(found))


class WorkflowWriter(RecordWriter):
    record, event = WorkflowRecord, WorkflowEvent
    record_columns = (
        "name", "status", "is_paused", "reason", "generation", "total", "completed", "failed",
        "cancelled", "made_at", "ended_at", "cleaned_at", "epoch", "entry_ms", "entry_no",
    )  # fmt: skip
    event_columns = (
        "workflow_id", "status", "reason", "generation", "total", "completed", "failed",
        "cancelled", "epoch", "at", "entry_ms", "entry_no",
    )  # fmt: skip

    def prepare(
        self, events: Sequence[WorkflowStreamEvent], epoch: int, instants: InstantAdapter
    ) -> PreparedRows:
        rows = PreparedRows()
        if not events:
            return rows
        rows.ids = list({event.workflow_id for event in events})
        rows.known = self.known(rows.ids)
        for workflow_id, change in collapse_workflows(events, rows.known, epoch).items():
            columns = (*self.record_columns, "id") if change.is_new else self.record_columns
            values = (*_workflow_values(change, instants), workflow_id)
            rows.records[change.is_new, columns].append(values)
        rows.history = [_workflow_event_values(event, epoch, instants) for event in events]
        return rows

    def known(self, ids: Sequence[str]) -> dict[str, KnownWorkflow]:
        rows = self._records.select(ids).values_list(
            "pk", "epoch", "entry_ms", "entry_no", "status", "reason", "ended_at", "cleaned_at"
        )
        return {
            pk: KnownWorkflow(
                (epoch, ms, number), status, reason, ms_or_none(ended), ms_or_none(cleaned)
            )
            for pk, epoch, ms, number, status, reason, ended, cleaned in rows
        }


def _workflow_values(change: WorkflowChange, instants: InstantAdapter) -> Values:
    event = change.event
    return (
        event.name, change.status, event.is_paused, change.reason, *event.counts,
        instants(event.made_ms), instants(change.ended_ms),
        instants(change.cleaned_ms), *change.order,
    )  # fmt: skip


def _workflow_event_values(
    event: WorkflowStreamEvent, epoch: int, instants: InstantAdapter
) -> Values:
    return (
        event.workflow_id, event.step.value, event.reason, *event.counts, epoch,
        instants(event.at_ms), *event.position,
    )  # fmt: skip


class SqliteThrottle:
    """Call ``wait`` before a transaction and ``record`` after it. Other databases never wait.

    While another connection writes, the bridge holds the write lock for at most a fifth of the
    time. ``PRAGMA data_version`` changes with every commit by another connection; while it does not
    change, the bridge runs at full speed.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._is_sqlite = connections[alias].vendor == "sqlite"
        self._version: int | None = None
        self._others_until = 0.0
        self._next_at = 0.0

    def wait(self) -> None:
        if self._is_sqlite and self._others_write():
            time.sleep(max(0.0, self._next_at - time.monotonic()))

    def record(self, seconds: float) -> None:
        """Note that a transaction has just held the lock for ``seconds``."""
        self._next_at = time.monotonic() + PAUSE_FACTOR * seconds

    def _others_write(self) -> bool:
        with connections[self._alias].cursor() as cursor:
            cursor.execute("PRAGMA data_version")
            version = cursor.fetchone()[0]
        now = time.monotonic()
        if self._version is not None and version != self._version:
            self._others_until = now + OTHERS_ACTIVE
        self._version = version
        return now < self._others_until
