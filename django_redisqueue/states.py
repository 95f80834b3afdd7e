"""The states of a job: one spelling in Redis, events, ORM, API and on screen."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Where a job is. See the transitions in ``docs/transitions.md``."""

    SCHEDULED = "scheduled"  # due later
    WAITING = "waiting"  # for parents, or held by a paused workflow
    QUEUED = "queued"
    PROCESSING = "processing"
    RETRYING = "retrying"  # due later, after a failed attempt
    COMPLETED = "completed"
    FAILED = "failed"  # the dead-letter list
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """True when only a requeue can move the job again."""
        return self in FINAL


FINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


class Audit(StrEnum):
    """Which of a task's transitions become events (``@task(audit=...)``)."""

    ALL = "all"
    FINAL = "final"
    FAILED = "failed"
    NONE = "none"
