"""release: unstarted jobs return to the head of their queue, in their former order."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.replies import ClaimedJob, FinishCode

from .harness import BrokerHarness, invariants


def held(*jobs: ClaimedJob) -> list[tuple[str, int]]:
    return [(job.id, job.lease) for job in jobs]


@pytest.mark.parametrize("priority", [0, 3, -3])
def test_the_order_stays(broker: BrokerHarness, priority: int) -> None:
    broker.add(*"abcde", priority=priority)
    jobs = broker.claim(jobs=4).jobs
    assert broker.store.release("c1", held(*jobs[1:])) == [1, 1, 1]
    assert broker.taken("c2", jobs=9) == ["b", "c", "d", "e"]
    invariants(broker)


def test_no_attempt_is_used(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.store.release("c1", held(broker.take()))
    again = broker.take()
    assert (again.attempts, again.recoveries, again.lease) == (0, 0, 2)
    assert broker.event_statuses("a") == ["queued", "processing", "queued", "processing"]


def test_it_leaves_a_token(broker: BrokerHarness) -> None:
    broker.add("a")
    assert broker.pop_token()
    job = broker.take()
    broker.store.release("c1", held(job))
    assert broker.tokens() == 1


def test_a_flagged_job_becomes_cancelled(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    a, b = broker.claim(jobs=2).jobs
    broker.store.cancel(["a"])
    assert broker.store.release("c1", held(a, b)) == [
        FinishCode.ACCEPTED_AS_CANCELLED,
        FinishCode.ACCEPTED,
    ]
    assert (broker.status("a"), broker.status("b")) == ("cancelled", "queued")
    invariants(broker)


def test_a_repeat_succeeds_and_changes_nothing(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    jobs = broker.claim(jobs=2).jobs
    broker.store.release("c1", held(*jobs))
    with broker.unchanged():
        assert broker.store.release("c1", held(*jobs)) == [FinishCode.REPEATED] * 2


def test_a_stale_release_takes_no_job_from_its_new_holder(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take("c1")
    broker.store.reap("c1", [])
    broker.take("c2")
    with broker.unchanged():
        assert broker.store.release("c1", held(job)) == [FinishCode.LEASE_LOST]


def test_a_hundred_of_several_queues(broker: BrokerHarness) -> None:
    for n in range(100):
        broker.add(f"j{n}", queue=f"q{n % 3}", priority=n % 2)
    jobs = broker.claim(jobs=100, queues=["q0", "q1", "q2"]).jobs
    assert broker.store.release("c1", held(*jobs)) == [1] * 100
    assert broker.taken("c2", jobs=100, queues=["q0", "q1", "q2"]) == [job.id for job in jobs]
    invariants(broker)


@pytest.mark.parametrize("name", ["queued", "processing", "wake", "meta", "cancelled"])
def test_a_job_of_a_queue_with_a_key_of_another_type_stays(
    broker: BrokerHarness, name: str
) -> None:
    broker.add("a", queue="sound")
    broker.add("b")
    jobs = broker.claim(jobs=2, queues=["sound", "default"]).jobs
    with broker.broken(name):
        assert broker.store.release("c1", held(*jobs)) == [1, 4]
        assert broker.status("b") == "processing"
    assert broker.store.release("c1", held(*jobs)) == [2, 1]
    invariants(broker)


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    broker.add("a", priority=3)
    job = broker.take()
    with broker.full():
        assert broker.store.release("c1", held(job)) == [1]
    invariants(broker)
