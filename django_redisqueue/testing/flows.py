"""Workflows in memory: what the scripts do with them, but for time: none is cleaned up by itself.

What a pause has held back, or a failure, goes on in the order in which the jobs were added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..clock import real_ms
from ..flowdata import FlowData, FlowJob, Push
from ..jobdata import NewJob
from ..states import FINAL, JobReason, Status, WorkflowStatus
from .hashes import Hash, callback_job, hash_of, let_wait
from .waiting import TOLD

CLEANED, CANCELLED = -2, -3  # requeue.lua's codes for jobs that no retry brings back


@dataclass(slots=True)
class _Flow:
    """A workflow's own fields, and its jobs, which it shares with the queue."""

    id: str
    fields: Mapping[str, str]
    jobs: Mapping[str, Hash]
    status: WorkflowStatus = WorkflowStatus.RUNNING
    is_paused: bool = False
    generation: int = 0
    made_ms: int = field(default_factory=real_ms)
    ended_ms: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether nothing of it may start."""
        goes = (WorkflowStatus.RUNNING, WorkflowStatus.COMPLETED)
        return self.is_paused or self.status not in goes

    def data(self) -> FlowData:
        count = Counter(found["status"] for found in self.jobs.values())
        return FlowData(
            id=self.id, status=self.status, name=self.fields["name"], is_paused=self.is_paused,
            total=len(self.jobs), generation=self.generation, made_ms=self.made_ms,
            waiting=count[Status.WAITING], processing=count[Status.PROCESSING],
            completed=count[Status.COMPLETED], failed=count[Status.FAILED],
            cancelled=count[Status.CANCELLED], ended_ms=self.ended_ms,
        )  # fmt: skip


class MemoryFlows:
    """The workflows of a test. ``jobs`` are those of its queue; ``put`` takes another one, and
    ``cancel`` the id of one and the reason."""

    def __init__(
        self,
        jobs: dict[str, Hash],
        put: Callable[[NewJob], None],
        cancel: Callable[[str, JobReason], int],
    ) -> None:
        self._jobs = jobs
        self._put = put
        self._cancel = cancel
        self._flows: dict[str, _Flow] = {}

    def push(self, push: Push) -> int:
        """Codes of push.lua."""
        if push.flow_id in self._flows:
            return 0
        jobs = {job.id: _hash(push.flow_id, job) for job in (FlowJob(*job) for job in push.jobs)}
        if not jobs.keys().isdisjoint(self._jobs):
            return CLEANED
        fields = dict(zip(push.fields[::2], push.fields[1::2], strict=True))
        self._flows[push.flow_id] = _Flow(push.flow_id, fields, jobs)
        self._jobs.update(jobs)
        return 1

    def data(self, flow_id: str) -> FlowData | None:
        """A workflow and its counts, or None."""
        found = self._flows.get(flow_id)
        return None if found is None else found.data()

    def steer(self, flow_id: str, order: str) -> int:
        """Codes of steer.lua."""
        flow = self._flows.get(flow_id)
        if flow is None:
            return -1
        if order in ("pause", "release"):
            pauses = order == "pause"
            if flow.is_paused is pauses or (pauses and flow.status.is_final):
                return 0
            flow.is_paused = pauses
        elif order == "cancel":
            if flow.status in (WorkflowStatus.CANCELLED, WorkflowStatus.COMPLETED):
                return 0
            self._end(flow, WorkflowStatus.CANCELLED)
            self._cancel_all(flow, CANCELLED, JobReason.NONE)
        elif not flow.status.is_final:
            return 0
        else:
            self._cancel_all(flow, CLEANED, JobReason.CLEANED)
            del self._flows[flow_id]
        return 1

    def _cancel_all(self, flow: _Flow, refuses: int, reason: JobReason) -> None:
        for found in flow.jobs.values():
            found["refuses"] = str(refuses)
        for job_id in flow.jobs:
            self._cancel(job_id, reason)

    def holds_back(self, job_id: str) -> bool:
        """What hold_back.lua does: whether a job that would start now waits for a release."""
        flow = self._of(job_id)
        if flow is None or not flow.is_held:
            return False
        self._jobs[job_id]["status"] = Status.WAITING
        return True

    def _of(self, job_id: str) -> _Flow | None:
        flow = self._flows.get(job_id.rpartition(".")[0])
        return flow if flow is not None and job_id in flow.jobs else None

    def job_ended(self, job_id: str) -> None:
        """A failure that means it ends a workflow at once, whatever else runs."""
        flow = self._of(job_id)
        is_running = flow is not None and flow.status is WorkflowStatus.RUNNING
        if flow is not None and is_running and _is_fatal(flow.jobs[job_id]):
            self._end(flow, WorkflowStatus.FAILED)

    def revive(self, job_id: str) -> None:
        """What revive.lua does for a job that was sent back."""
        flow = self._of(job_id)
        if flow is not None and flow.status is not WorkflowStatus.RUNNING:
            flow.status, flow.ended_ms = WorkflowStatus.RUNNING, None
            flow.generation += 1

    def go_on(self) -> None:
        """Give back what is held no more, and end what has come to its end."""
        for flow in self._flows.values():
            if flow.status is WorkflowStatus.RUNNING:
                self._go_on(flow)

    def _go_on(self, flow: _Flow) -> None:
        for found in flow.jobs.values():
            if not flow.is_paused and found["status"] == Status.WAITING and not found.get("waits"):
                found["status"] = Status.QUEUED
        statuses = {found["status"] for found in flow.jobs.values()}
        has_failed = any(_is_fatal(found) for found in flow.jobs.values())
        # Of a workflow that was taken up again, what waits for another failed job waits on.
        at_rest = FINAL | {Status.WAITING} if has_failed and not flow.is_paused else FINAL
        if statuses <= at_rest:
            status = WorkflowStatus.FAILED if has_failed else WorkflowStatus.COMPLETED
            self._end(flow, status)

    def _end(self, flow: _Flow, status: WorkflowStatus) -> None:
        flow.status, flow.ended_ms = status, real_ms()
        calls = {WorkflowStatus.COMPLETED: "complete", WorkflowStatus.FAILED: "failure"}
        which = calls.get(status, "")
        job = callback_job(flow.fields, which, f"{flow.id}.{which}{flow.generation}")
        if job is not None:
            self._put(job)


def _hash(flow_id: str, job: FlowJob) -> Hash:
    found = hash_of(
        NewJob(
            job.id, job.queue, job.task, job.payload, job.options, job.priority, job.when, job.audit
        )
    )
    found["on_fail"] = job.on_fail
    if job.after:
        let_wait(found, " ".join(flow_id + name for name in job.after.split()))
    return found


def _is_fatal(found: Hash) -> bool:
    """Whether a job has ended so that its workflow fails."""
    is_lost = found["status"] in (Status.FAILED, Status.CANCELLED)
    return is_lost and not found["on_fail"] and found.get("reason") not in TOLD
