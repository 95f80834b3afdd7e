"""release_unknown: claims unknown to a living child return to the head of the queue."""

from __future__ import annotations

from .lab import Lab, invariants, outcome


def test_unknown_claims_are_released_in_order(lab: Lab) -> None:
    lab.add(*"abcde")
    lab.claim(jobs=4)
    lab.advance(1)
    assert lab.store.release_unknown("c1", lab.now, ["b"]) == ["d", "c", "a"]
    assert lab.held() == ["1:b"]
    assert lab.ids("queued") == ["a", "c", "d", "e"]
    again = lab.take("c2")
    assert (again.id, again.attempts, again.recoveries, again.lease) == ("a", 0, 0, 2)
    assert lab.meta()["released_total"] == 3
    invariants(lab)


def test_later_claims_stay(lab: Lab) -> None:
    lab.add("a", "b")
    lab.take()
    lab.advance(10)
    lab.take()
    assert lab.store.release_unknown("c1", lab.now, []) == ["a"]
    assert lab.held() == ["2:b"]
    invariants(lab)


def test_another_childs_jobs_and_ended_ones_are_left_alone(lab: Lab) -> None:
    lab.add("a", "b")
    lab.take("c2")
    lab.finish(outcome(lab.take()))
    assert lab.store.release_unknown("c1", lab.now + 1, []) == []
    assert (lab.status("a"), lab.status("b")) == ("processing", "completed")
    invariants(lab)


def test_a_job_with_a_pending_cancel_is_cancelled(lab: Lab) -> None:
    lab.add("a")
    lab.take()
    lab.store.cancel(["a"])
    assert lab.store.release_unknown("c1", lab.now + 1, []) == ["a"]
    assert lab.status("a") == "cancelled"
    invariants(lab)


def test_the_late_report_is_refused(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    lab.store.release_unknown("c1", lab.now + 1, [])
    lab.take("c2")
    assert lab.finish(outcome(job)) == [0]
    invariants(lab)


def test_a_hundred_per_call(lab: Lab) -> None:
    ids = [f"j{n}" for n in range(130)]
    lab.add(*ids[:100])
    lab.claim(jobs=100)
    lab.add(*ids[100:])
    lab.claim(jobs=30)
    assert len(lab.store.release_unknown("c1", lab.now + 1, [])) == 100
    assert len(lab.store.release_unknown("c1", lab.now + 1, [])) == 30
    assert lab.store.release_unknown("c1", lab.now + 1, []) == []
    assert lab.held() == []
    invariants(lab)


def test_a_job_whose_hash_is_gone_leaves_the_list(lab: Lab) -> None:
    lab.add("a")
    lab.take()
    lab.redis.delete(lab.keys.job("a"))
    assert lab.store.release_unknown("c1", lab.now, []) == []
    assert lab.held() == []


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    lab.add("a")
    lab.take()
    with lab.full():
        assert lab.store.release_unknown("c1", lab.now + 1, []) == ["a"]
    invariants(lab)


def test_a_job_of_a_queue_with_a_key_of_another_type_stays(lab: Lab) -> None:
    lab.add("a", queue="sound")
    lab.add("b")
    lab.claim(jobs=2, queues=["sound", "default"])
    with lab.broken("completed"):
        assert lab.store.release_unknown("c1", lab.now + 1, []) == ["a"]
    assert lab.store.release_unknown("c1", lab.now + 1, []) == ["b"]
    invariants(lab)
