"""Fields that the hash of a fast-path run implies, until another transition writes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_redisqueue.broker.replies import ClaimedJob, FinishCode
from django_redisqueue.core.job_data import NewJob

from .harness import ERROR, PAYLOAD, BrokerHarness, invariants, outcome
from .workflows import BrokerWorkflow

HALF = '{"done":1,"total":2}'


def raw(broker: BrokerHarness, job_id: str = "a") -> tuple[str | None, str | None]:
    lease, seq = broker.redis.hmget(broker.keys.job(job_id), "lease", "seq")
    return lease, seq


def told(broker: BrokerHarness, job_id: str = "a") -> tuple[int, int]:
    data = broker.queries.job(job_id)
    return data.lease, data.seq


def test_the_status_implies_both_fields(broker: BrokerHarness) -> None:
    broker.add("a")
    assert (raw(broker), told(broker)) == ((None, None), (0, 1))
    job = broker.take()
    assert (raw(broker), told(broker)) == ((None, None), (1, 2))
    broker.finish(outcome(job))
    assert (raw(broker), told(broker)) == ((None, None), (1, 3))


def released(broker: BrokerHarness) -> ClaimedJob:
    """A run of a job that its workflow parent released."""
    workflow = BrokerWorkflow(broker, {0: [], 1: [0]})
    workflow.push()
    workflow.run_one()
    (job,) = broker.claim().jobs
    return job


Fate = Callable[[BrokerHarness, ClaimedJob], object]
FATES: dict[str, tuple[Fate, tuple[str, str]]] = {
    "failed": (lambda broker, job: broker.finish(outcome(job, "failed", ERROR, "x")), ("1", "3")),
    "retrying": (
        lambda broker, job: broker.finish(outcome(job, "retrying", ERROR, "9")),
        ("1", "3"),
    ),
    "cancelled": (lambda broker, job: broker.finish(outcome(job, "cancelled", ERROR)), ("1", "3")),
    "released": (lambda broker, job: broker.finish(outcome(job, "queued")), ("1", "3")),
    "recovered": (lambda broker, job: broker.store.reap("c1"), ("1", "3")),
    "not to blame": (lambda broker, job: broker.store.reap("c1", []), ("1", "3")),
    "progress": (lambda broker, job: broker.store.progress("c1", "a", job.lease, HALF), ("1", "3")),
    "awaited": (lambda broker, job: broker.store.watch("a"), ("1", "2")),
    "followed": (
        lambda broker, job: broker.store.enqueue(
            [NewJob("b", "default", "t", PAYLOAD, after="wait a")]
        ),
        ("1", "2"),
    ),
    "completed the long way": (
        lambda broker, job: [
            broker.redis.delete(broker.keys.child_processing("c1")),
            broker.finish(outcome(job)),
        ],
        ("1", "3"),
    ),
}


def test_the_seq_of_a_released_job_is_written_before_its_end(broker: BrokerHarness) -> None:
    job = released(broker)
    assert (raw(broker, job.id), told(broker, job.id)) == ((None, "3"), (1, 3))
    broker.finish(outcome(job))
    assert (raw(broker, job.id), told(broker, job.id)) == ((None, "3"), (1, 4))
    invariants(broker)


RELEASED_FATES: dict[str, tuple[Fate, tuple[str, str]]] = {
    "failed": (lambda broker, job: broker.finish(outcome(job, "failed", ERROR, "x")), ("1", "4")),
    "recovered": (lambda broker, job: broker.store.reap("c1"), ("1", "4")),
    "progress": (
        lambda broker, job: broker.store.progress("c1", job.id, job.lease, HALF),
        ("1", "4"),
    ),
    "awaited": (lambda broker, job: broker.store.watch(job.id), ("1", "3")),
}


@pytest.mark.parametrize("fate", RELEASED_FATES)
def test_any_other_transition_of_a_released_job_writes_both(
    broker: BrokerHarness, fate: str
) -> None:
    bring_about, expected = RELEASED_FATES[fate]
    job = released(broker)
    bring_about(broker, job)
    assert raw(broker, job.id) == expected
    invariants(broker, tokens=False)


def test_a_watcher_of_version_0_1_0_is_told_of_the_end_of_a_released_job(
    broker: BrokerHarness,
) -> None:
    """Its script ignores entries of jobs that have `seq`."""
    job = released(broker)
    broker.redis.hset(broker.keys.job(job.id), "watched", "1")
    listener = broker.redis.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(broker.keys.done(job.id))
    listener.get_message(timeout=5)
    assert broker.finish(outcome(job)) == [FinishCode.ACCEPTED]
    message = listener.get_message(timeout=5)
    assert message is not None
    assert message["data"] == "completed"
    assert raw(broker, job.id) == ("1", "4")


@pytest.mark.parametrize("fate", FATES)
def test_any_other_transition_writes_both(broker: BrokerHarness, fate: str) -> None:
    bring_about, expected = FATES[fate]
    broker.add("a")
    bring_about(broker, broker.take())
    assert raw(broker) == expected
    invariants(broker, tokens=False)


@pytest.mark.parametrize("who", ["watch", "audit", "index"])
def test_a_job_that_others_observe_stores_its_seq_from_the_beginning(
    broker: BrokerHarness, who: str
) -> None:
    broker.add(
        "a",
        audit="all" if who == "audit" else "",
        options='{"index":"task:t"}' if who == "index" else "",
    )
    if who == "watch":
        broker.store.watch("a")
    assert raw(broker) == (None, "1")
    job = broker.take()
    assert raw(broker) == ("1", "2")
    broker.finish(outcome(job))
    assert raw(broker) == ("1", "3")
    invariants(broker)


def test_its_heartbeat_its_cancel_and_its_resent_claim_know_its_lease(
    broker: BrokerHarness,
) -> None:
    broker.add("a")
    job = broker.claim("c1", call=7).jobs[0]
    assert broker.claim("c1", call=7, resent=True).jobs == [job]
    listener = broker.redis.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(broker.keys.control)
    listener.get_message(timeout=5)
    broker.store.cancel(["a"])
    message = listener.get_message(timeout=5)
    assert message is not None
    assert message["data"] == "cancel c1 a 1"
    beat = broker.store.heartbeat(["c1"], [("a", "c1", 1)])
    assert (beat.lost, beat.flagged) == ([], ["a"])
    assert broker.store.heartbeat(["c1"], [("a", "c1", 2)]).lost == ["a"]
