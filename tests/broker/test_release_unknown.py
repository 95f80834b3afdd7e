"""release_unknown: claims unknown to a living child return to the head of the queue."""

from __future__ import annotations

from .harness import BrokerHarness, invariants, outcome


def test_unknown_claims_are_released_in_order(broker: BrokerHarness) -> None:
    broker.add(*"abcde")
    broker.claim(jobs=4)
    broker.advance(1)
    assert broker.store.release_unknown("c1", broker.now, ["b"]) == ["d", "c", "a"]
    assert broker.held() == ["1:b"]
    assert broker.ids("queued") == ["a", "c", "d", "e"]
    again = broker.take("c2")
    assert (again.id, again.attempts, again.recoveries, again.lease) == ("a", 0, 0, 2)
    assert broker.meta()["released_total"] == 3
    invariants(broker)


def test_later_claims_stay(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.take()
    broker.advance(10)
    broker.take()
    assert broker.store.release_unknown("c1", broker.now, []) == ["a"]
    assert broker.held() == ["2:b"]
    invariants(broker)


def test_another_childs_jobs_and_ended_ones_are_left_alone(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.take("c2")
    broker.finish(outcome(broker.take()))
    assert broker.store.release_unknown("c1", broker.now + 1, []) == []
    assert (broker.status("a"), broker.status("b")) == ("processing", "completed")
    invariants(broker)


def test_a_job_with_a_pending_cancel_is_cancelled(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.take()
    broker.store.cancel(["a"])
    assert broker.store.release_unknown("c1", broker.now + 1, []) == ["a"]
    assert broker.status("a") == "cancelled"
    invariants(broker)


def test_the_late_report_is_refused(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    broker.store.release_unknown("c1", broker.now + 1, [])
    broker.take("c2")
    assert broker.finish(outcome(job)) == [0]
    invariants(broker)


def test_a_hundred_per_call(broker: BrokerHarness) -> None:
    ids = [f"j{n}" for n in range(130)]
    broker.add(*ids[:100])
    broker.claim(jobs=100)
    broker.add(*ids[100:])
    broker.claim(jobs=30)
    assert len(broker.store.release_unknown("c1", broker.now + 1, [])) == 100
    assert len(broker.store.release_unknown("c1", broker.now + 1, [])) == 30
    assert broker.store.release_unknown("c1", broker.now + 1, []) == []
    assert broker.held() == []
    invariants(broker)


def test_a_job_whose_hash_is_gone_leaves_the_list(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.take()
    broker.redis.delete(broker.keys.job("a"))
    assert broker.store.release_unknown("c1", broker.now, []) == []
    assert broker.held() == []


def test_a_list_of_another_type_is_named(broker: BrokerHarness) -> None:
    with broker.refused_over(broker.keys.child_processing("c1"), "list"):
        broker.store.release_unknown("c1", broker.now, [])


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.take()
    with broker.full():
        assert broker.store.release_unknown("c1", broker.now + 1, []) == ["a"]
    invariants(broker)


def test_a_job_of_a_queue_with_a_key_of_another_type_stays(broker: BrokerHarness) -> None:
    broker.add("a", queue="sound")
    broker.add("b")
    broker.claim(jobs=2, queues=["sound", "default"])
    with broker.broken("completed"):
        assert broker.store.release_unknown("c1", broker.now + 1, []) == ["a"]
    assert broker.store.release_unknown("c1", broker.now + 1, []) == ["b"]
    invariants(broker)
