"""Sums a page of events into the rollup rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from django.db import IntegrityError, transaction

from ..metrics.histograms import decode, encode, merge
from ..metrics.rollups import COUNTS, Sums
from ..models import Rollup
from .bulk_table import KEYS_PER_QUERY, BulkTable

MINUTE_MS = 60_000
COLUMNS = (*COUNTS, "wait", "run")

Key = tuple[int, str, str]  # minute, queue, task


class RollupBatch:
    """The sums of a page, by minute, queue and task."""

    def __init__(self) -> None:
        self._sums: dict[Key, Sums] = {}

    def sums(self, at_ms: int, queue: str, task: str) -> Sums:
        """The sums of this instant's minute, to be added to."""
        key = (at_ms // MINUTE_MS, queue, task)
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = Sums()
        return sums

    def write(self, table: BulkTable) -> None:
        """Add the sums to existing rows and insert the others, inside a transaction.

        Rows are locked, where the database can, because ``compact`` may be merging them. The bridge
        of another shard may insert the same row meanwhile.
        """
        try:
            self._write(table)
        except IntegrityError:
            self._write(table)

    def _write(self, table: BulkTable) -> None:
        if not self._sums:
            return
        known = {_key(row): row for row in self._rows(table)}
        new, changed = [], []
        for key, sums in self._sums.items():
            row = known.get(key)
            if row is None:
                _, queue, task = key
                new.append(Rollup(minute=_minute(key), queue=queue, task=task, **_texts(sums)))
            else:
                changed.append((*_added(row, sums), row.pk))
        if new:
            with transaction.atomic(using=table.alias):
                Rollup.objects.using(table.alias).bulk_create(new)
        table.update(COLUMNS, changed)

    def _rows(self, table: BulkTable) -> Iterator[Rollup]:
        """The rows of exactly these minutes: one event with a wrong clock must not read all rows in
        between."""
        minutes = sorted({_minute(key) for key in self._sums})
        rows = Rollup.objects.using(table.alias).select_for_update().order_by("pk")
        for at in range(0, len(minutes), KEYS_PER_QUERY):
            yield from rows.filter(minute__in=minutes[at : at + KEYS_PER_QUERY])


def _minute(key: Key) -> datetime:
    return datetime.fromtimestamp(key[0] * 60, UTC)


def _key(row: Rollup) -> Key:
    return int(row.minute.timestamp()) // 60, row.queue, row.task


def _texts(sums: Sums) -> dict[str, Any]:
    counts = {name: getattr(sums, name) for name in COUNTS}
    return {**counts, "wait": encode(sums.wait), "run": encode(sums.run)}


def _added(row: Rollup, sums: Sums) -> tuple[Any, ...]:
    counts = [getattr(row, name) + getattr(sums, name) for name in COUNTS]
    wait, run = merge(decode(row.wait), sums.wait), merge(decode(row.run), sums.run)
    return (*counts, encode(wait), encode(run))
