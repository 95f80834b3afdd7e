"""Jobs that wait for others, in memory: what parents.lua, dependants.lua and followers.lua do in
Redis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..clock import real_ms
from ..codec import loads
from ..exceptions import ParentNotFound
from ..jobdata import NewJob
from ..states import JobReason, OnFailure, OnParentFailure, Status
from .hashes import Hash, set_fields

TOLD = (JobReason.SKIPPED, JobReason.PARENT_GONE)  # of one that was cancelled for its parents


def check_parents(new: NewJob, known: Mapping[str, Hash]) -> None:
    """Raise ParentNotFound when one of a job's parents was never enqueued."""
    for parent in new.after.split()[1:]:
        if parent not in known:
            raise ParentNotFound(
                f"a job of {new.task} was to wait for job {parent}, which was not enqueued in this "
                "test, or its transaction has not committed"
            )


def tell_waiting(jobs: Mapping[str, Hash]) -> None:
    """Let go, or cancel, those that wait for jobs that have ended, and who waits for them."""
    while any(_tell(found, jobs) for found in jobs.values() if "waits" in found):
        pass


def _tell(found: Hash, jobs: Mapping[str, Hash]) -> bool:
    """Strike out the parents that are done with; whether the job has changed its status."""
    left, reason = [], JobReason.NONE
    for name in found["waits"].split():
        meaning = _meaning(found, jobs[name])
        if meaning is None:
            left.append(name)
        else:
            reason = meaning or reason
    found["waits"] = " ".join(left)
    if found["status"] != Status.WAITING or (left and not reason):
        return False
    if reason:
        set_fields(found, status=Status.CANCELLED, reason=reason, finished_ms=real_ms())
    else:
        found["status"] = found["ready"]
    return True


def _meaning(found: Hash, parent: Hash) -> JobReason | None:
    """What a parent means for a job: None that it waits on, NONE that it may go, else why it is
    cancelled."""
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


def _policy_of(parent: Hash) -> OnParentFailure:
    """In a workflow it is the parent that says what its failure means."""
    if parent.get("reason") in TOLD or parent.get("on_fail") == OnFailure.SKIP:
        return OnParentFailure.SKIP
    goes_on = parent.get("on_fail") == OnFailure.GO_ON
    return OnParentFailure.GO_ON if goes_on else OnParentFailure.WAIT


def results_of_parents(found: Hash, jobs: Mapping[str, Hash]) -> dict[str, Any]:
    """What the parents of a job returned, by their ids; None where there is nothing."""
    results = {name: jobs.get(name, {}).get("result") for name in found.get("after", "").split()}
    return {name: None if text is None else loads(text) for name, text in results.items()}
