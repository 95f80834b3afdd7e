"""The clean-up of a workflow goes through its jobs in steps. A job that runs meanwhile and returns
after its step would never be started by anything, so it ends, however it returns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_redisqueue.broker.replies import ClaimedJob

from .lab import ERROR, Lab, invariants, outcome
from .workflows import LabWorkflow

LARGE = {n: [] for n in range(400)}  # four steps


def by_release(lab: Lab, job: ClaimedJob) -> None:
    assert lab.store.release("c1", [(job.id, job.lease)]) == [1]


def by_release_unknown(lab: Lab, job: ClaimedJob) -> None:
    assert lab.store.release_unknown("c1", lab.now + 1, []) == [job.id]


def by_recovery(lab: Lab, job: ClaimedJob) -> None:
    assert lab.store.reap("c1").jobs == [(job.id, "recovered")]


def by_outcome(verdict: str) -> Callable[[Lab, ClaimedJob], None]:
    def return_to_queue(lab: Lab, job: ClaimedJob) -> None:
        assert lab.finish(outcome(job, verdict, ERROR)) == [1]
        lab.advance(1000)
        lab.store.promote(["default"])

    return return_to_queue


BACK = pytest.mark.parametrize(
    "return_to_queue",
    [
        by_release,
        by_release_unknown,
        by_recovery,
        *map(by_outcome, ("queued", "retrying", "delayed")),
    ],
    ids=["release", "release_unknown", "recovery", "queued", "retrying", "delayed"],
)


def running(lab: Lab, workflow: LabWorkflow) -> ClaimedJob:
    """A failed workflow one of whose jobs is still running."""
    workflow.push_all()
    workflow.advance()
    failing, job = lab.claim(jobs=2).jobs
    assert lab.finish(outcome(failing, "failed", ERROR)) == [1]
    return job


@BACK
def test_a_job_that_returns_after_its_step_ends(
    lab: Lab, return_to_queue: Callable[[Lab, ClaimedJob], None]
) -> None:
    workflow = LabWorkflow(lab, LARGE)
    job = running(lab, workflow)
    lab.store.control_workflow(workflow.id, "clean")
    lab.store.advance()
    return_to_queue(lab, job)
    for _ in range(5):  # a claim looks at 100 ids
        assert lab.taken("c2", jobs=10) == []
    assert (lab.status(job.id), lab.job(job.id)["reason"]) == ("cancelled", "cleaned")
    workflow.advance()
    assert lab.workflows.workflow(workflow.id) is None
    assert workflow.statuses() == ["failed", *["cancelled"] * 399]
    invariants(lab, tokens=False)


@BACK
def test_a_job_that_returns_after_the_clean_up_ends(
    lab: Lab, return_to_queue: Callable[[Lab, ClaimedJob], None]
) -> None:
    """The results of its parents are gone too: it must not run without them."""
    workflow = LabWorkflow(lab, {0: [], 1: [], 2: [1]})
    job = running(lab, workflow)
    lab.add("follower", after=f"wait {job.id}")
    lab.store.control_workflow(workflow.id, "clean")
    workflow.advance()
    assert lab.workflows.workflow(workflow.id) is None
    assert workflow.statuses() == ["failed", "processing", "cancelled"]
    return_to_queue(lab, job)
    assert lab.taken("c2", jobs=10) == []
    workflow.advance()
    assert workflow.statuses() == ["failed", "cancelled", "cancelled"]
    assert lab.job("follower")["reason"] == "parent_gone"
    invariants(lab, tokens=False)


def test_a_job_that_runs_meanwhile_may_complete(lab: Lab) -> None:
    workflow = LabWorkflow(lab, LARGE)
    job = running(lab, workflow)
    lab.store.control_workflow(workflow.id, "clean")
    lab.store.advance()
    assert lab.finish(workflow.completed(job)) == [1]
    workflow.advance()
    assert lab.status(job.id) == "completed"
    invariants(lab, tokens=False)


def test_a_clean_up_that_overtakes_a_cancel_asks_running_jobs_to_stop(
    lab: Lab,
) -> None:
    workflow = LabWorkflow(lab, LARGE)
    workflow.push_all()
    workflow.advance()
    jobs = [job for _ in range(4) for job in lab.claim(jobs=100).jobs]
    lab.store.control_workflow(workflow.id, "cancel")
    lab.store.control_workflow(workflow.id, "clean")
    entries = lab.redis.lrange(lab.keys.pending_writes, 0, -1)
    lab.redis.delete(lab.keys.pending_writes)
    lab.redis.rpush(lab.keys.pending_writes, *reversed(entries))
    workflow.advance()
    assert lab.workflows.workflow(workflow.id) is None
    for at in range(0, 400, 100):
        lab.store.release("c1", [(job.id, job.lease) for job in jobs[at : at + 100]])
    assert set(workflow.statuses()) == {"cancelled"}
    invariants(lab, tokens=False)


def test_a_half_pushed_workflow_that_is_being_cleaned_up_accepts_no_more_jobs(lab: Lab) -> None:
    workflow = LabWorkflow(lab, LARGE, ttl_ms="1000")
    for at in (0, 100, 200):
        assert workflow.push_batch(at, at + 100, first=at == 0) == 1
    lab.advance(86_400_000)
    lab.store.advance()
    assert workflow.push_batch(300, 400, last=True) == -2
    workflow.advance()
    assert lab.workflows.workflow(workflow.id) is None
    assert workflow.statuses() == [*["cancelled"] * 300, *[None] * 100]
