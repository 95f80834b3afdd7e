"""Sends Django's signals for committed events, behind a cursor of their own.

The receivers of one event run in one transaction, which also advances the cursor. The cursor moves
first, by compare-and-set, and its row stays locked. So whatever the receivers write in the mirror's
database, and the jobs that they enqueue (through the outbox of that transaction), take effect
exactly once, whenever a bridge is killed and however many bridges run.

A receiver can break this transaction: by a database error that it does not catch (on PostgreSQL
also by one that it catches), by asking for a rollback, or by violating a deferred constraint. Then
the transaction is rolled back, and the receivers of this one event are called again outside a
transaction, each on its own: at least once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from django.db import Error as DatabaseError
from django.db import InternalError, connections, router, transaction
from django.db.models import Model, QuerySet
from django.db.transaction import TransactionManagementError
from django.dispatch import Signal

from ..broker.base import slices
from ..client.enqueue import through_outbox
from ..conf import get_settings
from ..core.parsing import object_or_none
from ..models import JobEvent, JobRecord, MirrorState, WorkflowEvent, WorkflowRecord
from ..models.tables import rows_of_shard
from ..signals import JOB_SIGNALS, WORKFLOW_SIGNALS
from .sessions import close_unfit_connections
from .writer import Cursor, SqliteThrottle

logger = logging.getLogger("django_redisqueue")

EVENTS_PER_QUERY = 500
RECORDS_PER_QUERY = 20  # a record may hold a result of a megabyte
IDS_PER_QUERY = 10_000  # a range of ids, in which few events may have a receiver
SKIP_INTERVAL = 1.0  # s between two moves of the cursor while no receiver is connected
PASS_SECONDS = 0.2  # a pass ends after this time, so slow receivers delay signals, not the mirror
RECEIVER_TIMEOUT = 300.0  # s for the receivers of one event, until the watchdog kills the bridge
MAX_HOLD = 0.05  # s of SQLite's lock that the throttle counts: it does not wait for slow receivers

KeepAlive = Callable[[float], None]  # promises the watchdog the next call within that many seconds
Answers = Sequence[tuple[Any, Any]]  # of ``send_robust``: receiver, what it returned or raised


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSource:
    """A table of events, the records that they belong to, and the signal of each status."""

    label: str
    record: type[Model]
    event: type[Model]
    key: str  # the field of the event that holds the record's id
    cursor: str  # the field of MirrorState
    signals: Mapping[str, Signal]
    is_signalled: Callable[[Any], bool] = lambda event: True


def _is_transition(event: JobEvent) -> bool:
    """False for a progress report."""
    return '"progress"' not in event.detail or "progress" not in (
        object_or_none(event.detail) or {}
    )


JOB_SOURCE = SignalSource(
    label="job", record=JobRecord, event=JobEvent, key="job_id", cursor="signalled",
    signals={status.value: signal for status, signal in JOB_SIGNALS.items()},
    is_signalled=_is_transition,
)  # fmt: skip
WORKFLOW_SOURCE = SignalSource(
    label="workflow", record=WorkflowRecord, event=WorkflowEvent, key="workflow_id",
    cursor="flows_signalled",
    signals={step.value: signal for step, signal in WORKFLOW_SIGNALS.items()},
)  # fmt: skip


class SignalDelivery:
    """A commit hook: each call sends the signals of one source for a short time."""

    def __init__(
        self,
        source: SignalSource = JOB_SOURCE,
        shard: int = 0,
        *,
        keep_alive: KeepAlive = lambda seconds: None,
    ) -> None:
        self._source = source
        self._alias = router.db_for_write(JobRecord)
        self._shard = shard
        self._cursor = SignalCursor(source, self._alias, shard)
        self._sender = SignalSender(source, self._alias, self._cursor)
        self._keep_alive = keep_alive
        self._skip_at = 0.0

    def __call__(self, cursor: Cursor) -> bool:
        return self.run_once()

    def run_once(self, seconds: float | None = None) -> bool:
        """Send signals for at most ``seconds`` (0.2); True if more are due. Raises django.db.Error;
        the next call then continues with the same event."""
        statuses = [
            status
            for status, signal in self._source.signals.items()
            if signal.has_listeners(self._source.record)
        ]
        if not statuses:
            self._skip()
            return False
        end = time.monotonic() + (PASS_SECONDS if seconds is None else seconds)
        while True:
            more = self._send_page(statuses, end)
            if not more or time.monotonic() >= end:
                return more

    def _send_page(self, statuses: Sequence[str], end: float) -> bool:
        first, last, latest = self._range()
        if first > latest:
            return False
        events = self._events.filter(id__gte=first, id__lte=last, status__in=statuses)
        events = rows_of_shard(events, self._shard, self._source.key)
        page = list(events.order_by("id")[:EVENTS_PER_QUERY])
        sent = 0
        for event, record in self._with_records(page):
            self._keep_alive(RECEIVER_TIMEOUT)
            self._sender.send(event, record)
            sent = event.id
            if time.monotonic() >= end:
                return bool(sent < latest)
        seen = page[-1].id if len(page) == EVENTS_PER_QUERY else last
        if sent < seen:  # events without a receiver move the cursor once per page
            self._cursor.advance(seen)
        return seen < latest

    def _range(self) -> tuple[int, int, int]:
        """The first and the last id to process now, and the latest committed id."""
        done = self._cursor.read()
        latest = self._latest()
        first = done + 1
        if latest - done > IDS_PER_QUERY:  # retention may have deleted the ids in between
            later = self._events.filter(id__gt=done).order_by("id")
            first = later.values_list("id", flat=True).first() or latest
        return first, min(latest, first + IDS_PER_QUERY - 1), latest

    def _latest(self) -> int:
        """The latest id. All events of the shard up to it are committed.

        Bridges of other shards write at the same time as this one. So an event of this shard with a
        smaller id may appear later, if a suspended bridge that had this one's role is still in the
        transaction that wrote it; that transaction holds the lock of the shard's cursor.
        """
        newest = self._events.order_by("-id").values_list("id", flat=True)
        if get_settings().shards == 1:
            return newest.first() or 0
        with transaction.atomic(using=self._alias):
            self._cursor.wait_for_writer()
            return newest.first() or 0

    def _with_records(self, page: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """The events to signal with their records; few records are in memory at a time."""
        records = self._source.record._base_manager.using(self._alias)
        key = attrgetter(self._source.key)
        events = [event for event in page if self._source.is_signalled(event)]
        ids = {key(event) for event in events}
        existing = set(records.filter(pk__in=ids).values_list("pk", flat=True))
        events = [event for event in events if key(event) in existing]
        for some in slices(events, RECORDS_PER_QUERY):
            found = records.in_bulk({key(event) for event in some})
            yield from ((event, found[key(event)]) for event in some if key(event) in found)

    def _skip(self) -> None:
        """Without receivers, move the cursor to the end: a new receiver gets no earlier events."""
        now = time.monotonic()
        if now >= self._skip_at:
            self._skip_at = now + SKIP_INTERVAL
            self._cursor.advance(self._latest())

    @property
    def _events(self) -> QuerySet[Any]:
        return self._source.event._base_manager.using(self._alias)


class SignalSender:
    """Calls the receivers of one event, in one transaction with the cursor."""

    def __init__(self, source: SignalSource, alias: str, cursor: SignalCursor) -> None:
        self._source = source
        self._alias = alias
        self._cursor = cursor
        self._throttle = SqliteThrottle(alias)
        self._disconnected_at = 0  # the event whose transaction lost its connection

    def send(self, event: Any, record: Model) -> None:
        """Send the event's signal, unless another bridge has sent it. Raises django.db.Error if the
        database is unavailable: send it again later."""
        self._throttle.wait()
        close_unfit_connections(self._alias)  # of receivers that failed
        answers: Answers | None = None
        connection = connections[self._alias]
        try:
            with through_outbox(), transaction.atomic(using=self._alias, durable=True):
                if not self._cursor.advance(event.id):
                    return
                begun, driver_connection = time.monotonic(), connection.connection
                answers = self._call_receivers(event, record)
                self._check_transaction(event)
                self._isolate_hooks(event, record)
        except DatabaseError as error:
            if answers is None:
                raise  # no receiver was called
            # Django replaces a lost connection.
            is_lost = connection.connection is not driver_connection
            self._recover(event, record, answers, error, is_lost)
        else:
            self._log_errors(event, record, answers)
        self._throttle.record(min(time.monotonic() - begun, MAX_HOLD))

    def _call_receivers(self, event: Any, record: Model) -> Answers:
        signal = self._source.signals[event.status]
        try:
            return signal.send_robust(self._source.record, record=record, event=event)
        except Exception:  # Django fails to log the error of a receiver without a __qualname__
            #: A receiver of a signal raised an exception. It is not called again for this event.
            #: The traceback shows what to fix; redo what the receiver missed.
            logger.exception(
                "%s %s: a receiver of %s raised and has no __qualname__ (a partial?), so the "
                "receivers after it were not called; connect a function instead",
                self._source.label, record.pk, self._signal_name(event),
            )  # fmt: skip
            return ()

    def _check_transaction(self, event: Any) -> None:
        """Reading the cursor reveals every broken transaction: an error that PostgreSQL remembers,
        a rollback requested or done, a closed connection."""
        if self._cursor.read() != event.id:
            raise TransactionManagementError("a receiver ended the transaction")

    def _isolate_hooks(self, event: Any, record: Model) -> None:
        """Log the error of an on_commit hook, so that it neither ends the bridge nor prevents the
        other hooks from being called. (Django's ``robust`` fails for a hook without a name.)"""
        message = (
            f"{self._source.label} {record.pk}: an on_commit hook of a receiver of "
            f"{self._signal_name(event)}"
        )
        hooks: list[Any] = connections[self._alias].run_on_commit
        hooks[:] = [
            (savepoints, _isolated(hook, message), *rest) for savepoints, hook, *rest in hooks
        ]

    def _recover(
        self, event: Any, record: Model, answers: Answers, error: DatabaseError, is_lost: bool
    ) -> None:
        """After a failed transaction: call the receivers again, unless it committed after all."""
        if self._cursor.read() >= event.id:  # only the reply to COMMIT was lost
            self._log_errors(event, record, answers)
            return
        # A connection lost twice by the same event may be a receiver's own doing.
        if is_lost and self._disconnected_at != event.id:
            self._disconnected_at = event.id
            raise error
        self._log_broken_transaction(event, record, answers, error)
        self._log_errors(event, record, self._call_receivers(event, record))
        connections[self._alias].close_if_unusable_or_obsolete()
        self._cursor.advance(event.id)

    def _log_errors(self, event: Any, record: Model, answers: Answers) -> None:
        for receiver, answer in answers:
            if isinstance(answer, Exception):
                #: A receiver of a signal raised an exception. It is not called again for this
                #: event. The traceback shows what to fix; redo what the receiver missed.
                logger.error(
                    "%s %s: the receiver %s of %s raised %r",
                    self._source.label, record.pk, _name(receiver), self._signal_name(event),
                    answer, exc_info=answer,
                )  # fmt: skip

    def _log_broken_transaction(
        self, event: Any, record: Model, answers: Answers, error: DatabaseError
    ) -> None:
        #: A receiver of a signal broke the transaction that it shares with the others. Do what the
        #: line says in the receiver that it names.
        logger.error(
            "%s %s: the transaction of the receivers of %s was broken by %s (%r) and rolled back; "
            "they are called again, each on its own and outside a transaction. A receiver whose "
            "statements may fail, or that wants a rollback, must use transaction.atomic() and "
            "leave that block with an exception",
            self._source.label, record.pk, self._signal_name(event),
            " or ".join(map(_name, _suspects(answers))), error,
        )  # fmt: skip

    def _signal_name(self, event: Any) -> str:
        return f"{self._source.label}_{event.status}"


class SignalCursor:
    """The id of the last event whose signals were sent; it never decreases.

    Raw SQL, because Django takes longer to build these two statements than to run them.
    """

    def __init__(self, source: SignalSource, alias: str, shard: int) -> None:
        table, field = MirrorState._meta.db_table, source.cursor
        self._alias = alias
        self._shard = shard
        self._select = f"SELECT {field} FROM {table} WHERE shard = %s"
        self._update = f"UPDATE {table} SET {field} = %s WHERE shard = %s AND {field} < %s"

    def read(self) -> int:
        with connections[self._alias].cursor() as cursor:
            cursor.execute(self._select, [self._shard])
            row = cursor.fetchone()
        return int(row[0]) if row else 0

    def wait_for_writer(self) -> None:
        """Lock the shard's row until the end of the transaction, after any writing bridge."""
        if connections[self._alias].features.has_select_for_update:
            with connections[self._alias].cursor() as cursor:
                cursor.execute(f"{self._select} FOR UPDATE", [self._shard])

    def advance(self, to: int) -> bool:
        """False if it is already there: another bridge was faster."""
        with connections[self._alias].cursor() as cursor:
            cursor.execute(self._update, [to, self._shard, to])
            return bool(cursor.rowcount == 1)


def _suspects(answers: Answers) -> list[Any]:
    """The receivers that may have broken the transaction: the first one that raised a database
    error, or all before it if its error says that the transaction was already broken."""
    for index, (receiver, answer) in enumerate(answers):
        if isinstance(answer, TransactionManagementError | InternalError):
            return [receiver for receiver, _ in answers[:index]]
        if isinstance(answer, DatabaseError):
            return [receiver]
    return [receiver for receiver, _ in answers]


def _isolated(hook: Callable[[], object], message: str) -> Callable[[], None]:
    def call() -> None:
        try:
            hook()
        except Exception:
            #: A function that a receiver passed to transaction.on_commit raised an exception. The
            #: others were called. The traceback shows what to fix.
            logger.exception("%s raised: %s", message, _name(hook))

    return call


def _name(receiver: Any) -> str:
    return str(getattr(receiver, "__qualname__", receiver))
