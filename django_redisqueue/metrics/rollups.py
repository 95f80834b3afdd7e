"""Reads rollup rows as the numbers and series of the dashboard, and compacts old rows.

A row covers one minute. ``compact`` merges rows into ten minutes after two hours, and into an hour
after 26 hours, so a week takes about 500 rows for each queue and task instead of 10,000.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from django.db import router, transaction
from django.db.models import QuerySet, Sum

from ..models import Rollup
from ..models.tables import to_column
from .histograms import COLUMNS, COUNTS, Sums, add_to_row, decode, decode_all, percentile

RollupRow = tuple[Any, ...]  # COUNTS, wait and run
CACHED_POINTS = 1024  # a few kilobytes each: three charts of a week
LEAST = 4  # a point has a rate once 1/4 of its time has passed


@dataclass(frozen=True, slots=True)
class Span:
    """How far back a chart goes, and how much time one point covers."""

    name: str
    label: str
    length: timedelta
    step: timedelta


SPANS = {
    span.name: span
    for span in (
        Span("1h", "1 hour", timedelta(hours=1), timedelta(minutes=1)),
        Span("24h", "24 hours", timedelta(hours=24), timedelta(minutes=10)),
        Span("7d", "7 days", timedelta(days=7), timedelta(hours=1)),
    )
}


@dataclass(frozen=True, slots=True)
class Figures:
    """The rows of one span. They are summed on demand, which is most of the work."""

    span: Span
    now: datetime
    by_point: dict[datetime, list[RollupRow]]
    by_queue: dict[str, list[RollupRow]] = field(default_factory=lambda: defaultdict(list))

    @property
    def points(self) -> list[tuple[datetime, Sums]]:
        """Oldest first."""
        return [(start, _sums(rows)) for start, rows in self.by_point.items()]

    @property
    def minutes(self) -> list[float | None]:
        """How many minutes each point covers. The last one has not ended, so it covers fewer; None
        if too few have passed for a rate."""
        whole = self.span.step.total_seconds() / 60
        passed = (self.now.timestamp() - floor(self.now, self.span.step).timestamp()) / 60
        last = passed if passed >= whole / LEAST else None
        return [whole] * (len(self.by_point) - 1) + [last]

    @property
    def ended(self) -> list[int]:
        """How many jobs completed or failed in each point. Reads no histograms."""
        at = [COUNTS.index(name) for name in ("completed", "failed")]
        return [sum(row[n] for row in rows for n in at) for rows in self.by_point.values()]

    @property
    def queues(self) -> dict[str, Sums]:
        return {name: _sums(rows) for name, rows in self.by_queue.items()}

    @property
    def total(self) -> Sums:
        return _sums([row for rows in self.by_queue.values() for row in rows])


def chart(points: Sequence[tuple[datetime, Sums]]) -> dict[str, list[Any]]:
    """The columns of a chart: instants in s, jobs per point, and milliseconds."""
    sums = [point for _, point in points]
    return {
        "at": [int(start.timestamp()) for start, _ in points],
        **{name: [getattr(each, name) for each in sums] for name in COUNTS},
        "wait50": [percentile(each.wait, 0.5) for each in sums],
        "wait95": [percentile(each.wait, 0.95) for each in sums],
        "run50": [percentile(each.run, 0.5) for each in sums],
        "run95": [percentile(each.run, 0.95) for each in sums],
    }


def figures(span: Span, now: datetime, queue: str = "", task: str = "") -> Figures:
    """The rows of the last ``span``, of one queue or task or of all. One query."""
    wanted = {name: value for name, value in (("queue", queue), ("task", task)) if value}
    found = Figures(span, now, _points(span, now))
    for start, of_queue, _, row in _read(span, now, **wanted):
        found.by_point[start].append(row)
        found.by_queue[of_queue].append(row)
    return found


def task_figures(span: Span, now: datetime, tasks: Sequence[str]) -> dict[str, Figures]:
    """The figures of each of these tasks. One query."""
    found = {task: Figures(span, now, _points(span, now)) for task in tasks}
    for start, queue, task, row in _read(span, now, task__in=tasks):
        found[task].by_point[start].append(row)
        found[task].by_queue[queue].append(row)
    return found


def task_totals(span: Span, now: datetime) -> dict[str, Sums]:
    """The counts of every task in the last ``span``, without durations. One query."""
    sums = _rows(span, now).values_list("task").annotate(*map(Sum, COUNTS))
    return {task: Sums(*counts) for task, *counts in sums}


def _rows(span: Span, now: datetime) -> QuerySet[Rollup]:
    first, last = to_column(_first(span, now)), to_column(now)
    return Rollup.objects.filter(minute__gte=first, minute__lte=last)


def _first(span: Span, now: datetime) -> datetime:
    return floor(now, span.step) - span.length + span.step


def _points(span: Span, now: datetime) -> dict[datetime, list[RollupRow]]:
    first = _first(span, now)
    return {first + n * span.step: [] for n in range(int(span.length / span.step))}


def _read(
    span: Span, now: datetime, **wanted: object
) -> Iterator[tuple[datetime, str, str, RollupRow]]:
    """(start of the point, queue, task, row)"""
    rows = _rows(span, now).filter(**wanted)
    starts: dict[datetime, datetime] = {}
    for minute, queue, task, *row in rows.values_list("minute", "queue", "task", *COLUMNS):
        if minute not in starts:
            starts[minute] = floor(minute, span.step)
        yield starts[minute], queue, task, tuple(row)


def _sums(rows: Sequence[RollupRow]) -> Sums:
    """Sums column by column: with thousands of rows, this takes most of a page's time."""
    if not rows:
        return Sums()
    *counts, waits, runs = zip(*rows, strict=True)
    totals = {name: sum(column) for name, column in zip(COUNTS, counts, strict=True)}
    return Sums(**totals, wait=list(_add_histograms(waits)), run=list(_add_histograms(runs)))


@lru_cache(maxsize=CACHED_POINTS)
def _add_histograms(texts: tuple[str, ...]) -> tuple[int, ...]:
    """The sum of encoded histograms. When a chart is shown again, most points are the same."""
    counts = Counter(filter(None, texts))  # rows with few jobs are often equal
    try:
        histograms = decode_all(counts)
    except ValueError:  # at least one is corrupt and counts nothing
        histograms = [decode(text) for text in counts]
    if max(counts.values(), default=1) > 1:
        times = counts.values()
        histograms = [[n * by for n in each] for each, by in zip(histograms, times, strict=True)]
    return tuple(map(sum, zip_longest(*histograms, fillvalue=0)))


def floor(instant: datetime, step: timedelta) -> datetime:
    """The last multiple of ``step`` (since the epoch) that is not after ``instant``."""
    seconds = int(step.total_seconds())
    return datetime.fromtimestamp(int(instant.timestamp()) // seconds * seconds, UTC)


COMPACTIONS = (
    (timedelta(hours=2), timedelta(minutes=10)),
    (timedelta(hours=26), timedelta(hours=1)),
)
MAX_AGE = timedelta(days=8)  # no chart shows older rows, so they may stay as they are
ROWS_PER_STEP = 2000
ROWS_PER_UPDATE = 100  # the time of Django's statement grows with the square of their number


def compact(now: datetime) -> int:
    """Merge old rows; returns how many were deleted. Charts show the same before and after.

    The writer of the rows calls this between two writes, repeatedly while it returns more than 0.
    """
    deleted = 0
    for age, step in COMPACTIONS:
        deleted += _compact(floor(now - MAX_AGE, step), floor(now - age, step), step)
    return deleted


def _compact(first: datetime, end: datetime, step: timedelta) -> int:
    using = router.db_for_write(Rollup)
    rows = Rollup.objects.using(using).filter(minute__gte=first, minute__lt=end)
    # A minute may have a row for each of thousands of tasks, and most are already compacted.
    minutes = rows.order_by("minute").values_list("minute", flat=True).distinct()
    odd_minutes = [minute for minute in minutes if floor(minute, step) != minute]
    if not odd_minutes:
        return 0
    start = floor(odd_minutes[0], step)
    window = [minute for minute in odd_minutes if floor(minute, step) == start]
    # All minutes of a queue and task together: each row that stays is written about once.
    found = rows.filter(minute__in=window).order_by("queue", "task")
    odd = list(found.values_list("pk", "queue", "task")[:ROWS_PER_STEP])
    wanted = {(queue, task) for _, queue, task in odd}
    queues, tasks = ({names[n] for names in wanted} for n in (0, 1))
    with transaction.atomic(using=using):
        known = rows.filter(minute=start, queue__in=queues, task__in=tasks).select_for_update()
        before = [row for row in known if (row.queue, row.task) in wanted]
        kept = {(row.minute, row.queue, row.task): row for row in before}
        parts = Rollup.objects.using(using).filter(pk__in=[pk for pk, *_ in odd])
        _merge(kept, parts.select_for_update(), step)
        Rollup.objects.using(using).bulk_create(row for row in kept.values() if row._state.adding)
        Rollup.objects.using(using).bulk_update(before, COLUMNS, batch_size=ROWS_PER_UPDATE)
        return parts.delete()[0]


def _merge(
    kept: dict[tuple[datetime, str, str], Rollup], parts: Iterable[Rollup], step: timedelta
) -> None:
    """Add each of ``parts`` to the row of ``kept`` that covers its time."""
    for part in parts:
        key = (floor(part.minute, step), part.queue, part.task)
        row = kept.setdefault(key, Rollup(minute=key[0], queue=part.queue, task=part.task))
        counts = {name: getattr(part, name) for name in COUNTS}
        add_to_row(row, Sums(**counts, wait=decode(part.wait), run=decode(part.run)))
