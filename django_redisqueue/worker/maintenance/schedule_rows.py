"""Keeps the rows of PeriodicJob and the schedules in Redis alike.

A row of the admin decides what Redis has; a schedule of the code decides what its row shows.
Whether a schedule is paused is decided by its row. Saving a row in the admin does the same at once:
this finds what did not reach Redis, what was changed by other means, and the schedules of new code.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from django.db import router
from django.db.models import Count, Max

from ...broker.commands import Commands
from ...broker.schedules import ScheduleQueries, slices
from ...client.placement import shard_of_schedule
from ...core.codec import decode_payload
from ...core.job_data import NewJob, decode_options
from ...core.redaction import OPTION, redact
from ...core.schedules import Cron, ScheduleData, Source
from ...exceptions import InvalidOption
from ...models import PeriodicJob
from ...models.tables import has_table

logger = logging.getLogger("django_redisqueue")

FULL = 600.0  # s between two comparisons although nothing seems to have changed
# The fields of a row that show what the code defines
_SHOWN = (
    "source", "task", "args", "kwargs", "cron", "every", "timezone", "misfire", "overlap",
    "queue_name", "priority",
)  # fmt: skip


class ScheduleRows:
    """Compares those of the store's shard, if something has changed. Only the code whose schedules
    are defined may: it knows the tasks. ``places``: the shards of the code's schedules. While
    ``is_quiet()``, Redis is asked only if a row has changed, or to compare them all."""

    def __init__(
        self,
        store: Commands,
        set_digest: str,
        places: Mapping[str, int] = MappingProxyType({}),
        is_quiet: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._places = places
        self._is_quiet = is_quiet
        self._queries = ScheduleQueries(store.connection, store.settings)
        self._set_digest = set_digest
        self._seen: tuple[object, ...] = ()  # of the rows, and how many schedules there are
        self._full_at = 0.0
        self._logged: dict[str, str] = {}

    def run_once(self) -> bool:
        """False: it never has more to do. Raises RedisQueueError or DatabaseError."""
        alias = router.db_for_write(PeriodicJob)
        if not has_table(PeriodicJob, alias):
            return False
        now = time.monotonic()
        rows = self._rows_signature(alias)
        if self._is_quiet() and now < self._full_at and rows == self._seen[:-1]:
            return False
        if self._queries.defined_set() != self._set_digest:
            return False
        seen = (*rows, self._queries.count())
        if seen != self._seen or now >= self._full_at:
            self._compare(alias)
            rows = self._rows_signature(alias)
            self._seen, self._full_at = (*rows, self._queries.count()), now + FULL
        return False

    def _rows_signature(self, alias: str) -> tuple[object, ...]:
        """Changes when a row is saved or deleted."""
        rows = PeriodicJob.objects.using(alias).aggregate(Count("pk"), Max("updated_at"))
        return tuple(rows.values())

    def _compare(self, alias: str) -> None:
        rows = {row.name: row for row in PeriodicJob.objects.using(alias) if self._is_here(row)}
        known = self._read(self._queries.names())
        self._show_code(alias, rows, known)
        own = [row for row in rows.values() if not row.is_of_code]
        known |= self._read(self._define(own, known))
        gone = {one.name for one in known.values() if one.source is Source.ADMIN}
        gone -= {row.name for row in own}
        for part in slices(sorted(gone)):
            self._store.remove_schedules("", part)
        for name, row in rows.items():
            one = known.get(name)
            if one is not None and (one.paused_ms is None) is not row.is_enabled:
                self._pause(one, not row.is_enabled)

    def _is_here(self, row: PeriodicJob) -> bool:
        """Whether its schedule is in this shard. A row without a schedule is for shard 0."""
        settings, here = self._store.settings, self._store.connection.shard
        if settings.shards == 1:
            return True
        if row.is_of_code or row.name in self._places:
            return self._places.get(row.name, 0) == here
        try:
            return shard_of_schedule(row.name, row.definition().job, settings) == here
        except InvalidOption:
            return here == 0

    def _read(self, names: Sequence[str]) -> dict[str, ScheduleData]:
        found = [one for part in slices(names) for one in self._queries.schedules(part)]
        return {one.name: one for one in found if isinstance(one, ScheduleData)}

    def _show_code(
        self, alias: str, rows: dict[str, PeriodicJob], known: Mapping[str, ScheduleData]
    ) -> None:
        """Make the rows of the code what the code defines."""
        of_code = {name: one for name, one in known.items() if one.source is Source.CODE}
        for name in [name for name, row in rows.items() if row.is_of_code and name not in of_code]:
            PeriodicJob.objects.using(alias).filter(pk=rows.pop(name).pk).delete()
        for name, one in of_code.items():
            shown = shown_fields(one)
            row = rows.get(name)
            if row is None:
                rows[name], _ = PeriodicJob.objects.using(alias).get_or_create(
                    name=name, defaults=shown
                )
            elif row.is_of_code and any(getattr(row, key) != shown[key] for key in _SHOWN):
                PeriodicJob.objects.using(alias).filter(pk=row.pk).update(**shown)

    def _define(self, own: Iterable[PeriodicJob], known: Mapping[str, ScheduleData]) -> list[str]:
        """Bring these rows into Redis; returns the names of those that were not as they are."""
        now_ms = self._queries.now_ms()
        changed = []
        for row in own:
            try:
                definition = row.definition()
            except InvalidOption as error:
                self._log(row.name, str(error))
                continue
            found = known.get(row.name)
            if found is None or found.digest != definition.digest:
                changed.append((definition, definition.schedule.after(now_ms)))
            if definition.error:
                self._log(row.name, definition.error)
        for part in slices(changed):
            for (definition, _), code in zip(
                part, self._store.define_schedules("", part), strict=True
            ):
                if code == -2:
                    self._log(definition.name, "the code defines a schedule of this name")
        return [definition.name for definition, _ in changed]

    def _pause(self, one: ScheduleData, paused: bool) -> None:
        next_ms = None if paused else one.schedule.after(self._queries.now_ms())
        self._store.pause_schedule(one.name, paused, next_ms)

    def _log(self, name: str, problem: str) -> None:
        if self._logged.get(name) != problem:
            #: A schedule made in the admin is wrong, or the code has one of its name. Correct or
            #: delete its row.
            logger.error("the schedule %s does not run as its row says: %s", name, problem)
        self._logged[name] = problem


def shown_fields(one: ScheduleData) -> dict[str, object]:
    """What the row of a schedule of the code shows."""
    schedule = one.schedule
    args, kwargs = _shown_arguments(one.job)
    cron = schedule if isinstance(schedule, Cron) else None
    return {
        "source": Source.CODE.value,
        "task": one.task[:255],
        "args": args,
        "kwargs": kwargs,
        "cron": cron.expression if cron else "",
        "every": "" if cron else schedule.timing,
        "timezone": cron.timezone if cron else "",
        "misfire": str(schedule.misfire),
        "overlap": str(schedule.overlap),
        "queue_name": one.queue,
        "priority": one.job.priority,
    }


def _shown_arguments(job: NewJob) -> tuple[list[object], dict[str, object]]:
    """Its arguments, without those that its task redacts."""
    try:
        args, kwargs = decode_payload(job.payload)
        marks = decode_options(job.options)[0].get(OPTION) if job.options else None
        if marks is not None:
            args, kwargs = redact(args, kwargs, marks)
        return list(args), dict(kwargs)
    except (ValueError, TypeError):
        return [], {}
