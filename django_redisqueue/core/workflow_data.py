"""The records of a workflow, and how one is decoded from its hash in Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..exceptions import CorruptJob
from .formatting import printable
from .parsing import MAX_INT32, Fields
from .statuses import WorkflowStatus


class WorkflowJob(NamedTuple):
    """A job of a workflow, as enqueue_workflow.lua takes it. Names of siblings are ``.<number>``,
    joined by blanks. A named tuple: it is made for every job, and goes into the call as it is."""

    id: str
    queue: str
    task: str
    payload: str
    options: str
    priority: int
    when: str
    audit: str
    waits: int  # how many parents
    then: str  # names of its dependants, "*" when they are in a list
    after: str  # names of its parents
    on_fail: str  # an OnFailure; "" fails the workflow
    joins: str  # names of parents that keep their dependants in a list
    unique: str = ""  # as in NewJob
    lane: str = ""


class Push(NamedTuple):
    """A workflow on its way: names and values of its own fields, and its jobs."""

    workflow_id: str
    fields: Sequence[str]
    jobs: Sequence[WorkflowJob]
    stored: bool = False  # it has a row in an outbox: Redis remembers its id until that is deleted


class WorkflowPart(NamedTuple):
    """What one script call creates of a workflow: up to 100 jobs, mostly all."""

    workflow_id: str
    fields: Sequence[str]
    jobs: Sequence[WorkflowJob]
    is_first: bool
    is_last: bool
    stored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowData:
    """Everything Redis knows of a workflow. Instants are ms since the epoch, by Redis's clock."""

    id: str
    status: WorkflowStatus
    name: str = ""
    is_paused: bool = False
    total: int = 0
    waiting: int = 0
    processing: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    generation: int = 0  # how often a retry has resumed it
    made_ms: int | None = None
    ended_ms: int | None = None

    @property
    def queued(self) -> int:
        """Jobs that are in a queue or due later."""
        ended = self.completed + self.failed + self.cancelled
        return self.total - self.waiting - self.processing - ended


@dataclass(frozen=True, slots=True)
class WorkflowNode:
    """A job as a node of its workflow's graph; ``after``: the numbers of its parents."""

    number: int
    status: str
    task: str
    after: tuple[int, ...] = ()


ENDED_COUNTS = ("completed", "failed", "cancelled")  # also columns of a workflow's record
JOB_COUNTS = ("waiting", "queued", "processing", *ENDED_COUNTS)
_COUNTS = ("total", "waiting", "processing", *ENDED_COUNTS, "generation")
_INSTANTS = ("made_ms", "ended_ms")
_STATUSES = frozenset(WorkflowStatus)
WORKFLOW_FIELDS = ("status", "name", "paused_ms", *_COUNTS, *_INSTANTS)  # without parents' results


def decode_workflow(workflow_id: str, raw: Mapping[str, str]) -> WorkflowData:
    """A workflow's hash as WorkflowData. Raises nothing but CorruptJob."""
    fields = Fields(raw)
    counts = {key: fields.integer(key, MAX_INT32) for key in _COUNTS if key in raw}
    instants = {key: fields.instant_ms(key) for key in _INSTANTS if key in raw}
    if raw["status"] not in _STATUSES:
        fields.fault("status", raw["status"])
    if fields.faults:
        raise CorruptJob(
            f"the hash of workflow {workflow_id} cannot be read: {'; '.join(fields.faults)}"
        )
    return WorkflowData(
        id=workflow_id,
        status=WorkflowStatus(raw["status"]),
        name=printable(raw.get("name", "")),
        is_paused="paused_ms" in raw,
        **{key: found for key, found in {**counts, **instants}.items() if found is not None},
    )
