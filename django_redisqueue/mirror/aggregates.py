"""What a page of events adds up to: sums in the rollup rows, and failed attempts in the rows of
their error groups."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from django.db import IntegrityError

from ..broker.base import slices
from ..broker.events import JobStreamEvent
from ..core.clock import instant, ms_of
from ..core.errors import ErrorKey, error_key
from ..core.statuses import Status
from ..metrics.histograms import COLUMNS, HOUR_MS, Sums, add_hours, add_to_row
from ..models import ErrorGroup, Rollup
from .bulk_table import KEYS_PER_QUERY, BulkTable, InstantAdapter
from .changes import UNSET, JobChange

MINUTE_MS = 60_000
MAX_GROUPS = 10_000  # beyond them, errors of a task count in one group
MAX_QUEUES = 20  # names that a group keeps
ERROR_COLUMNS = ("queues", "count", "failed", "first_seen", "last_seen", "job_id", "hours", "error")

RollupKey = tuple[int, str, str]  # minute, queue, task


class RollupBatch:
    """The sums of a page, by minute, queue and task."""

    def __init__(self) -> None:
        self._sums: defaultdict[RollupKey, Sums] = defaultdict(Sums)

    def sums(self, at_ms: int, queue: str, task: str) -> Sums:
        """The sums of this instant's minute, to be added to."""
        return self._sums[at_ms // MINUTE_MS, queue, task]

    def write(self, table: BulkTable) -> None:
        """Add the sums to existing rows and insert the others, inside a transaction.

        Rows are locked, where the database can, because ``compact`` may be merging them. The bridge
        of another shard may insert the same row meanwhile. All insert in the same order, so that
        two never wait for each other.
        """
        try:
            self._write(table)
        except IntegrityError:
            self._write(table)

    def _write(self, table: BulkTable) -> None:
        if not self._sums:
            return
        known = {_key_of(row): row for row in self._rows(table)}
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

    def _rows(self, table: BulkTable) -> Iterator[Rollup]:
        """The rows of exactly these minutes: one event with a wrong clock must not read all rows in
        between."""
        minutes = sorted({_minute(key) for key in self._sums})
        rows = Rollup.objects.using(table.alias).select_for_update().order_by("pk")
        for some in slices(minutes, KEYS_PER_QUERY):
            yield from rows.filter(minute__in=some)


def _minute(key: RollupKey) -> datetime:
    return datetime.fromtimestamp(key[0] * 60, UTC)


def _key_of(row: Rollup) -> RollupKey:
    return int(row.minute.timestamp()) // 60, row.queue, row.task


@dataclass(slots=True)
class Occurrences:
    """The failed attempts of one group in a page."""

    key: ErrorKey
    count: int = 0
    failed: int = 0
    first_ms: int = 0
    last_ms: int = 0
    job_id: str = ""  # of the last one
    error: str = ""
    queues: set[str] = field(default_factory=set)
    hours: Counter[int] = field(default_factory=Counter)

    def add(self, event: JobStreamEvent, error: str) -> None:
        if not self.count or event.at_ms < self.first_ms:
            self.first_ms = event.at_ms
        if event.at_ms >= self.last_ms:
            self.last_ms, self.job_id, self.error = event.at_ms, event.job_id, error
        self.count += 1
        self.failed += event.status == Status.FAILED
        self.queues.add(event.queue)
        self.hours[event.at_ms // HOUR_MS] += 1


class ErrorBatch:
    """The failed attempts of a page, by group. ``known``: ids of groups that have rows, kept from
    one page to the next."""

    def __init__(self, table: BulkTable, known: set[str]) -> None:
        self._table = table
        self._known = known
        self._groups: dict[str, Occurrences] = {}

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
            if group not in self._groups:
                self._groups[group] = Occurrences(place)
            self._groups[group].add(event, error)
            if change.fields.get("error_group") == UNSET:  # the last attempt comes first
                change.fields["error_group"] = group

    def _places(self, keys: set[ErrorKey]) -> dict[ErrorKey, ErrorKey]:
        """Where errors of these keys count: in the group of their task's other errors if they
        would need new groups and there are too many."""
        places = {key: key for key in keys}
        new = {key.fingerprint: key for key in keys}
        for known in (self._known, self._existing(new.keys() - self._known)):
            new = {pk: key for pk, key in new.items() if pk not in known}
        if new:
            room = max(0, MAX_GROUPS - ErrorGroup.objects.using(self._table.alias).count())
            places.update((new[pk], ErrorKey(new[pk].task)) for pk in sorted(new)[room:])
        return places

    def _existing(self, keys: Collection[str]) -> Collection[str]:
        if not keys:
            return ()
        pages = self._table.select(sorted(keys))
        return {pk for rows in pages for pk in rows.values_list("pk", flat=True)}

    def write(self, instants: InstantAdapter) -> None:
        """Add to existing rows and insert the others, inside a transaction. The bridge of another
        shard may insert the same row meanwhile."""
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
        rows = {row.pk: row for row in self._rows()}
        new = [_new_group(pk, one) for pk, one in sorted(self._groups.items()) if pk not in rows]
        self._table.create(new)
        for pk, row in rows.items():
            _add_to_group(row, self._groups[pk])
        self._table.update(ERROR_COLUMNS, [_group_values(row, instants) for row in rows.values()])

    def _rows(self) -> Iterator[ErrorGroup]:
        """In the order of their keys, so that two bridges never wait for each other."""
        for rows in self._table.select(sorted(self._groups)):
            yield from rows.select_for_update().order_by("pk")


def _new_group(pk: str, found: Occurrences) -> ErrorGroup:
    key = found.key
    row = ErrorGroup(
        id=pk, task=key.task, exception=key.exception, message=key.message, frame=key.frame,
        first_seen=instant(found.first_ms), last_seen=instant(found.last_ms),
    )  # fmt: skip
    _add_to_group(row, found)
    return row


def _add_to_group(row: ErrorGroup, found: Occurrences) -> None:
    queues = sorted({*row.queue_names, *found.queues})[:MAX_QUEUES]
    row.queues = f" {' '.join(queues)} "
    row.count += found.count
    row.failed += found.failed
    row.hours = add_hours(row.hours, found.hours)
    row.first_seen = min(row.first_seen, instant(found.first_ms))
    last = instant(found.last_ms)
    if last >= row.last_seen:
        row.last_seen, row.job_id, row.error = last, found.job_id, found.error


def _group_values(row: ErrorGroup, instants: InstantAdapter) -> tuple[Any, ...]:
    values = {name: getattr(row, name) for name in ERROR_COLUMNS}
    for name in ("first_seen", "last_seen"):
        values[name] = instants(ms_of(values[name]))
    return (*values.values(), row.pk)
