"""Periodic jobs: the schedules that exist, their jobs when they are due, and their rows.

Schedules live in Redis, so any worker's leader fires all of them, even those that only newer code
has. The newest running code decides which definitions count (announce_schedules.lua). Rows of
PeriodicJob that were created in the admin also define schedules, and the schedules of the code have
rows that show them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from django.db import router
from django.db.models import Count, Max

from ...broker.base import BATCH, slices
from ...broker.commands import Commands
from ...broker.replies import AnnounceReply, DefineReply
from ...broker.schedules import FireCall, ScheduleQueries, UnreadableSchedule
from ...client.placement import shard_of_schedule
from ...core.codec import decode_payload
from ...core.formatting import shorten
from ...core.job_data import NewJob, decode_options
from ...core.redaction import OPTION, redact
from ...core.schedules import Cron, ScheduleData, ScheduleDefinition, Source, set_digest
from ...exceptions import InvalidOption, RedisQueueError, RedisUnavailable
from ...models import PeriodicJob
from ...models.periodic import log_wrong_row
from ...models.tables import has_table

logger = logging.getLogger("django_redisqueue")

TTL_MS = 60_000  # after which code counts as gone if none of its workers has announced it
AGAIN_MS = 1
TOGETHER = 25  # calls in one round trip, for which Redis needs some 10 ms
BLOCKED = 30.0  # s until a schedule that cannot be fired is tried again
FULL = 600.0  # s between two comparisons when nothing seems to have changed


class ScheduleDeployment:
    """Defines the schedules of this worker's code, unless newer code runs."""

    def __init__(self, commands: Commands, definitions: Sequence[ScheduleDefinition]) -> None:
        self._commands = commands
        self._queries = ScheduleQueries(commands.connection, commands.settings)
        self._definitions = definitions
        self.digest = set_digest(definitions)
        self._problem = ""

    def run_once(self) -> None:
        """Announce this code, and define its schedules if Redis asks for them. Raises
        RedisUnavailable; other errors must not stop the maintenance."""
        try:
            self._deploy()
            self._problem = ""
        except RedisUnavailable:
            raise
        except RedisQueueError as error:
            if str(error) != self._problem:
                #: Redis refuses the schedules of the code, usually because it is full or a key has
                #: the wrong type. The schedules run as before. Remove the cause.
                logger.error("the schedules cannot be defined: %s", error)
            self._problem = str(error)

    def _deploy(self) -> None:
        reply = self._commands.announce_schedules(self.digest, TTL_MS)
        if reply is AnnounceReply.TO_DEFINE and self._define():
            self._commands.announce_schedules(self.digest, TTL_MS, is_defined=True)

    def _define(self) -> bool:
        """False if newer code has been announced in the meantime."""
        now_ms = self._commands.now_ms or self._queries.now_ms()
        for part in slices(self._definitions):
            due = [(one, one.schedule.after(now_ms)) for one in part]
            if DefineReply.OUTDATED in self._commands.define_schedules(self.digest, due):
                return False
        for one in self._definitions:
            if one.error:
                #: A schedule in the code or the settings is wrong: its task, arguments or queue.
                #: Correct it and deploy.
                logger.error("the schedule %s does not run: %s", one.name, one.error)
        known = {one.name for one in self._definitions}
        former = [name for name in self._queries.of_source(Source.CODE) if name not in known]
        for names in slices(former):
            self._commands.remove_schedules(self.digest, names)
        return True


class Scheduler:
    """Fires the schedules that are due."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._queries = ScheduleQueries(commands.connection, commands.settings)
        self._blocked: dict[str, float] = {}  # name -> when it is tried again (monotonic)

    def run_once(self) -> int:
        """Fire up to 100. Returns ms until the next pass."""
        now_ms = self._commands.now_ms or self._queries.now_ms()
        now = time.monotonic()
        self._blocked = {name: at for name, at in self._blocked.items() if at > now}
        due = self._queries.due(now_ms, BATCH + len(self._blocked))
        names = [name for name in due if name not in self._blocked]
        calls: list[FireCall] = []
        for name, schedule in zip(names, self._queries.schedules(names), strict=True):
            try:
                calls += self._due_calls(name, schedule, now_ms)
            except RedisUnavailable:
                raise
            except RedisQueueError as error:
                self._block(name, str(error))
        for part in slices(calls, TOGETHER):
            for call, reply in zip(part, self._commands.fire(part), strict=True):
                # After a call that failed, those for later due times of its schedule do nothing.
                if isinstance(reply, RedisQueueError) and call.schedule.name not in self._blocked:
                    self._block(call.schedule.name, str(reply))
        if names or not self._blocked:
            return AGAIN_MS
        return int(1000 * (min(self._blocked.values()) - now)) + AGAIN_MS

    def _block(self, name: str, problem: str) -> None:
        """A schedule that cannot be fired must not stop the others, nor keep the leader busy."""
        #: A due run could not be enqueued. Other schedules are not affected, and this one is tried
        #: again after half a minute. The text says why.
        logger.error("the schedule %s cannot be fired: %s; trying again", name, problem)
        self._blocked[name] = time.monotonic() + BLOCKED

    def _due_calls(
        self, name: str, schedule: ScheduleData | UnreadableSchedule | None, now_ms: int
    ) -> Sequence[FireCall]:
        """The calls of ``fire`` for a schedule that is due, oldest due time first."""
        if schedule is None:
            self._commands.remove_schedules("", [name])  # its hash was deleted manually
        elif isinstance(schedule, UnreadableSchedule):
            self._block(name, schedule.problem)
        elif schedule.next_ms is None or schedule.is_stopped:
            self._block(name, "it was changed manually, and must not be fired now")
        else:
            return self._calls(schedule, schedule.next_ms, now_ms)
        return ()

    @staticmethod
    def _calls(schedule: ScheduleData, cursor_ms: int, now_ms: int) -> Sequence[FireCall]:
        due = schedule.schedule.due_runs(cursor_ms, now_ms)
        missed = due.missed
        if missed:
            #: Due times passed while all workers were down, or Redis was full or unavailable. The
            #: misfire policy of the schedule gives them no run. Start one in the admin if needed.
            logger.warning(
                "schedule %s: no worker was there at %d due times, which get no run (misfire=%s)",
                schedule.name, missed, schedule.schedule.misfire,
            )  # fmt: skip
        runs: Sequence[int | None] = due.run_ms or [None]  # without a run, the cursor advances
        later = due.run_ms[1:]
        steps = zip([cursor_ms, *later], [*later, due.next_ms], runs, strict=True)
        first, *others = (FireCall(schedule, *step) for step in steps)
        return [first._replace(missed=missed), *others]


class ScheduleRows:
    """Keeps the rows of PeriodicJob and the schedules of a shard in step.

    For the admin's schedules, the row decides what Redis has; for the code's, the schedule decides
    what its row shows. For both, the row decides whether the schedule is paused. Saving a row in
    the admin does the same at once; this class finds changes that did not reach Redis, changes made
    by other means, and the schedules of new code.

    Only the code whose schedules are defined compares, because it has the tasks. ``places``: the
    shards of the code's schedules. While ``is_quiet()``, Redis is asked only if a row has changed,
    or for a full comparison.
    """

    def __init__(
        self,
        commands: Commands,
        set_digest: str,
        places: Mapping[str, int] = MappingProxyType({}),
        is_quiet: Callable[[], bool] = lambda: False,
    ) -> None:
        self._commands = commands
        self._places = places
        self._is_quiet = is_quiet
        self._queries = ScheduleQueries(commands.connection, commands.settings)
        self._set_digest = set_digest
        self._seen: tuple[object, ...] = ()  # the rows' signature, and how many schedules there are
        self._full_at = 0.0
        self._logged: dict[str, str] = {}

    def run_once(self) -> None:
        """Compare, if something has changed. Raises RedisQueueError or DatabaseError."""
        alias = router.db_for_write(PeriodicJob)
        if not has_table(PeriodicJob, alias):
            return
        now = time.monotonic()
        rows = self._rows_signature(alias)
        if self._is_quiet() and now < self._full_at and rows == self._seen[:-1]:
            return
        if self._queries.defined_set() != self._set_digest:
            return
        seen = (*rows, self._queries.count())
        if seen != self._seen or now >= self._full_at:
            self._compare(alias)
            # With the rows as read before: one saved in the meantime is compared next time.
            self._seen, self._full_at = (*rows, self._queries.count()), now + FULL

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
            self._commands.remove_schedules("", part)
        for name, row in rows.items():
            one = known.get(name)
            if one is None or one.source != row.source:
                continue  # the code defines a schedule of the row's name, which runs instead
            if (one.paused_ms is None) is not row.is_enabled:
                self._pause(one, not row.is_enabled)

    def _is_here(self, row: PeriodicJob) -> bool:
        """Whether the row's schedule is in this shard. A row without one belongs to shard 0."""
        settings, here = self._commands.settings, self._commands.connection.shard
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
        """Make the code's rows show what the code defines."""
        of_code = {name: one for name, one in known.items() if one.source is Source.CODE}
        for name in [name for name, row in rows.items() if row.is_of_code and name not in of_code]:
            PeriodicJob.objects.using(alias).filter(pk=rows.pop(name).pk).delete()
        for name, one in of_code.items():
            shown = _shown_fields(one)
            row = rows.get(name)
            if row is None:
                rows[name], _ = PeriodicJob.objects.using(alias).get_or_create(
                    name=name, defaults=shown
                )
            elif row.is_of_code and any(getattr(row, key) != shown[key] for key in shown):
                PeriodicJob.objects.using(alias).filter(pk=row.pk).update(**shown)

    def _define(self, own: Iterable[PeriodicJob], known: Mapping[str, ScheduleData]) -> list[str]:
        """Write these rows to Redis; returns the names of those that differed."""
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
                part, self._commands.define_schedules("", part), strict=True
            ):
                if code is DefineReply.OF_CODE:
                    self._log(definition.name, "the code defines a schedule of this name")
        return [definition.name for definition, _ in changed]

    def _pause(self, one: ScheduleData, paused: bool) -> None:
        next_ms = None if paused else one.schedule.after(self._queries.now_ms())
        self._commands.pause_schedule(one.name, paused, next_ms)

    def _log(self, name: str, problem: str) -> None:
        if self._logged.get(name) != problem:
            log_wrong_row(name, problem)
        self._logged[name] = problem


def _shown_fields(one: ScheduleData) -> dict[str, object]:
    """What the row of one of the code's schedules shows."""
    schedule = one.schedule
    args, kwargs = _shown_arguments(one.job)
    cron = schedule if isinstance(schedule, Cron) else None
    return {
        "source": Source.CODE.value,
        "task": one.task[:255],
        "args": args,
        "kwargs": kwargs,
        "cron": shorten(cron.expression, 100) if cron else "",
        "every": "" if cron else schedule.timing,
        "timezone": cron.timezone if cron else "",
        "misfire": str(schedule.misfire),
        "overlap": str(schedule.overlap),
        "queue_name": one.queue,
        "priority": one.job.priority,
    }


def _shown_arguments(job: NewJob) -> tuple[list[object], dict[str, object]]:
    """The job's arguments, without those that its task redacts."""
    try:
        args, kwargs = decode_payload(job.payload)
        marks = decode_options(job.options)[0].get(OPTION) if job.options else None
        if marks is not None:
            args, kwargs = redact(args, kwargs, marks)
        return list(args), dict(kwargs)
    except (ValueError, TypeError):
        return [], {}
