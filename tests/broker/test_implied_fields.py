"""Fields that the hash of a fast-path run implies, until another transition writes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_redisqueue.broker.replies import ClaimedJob, FinishCode
from django_redisqueue.core.job_data import NewJob

from .lab import ERROR, PAYLOAD, Lab, invariants, outcome
from .workflows import LabWorkflow

HALF = '{"done":1,"total":2}'


def raw(lab: Lab, job_id: str = "a") -> tuple[str | None, str | None]:
    lease, seq = lab.redis.hmget(lab.keys.job(job_id), "lease", "seq")
    return lease, seq


def told(lab: Lab, job_id: str = "a") -> tuple[int, int]:
    data = lab.queries.job(job_id)
    return data.lease, data.seq


def test_the_status_implies_both_fields(lab: Lab) -> None:
    lab.add("a")
    assert (raw(lab), told(lab)) == ((None, None), (0, 1))
    job = lab.take()
    assert (raw(lab), told(lab)) == ((None, None), (1, 2))
    lab.finish(outcome(job))
    assert (raw(lab), told(lab)) == ((None, None), (1, 3))


def released(lab: Lab) -> ClaimedJob:
    """A run of a job that its workflow parent released."""
    workflow = LabWorkflow(lab, {0: [], 1: [0]})
    workflow.push()
    workflow.run_one()
    (job,) = lab.claim().jobs
    return job


Fate = Callable[[Lab, ClaimedJob], object]
FATES: dict[str, tuple[Fate, tuple[str, str]]] = {
    "failed": (lambda lab, job: lab.finish(outcome(job, "failed", ERROR, "x")), ("1", "3")),
    "retrying": (lambda lab, job: lab.finish(outcome(job, "retrying", ERROR, "9")), ("1", "3")),
    "cancelled": (lambda lab, job: lab.finish(outcome(job, "cancelled", ERROR)), ("1", "3")),
    "released": (lambda lab, job: lab.finish(outcome(job, "queued")), ("1", "3")),
    "recovered": (lambda lab, job: lab.store.reap("c1"), ("1", "3")),
    "not to blame": (lambda lab, job: lab.store.reap("c1", []), ("1", "3")),
    "progress": (lambda lab, job: lab.store.progress("c1", "a", job.lease, HALF), ("1", "3")),
    "awaited": (lambda lab, job: lab.store.watch("a"), ("1", "2")),
    "followed": (
        lambda lab, job: lab.store.enqueue([NewJob("b", "default", "t", PAYLOAD, after="wait a")]),
        ("1", "2"),
    ),
    "completed the long way": (
        lambda lab, job: [
            lab.redis.delete(lab.keys.child_processing("c1")),
            lab.finish(outcome(job)),
        ],
        ("1", "3"),
    ),
}


def test_the_seq_of_a_released_job_is_written_before_its_end(lab: Lab) -> None:
    job = released(lab)
    assert (raw(lab, job.id), told(lab, job.id)) == ((None, "3"), (1, 3))
    lab.finish(outcome(job))
    assert (raw(lab, job.id), told(lab, job.id)) == ((None, "3"), (1, 4))
    invariants(lab)


RELEASED_FATES: dict[str, tuple[Fate, tuple[str, str]]] = {
    "failed": (lambda lab, job: lab.finish(outcome(job, "failed", ERROR, "x")), ("1", "4")),
    "recovered": (lambda lab, job: lab.store.reap("c1"), ("1", "4")),
    "progress": (lambda lab, job: lab.store.progress("c1", job.id, job.lease, HALF), ("1", "4")),
    "awaited": (lambda lab, job: lab.store.watch(job.id), ("1", "3")),
}


@pytest.mark.parametrize("fate", RELEASED_FATES)
def test_any_other_transition_of_a_released_job_writes_both(lab: Lab, fate: str) -> None:
    bring_about, expected = RELEASED_FATES[fate]
    job = released(lab)
    bring_about(lab, job)
    assert raw(lab, job.id) == expected
    invariants(lab, tokens=False)


def test_a_watcher_of_version_0_1_0_is_told_of_the_end_of_a_released_job(lab: Lab) -> None:
    """Its script ignores entries of jobs that have `seq`."""
    job = released(lab)
    lab.redis.hset(lab.keys.job(job.id), "watched", "1")
    listener = lab.redis.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(lab.keys.done(job.id))
    listener.get_message(timeout=5)
    assert lab.finish(outcome(job)) == [FinishCode.ACCEPTED]
    message = listener.get_message(timeout=5)
    assert message is not None
    assert message["data"] == "completed"
    assert raw(lab, job.id) == ("1", "4")


@pytest.mark.parametrize("fate", FATES)
def test_any_other_transition_writes_both(lab: Lab, fate: str) -> None:
    bring_about, expected = FATES[fate]
    lab.add("a")
    bring_about(lab, lab.take())
    assert raw(lab) == expected
    invariants(lab, tokens=False)


@pytest.mark.parametrize("who", ["watch", "audit", "index"])
def test_a_job_that_others_observe_stores_its_seq_from_the_beginning(lab: Lab, who: str) -> None:
    lab.add(
        "a",
        audit="all" if who == "audit" else "",
        options='{"index":"task:t"}' if who == "index" else "",
    )
    if who == "watch":
        lab.store.watch("a")
    assert raw(lab) == (None, "1")
    job = lab.take()
    assert raw(lab) == ("1", "2")
    lab.finish(outcome(job))
    assert raw(lab) == ("1", "3")
    invariants(lab)


def test_its_heartbeat_its_cancel_and_its_resent_claim_know_its_lease(lab: Lab) -> None:
    lab.add("a")
    job = lab.claim("c1", call=7).jobs[0]
    assert lab.claim("c1", call=7, resent=True).jobs == [job]
    listener = lab.redis.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(lab.keys.control)
    listener.get_message(timeout=5)
    lab.store.cancel(["a"])
    message = listener.get_message(timeout=5)
    assert message is not None
    assert message["data"] == "cancel c1 a 1"
    beat = lab.store.heartbeat(["c1"], [("a", "c1", 1)])
    assert (beat.lost, beat.flagged) == ([], ["a"])
    assert lab.store.heartbeat(["c1"], [("a", "c1", 2)]).lost == ["a"]
