"""Records of the arguments and replies of scripts. Those made for every job are named tuples,
because creating a frozen dataclass takes four times as long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from .failures import wrong_key

_CLAIM_HEAD, _CLAIM_STRIDE = 6, 3


class FinishCode(IntEnum):
    """The reply to one reported outcome (outcome.lua)."""

    LEASE_LOST = 0
    ACCEPTED = 1
    REPEATED = 2
    ACCEPTED_AS_CANCELLED = 3
    UNWRITTEN = 4  # a key of the job's queue has the wrong type: report again later


class AnnounceReply(IntEnum):
    """The reply to a set of schedules (announce_schedules.lua)."""

    OUTDATED = 0  # newer code is running
    DEFINED = 1
    TO_DEFINE = 2


class DefineReply(IntEnum):
    """What became of one schedule that was to be defined (define_schedules.lua)."""

    OF_CODE = -2  # the code defines a schedule of this name
    OUTDATED = -1  # newer code is running
    KNOWN = 0
    DEFINED = 1


class RemoveReply(IntEnum):
    """What became of one schedule that was to be removed (remove_schedules.lua)."""

    NOT_OWN = -1  # newer code is running, or another source defines it
    UNKNOWN = 0
    REMOVED = 1


class RequeueReply(IntEnum):
    """What became of one job that was to be requeued (requeue.lua)."""

    UNIQUE_CONFLICT = -4  # another job has its unique key
    WORKFLOW_CANCELLED = -3
    WORKFLOW_CLEANED = -2
    UNKNOWN = -1
    WRONG_STATUS = 0  # neither failed nor cancelled
    REQUEUED = 1


class FireReply(IntEnum):
    """What became of a due time (fire.lua)."""

    MOVED_ON = 0  # the schedule had advanced, changed or stopped: nothing was done
    CREATED = 1
    SKIPPED = 2  # the previous run has not finished
    NO_JOB = 3


class LeadReply(IntEnum):
    """The reply to a request for a role that one process per shard has (lead.lua)."""

    NO = 0  # another process has it
    YES = 1
    AND_CONTINUE = 2  # yes, and there are continuations to run


class OutcomeKind(StrEnum):
    """How a child's run of a job ended (outcome.lua)."""

    COMPLETED = "completed"
    FAILED = "failed"
    RETRYING = "retrying"
    DELAYED = "delayed"  # like retrying, but spends no attempt
    LIMITED = "limited"  # like delayed, and its rates allow no earlier start
    CANCELLED = "cancelled"
    QUEUED = "queued"  # released before it started, or between two items
    PARKED = "parked"  # sleeps, or waits for an event


class Outcome(NamedTuple):
    """A run's outcome, to be reported. ``body``: JSON; ``detail``: a delay in ms or a reason."""

    id: str
    lease: int
    call: int
    kind: str
    body: str = ""
    detail: str = ""


class ClaimedJob(NamedTuple):
    """A job as a child receives it."""

    id: str
    queue: str
    task: str
    payload: str
    lease: int
    attempts: int
    recoveries: int
    options: str
    call: int

    def __repr__(self) -> str:
        return f"<Claimed {self.id} of {self.task}>"  # without the payload, which may hold secrets


class ClaimReply(NamedTuple):
    jobs: list[ClaimedJob]
    lost: Sequence[str]  # ids without a hash
    leave_out: Sequence[str]  # queues not to claim from for a while
    must_be_alone: bool
    broken: Mapping[str, str]  # queue -> its key of the wrong type


FinishReply = tuple[list[int], ClaimReply]  # a FinishCode for each outcome, and the claim


STEP = 50  # jobs a step of a clear or requeue, which delays other clients by half a millisecond


class ContinuationStep(NamedTuple):
    """One step of a clear or requeue (continuation.lua); ``left``: jobs left before the step."""

    token: str
    left: int
    first: int  # 1 for the first


SINGLE_STEP = ContinuationStep("", 0, 1)  # leaves no continuation


class StepReply(NamedTuple):
    """How many jobs a step looked at (0: the list is empty, or another process continues), and how
    many it changed."""

    seen: int
    done: int


class RoleTerm(NamedTuple):
    """A role (lead.lua) that a child has or wants. ``sleeps``: the child leads but has nothing to
    do, so the heartbeat renews its term."""

    role: str
    child: str
    term_ms: int
    sleeps: bool


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    interrupted: bool  # Redis was down or heartbeats were missing: no reaping for one lease
    steady_ms: int  # the time since which neither has been the case
    lapsed: int  # expired leases, of any worker's children
    lost: list[str]  # the jobs asked about whose lease is lost
    flagged: list[str]  # the jobs asked about that have a pending cancel
    order: str  # the last order to the worker, "<ms> <order>", or ''
    to_ask: Sequence[str] = ()  # roles that the children must request themselves
    activity: str = ""  # changes with every transition of a job, and when work is left over


@dataclass(frozen=True, slots=True)
class ReapReply:
    """The reply to a reap. ``wait_ms`` > 0: leases have expired, but it is too early to reap."""

    child: str = ""
    more: bool = False
    stuck: bool = False  # some jobs stay, because a key of their queue has the wrong type
    jobs: Sequence[tuple[str, str]] = ()  # id and outcome
    wait_ms: int = 0
    unreadable: bool = False  # the child's processing list has the wrong type


class WaitState(IntEnum):
    """The state of a job's wait (check_wait.lua)."""

    TOO_LARGE = -1
    LEASE_LOST = 0
    OVER = 1
    LATE = 2
    GOES_ON = 3


class WaitReply(NamedTuple):
    """The reply to ``check_wait``. ``value``: the event's payload, or when the wait ends."""

    state: WaitState
    value: str = ""


class PromoteReply(NamedTuple):
    """The reply to a promote. ``next_ms``: time until the next job is due, or -1."""

    moved: int
    next_ms: int
    broken: Mapping[str, str]  # queue -> its key of the wrong type
    schedule_ms: int = -1  # time until the next schedule is due, or -1


def parse_finish(reply: Sequence[Any], outcomes: int) -> FinishReply:
    """The reply of finish.lua: a code for each outcome, and the claim."""
    others, claimed = reply
    codes: list[int] = [FinishCode.ACCEPTED] * outcomes
    for at in range(0, len(others), 2):
        codes[others[at] - 1] = others[at + 1]
    return codes, parse_claim(claimed)


def parse_claim(reply: Sequence[Any]) -> ClaimReply:
    """The reply of claim_queues.lua."""
    call, lost, leave_out, alone, texts, broken = reply[:_CLAIM_HEAD]
    kinds = list(map(_parse_kind, texts[::2]))
    jobs = []
    for at in range(_CLAIM_HEAD, len(reply), _CLAIM_STRIDE):
        job_id, payload, kind = reply[at : at + _CLAIM_STRIDE]
        queue, task, lease, attempts, recoveries = kinds[kind]
        jobs.append(
            ClaimedJob(
                job_id, queue, task, payload, lease, attempts, recoveries, texts[2 * kind + 1],
                call,
            )
        )  # fmt: skip
    return ClaimReply(jobs, lost, leave_out, bool(alone), parse_broken(broken) if broken else {})


def parse_broken(reply: Sequence[str]) -> dict[str, str]:
    """Queue -> its key of the wrong type."""
    return {
        queue: wrong_key(problem) or problem
        for queue, problem in zip(reply[::2], reply[1::2], strict=True)
    }


@lru_cache(maxsize=1024)  # consecutive batches mostly have the same texts
def _parse_kind(text: str) -> tuple[str, str, int, int, int]:
    queue, lease, attempts, recoveries, task = text.split(" ", 4)
    return queue, task, int(lease), int(attempts), int(recoveries)


def id_in(entry: str) -> str:
    """The id in an entry of a child's processing list."""
    return entry.partition(":")[2].partition(" ")[0]
