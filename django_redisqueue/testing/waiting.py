"""Jobs that wait for others, in memory: what parents.lua and followers.lua do in Redis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..clock import real_ms
from ..codec import loads
from ..exceptions import ParentNotFound
from ..jobdata import NewJob
from ..states import JobReason, OnParentFailure, Status

Hash = dict[str, str]  # a job as Redis would have it; ``waits`` has the ids, not their number


def check_parents(new: NewJob, known: Mapping[str, Hash]) -> None:
    """Raise ParentNotFound when one of a job's parents was never enqueued."""
    for parent in new.after.split()[1:]:
        if parent not in known:
            raise ParentNotFound(
                f"a job of {new.task} was to wait for job {parent}, which was not enqueued in this "
                "test, or its transaction has not committed"
            )


def let_wait(found: Hash, after: str) -> None:
    """Let a new job wait for the jobs that ``NewJob.after`` names."""
    found["on_parent_failure"], _, found["after"] = after.partition(" ")
    found["waits"], found["ready"] = found["after"], found["status"]
    found["status"] = Status.WAITING


def tell_waiting(jobs: Mapping[str, Hash]) -> None:
    """Let go, or cancel, those that wait for jobs that have ended, and who waits for them."""
    while any(_tell(found, jobs) for found in jobs.values() if "waits" in found):
        pass


def _tell(found: Hash, jobs: Mapping[str, Hash]) -> bool:
    """Strike out the parents that are done with; whether the job has changed its status."""
    policy, left = OnParentFailure(found["on_parent_failure"]), []
    reason = JobReason.NONE
    for parent in found["waits"].split():
        status = jobs[parent]["status"] if parent in jobs else ""
        if status == Status.COMPLETED or (policy is OnParentFailure.GO_ON and _is_over(status)):
            continue
        if _is_over(status) and (policy is OnParentFailure.SKIP or not status):
            reason = JobReason.SKIPPED if status else JobReason.PARENT_GONE
        else:
            left.append(parent)
    found["waits"] = " ".join(left)
    if found["status"] != Status.WAITING or (left and not reason):
        return False
    if reason:
        found.update(status=Status.CANCELLED, reason=reason, finished_ms=str(real_ms()))
    else:
        found["status"] = found["ready"]
    return True


def _is_over(status: str) -> bool:
    return not status or Status(status).is_final


def results_of_parents(found: Hash, jobs: Mapping[str, Hash]) -> dict[str, Any]:
    """What the parents of a job returned, by their ids; None where there is nothing."""
    results = {name: jobs.get(name, {}).get("result") for name in found.get("after", "").split()}
    return {name: None if text is None else loads(text) for name, text in results.items()}
