"""The clean-up of a workflow goes through its jobs in steps. A job that runs meanwhile and returns
after its step would never be started by anything, so it ends, however it returns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_redisqueue.broker.replies import ClaimedJob

from .harness import ERROR, BrokerHarness, invariants, outcome
from .workflows import BrokerWorkflow

LARGE = {n: [] for n in range(400)}  # four steps


def by_release(broker: BrokerHarness, job: ClaimedJob) -> None:
    assert broker.store.release("c1", [(job.id, job.lease)]) == [1]


def by_release_unknown(broker: BrokerHarness, job: ClaimedJob) -> None:
    assert broker.store.release_unknown("c1", broker.now + 1, []) == [job.id]


def by_recovery(broker: BrokerHarness, job: ClaimedJob) -> None:
    assert broker.store.reap("c1").jobs == [(job.id, "recovered")]


def by_outcome(kind: str) -> Callable[[BrokerHarness, ClaimedJob], None]:
    def return_to_queue(broker: BrokerHarness, job: ClaimedJob) -> None:
        assert broker.finish(outcome(job, kind, ERROR)) == [1]
        broker.advance(1000)
        broker.store.promote(["default"])

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


def running(broker: BrokerHarness, workflow: BrokerWorkflow) -> ClaimedJob:
    """A failed workflow one of whose jobs is still running."""
    workflow.push_all()
    workflow.advance()
    failing, job = broker.claim(jobs=2).jobs
    assert broker.finish(outcome(failing, "failed", ERROR)) == [1]
    return job


@BACK
def test_a_job_that_returns_after_its_step_ends(
    broker: BrokerHarness, return_to_queue: Callable[[BrokerHarness, ClaimedJob], None]
) -> None:
    workflow = BrokerWorkflow(broker, LARGE)
    job = running(broker, workflow)
    broker.store.control_workflow(workflow.id, "clean")
    broker.store.advance()
    return_to_queue(broker, job)
    for _ in range(5):  # a claim looks at 100 ids
        assert broker.taken("c2", jobs=10) == []
    assert (broker.status(job.id), broker.job(job.id)["reason"]) == ("cancelled", "cleaned")
    workflow.advance()
    assert broker.workflows.workflow(workflow.id) is None
    assert workflow.statuses() == ["failed", *["cancelled"] * 399]
    invariants(broker, tokens=False)


@BACK
def test_a_job_that_returns_after_the_clean_up_ends(
    broker: BrokerHarness, return_to_queue: Callable[[BrokerHarness, ClaimedJob], None]
) -> None:
    """The results of its parents are gone too: it must not run without them."""
    workflow = BrokerWorkflow(broker, {0: [], 1: [], 2: [1]})
    job = running(broker, workflow)
    broker.add("follower", after=f"wait {job.id}")
    broker.store.control_workflow(workflow.id, "clean")
    workflow.advance()
    assert broker.workflows.workflow(workflow.id) is None
    assert workflow.statuses() == ["failed", "processing", "cancelled"]
    return_to_queue(broker, job)
    assert broker.taken("c2", jobs=10) == []
    workflow.advance()
    assert workflow.statuses() == ["failed", "cancelled", "cancelled"]
    assert broker.job("follower")["reason"] == "parent_gone"
    invariants(broker, tokens=False)


def test_a_job_that_runs_meanwhile_may_complete(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, LARGE)
    job = running(broker, workflow)
    broker.store.control_workflow(workflow.id, "clean")
    broker.store.advance()
    assert broker.finish(workflow.completed(job)) == [1]
    workflow.advance()
    assert broker.status(job.id) == "completed"
    invariants(broker, tokens=False)


def test_a_clean_up_that_overtakes_a_cancel_asks_running_jobs_to_stop(
    broker: BrokerHarness,
) -> None:
    workflow = BrokerWorkflow(broker, LARGE)
    workflow.push_all()
    workflow.advance()
    jobs = [job for _ in range(4) for job in broker.claim(jobs=100).jobs]
    broker.store.control_workflow(workflow.id, "cancel")
    broker.store.control_workflow(workflow.id, "clean")
    entries = broker.redis.lrange(broker.keys.pending_writes, 0, -1)
    broker.redis.delete(broker.keys.pending_writes)
    broker.redis.rpush(broker.keys.pending_writes, *reversed(entries))
    workflow.advance()
    assert broker.workflows.workflow(workflow.id) is None
    for at in range(0, 400, 100):
        broker.store.release("c1", [(job.id, job.lease) for job in jobs[at : at + 100]])
    assert set(workflow.statuses()) == {"cancelled"}
    invariants(broker, tokens=False)


def test_a_half_pushed_workflow_that_is_being_cleaned_up_accepts_no_more_jobs(
    broker: BrokerHarness,
) -> None:
    workflow = BrokerWorkflow(broker, LARGE, ttl_ms="1000")
    for at in (0, 100, 200):
        assert workflow.push_batch(at, at + 100, first=at == 0) == 1
    broker.advance(86_400_000)
    broker.store.advance()
    assert workflow.push_batch(300, 400, last=True) == -2
    workflow.advance()
    assert broker.workflows.workflow(workflow.id) is None
    assert workflow.statuses() == [*["cancelled"] * 300, *[None] * 100]
