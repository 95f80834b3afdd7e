"""Workflows and gathers in memory, which change as the Lua scripts change them, but never expire.

After a pause or a failure, jobs of a workflow continue in the order in which they were added. The
polls of a gather never become due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..broker.replies import RequeueReply
from ..client.transport import CLEANED_UP
from ..core.job_data import SIGNATURE_FIELDS, NewJob
from ..core.parsing import pairs
from ..core.records import (
    GatherData,
    GatherListener,
    GatherPlan,
    Push,
    WorkflowData,
    WorkflowJob,
    decode_gather,
)
from ..core.statuses import FINAL, GatherReason, GatherStatus, JobReason, Status, WorkflowStatus
from .expectations import CapturedJobs
from .hashes import PARENT_REASONS, add_parents, callback_job, new_hash, set_fields
from .index import JobHash
from .policies import InMemoryUnique

LOST = (Status.FAILED, Status.CANCELLED)


@dataclass(slots=True)
class _Workflow:
    """A workflow's fields, and its jobs, which the queue also has."""

    id: str
    fields: Mapping[str, str]
    jobs: Mapping[str, JobHash]
    made_ms: int
    status: WorkflowStatus = WorkflowStatus.RUNNING
    is_paused: bool = False
    generation: int = 0
    ended_ms: int | None = None

    def data(self) -> WorkflowData:
        count = Counter(found["status"] for found in self.jobs.values())
        return WorkflowData(
            id=self.id, status=self.status, name=self.fields["name"], is_paused=self.is_paused,
            total=len(self.jobs), generation=self.generation, made_ms=self.made_ms,
            waiting=count[Status.WAITING], processing=count[Status.PROCESSING],
            completed=count[Status.COMPLETED], failed=count[Status.FAILED],
            cancelled=count[Status.CANCELLED], ended_ms=self.ended_ms,
        )  # fmt: skip


class InMemoryWorkflows:
    def __init__(self, jobs: CapturedJobs, unique: InMemoryUnique) -> None:
        self._jobs = jobs
        self._unique = unique
        self._workflows: dict[str, _Workflow] = {}

    def push(self, push: Push) -> int | str:
        """Codes of enqueue_workflow.lua."""
        if push.workflow_id in self._workflows:
            return 0
        now_ms = self._jobs.now_ms()
        jobs = {job.id: _hash(push.workflow_id, job, now_ms) for job in push.jobs}
        if not jobs.keys().isdisjoint(self._jobs.hashes):
            return CLEANED_UP
        for job_id, found in jobs.items():
            if (held := self._unique.conflict(job_id, found.get("unique", ""))) is not None:
                return f"{job_id} {held[1].job_id} {held[0].key}"
        workflow = _Workflow(push.workflow_id, pairs(push.fields), jobs, now_ms)
        self._workflows[push.workflow_id] = workflow
        self._jobs.hashes.update(jobs)
        for job_id, found in jobs.items():
            self._unique.take(job_id, found.get("unique", ""))
        return 1

    def data(self, workflow_id: str) -> WorkflowData | None:
        found = self._workflows.get(workflow_id)
        return None if found is None else found.data()

    def control(self, workflow_id: str, order: str) -> int:
        """Codes of control_workflow.lua."""
        workflow = self._workflows.get(workflow_id)
        if workflow is None:
            return -1
        if order in ("pause", "release"):
            pauses = order == "pause"
            if workflow.is_paused is pauses or (pauses and workflow.status.is_final):
                return 0
            workflow.is_paused = pauses
        elif order == "cancel":
            if workflow.status in (WorkflowStatus.CANCELLED, WorkflowStatus.COMPLETED):
                return 0
            self._end(workflow, WorkflowStatus.CANCELLED)
            self._cancel_all(workflow, RequeueReply.WORKFLOW_CANCELLED, JobReason.NONE)
        elif not workflow.status.is_final:
            return 0
        else:
            self._cancel_all(workflow, RequeueReply.WORKFLOW_CLEANED, JobReason.CLEANED)
            del self._workflows[workflow_id]
        return 1

    def _cancel_all(self, workflow: _Workflow, refuses: RequeueReply, reason: JobReason) -> None:
        for found in workflow.jobs.values():
            found["refuses"] = str(refuses)
        for job_id in workflow.jobs:
            self._jobs.cancel_job(job_id, reason)

    def hold_back(self, job_id: str) -> bool:
        """What slow_claim.lua does: whether a job waits for a release instead of starting."""
        workflow = self._of(job_id)
        goes = (WorkflowStatus.RUNNING, WorkflowStatus.COMPLETED)
        if workflow is None or (workflow.status in goes and not workflow.is_paused):
            return False
        self._jobs.hashes[job_id]["status"] = Status.WAITING
        return True

    def _of(self, job_id: str) -> _Workflow | None:
        workflow = self._workflows.get(job_id.rpartition(".")[0])
        return workflow if workflow is not None and job_id in workflow.jobs else None

    def job_ended(self, job_id: str) -> None:
        """End the workflow at once if the job's failure is fatal."""
        workflow = self._of(job_id)
        if workflow is None or workflow.status is not WorkflowStatus.RUNNING:
            return
        if _is_fatal(workflow.jobs[job_id]):
            self._end(workflow, WorkflowStatus.FAILED)

    def revive(self, job_id: str) -> None:
        """What requeue.lua does for a requeued job."""
        workflow = self._of(job_id)
        if workflow is not None and workflow.status is not WorkflowStatus.RUNNING:
            workflow.status, workflow.ended_ms = WorkflowStatus.RUNNING, None
            workflow.generation += 1

    def advance(self) -> None:
        """Queue jobs that are no longer held, and end finished workflows."""
        for workflow in self._workflows.values():
            if workflow.status is WorkflowStatus.RUNNING:
                self._advance(workflow)

    def _advance(self, workflow: _Workflow) -> None:
        for found in workflow.jobs.values():
            if (
                not workflow.is_paused
                and found["status"] == Status.WAITING
                and not found.get("waits")
            ):
                set_fields(found, status=Status.QUEUED, ready_ms=self._jobs.now_ms())
        statuses = {found["status"] for found in workflow.jobs.values()}
        has_failed = any(_is_fatal(found) for found in workflow.jobs.values())
        # In a workflow that was resumed, jobs that wait for another failed job keep waiting.
        settled = FINAL | {Status.WAITING} if has_failed and not workflow.is_paused else FINAL
        if statuses <= settled:
            status = WorkflowStatus.FAILED if has_failed else WorkflowStatus.COMPLETED
            self._end(workflow, status)

    def _end(self, workflow: _Workflow, status: WorkflowStatus) -> None:
        workflow.status, workflow.ended_ms = status, self._jobs.now_ms()
        calls = {WorkflowStatus.COMPLETED: "complete", WorkflowStatus.FAILED: "failure"}
        which = calls.get(status, "")
        job = callback_job(workflow.fields, which, f"{workflow.id}.{which}{workflow.generation}")
        if job is not None:
            self._jobs.put(job)


def _hash(workflow_id: str, job: WorkflowJob, now_ms: int) -> JobHash:
    fields = {name: getattr(job, name) for name in SIGNATURE_FIELDS}
    found = new_hash(NewJob(job.id, **fields), now_ms)
    found["on_fail"] = job.on_fail
    if job.after:
        add_parents(found, " ".join(workflow_id + name for name in job.after.split()))
    return found


def _is_fatal(found: JobHash) -> bool:
    """Whether a job's end makes its workflow fail."""
    is_lost = found["status"] in LOST and found.get("reason") not in PARENT_REASONS
    return is_lost and not found["on_fail"]


@dataclass(slots=True)
class _Gather:
    """A plan, its changing fields and its results."""

    plan: GatherPlan
    fields: dict[str, str]
    listeners: list[GatherListener]
    results: dict[str, str] = field(default_factory=dict)

    def data(self) -> GatherData:
        done = str(len(self.results))
        return decode_gather(self.plan.key, self.fields, list(self.results), done)


class InMemoryGathers:
    def __init__(self, jobs: CapturedJobs) -> None:
        self._jobs = jobs
        self._gathers: dict[str, _Gather] = {}

    def start(self, plan: GatherPlan) -> int:
        """Codes of start_gather.lua."""
        known = self._gathers.get(plan.key)
        if known is not None:
            return 0 if known.plan.id == plan.id else -1
        listeners = [GatherListener(*parts) for parts in plan.listeners]
        fields = pairs(plan.fields) | {
            "id": plan.id,
            "payload": plan.payload,
            "status": GatherStatus.COLLECTING.value,
            "listeners": " ".join(listener.name for listener in listeners),
            "made_ms": str(self._jobs.now_ms()),
        }
        self._gathers[plan.key] = _Gather(plan, fields, listeners)
        for n, one in enumerate(listeners):
            self._jobs.put(
                NewJob(
                    f"{plan.id}.{n}", one.queue, one.task, plan.payload, one.options, one.priority,
                    "", one.audit, unique=one.unique, lane=one.lane,
                )
            )  # fmt: skip
        return 1

    def data(self, key: str) -> GatherData | None:
        found = self._gathers.get(key)
        return None if found is None else found.data()

    def results(self, key: str) -> Mapping[str, str]:
        """The results as JSON, by listener."""
        found = self._gathers.get(key)
        return {} if found is None else found.results

    def key_of(self, job_id: str) -> str | None:
        """The key of the gather that a job belongs to, or None."""
        found = self._of(job_id)
        return None if found is None else found.plan.key

    def _of(self, job_id: str) -> _Gather | None:
        gather_id = job_id.rpartition(".")[0]
        matching = (found for found in self._gathers.values() if found.plan.id == gather_id)
        return next(matching, None)

    def job_ended(self, job_id: str, status: str, result: str) -> None:
        """What gather.lua does."""
        found, number = self._of(job_id), job_id.rpartition(".")[2]
        if found is None or not number.isdigit():
            return
        if status == Status.COMPLETED:
            found.results.setdefault(found.listeners[int(number)].name, result)
        data = found.data()
        if data.status is not GatherStatus.COLLECTING:
            return
        if data.done_count >= data.threshold:
            self._end(found, GatherStatus.RELEASED)
        elif data.done_count + self._can_still_return(found) < data.threshold:
            found.fields["missing"] = " ".join(data.missing)
            found.fields["reason"] = GatherReason.UNREACHABLE.value
            self._end(found, GatherStatus.FAILED)

    def _can_still_return(self, found: _Gather) -> int:
        """The number of listeners that may still return."""
        return sum(
            listener.name not in found.results
            and self._jobs.hashes[f"{found.plan.id}.{n}"]["status"] not in LOST
            for n, listener in enumerate(found.listeners)
        )

    def _end(self, found: _Gather, status: GatherStatus) -> None:
        fields = found.fields
        fields |= {"status": status.value, "ended_ms": str(self._jobs.now_ms())}
        which = "then" if status is GatherStatus.RELEASED else "failure"
        job = callback_job(fields, which, f"{found.plan.id}.{which}")
        if job is not None:
            self._jobs.put(job)
