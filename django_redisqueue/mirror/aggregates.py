"""Aggregates over a page of events: sums in the rollup rows, and failed attempts in the rows of
their error groups."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from django.db import IntegrityError

from ..broker.events import JobStreamEvent
from ..core.clock import instant, ms_of
from ..core.errors import ErrorKey, error_key
from ..core.statuses import Status
from ..metrics.histograms import COLUMNS, HOUR_MS, Sums, add_hours, add_to_row
from ..models import ErrorGroup, Rollup
from .bulk_table import BulkTable, InstantAdapter
from .changes import UNSET, JobChange

MINUTE_MS = 60_000
MAX_GROUPS = 10_000  # beyond these, a task's errors count in one group
MAX_QUEUES = 20  # names that a group keeps
ERROR_COLUMNS = ("queues", "count", "failed", "job_id", "hours", "error", "first_seen", "last_seen")

RollupKey = tuple[int, str, str]  # minute, queue, task


class RollupBatch:
    """The sums of a page, by minute, queue and task."""

    def __init__(self) -> None:
        self._sums: defaultdict[RollupKey, Sums] = defaultdict(Sums)

    def sums(self, at_ms: int, queue: str, task: str) -> Sums:
        """The sums for this time's minute, to be added to."""
        return self._sums[at_ms // MINUTE_MS, queue, task]

    def write(self, table: BulkTable) -> None:
        """Add the sums to existing rows and insert the others, inside a transaction.

        Rows are locked, where the database supports it, because ``compact`` may be merging them.
        Another shard's bridge may insert the same row in the meantime. All bridges insert in the
        same order, so that two never wait for each other.
        """
        try:
            self._write(table)
        except IntegrityError:
            self._write(table)

    def _write(self, table: BulkTable) -> None:
        if not self._sums:
            return
        # Exactly these minutes: one event from a wrong clock must not read all rows in between. And
        # no other queues and tasks, of which a minute may have thousands.
        rows = Rollup.objects.using(table.alias).filter(
            minute__in=set(map(_minute, self._sums)),
            queue__in={queue for _, queue, _ in self._sums},
            task__in={task for *_, task in self._sums},
        )
        known = {
            (int(row.minute.timestamp()) // 60, row.queue, row.task): row
            for row in rows.select_for_update().order_by("pk")
        }
        new, changed = [], []
        for key, sums in sorted(self._sums.items()):
            row = known.get(key)
            if row is None:
                row = Rollup(minute=_minute(key), queue=key[1], task=key[2])
                new.append(row)
            else:
                changed.append(row)
            add_to_row(row, sums)
        table.create(new)
        table.update(COLUMNS, list(map(attrgetter(*COLUMNS, "pk"), changed)))


def _minute(key: RollupKey) -> datetime:
    return datetime.fromtimestamp(key[0] * 60, UTC)


Failure = tuple[JobStreamEvent, str]  # of an attempt, and its error as JSON


class ErrorBatch:
    """The failed attempts of a page, by group. ``known``: ids of groups that have rows, kept from
    one page to the next."""

    def __init__(self, table: BulkTable, known: set[str]) -> None:
        self._table = table
        self._known = known
        self._groups: dict[str, tuple[ErrorKey, list[Failure]]] = {}

    def add(self, changes: Mapping[str, JobChange]) -> None:
        """Count the failed attempts, and set the groups of the records."""
        found = [
            (change, event, error, error_key(event.task, error))
            for change in changes.values()
            if change.failures
            for event, error in change.errors()
        ]
        places = self._places({key for *_, key in found})
        for change, event, error, key in found:
            place = places[key]
            group = place.fingerprint
            self._groups.setdefault(group, (place, []))[1].append((event, error))
            if change.fields.get("error_group") == UNSET:  # the last attempt comes first
                change.fields["error_group"] = group

    def _places(self, keys: set[ErrorKey]) -> dict[ErrorKey, ErrorKey]:
        """Where errors with these keys count: in the group of their task's other errors, if they
        would need new groups and there are too many."""
        places = {key: key for key in keys}
        new = {pk: key for key in keys if (pk := key.fingerprint) not in self._known}
        if new:
            for pk in self._table.select(sorted(new)).values_list("pk", flat=True):
                del new[pk]
        if new:
            room = max(0, MAX_GROUPS - ErrorGroup.objects.using(self._table.alias).count())
            places.update((new[pk], ErrorKey(new[pk].task)) for pk in sorted(new)[room:])
        return places

    def write(self, instants: InstantAdapter) -> None:
        """Add to existing rows and insert the others, inside a transaction. Another shard's bridge
        may insert the same row in the meantime."""
        if not self._groups:
            return
        try:
            self._write(instants)
        except IntegrityError:
            self._write(instants)
        if len(self._known) > 2 * MAX_GROUPS:
            self._known.clear()
        self._known.update(self._groups)

    def _write(self, instants: InstantAdapter) -> None:
        # In the order of their keys, so that two bridges never wait for each other
        pks = sorted(self._groups)
        found = self._table.select(pks).select_for_update().order_by("pk")
        rows = {row.pk: row for row in found}
        new = [_new_group(pk, *self._groups[pk]) for pk in pks if pk not in rows]
        self._table.create(new)
        for pk, row in rows.items():
            _add_to_group(row, self._groups[pk][1])
        self._table.update(ERROR_COLUMNS, [_group_values(row, instants) for row in rows.values()])


def _new_group(pk: str, key: ErrorKey, failures: Sequence[Failure]) -> ErrorGroup:
    at = instant(failures[0][0].at_ms)
    row = ErrorGroup(
        id=pk, task=key.task, exception=key.exception, message=key.message, frame=key.frame,
        first_seen=at, last_seen=at,
    )  # fmt: skip
    _add_to_group(row, failures)
    return row


def _add_to_group(row: ErrorGroup, failures: Sequence[Failure]) -> None:
    events = [event for event, _ in failures]
    queues = sorted({*row.queue_names, *(event.queue for event in events)})[:MAX_QUEUES]
    row.queues = f" {' '.join(queues)} "
    row.count += len(events)
    row.failed += sum(event.status == Status.FAILED for event in events)
    row.hours = add_hours(row.hours, Counter(event.at_ms // HOUR_MS for event in events))
    row.first_seen = min(row.first_seen, instant(min(event.at_ms for event in events)))
    last, error = max(failures, key=lambda failure: (failure[0].at_ms, failure[0].position))
    last_seen = instant(last.at_ms)
    if last_seen >= row.last_seen:
        row.last_seen, row.job_id, row.error = last_seen, last.job_id, error


def _group_values(row: ErrorGroup, instants: InstantAdapter) -> tuple[Any, ...]:
    seen = (instants(ms_of(row.first_seen)), instants(ms_of(row.last_seen)))
    return (row.queues, row.count, row.failed, row.job_id, row.hours, row.error, *seen, row.pk)
