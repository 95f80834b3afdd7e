"""Schedules in memory: those that the code defines, fired as ``travel`` passes their due times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..client.schedules import code_schedules
from ..core.ids import periodic_job_id
from ..core.job_data import NewJob
from ..core.schedule_data import ScheduleDefinition
from ..core.statuses import Overlap, Status
from .clock import InMemoryClock
from .hashes import JobHash, set_fields


@dataclass(slots=True)
class _State:
    """A schedule, its next due time, and its last run."""

    definition: ScheduleDefinition
    next_ms: int | None
    last_due_ms: int | None = None
    last_job: str = ""


class InMemorySchedules:
    """The schedules of a test, as of its first ``travel``. ``put`` enqueues a job, and ``cancel``
    cancels one."""

    def __init__(
        self,
        jobs: Mapping[str, JobHash],
        put: Callable[[NewJob], None],
        cancel: Callable[[str], int],
        clock: InMemoryClock,
    ) -> None:
        self._jobs = jobs
        self._put = put
        self._cancel = cancel
        self._clock = clock
        self._states: list[_State] | None = None

    def first_due_ms(self) -> float:
        """When the first of them is due."""
        due = (state.next_ms for state in self._all())
        return min((due_ms for due_ms in due if due_ms is not None), default=math.inf)

    def fire_due(self) -> None:
        """What fire.lua does, for all that are due."""
        now_ms = self._clock.now_ms()
        for state in self._all():
            while state.next_ms is not None and state.next_ms <= now_ms:
                self._fire(state, state.next_ms)

    def skip_due(self) -> None:
        """Go on with what is to come, as if there had been no worker."""
        now_ms = self._clock.now_ms()
        for state in self._all():
            if state.next_ms is not None and state.next_ms <= now_ms:
                state.next_ms = state.definition.schedule.after(now_ms)

    def _all(self) -> list[_State]:
        if self._states is None:
            now_ms = self._clock.now_ms()
            found = [one for one in code_schedules() if not one.error]
            self._states = [_State(one, one.schedule.after(now_ms)) for one in found]
        return self._states

    def _fire(self, state: _State, due_ms: int) -> None:
        schedule = state.definition.schedule
        state.next_ms = schedule.after(due_ms)
        if self._is_unfinished(state.last_job):
            if schedule.overlap == Overlap.SKIP:
                return
            if schedule.overlap == Overlap.CANCEL:
                self._cancel(state.last_job)
        job_id = periodic_job_id(state.definition.name, due_ms)
        self._put(replace(state.definition.job, id=job_id))
        if job_id not in self._jobs:
            return  # another job has its unique key
        if state.last_due_ms is not None:
            set_fields(self._jobs[job_id], previous_due_ms=state.last_due_ms)
        state.last_due_ms, state.last_job = due_ms, job_id

    def _is_unfinished(self, job_id: str) -> bool:
        return job_id in self._jobs and not Status(self._jobs[job_id]["status"]).is_final
