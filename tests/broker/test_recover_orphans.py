"""recover_orphans: finds processing jobs that no reap would find, after keys were deleted by
hand."""

from __future__ import annotations

import re

import pytest

from django_redisqueue.exceptions import WrongKeyType

from .lab import Lab, invariants, outcome


def test_a_living_childs_jobs_are_left_alone(lab: Lab) -> None:
    lab.add("a", "b")
    lab.claim(jobs=2)
    lab.steady("c1")
    before = lab.dump()
    assert lab.store.recover_orphans("default", 0) == (0, [])
    assert lab.dump() == before


def test_a_job_whose_child_has_neither_list_nor_lease_is_recovered(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    lab.redis.delete(lab.keys.child_processing("c1"), lab.keys.workers)
    lab.steady()
    assert lab.store.recover_orphans("default", 0) == (0, [("a", "c1", "recovered")])
    assert lab.job("a")["recoveries"] == "1"
    invariants(lab)
    assert lab.store.recover_orphans("default", 0) == (0, [])
    assert lab.finish(outcome(job)) == [0]


def test_a_list_deleted_by_hand_is_found_after_its_child_is_reaped(lab: Lab) -> None:
    lab.add("a")
    lab.take()
    lab.redis.delete(lab.keys.child_processing("c1"))
    lab.steady()
    assert (lab.store.reap().child, lab.status("a")) == ("c1", "processing")
    assert lab.store.recover_orphans("default", 0)[1] == [("a", "c1", "recovered")]
    invariants(lab)


def test_a_list_deleted_by_hand_does_not_matter_while_its_child_lives(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    lab.redis.delete(lab.keys.child_processing("c1"))
    lab.steady("c1")
    assert lab.store.recover_orphans("default", 0)[1] == []
    assert lab.finish(outcome(job)) == [1]
    invariants(lab)


def test_a_lease_deleted_by_hand_is_granted_again_for_its_child_to_renew(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    lab.steady("c1")
    lab.redis.delete(lab.keys.workers)
    assert lab.store.recover_orphans("default", 0)[1] == []
    assert dict(lab.queries.workers()) == {"c1": lab.now + 15_000}
    lab.store.heartbeat(["c1"])
    assert lab.finish(outcome(job)) == [1]
    invariants(lab)


def test_a_dead_child_whose_lease_was_deleted_is_reaped_a_lease_later(lab: Lab) -> None:
    lab.add("a")
    lab.take()
    lab.redis.delete(lab.keys.workers)
    lab.steady()
    lab.store.recover_orphans("default", 0)
    lab.steady()
    assert lab.store.reap().jobs == [("a", "recovered")]
    invariants(lab)


def test_a_recent_claim_is_left_alone(lab: Lab) -> None:
    lab.steady()
    lab.add("a")
    lab.take()
    lab.redis.delete(lab.keys.child_processing("c1"), lab.keys.workers)
    lab.steady(ms=10_000)
    assert lab.store.recover_orphans("default", 0)[1] == []
    lab.steady(ms=10_000)
    assert lab.store.recover_orphans("default", 0)[1] == [("a", "c1", "recovered")]


def test_nothing_is_recovered_before_a_lease_has_passed_since_an_outage(lab: Lab) -> None:
    lab.add("a")
    lab.take()
    lab.redis.delete(lab.keys.child_processing("c1"), lab.keys.workers)
    lab.advance(60_000)
    assert lab.store.recover_orphans("default", 0) == (0, [])
    lab.store.heartbeat([])
    assert lab.store.recover_orphans("default", 0) == (0, [])
    assert lab.status("a") == "processing"


def test_a_flagged_job_becomes_cancelled(lab: Lab) -> None:
    lab.add("a")
    lab.take()
    lab.store.cancel(["a"])
    lab.redis.delete(lab.keys.child_processing("c1"), lab.keys.workers)
    lab.steady()
    assert lab.store.recover_orphans("default", 0)[1] == [("a", "c1", "cancelled")]
    invariants(lab)


def test_a_missing_hash_is_reported_by_name(lab: Lab) -> None:
    lab.add("a", "b")
    lab.claim(jobs=2)
    lab.redis.delete(lab.keys.job("a"))
    lab.steady("c1")
    assert lab.store.recover_orphans("default", 0)[1] == [("a", "", "lost")]
    assert lab.ids("processing") == ["b"]


def test_an_id_that_is_not_processing_leaves_the_list(lab: Lab) -> None:
    lab.end("a")
    lab.redis.zadd(lab.keys.queue("default").processing, {"a": lab.now})
    lab.steady()
    assert lab.store.recover_orphans("default", 0) == (0, [])
    invariants(lab)


def test_any_number_of_jobs_with_the_same_claim_time_is_examined(lab: Lab) -> None:
    for at in range(4):
        lab.add(*[f"{at}.{n}" for n in range(100)])
        lab.claim("alive" if at % 2 else f"dead{at}", jobs=100)
    for at in (0, 2):
        lab.redis.delete(lab.keys.child_processing(f"dead{at}"))
        lab.redis.zrem(lab.keys.workers, f"dead{at}")
    lab.steady("alive")
    found, position, calls = [], 0, 0
    while True:
        position, jobs = lab.store.recover_orphans("default", position)
        found += jobs
        calls += 1
        assert calls < 10
        if not position:
            break
    assert {child for _, child, _ in found} == {"dead0", "dead2"}
    assert len({job_id for job_id, _, _ in found}) == len(found) == 200
    invariants(lab)


@pytest.mark.parametrize("name", ["processing", "queued", "failed", "meta"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(lab: Lab, name: str) -> None:
    key = getattr(lab.keys.queue("default"), name)
    lab.redis.set(key, "theirs")
    before = lab.dump()
    with pytest.raises(WrongKeyType, match=re.escape(f"the key {key} holds a string")):
        lab.store.recover_orphans("default", 0)
    assert lab.dump() == before


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    lab.add("a")
    lab.take()
    lab.redis.delete(lab.keys.child_processing("c1"), lab.keys.workers)
    lab.steady()
    with lab.full():
        assert lab.store.recover_orphans("default", 0)[1] == [("a", "c1", "recovered")]
    invariants(lab)
