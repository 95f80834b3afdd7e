"""The states of a job: one spelling in Redis, events, ORM, API and on screen."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from ..exceptions import InvalidOption, short_repr

Choice = TypeVar("Choice", bound=StrEnum)


def check_choice(value: object, choices: type[Choice], name: str) -> Choice:
    """The enum member of that value. Raises InvalidOption."""
    try:
        return choices(str(value))
    except ValueError:
        raise InvalidOption(
            f"{name} must be one of {', '.join(choices)}, not {short_repr(value)}"
        ) from None


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
        """True if only a requeue can move the job again."""
        return self in FINAL


FINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
UNFINISHED = frozenset(Status) - FINAL


class JobReason(StrEnum):
    """Why a job failed or was cancelled, other than by its own error or on request."""

    NONE = ""
    TIMEOUT = "timeout"
    POISON = "poison"  # its worker died too often while it ran
    UNKNOWN_TASK = "unknown_task"
    CORRUPT = "corrupt"  # its payload cannot be read
    RESULT = "result"  # its result cannot be stored
    LOST = "lost"  # Redis lost it; the mirror reports this
    SKIPPED = "skipped"  # a parent failed
    PARENT_GONE = "parent_gone"  # a parent is gone
    CLEANED = "cleaned"  # with its workflow
    SUPERSEDED = "superseded"  # a job with newer arguments has its unique key
    EXPIRED = "expired"  # no worker started it by the time that ``expires`` allows
    CONFLICT = "conflict"  # its concurrency limit was reached, and its on_conflict ended it


class WorkflowStatus(StrEnum):
    """Where a workflow is. A paused workflow is ``running`` with a flag."""

    BUILDING = "building"  # its jobs are being pushed
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"  # its jobs that had not started wait for a retry
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """True if only a retry of one of its jobs can move it again."""
        return self not in (WorkflowStatus.BUILDING, WorkflowStatus.RUNNING)


class GatherStatus(StrEnum):
    COLLECTING = "collecting"  # too few results yet
    RELEASED = "released"  # the threshold was reached, and ``then`` enqueued
    FAILED = "failed"  # the threshold was not reached, and ``on_failure`` was enqueued

    @property
    def is_final(self) -> bool:
        """True if nothing can change it."""
        return self is not GatherStatus.COLLECTING


class ApprovalStatus(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"  # no decision within its timeout
    CLOSED = "closed"  # its job ended in the meantime


class GatherReason(StrEnum):
    NONE = ""  # it did not
    LATE = "late"  # its last check found too few results
    UNREACHABLE = "unreachable"  # too many listeners failed, or were cancelled
    EXPIRED = "expired"  # its results were gone: past their TTL, or deleted


class WorkflowTransition(StrEnum):
    """What an event of a workflow reports: a new status, or that it was paused or cleaned up."""

    BUILDING = "building"  # released while its jobs are still being pushed
    RUNNING = "running"  # created, released, or resumed by a retry
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CLEANED = "cleaned"  # deleted from Redis


class OnFailure(StrEnum):
    """What the failure or cancellation of a job means for its workflow."""

    FAIL = "fail"  # the workflow fails: no more of its jobs start
    SKIP = "skip"  # the job's dependants are cancelled; the rest continues
    GO_ON = "go_on"  # the job's dependants run without its result


class OnParentFailure(StrEnum):
    """What a job does when a parent (``using(after=...)``) fails or is cancelled."""

    WAIT = "wait"  # keeps waiting, as the parent may be retried
    SKIP = "skip"  # is cancelled, with the reason "skipped"
    GO_ON = "go_on"  # runs without the parent's result


class OnConflict(StrEnum):
    """What happens to a new job when its concurrency limit is reached."""

    WAIT = "wait"  # it waits for its turn
    DISCARD = "discard"  # it ends at once
    CANCEL_OLDEST = "cancel_oldest"  # the oldest one makes room


class Misfire(StrEnum):
    """What a periodic task does about due times that passed while no worker was running."""

    ONCE = "once"  # one run stands for all of them
    SKIP = "skip"  # they are left out
    ALL = "all"  # each gets its run, up to 100


class Overlap(StrEnum):
    """What a periodic task does when its previous run has not finished."""

    QUEUE = "queue"  # the new run is queued as well
    SKIP = "skip"  # the new run is left out
    CANCEL = "cancel"  # the previous run is cancelled


class UniqueMode(StrEnum):
    """How long a job has its unique key, and what a newer job means for it."""

    UNTIL_STARTED = "until_started"  # a second job is made once the first has started
    UNTIL_FINISHED = "until_finished"  # once the first has ended
    KEEP_LAST = "keep_last"  # one runs, and one waits with the newest arguments


class Audit(StrEnum):
    """Which of a task's transitions become events (``@task(audit=...)``)."""

    ALL = "all"
    FINAL = "final"
    FAILED = "failed"
    NONE = "none"
