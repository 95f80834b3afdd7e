"""How the hashes of jobs in memory change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..broker.replies import OutcomeKind
from ..core.codec import loads
from ..core.job_data import NewJob
from ..core.statuses import JobReason, OnFailure, OnParentFailure, Status
from ..exceptions import ParentNotFound
from ..worker.child.retry_policy import Resolution
from .index import JobHash, JobHashes

OF_A_RUN = (
    "attempts", "error", "reason", "cancel_ms", "finished_ms", "started_ms", "first_ms", "ran",
    "due_ms", "waits_for", "parked_ms", "progress", "newer",
)  # fmt: skip
PARENT_REASONS = (JobReason.SKIPPED, JobReason.PARENT_GONE)  # caused by a parent


def _set_due(found: JobHash, now_ms: int) -> None:
    """Queue or schedule a job; a delay counts from now."""
    when = found.get("when", "")
    due_ms = now_ms + int(when) if when.startswith("+") else int(when or now_ms)
    found["status"] = Status.QUEUED
    if due_ms > now_ms:
        set_fields(found, status=Status.SCHEDULED, due_ms=due_ms)


def new_hash(new: NewJob, now_ms: int) -> JobHash:
    found = JobHash({"task": new.task, "payload": new.payload, "queue": new.queue})
    set_fields(found, priority=new.priority, enqueued_ms=now_ms)
    encoded = {"options": new.options, "unique": new.unique, "lane": new.lane, "when": new.when}
    found.update({name: text for name, text in encoded.items() if text})
    _set_due(found, now_ms)
    if new.after:
        found["on_parent_failure"], _, parents = new.after.partition(" ")
        add_parents(found, parents)
    return found


def queued_since_ms(found: Mapping[str, str]) -> int:
    """Since when a job has been queued."""
    return int(found.get("ready_ms", found["enqueued_ms"]))


def add_parents(found: JobHash, parents: str) -> None:
    """Make a new job wait for its parents; their ids are joined by spaces."""
    found.update(after=parents, waits=parents)
    hold(found)


def hold(found: JobHash) -> None:
    """Make a new job wait until ``release``."""
    found["status"] = Status.WAITING
    found.pop("due_ms", None)


def release(found: JobHash, now_ms: int) -> None:
    """Queue or schedule a job that has waited."""
    set_fields(found, ready_ms=now_ms)
    _set_due(found, now_ms)


def callback_job(fields: Mapping[str, str], which: str, job_id: str) -> NewJob | None:
    """The job that callback.lua makes, if there is a callback."""
    prefix = f"{which}_"
    own: dict[str, Any] = {
        name.removeprefix(prefix): text for name, text in fields.items() if name.startswith(prefix)
    }
    return NewJob(job_id, **{**own, "priority": int(own["priority"])}) if own else None


def set_fields(found: JobHash, **fields: object) -> None:
    """Like HSET: values become text."""
    found.update({name: str(value) for name, value in fields.items()})


def apply_resolution(
    found: JobHash, resolution: Resolution, attempts: int, now_ms: int, is_superseded: bool
) -> None:
    """What outcome.lua does."""
    kind = resolution.kind
    if kind is OutcomeKind.COMPLETED:
        found.pop("error", None)
        set_fields(found, status=Status.COMPLETED, result=resolution.body, finished_ms=now_ms)
        return
    if kind is not OutcomeKind.PARKED and resolution.body:
        found["error"] = resolution.body
    if kind is OutcomeKind.FAILED:
        set_fields(
            found, status=Status.FAILED, reason=resolution.detail, attempts=attempts + 1,
            finished_ms=now_ms,
        )  # fmt: skip
    elif kind is OutcomeKind.CANCELLED or "cancel_ms" in found:
        set_fields(found, status=Status.CANCELLED, finished_ms=now_ms)
        if kind is OutcomeKind.CANCELLED and resolution.detail:
            set_fields(found, reason=resolution.detail)
    elif is_superseded:
        set_fields(found, status=Status.CANCELLED, reason=JobReason.SUPERSEDED, finished_ms=now_ms)
    elif kind is OutcomeKind.RETRYING:
        _record_run(found)
        due_ms = now_ms + int(resolution.detail)
        set_fields(found, status=Status.RETRYING, attempts=attempts + 1, due_ms=due_ms)
    elif kind is OutcomeKind.LIMITED:
        _record_run(found)
        set_fields(found, status=Status.RETRYING, due_ms=now_ms + int(resolution.detail))
    elif kind is OutcomeKind.PARKED:
        _record_run(found)
        set_fields(found, status=Status.SCHEDULED, waits_for=resolution.body, parked_ms=now_ms)
        found.pop("due_ms", None)
        if resolution.detail:  # else it waits without a timeout
            found["due_ms"] = resolution.detail
    else:
        if resolution.detail:  # else it has not started
            _record_run(found)
        set_fields(found, status=Status.QUEUED)


def _record_run(found: JobHash) -> None:
    """Note a run of a job that will run again."""
    found.setdefault("first_ms", found["started_ms"])
    found["ran"] = f"{found.get('ran', '')} {found['child']}".strip()


def check_parents(new: NewJob, known: Mapping[str, JobHash]) -> None:
    """Raise ParentNotFound when one of a job's parents was never enqueued."""
    for parent in new.after.split()[1:]:
        if parent not in known:
            raise ParentNotFound(
                f"a job of {new.task} was to wait for job {parent}, which was not enqueued in this "
                "test, or its transaction has not committed"
            )


def release_dependants(jobs: JobHashes, now_ms: int) -> None:
    """Release or cancel jobs whose parents have ended, and their dependants in turn."""
    waiting = [jobs[job_id] for job_id in jobs.with_parents]
    while any(_update_waiting(found, jobs, now_ms) for found in waiting):
        pass


def _update_waiting(found: JobHash, jobs: Mapping[str, JobHash], now_ms: int) -> bool:
    """Remove settled parents; returns whether the job's status changed."""
    left, reason = [], JobReason.NONE
    for name in found["waits"].split():
        meaning = _effect_of(found, jobs[name])
        if meaning is None:
            left.append(name)
        else:
            reason = meaning or reason
    found["waits"] = " ".join(left)
    if found["status"] != Status.WAITING or (left and not reason):
        return False
    if reason:
        set_fields(found, status=Status.CANCELLED, reason=reason, finished_ms=now_ms)
    else:
        release(found, now_ms)
    return True


def _effect_of(found: JobHash, parent: JobHash) -> JobReason | None:
    """A parent's effect on a job: None to wait, NONE to start, else the reason to cancel it."""
    status = Status(parent["status"])
    if not status.is_final:
        return None
    is_outside = "on_parent_failure" in found
    policy = OnParentFailure(found["on_parent_failure"]) if is_outside else _policy_of(parent)
    if status is Status.COMPLETED or policy is OnParentFailure.GO_ON:
        return JobReason.NONE
    if is_outside and "refuses" in parent:
        return JobReason.PARENT_GONE
    return JobReason.SKIPPED if policy is OnParentFailure.SKIP else None


def _policy_of(parent: JobHash) -> OnParentFailure:
    """In a workflow the parent decides what its failure means."""
    if parent.get("reason") in PARENT_REASONS or parent.get("on_fail") == OnFailure.SKIP:
        return OnParentFailure.SKIP
    goes_on = parent.get("on_fail") == OnFailure.GO_ON
    return OnParentFailure.GO_ON if goes_on else OnParentFailure.WAIT


def parent_results_of(found: JobHash, jobs: Mapping[str, JobHash]) -> dict[str, Any]:
    """The results of a job's parents by their ids; None for a parent without one."""
    results = {
        name: jobs.get(name, JobHash()).get("result") for name in found.get("after", "").split()
    }
    return {name: None if text is None else loads(text) for name, text in results.items()}
