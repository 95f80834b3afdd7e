"""Reads rollup rows as the numbers and series of the dashboard, and compacts old rows.

A row covers one minute. ``compact`` merges rows into ten minutes after two hours, and into an hour
after 26 hours, so a week takes about 500 rows for each queue and task instead of 10,000.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any

from django.db import router, transaction

from ..models import Rollup
from .histograms import decode_all, decode_or_empty, encode, merge, percentile

RollupRow = tuple[Any, ...]  # COUNTS, wait and run
COUNTS = ("enqueued", "completed", "failed", "retried", "cancelled")


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


@dataclass(slots=True)
class Sums:
    """The sums of some rows; ``wait`` and ``run`` are histograms."""

    enqueued: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    cancelled: int = 0
    wait: list[int] = field(default_factory=list)
    run: list[int] = field(default_factory=list)

    def wait_ms(self, q: float) -> float | None:
        """A percentile of the time from queued to started."""
        return percentile(self.wait, q)

    def run_ms(self, q: float) -> float | None:
        """A percentile of the time from started to ended."""
        return percentile(self.run, q)


@dataclass(frozen=True, slots=True)
class Figures:
    """The rows of one span. They are summed on demand, which is most of the work."""

    span: Span
    by_point: dict[datetime, list[RollupRow]]
    by_queue: dict[str, list[RollupRow]]

    @property
    def points(self) -> list[tuple[datetime, Sums]]:
        """Oldest first."""
        return [(start, _sums(rows)) for start, rows in self.by_point.items()]

    @property
    def queues(self) -> dict[str, Sums]:
        return {name: _sums(rows) for name, rows in self.by_queue.items()}

    def chart(self) -> dict[str, list[Any]]:
        return chart(self.points)


def chart(points: Sequence[tuple[datetime, Sums]]) -> dict[str, list[Any]]:
    """The columns of a chart: instants in s, jobs a point, and milliseconds."""
    sums = [point for _, point in points]
    return {
        "at": [int(start.timestamp()) for start, _ in points],
        **{name: [getattr(each, name) for each in sums] for name in COUNTS},
        "wait50": [each.wait_ms(0.5) for each in sums],
        "wait95": [each.wait_ms(0.95) for each in sums],
        "run50": [each.run_ms(0.5) for each in sums],
        "run95": [each.run_ms(0.95) for each in sums],
    }


def figures(span: Span, now: datetime, queue: str = "") -> Figures:
    """The rows of the last ``span``, of one queue or of all, by one query."""
    last = floor(now, span.step)
    first = last - span.length + span.step
    by_point: dict[datetime, list[RollupRow]] = {
        first + n * span.step: [] for n in range(int(span.length / span.step))
    }
    by_queue: dict[str, list[RollupRow]] = defaultdict(list)
    rows = Rollup.objects.filter(minute__gte=first, minute__lte=now)
    if queue:
        rows = rows.filter(queue=queue)
    starts: dict[datetime, datetime] = {}
    for minute, name, *row in rows.values_list("minute", "queue", *COUNTS, "wait", "run"):
        if minute not in starts:
            starts[minute] = floor(minute, span.step)
        by_point[starts[minute]].append(tuple(row))
        by_queue[name].append(tuple(row))
    return Figures(span, by_point, by_queue)


def _sums(rows: Sequence[RollupRow]) -> Sums:
    """Sums a column at a time: with thousands of rows, this takes most of a page's time."""
    if not rows:
        return Sums()
    *counts, waits, runs = zip(*rows, strict=True)
    totals = {name: sum(column) for name, column in zip(COUNTS, counts, strict=True)}
    return Sums(**totals, wait=_add_histograms(waits), run=_add_histograms(runs))


def _add_histograms(texts: Sequence[str]) -> list[int]:
    """The sum of encoded histograms."""
    counts = Counter(filter(None, texts))  # rows with few jobs are often equal
    try:
        histograms = decode_all(counts)
    except ValueError:  # at least one is corrupt and counts nothing
        histograms = [decode_or_empty(text) for text in counts]
    if max(counts.values(), default=1) > 1:
        times = counts.values()
        histograms = [[n * by for n in each] for each, by in zip(histograms, times, strict=True)]
    return list(map(sum, zip_longest(*histograms, fillvalue=0)))


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


def compact(now: datetime) -> int:
    """Merge old rows; returns how many were deleted. Charts show the same before and after.

    The writer of the rows calls this between two writes, again while it returns more than 0.
    """
    deleted = 0
    for age, step in COMPACTIONS:
        deleted += _compact(now - MAX_AGE, floor(now - age, step), step)
    return deleted


def _compact(first: datetime, end: datetime, step: timedelta) -> int:
    using = router.db_for_write(Rollup)
    with transaction.atomic(using=using):
        rows = Rollup.objects.using(using).filter(minute__gte=first, minute__lt=end)
        odd = [
            (minute, pk)
            for minute, pk in rows.order_by("minute").values_list("minute", "pk")
            if floor(minute, step) != minute
        ][:ROWS_PER_STEP]
        if not odd:
            return 0
        starts = {floor(minute, step) for minute, _ in odd}
        kept = {
            (row.minute, row.queue, row.task): row
            for row in rows.filter(minute__in=starts).select_for_update()
        }
        parts = Rollup.objects.using(using).filter(pk__in=[pk for _, pk in odd])
        before = list(kept.values())
        _merge(kept, parts.select_for_update(), step)
        Rollup.objects.using(using).bulk_create(row for row in kept.values() if row._state.adding)
        Rollup.objects.using(using).bulk_update(before, [*COUNTS, "wait", "run"])
        return parts.delete()[0]


def _merge(
    kept: dict[tuple[datetime, str, str], Rollup], parts: Iterable[Rollup], step: timedelta
) -> None:
    """Add each of ``parts`` to the row of ``kept`` that covers its time."""
    for part in parts:
        key = (floor(part.minute, step), part.queue, part.task)
        row = kept.setdefault(key, Rollup(minute=key[0], queue=part.queue, task=part.task))
        for name in COUNTS:
            setattr(row, name, getattr(row, name) + getattr(part, name))
        row.wait = encode(merge(decode_or_empty(row.wait), decode_or_empty(part.wait)))
        row.run = encode(merge(decode_or_empty(row.run), decode_or_empty(part.run)))
