"""recover_orphans: finds processing jobs that no reap would find, after keys were deleted by
hand."""

from __future__ import annotations

import pytest

from .harness import BrokerHarness, invariants, outcome


def test_a_living_childs_jobs_are_left_alone(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.claim(jobs=2)
    broker.steady("c1")
    with broker.unchanged():
        assert broker.store.recover_orphans("default", 0) == (0, [])


def test_a_job_whose_child_has_neither_list_nor_lease_is_recovered(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    broker.redis.delete(broker.keys.child_processing("c1"), broker.keys.workers)
    broker.steady()
    assert broker.store.recover_orphans("default", 0) == (0, [("a", "c1", "recovered")])
    assert broker.job("a")["recoveries"] == "1"
    invariants(broker)
    assert broker.store.recover_orphans("default", 0) == (0, [])
    assert broker.finish(outcome(job)) == [0]


def test_nothing_tells_that_it_ran_alone_so_it_is_never_poison(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.take()
    broker.redis.hset(broker.keys.job("a"), "recoveries", 99)
    broker.redis.delete(broker.keys.child_processing("c1"), broker.keys.workers)
    broker.steady()
    assert broker.store.recover_orphans("default", 0)[1] == [("a", "c1", "recovered")]


def test_a_list_deleted_by_hand_is_found_after_its_child_is_reaped(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.take()
    broker.redis.delete(broker.keys.child_processing("c1"))
    broker.steady()
    assert (broker.store.reap().child, broker.status("a")) == ("c1", "processing")
    assert broker.store.recover_orphans("default", 0)[1] == [("a", "c1", "recovered")]
    invariants(broker)


def test_a_list_deleted_by_hand_does_not_matter_while_its_child_lives(
    broker: BrokerHarness,
) -> None:
    broker.add("a")
    job = broker.take()
    broker.redis.delete(broker.keys.child_processing("c1"))
    broker.steady("c1")
    assert broker.store.recover_orphans("default", 0)[1] == []
    assert broker.finish(outcome(job)) == [1]
    invariants(broker)


def test_a_lease_deleted_by_hand_is_granted_again_for_its_child_to_renew(
    broker: BrokerHarness,
) -> None:
    broker.add("a")
    job = broker.take()
    broker.steady("c1")
    broker.redis.delete(broker.keys.workers)
    assert broker.store.recover_orphans("default", 0)[1] == []
    assert dict(broker.queries.workers()) == {"c1": broker.now + 15_000}
    broker.store.heartbeat(["c1"])
    assert broker.finish(outcome(job)) == [1]
    invariants(broker)


def test_a_dead_child_whose_lease_was_deleted_is_reaped_a_lease_later(
    broker: BrokerHarness,
) -> None:
    broker.add("a")
    broker.take()
    broker.redis.delete(broker.keys.workers)
    broker.steady()
    broker.store.recover_orphans("default", 0)
    broker.steady()
    assert broker.store.reap().jobs == [("a", "recovered")]
    invariants(broker)


def test_a_recent_claim_is_left_alone(broker: BrokerHarness) -> None:
    broker.steady()
    broker.add("a")
    broker.take()
    broker.redis.delete(broker.keys.child_processing("c1"), broker.keys.workers)
    broker.steady(ms=10_000)
    assert broker.store.recover_orphans("default", 0)[1] == []
    broker.steady(ms=10_000)
    assert broker.store.recover_orphans("default", 0)[1] == [("a", "c1", "recovered")]


def test_nothing_is_recovered_before_a_lease_has_passed_since_an_outage(
    broker: BrokerHarness,
) -> None:
    broker.add("a")
    broker.take()
    broker.redis.delete(broker.keys.child_processing("c1"), broker.keys.workers)
    broker.advance(60_000)
    assert broker.store.recover_orphans("default", 0) == (0, [])
    broker.store.heartbeat([])
    assert broker.store.recover_orphans("default", 0) == (0, [])
    assert broker.status("a") == "processing"


def test_a_flagged_job_becomes_cancelled(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.take()
    broker.store.cancel(["a"])
    broker.redis.delete(broker.keys.child_processing("c1"), broker.keys.workers)
    broker.steady()
    assert broker.store.recover_orphans("default", 0)[1] == [("a", "c1", "cancelled")]
    invariants(broker)


def test_a_missing_hash_is_reported_by_name(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.claim(jobs=2)
    broker.redis.delete(broker.keys.job("a"))
    broker.steady("c1")
    assert broker.store.recover_orphans("default", 0)[1] == [("a", "", "lost")]
    assert broker.ids("processing") == ["b"]


def test_an_id_that_is_not_processing_leaves_the_list(broker: BrokerHarness) -> None:
    broker.end("a")
    broker.redis.zadd(broker.keys.queue("default").processing, {"a": broker.now})
    broker.steady()
    assert broker.store.recover_orphans("default", 0) == (0, [])
    invariants(broker)


def test_an_id_in_the_list_of_another_queue_leaves_it(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.take()
    broker.redis.zadd(broker.keys.queue("other").processing, {"a": broker.now})
    broker.redis.delete(broker.keys.workers)
    broker.steady()
    assert broker.store.recover_orphans("other", 0) == (0, [])
    assert not broker.redis.exists(broker.keys.queue("other").processing)
    assert broker.status("a") == "processing"


@pytest.mark.parametrize("jobs_of_each", [60, 100])
def test_any_number_of_jobs_with_the_same_claim_time_is_examined(
    broker: BrokerHarness, jobs_of_each: int
) -> None:
    for at in range(4):
        broker.add(*[f"{at}.{n}" for n in range(jobs_of_each)])
        broker.claim("alive" if at % 2 else f"dead{at}", jobs=jobs_of_each)
    for at in (0, 2):
        broker.redis.delete(broker.keys.child_processing(f"dead{at}"))
        broker.redis.zrem(broker.keys.workers, f"dead{at}")
    broker.steady("alive")
    found, position, calls = [], 0, 0
    while True:
        position, jobs = broker.store.recover_orphans("default", position)
        found += jobs
        calls += 1
        assert calls < 10
        if not position:
            break
    assert {child for _, child, _ in found} == {"dead0", "dead2"}
    assert len({job_id for job_id, _, _ in found}) == len(found) == 2 * jobs_of_each
    invariants(broker)


@pytest.mark.parametrize("name", ["processing", "queued", "failed", "meta"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(
    broker: BrokerHarness, name: str
) -> None:
    with broker.refused_over(getattr(broker.keys.queue("default"), name)):
        broker.store.recover_orphans("default", 0)


def test_a_list_of_workers_of_another_type_is_named(broker: BrokerHarness) -> None:
    with broker.refused_over(broker.keys.workers, "zset"):
        broker.store.recover_orphans("default", 0)


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.take()
    broker.redis.delete(broker.keys.child_processing("c1"), broker.keys.workers)
    broker.steady()
    with broker.full():
        assert broker.store.recover_orphans("default", 0)[1] == [("a", "c1", "recovered")]
    invariants(broker)
