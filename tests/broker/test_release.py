"""release: unstarted jobs return to the head of their queue, in their former order."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.replies import ClaimedJob, FinishCode

from .lab import Lab, invariants


def held(*jobs: ClaimedJob) -> list[tuple[str, int]]:
    return [(job.id, job.lease) for job in jobs]


@pytest.mark.parametrize("priority", [0, 3, -3])
def test_the_order_stays(lab: Lab, priority: int) -> None:
    lab.add(*"abcde", priority=priority)
    jobs = lab.claim(jobs=4).jobs
    assert lab.store.release("c1", held(*jobs[1:])) == [1, 1, 1]
    assert lab.taken("c2", jobs=9) == ["b", "c", "d", "e"]
    invariants(lab)


def test_no_attempt_is_used(lab: Lab) -> None:
    lab.add("a")
    lab.store.release("c1", held(lab.take()))
    again = lab.take()
    assert (again.attempts, again.recoveries, again.lease) == (0, 0, 2)
    assert lab.story("a") == ["queued", "processing", "queued", "processing"]


def test_it_leaves_a_token(lab: Lab) -> None:
    lab.add("a")
    assert lab.pop_token()
    job = lab.take()
    lab.store.release("c1", held(job))
    assert lab.tokens() == 1


def test_a_flagged_job_becomes_cancelled(lab: Lab) -> None:
    lab.add("a", "b")
    a, b = lab.claim(jobs=2).jobs
    lab.store.cancel(["a"])
    assert lab.store.release("c1", held(a, b)) == [
        FinishCode.ACCEPTED_AS_CANCELLED,
        FinishCode.ACCEPTED,
    ]
    assert (lab.status("a"), lab.status("b")) == ("cancelled", "queued")
    invariants(lab)


def test_a_repeat_succeeds_and_changes_nothing(lab: Lab) -> None:
    lab.add("a", "b")
    jobs = lab.claim(jobs=2).jobs
    lab.store.release("c1", held(*jobs))
    before = lab.dump()
    assert lab.store.release("c1", held(*jobs)) == [FinishCode.REPEATED] * 2
    assert lab.dump() == before


def test_a_stale_release_takes_no_job_from_its_new_holder(lab: Lab) -> None:
    lab.add("a")
    job = lab.take("c1")
    lab.store.reap("c1", [])
    lab.take("c2")
    before = lab.dump()
    assert lab.store.release("c1", held(job)) == [FinishCode.LEASE_LOST]
    assert lab.dump() == before


def test_a_hundred_of_several_queues(lab: Lab) -> None:
    for n in range(100):
        lab.add(f"j{n}", queue=f"q{n % 3}", priority=n % 2)
    jobs = lab.claim(jobs=100, queues=["q0", "q1", "q2"]).jobs
    assert lab.store.release("c1", held(*jobs)) == [1] * 100
    assert lab.taken("c2", jobs=100, queues=["q0", "q1", "q2"]) == [job.id for job in jobs]
    invariants(lab)


@pytest.mark.parametrize("name", ["queued", "processing", "wake", "meta", "cancelled"])
def test_a_job_of_a_queue_with_a_key_of_another_type_stays(lab: Lab, name: str) -> None:
    lab.add("a", queue="sound")
    lab.add("b")
    jobs = lab.claim(jobs=2, queues=["sound", "default"]).jobs
    with lab.broken(name):
        assert lab.store.release("c1", held(*jobs)) == [1, 4]
        assert lab.status("b") == "processing"
    assert lab.store.release("c1", held(*jobs)) == [2, 1]
    invariants(lab)


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    lab.add("a", priority=3)
    job = lab.take()
    with lab.full():
        assert lab.store.release("c1", held(job)) == [1]
    invariants(lab)
