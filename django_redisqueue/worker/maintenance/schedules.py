"""Periodic jobs: which schedules there are, and their jobs when they are due.

Schedules live in Redis, so any worker's leader fires all of them, also those that only newer code
knows. Which definitions count is decided by the newest code that runs (announce_schedules.lua).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from ...broker.base import BATCH
from ...broker.commands import Commands
from ...broker.replies import AnnounceReply, FireReply
from ...broker.schedules import ScheduleQueries, UnreadableSchedule, slices
from ...core.schedules import ScheduleData, ScheduleDefinition, Source, set_digest
from ...exceptions import RedisQueueError, RedisUnavailable

logger = logging.getLogger("django_redisqueue")

TTL_MS = 60_000  # until code whose workers say nothing more is taken for gone
AGAIN_MS = 1
BLOCKED = 30.0  # s until a schedule that cannot be fired is tried again


class ScheduleDeployment:
    """Defines the schedules of this worker's code, unless newer code runs."""

    def __init__(self, store: Commands, definitions: Sequence[ScheduleDefinition]) -> None:
        self._store = store
        self._queries = ScheduleQueries(store.connection, store.settings)
        self._definitions = definitions
        self.digest = set_digest(definitions)
        self._problem = ""
        self.is_current = False  #: whether no newer code was running at the last pass

    def run_once(self) -> bool:
        """Say that this code runs, and define its schedules if that is to be done. Returns False:
        it never has more to do. Raises RedisUnavailable; other errors must not stop the
        maintenance."""
        try:
            self._deploy()
            self._problem = ""
        except RedisUnavailable:
            raise
        except RedisQueueError as error:
            self.is_current = False
            if str(error) != self._problem:
                #: Redis refuses the schedules of the code, mostly because it is full or a key has a
                #: wrong type. They run as before; remove the reason.
                logger.error("the schedules cannot be defined: %s", error)
            self._problem = str(error)
        return False

    def _deploy(self) -> None:
        reply = self._store.announce_schedules(self.digest, TTL_MS)
        self.is_current = reply is not AnnounceReply.OUTDATED
        if reply is AnnounceReply.TO_DEFINE and self._define():
            self._store.announce_schedules(self.digest, TTL_MS, is_defined=True)

    def _define(self) -> bool:
        """False if newer code has come meanwhile."""
        now_ms = self._store.now_ms or self._queries.now_ms()
        for part in slices(self._definitions):
            due = [(one, one.schedule.after(now_ms)) for one in part]
            if -1 in self._store.define_schedules(self.digest, due):
                return False
        for one in self._definitions:
            if one.error:
                #: A schedule in the code or the settings is wrong: its task, arguments or queue.
                #: Correct it and deploy.
                logger.error("the schedule %s does not run: %s", one.name, one.error)
        known = {one.name for one in self._definitions}
        former = [name for name in self._queries.of_source(Source.CODE) if name not in known]
        for names in slices(former):
            self._store.remove_schedules(self.digest, names)
        return True


class Scheduler:
    """Fires the schedules that are due."""

    def __init__(self, store: Commands) -> None:
        self._store = store
        self._queries = ScheduleQueries(store.connection, store.settings)
        self._blocked: dict[str, float] = {}  # name -> when it is tried again (monotonic)

    def run_once(self) -> int:
        """Fire up to 100. Returns ms until the next pass."""
        now_ms = self._store.now_ms or self._queries.now_ms()
        now = time.monotonic()
        self._blocked = {name: at for name, at in self._blocked.items() if at > now}
        due = self._queries.due(now_ms, BATCH + len(self._blocked))
        names = [name for name in due if name not in self._blocked]
        for name, schedule in zip(names, self._queries.schedules(names), strict=True):
            try:
                self._fire(name, schedule, now_ms)
            except RedisUnavailable:
                raise
            except RedisQueueError as error:
                self._block(name, str(error))
        if names or not self._blocked:
            return AGAIN_MS
        return int(1000 * (min(self._blocked.values()) - now)) + AGAIN_MS

    def _block(self, name: str, problem: str) -> None:
        """One that cannot be fired must not stop the others, nor keep the leader busy."""
        #: A due run could not be enqueued; other schedules go on, and this one is tried again after
        #: half a minute. The text says why.
        logger.error("the schedule %s cannot be fired: %s; trying again", name, problem)
        self._blocked[name] = time.monotonic() + BLOCKED

    def _fire(
        self, name: str, schedule: ScheduleData | UnreadableSchedule | None, now_ms: int
    ) -> None:
        if schedule is None:
            self._store.remove_schedules("", [name])  # its hash was deleted by hand
        elif isinstance(schedule, UnreadableSchedule):
            self._block(name, schedule.problem)
        elif schedule.next_ms is None or schedule.is_stopped:
            self._block(name, "it was changed by hand, and is not to be fired now")
        else:
            self._fire_due(schedule, schedule.next_ms, now_ms)

    def _fire_due(self, schedule: ScheduleData, cursor_ms: int, now_ms: int) -> None:
        due = schedule.schedule.due_runs(cursor_ms, now_ms)
        missed = due.missed
        if missed:
            #: While all workers were down, due times passed, and the schedule's misfire policy
            #: gives them no run. Run it by hand in the admin if it is wanted.
            logger.warning(
                "schedule %s: no worker was there at %d due times, which get no run (misfire=%s)",
                schedule.name, missed, schedule.schedule.misfire,
            )  # fmt: skip
        if not due.run_ms:
            self._store.fire(schedule, cursor_ms, due.next_ms, None, missed)
            return
        cursors = [cursor_ms, *due.run_ms[1:]]
        for cursor, due_ms, next_ms in zip(
            cursors, due.run_ms, [*due.run_ms[1:], due.next_ms], strict=True
        ):
            reply = self._store.fire(schedule, cursor, next_ms, due_ms, missed)
            if reply is FireReply.MOVED_ON:
                return
            missed = 0
