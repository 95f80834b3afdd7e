"""Schedules in memory, from the code and the admin's rows, which ``travel`` fires."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from django.db import Error as DatabaseError

from ..client.schedules import code_schedules
from ..core.ids import periodic_job_id
from ..core.ports import ports
from ..core.schedules import ScheduleDefinition, Source
from ..core.statuses import Overlap, Status
from .expectations import CapturedJobs
from .hashes import set_fields


@dataclass(slots=True)
class _State:
    """A schedule, its next due time, and its last run."""

    definition: ScheduleDefinition
    next_ms: int | None
    last_due_ms: int | None = None
    last_job: str = ""


class InMemorySchedules:
    """The schedules of a test: those of the code are read on its first ``travel``, and the admin's
    rows on every one."""

    def __init__(self, jobs: CapturedJobs) -> None:
        self._jobs = jobs
        self._states: dict[str, _State] | None = None

    def refresh(self) -> None:
        """Read the admin's rows. A row that is new or has changed counts from now. Raises
        InvalidOption for one that can never be due."""
        states, rows = self._all(), {row.name: row for row in _rows() if not row.error}
        for name, definition in [(name, state.definition) for name, state in states.items()]:
            is_current = name in rows and rows[name].digest == definition.digest
            if definition.source is Source.ADMIN and not is_current:
                del states[name]
        for name, row in rows.items():
            if name not in states:
                states[name] = self._state(row)

    def first_due_ms(self) -> float:
        due = (state.next_ms for state in self._all().values())
        return min((due_ms for due_ms in due if due_ms is not None), default=math.inf)

    def fire_due(self) -> None:
        """What fire.lua does, for all schedules that are due."""
        now_ms = self._jobs.now_ms()
        for state in self._all().values():
            while state.next_ms is not None and state.next_ms <= now_ms:
                self._fire(state, state.next_ms)

    def skip_due(self) -> None:
        """Skip past due times, as if no worker had been running."""
        now_ms = self._jobs.now_ms()
        for state in self._all().values():
            if state.next_ms is not None and state.next_ms <= now_ms:
                state.next_ms = state.definition.schedule.after(now_ms)

    def _all(self) -> dict[str, _State]:
        if self._states is None:
            found = [self._state(one) for one in code_schedules() if not one.error]
            self._states = {one.definition.name: one for one in found}
        return self._states

    def _state(self, definition: ScheduleDefinition) -> _State:
        return _State(definition, definition.schedule.after(self._jobs.now_ms()))

    def _fire(self, state: _State, due_ms: int) -> None:
        schedule = state.definition.schedule
        state.next_ms = schedule.after(due_ms)
        if self._is_unfinished(state.last_job):
            if schedule.overlap == Overlap.SKIP:
                return
            if schedule.overlap == Overlap.CANCEL:
                self._jobs.cancel_job(state.last_job)
        job_id = periodic_job_id(state.definition.name, due_ms)
        self._jobs.put(replace(state.definition.job, id=job_id))
        if job_id not in self._jobs.hashes:
            return  # another job has its unique key
        if state.last_due_ms is not None:
            set_fields(self._jobs.hashes[job_id], previous_due_ms=state.last_due_ms)
        state.last_due_ms, state.last_job = due_ms, job_id

    def _is_unfinished(self, job_id: str) -> bool:
        found = self._jobs.hashes.get(job_id)
        return found is not None and not Status(found["status"]).is_final


def _rows() -> Sequence[ScheduleDefinition]:
    """The admin's rows; none in a test that may not use the database: there Django raises an
    AssertionError, and pytest-django a RuntimeError."""
    if ports.schedule_rows is None:
        return ()
    try:
        return ports.schedule_rows()
    except (AssertionError, RuntimeError, DatabaseError):
        return ()
