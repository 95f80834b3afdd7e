"""Collapses a page of events into one change per record, of jobs and of workflows.

A record only accepts a higher order. A job's order is (epoch, seq), and it also overrides a final
status, because a requeued job continues. A workflow's order is the epoch and the place in the
stream; each event holds the whole state of its workflow, so the last one wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..broker.events import JobBody, JobStreamEvent, WorkflowStreamEvent
from ..core.codec import dumps
from ..core.parsing import object_or_none, text_or_none
from ..core.statuses import FINAL, Status, WorkflowStatus, WorkflowTransition
from ..metrics.histograms import Sums, add

STATUSES_WITH_ERROR = frozenset({Status.RETRYING, Status.FAILED, Status.CANCELLED})
ATTEMPT_ENDS = STATUSES_WITH_ERROR | {Status.COMPLETED}
MAX_ERROR_TYPE = 200  # characters
CLEARED_BY_REQUEUE = {
    "result": "", "error": "", "error_type": "", "error_group": None, "reason": "",
    "progress": "", "worker": "",
    "due_at": None, "started_at": None, "finished_at": None,
}  # fmt: skip
UNSET = ""  # an ``error_group`` that the error batch must find
LOST = "lost"  # the reason of a workflow that Redis no longer has
WORKFLOW_ENDS = frozenset(
    {WorkflowTransition.COMPLETED, WorkflowTransition.FAILED, WorkflowTransition.CANCELLED}
)

WorkflowOrder = tuple[int, int, int]  # the epoch, and the place in the stream


class KnownJob(NamedTuple):
    """What a job's record holds; times in ms."""

    epoch: int
    seq: int
    status: str
    queued_ms: int | None
    started_ms: int | None


class JobChange:
    """The change of one job's record: the ``fields`` to write, with times (``*_at``) in ms."""

    __slots__ = (
        "event", "failures", "fields", "has_first", "is_behind", "is_new", "is_replaced",
        "last_error", "order", "queued_ms", "started_ms", "status",
    )  # fmt: skip

    def __init__(self, known: KnownJob | None, first: JobStreamEvent, epoch: int) -> None:
        self.event = first  # the last one applied
        self.fields: dict[str, Any] = {}
        self.is_new = known is None
        self.has_first = False  # the first event of the job is among these
        # The epoch has risen, so events may be missing between the record and this one.
        self.is_behind = known is not None and known.epoch < epoch
        self.failures: list[JobStreamEvent] = []  # attempts that failed
        self.last_error: str | None = None  # of the last of these, if its event does not carry it
        self.is_replaced = False  # the job got newer arguments, which the event does not carry
        if self.is_behind:
            self.fields["due_at"] = None  # the event that cleared it may be among these
        if known is None:
            self.fields.update(task=first.task, queue=first.queue, enqueued_at=first.at_ms)
            known = _NEW
        self.order = (known.epoch, known.seq)
        self.status, self.queued_ms, self.started_ms = known[2:]

    @property
    def lacks_start(self) -> bool:
        """Whether only the job's hash has what a new record begins with."""
        return self.is_new and ("payload" not in self.fields or not self.has_first)

    @property
    def needs_body(self) -> bool:
        """True if the events lack something that the job's hash holds: it is too large for the
        stream, or the mirror has not seen the job's first event, or events were lost."""
        if self.is_replaced or self.is_behind or self.lacks_start:
            return True
        if self.status == Status.COMPLETED:
            return self.event.result is None
        if self.failures and self.failures[-1].error is None:
            return True
        return self.status in STATUSES_WITH_ERROR and self.event.error is None

    def fill(self, body: JobBody) -> None:
        """Take from the hash what the events left out, if the hash has it."""
        event, fields = self.event, self.fields
        is_behind = self.is_behind and body.payload is not None
        if body.payload is not None:
            if self.is_behind or self.lacks_start:
                _fill_new(fields, body)
            if self.is_replaced:
                fields["payload"] = body.payload
        if self.status == Status.COMPLETED and event.result is None and body.result:
            fields["result"] = body.result
        self.last_error = body.error
        # With more attempts than the event counts, the error belongs to a later event.
        has_error = is_behind or self.status in STATUSES_WITH_ERROR
        if has_error and body.error and body.attempts <= event.attempt:
            _set_error(fields, body.error)

    def errors(self) -> Iterator[tuple[JobStreamEvent, str]]:
        """The failed attempts, last one first, each with its error as JSON. An attempt whose error
        is no longer in its event or in Redis has that of the next one, or ''."""
        error = self.last_error or ""
        for event in reversed(self.failures):
            error = event.error or error
            yield event, error


_NEW = KnownJob(-1, -1, "", None, None)


def _fill_new(fields: dict[str, Any], body: JobBody) -> None:
    fields["payload"] = body.payload
    fields["priority"], fields["requeues"] = body.priority, body.generation
    fields["tags"], fields["correlation_id"] = body.tags, body.correlation or None
    fields["progress"] = body.progress
    if body.enqueued_ms is not None:
        fields["enqueued_at"] = body.enqueued_ms
    if fields.get("started_at") is None:
        fields["started_at"] = body.started_ms


def collapse_jobs(
    events: Sequence[JobStreamEvent],
    known: Mapping[str, KnownJob],
    epoch: int,
    sums_of: Callable[[int, str, str], Sums],
) -> dict[str, JobChange]:
    """The changes by job id, in the order of their first events; stale events change nothing.
    ``sums_of``: the sums to which the runs of this time, queue and task are added."""
    changes: dict[str, JobChange] = {}
    for event in events:
        job_id, order = event.job_id, (epoch, event.seq)
        change = changes.get(job_id) or JobChange(known.get(job_id), event, epoch)
        if order > change.order:
            changes[job_id] = change
            _apply(change, event, sums_of(event.at_ms, event.queue, event.task))
            change.order, change.event, change.status = order, event, event.status
    return changes


def _apply(change: JobChange, event: JobStreamEvent, sums: Sums) -> None:
    fields, more = change.fields, event.more
    is_replaced = "replaced" in more
    # Requeued, or Redis went back in time; or a failed attempt had other arguments.
    if change.status in FINAL or (is_replaced and change.status == Status.RETRYING):
        fields.update(CLEARED_BY_REQUEUE)
    fields["status"], fields["attempts"] = event.status, event.attempt
    if event.seq == 1:
        change.has_first = True
        sums.enqueued += 1
        fields["priority"] = more.get("priority", 0)
        fields["enqueued_at"], fields["requeues"] = event.at_ms, 0  # a lost job may start anew
    if "requeues" in more:
        fields["requeues"] = more["requeues"]
    if "tags" in more:
        fields["tags"] = more["tags"]
    if "correlation" in more:
        fields["correlation_id"] = more["correlation"] or None
    if is_replaced:
        change.is_replaced = event.args is None
    if event.args is not None:
        fields["payload"] = event.args
    if event.status in ATTEMPT_ENDS:
        _end_attempt(change, event, sums)
    else:
        _move_on(change, event, sums)


def _move_on(change: JobChange, event: JobStreamEvent, sums: Sums) -> None:
    fields, more, at_ms = change.fields, event.more, event.at_ms
    match event.status:
        case Status.QUEUED:
            if "requeues" in more:
                fields.update(CLEARED_BY_REQUEUE)
            if "replaced" not in more or change.queued_ms is None:
                fields["queued_at"] = change.queued_ms = at_ms
            fields["due_at"] = None
        case Status.PROCESSING:
            fields["worker"] = event.worker
            if "progress" in more:
                fields["progress"] = dumps(more["progress"])
                return
            fields["started_at"] = change.started_ms = at_ms
            if change.queued_ms is not None:
                add(sums.wait, at_ms - change.queued_ms)
        case _:  # scheduled, or waiting for its parents
            fields["due_at"] = more.get("dueMs")


def _end_attempt(change: JobChange, event: JobStreamEvent, sums: Sums) -> None:
    """The attempt has ended, if one was running, and with it the job unless it is retried."""
    fields, more, at_ms = change.fields, event.more, event.at_ms
    if change.status == Status.PROCESSING and change.started_ms is not None:
        add(sums.run, at_ms - change.started_ms)
    match event.status:
        case Status.COMPLETED:
            sums.completed += 1
            fields.update(error="", error_type="", error_group=None, reason="", finished_at=at_ms)
            if event.result is not None:
                fields["result"] = event.result
            return
        case Status.RETRYING:
            sums.retried += 1
            fields["due_at"] = more.get("dueMs")
        case Status.FAILED:
            sums.failed += 1
        case Status.CANCELLED:
            sums.cancelled += 1
    if event.status != Status.RETRYING:
        # Only the end of a job that Redis has lost while it was scheduled has a due time.
        fields.update(reason=more.get("reason", ""), finished_at=at_ms, due_at=more.get("dueMs"))
    if event.status != Status.CANCELLED:
        change.failures.append(event)
        fields["error_group"] = UNSET
    _set_error(fields, event.error)


def _set_error(fields: dict[str, Any], error: str | None) -> None:
    if error is None:
        return
    fields["error"] = error
    kind = (object_or_none(error) or {}).get("type")
    fields["error_type"] = text_or_none(kind, MAX_ERROR_TYPE) or ""


class KnownWorkflow(NamedTuple):
    """What a workflow's record holds that its events do not repeat; times in ms."""

    order: WorkflowOrder
    status: str
    reason: str
    ended_ms: int | None
    cleaned_ms: int | None


@dataclass(slots=True)
class WorkflowChange:
    """The change of one workflow's record: ``event`` is the last one applied."""

    event: WorkflowStreamEvent
    order: WorkflowOrder
    is_new: bool
    status: str = WorkflowStatus.RUNNING.value
    reason: str = ""
    ended_ms: int | None = None
    cleaned_ms: int | None = None

    def apply(self, event: WorkflowStreamEvent, order: WorkflowOrder) -> None:
        self.event, self.order = event, order
        if event.step is WorkflowTransition.PAUSED:
            return
        if event.step is WorkflowTransition.CLEANED:
            self.cleaned_ms = event.at_ms
            if self.ended_ms is None:  # its push was never finished
                self.status, self.ended_ms = WorkflowStatus.CANCELLED.value, event.at_ms
            return
        self.status, self.reason = event.step.value, event.reason if event.reason == LOST else ""
        self.ended_ms = event.at_ms if event.step in WORKFLOW_ENDS else None
        self.cleaned_ms = None


def collapse_workflows(
    events: Sequence[WorkflowStreamEvent], known: Mapping[str, KnownWorkflow], epoch: int
) -> dict[str, WorkflowChange]:
    """The changes by workflow id. Stale events change nothing, and a workflow that was cleaned up
    before it ran gets no record."""
    changes: dict[str, WorkflowChange] = {}
    for event in events:
        order = (epoch, *event.position)
        change = changes.get(event.workflow_id)
        if change is None:
            before = known.get(event.workflow_id)
            is_gone = event.step is WorkflowTransition.CLEANED
            if order < before.order if before else is_gone:
                continue
            change = WorkflowChange(event, order, before is None, *(before[1:] if before else ()))
            changes[event.workflow_id] = change
        change.apply(event, order)
    return changes
