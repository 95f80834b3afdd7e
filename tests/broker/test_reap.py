"""reap: the jobs of a dead child are returned, poison is contained, and outages are blamed on no
job."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.replies import FinishCode, ReapReply

from .lab import Lab, invariants, outcome


def test_started_jobs_are_recovered_and_others_released_in_their_order(lab: Lab) -> None:
    lab.add(*"abcd")
    lab.claim(jobs=4)
    lab.add("e")
    reaped = lab.store.reap("c1", ["a", "b"])
    assert (reaped.child, reaped.more) == ("c1", False)
    assert dict(reaped.jobs) == {
        "a": "recovered", "b": "recovered", "c": "released", "d": "released",
    }  # fmt: skip
    assert lab.ids("queued") == list("abcde")
    assert [lab.job(name).get("recoveries") for name in "abcd"] == ["1", "1", "0", "0"]
    assert lab.queries.workers() == []
    assert lab.held() == []
    meta = lab.meta()
    assert (meta["recovered_total"], meta["released_total"]) == (2, 2)
    event = lab.events("a")[-1]
    assert (event["status"], event["workerId"], event["recoveries"]) == ("queued", "c1", 1)
    invariants(lab)


def test_all_jobs_are_blamed_when_it_is_unknown_which_had_started(lab: Lab) -> None:
    lab.add("a", "b")
    lab.claim(jobs=2)
    assert dict(lab.store.reap("c1").jobs) == {"a": "recovered", "b": "recovered"}


@pytest.mark.parametrize("priority", [0, 9, -9])
def test_recovered_jobs_go_to_the_head_of_their_band_and_leave_a_token(
    lab: Lab, priority: int
) -> None:
    lab.add("a", "b", "c", priority=priority)
    lab.claim(jobs=2)
    assert lab.pop_token()
    lab.store.reap("c1", [])
    assert lab.tokens() == 1
    assert lab.taken("c2", jobs=3) == ["a", "b", "c"]
    invariants(lab)


def test_no_attempt_is_used(lab: Lab) -> None:
    lab.add("a")
    lab.take()
    lab.store.reap("c1", ["a"])
    assert lab.take().attempts == 0


def test_a_second_reap_finds_nothing(lab: Lab) -> None:
    lab.add("a")
    lab.take()
    lab.store.reap("c1", ["a"])
    before = lab.dump()
    reaped = lab.store.reap("c1", ["a"])
    assert (list(reaped.jobs), reaped.more) == ([], False)
    assert lab.dump() == before


def test_what_the_child_had_finished_is_not_touched(lab: Lab) -> None:
    lab.add("a", "b")
    a, _ = lab.claim(jobs=2).jobs
    lab.finish(outcome(a))
    assert lab.store.reap("c1", ["a", "b"]).jobs == [("b", "recovered")]
    assert lab.status("a") == "completed"


def test_the_old_holder_has_lost_its_lease(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    lab.store.reap("c1", ["a"])
    assert lab.finish(outcome(job)) == [FinishCode.LEASE_LOST]


@pytest.mark.parametrize("count", [99, 100, 101, 102, 200, 201])
def test_a_large_list_is_returned_in_steps_and_in_order(lab: Lab, count: int) -> None:
    names = [f"j{n}" for n in range(count)]
    for at in range(0, count, 100):
        lab.add(*names[at : at + 100])
    while lab.taken(jobs=100):
        pass
    steps, jobs = 0, 0
    while True:
        reaped = lab.store.reap("c1", [])
        steps, jobs = steps + 1, jobs + len(reaped.jobs)
        assert len(reaped.jobs) <= 100
        invariants(lab)
        if not reaped.more:
            break
        assert [child for child, _ in lab.queries.workers()] == ["c1"]
    assert (steps, jobs) == (-(-count // 100), count)
    assert lab.ids("queued") == names
    assert lab.queries.workers() == []


# -- poison


def _crash(lab: Lab, child: str = "c1") -> list[tuple[str, str]]:
    lab.take(child)
    return list(lab.store.reap(child).jobs)


def test_a_third_crash_of_a_job_that_ran_alone_is_poison(lab: Lab) -> None:
    lab.add("a")
    assert [_crash(lab) for _ in range(3)] == [
        [("a", "recovered")], [("a", "recovered")], [("a", "poison")],
    ]  # fmt: skip
    stored = lab.job("a")
    assert (stored["status"], stored["reason"]) == ("failed", "poison")
    assert lab.queries.job("a").attempts == 3, "each start was one, though no worker could say so"
    assert lab.events("a")[-1]["attempt"] == 3
    assert lab.queries.job("a").error is not None
    assert "3 times" in str(lab.queries.job("a").error)
    assert lab.ids("failed") == ["a"]
    assert lab.events("a")[-1]["reason"] == "poison"
    invariants(lab)


def test_a_job_that_was_not_alone_gets_another_run_alone(lab: Lab) -> None:
    lab.add("a", "b")
    lab.redis.hset(lab.keys.job("a"), "recoveries", 0)
    jobs = lab.claim(jobs=2).jobs
    for job in jobs:  # as if each had crashed twice before
        lab.redis.hset(lab.keys.job(job.id), "recoveries", 2)
    assert dict(lab.store.reap("c1").jobs) == {"a": "recovered", "b": "recovered"}
    assert _crash(lab) == [("a", "poison")]
    lab.finish(outcome(lab.take()))
    assert lab.status("b") == "completed"
    invariants(lab)


def test_the_only_job_that_had_started_counts_as_alone(lab: Lab) -> None:
    lab.add("a", "b")
    lab.claim(jobs=2)
    lab.redis.hset(lab.keys.job("a"), "recoveries", 2)
    assert dict(lab.store.reap("c1", ["a"]).jobs) == {"a": "poison", "b": "released"}


def test_a_job_that_had_not_started_is_never_poison(lab: Lab) -> None:
    lab.add("a")
    lab.take()
    lab.redis.hset(lab.keys.job("a"), "recoveries", 99)
    assert lab.store.reap("c1", []).jobs == [("a", "released")]
    assert lab.job("a")["recoveries"] == "99"


def test_the_last_of_many_jobs_does_not_count_as_alone(lab: Lab) -> None:
    for at in range(2):
        lab.add(*[f"{at}.{n}" for n in range(100)])
    lab.claim(jobs=100)
    lab.claim(jobs=1)
    for job_id in ("0.0", "1.0"):
        lab.redis.hset(lab.keys.job(job_id), "recoveries", 2)
    became = dict(lab.store.reap("c1").jobs) | dict(lab.store.reap("c1").jobs)
    assert len(became) == 101
    assert set(became.values()) == {"recovered"}


# -- whose lease has expired (law 5)


def _hold(lab: Lab, child: str = "c1") -> None:
    lab.add("a")
    lab.take(child)


def test_nothing_has_expired(lab: Lab) -> None:
    _hold(lab)
    lab.steady(ms=15_000)
    reaped = lab.store.reap()
    assert (reaped.child, reaped.wait_ms) == ("", 0)


def test_any_reaper_reaps_a_child_with_an_expired_lease(lab: Lab) -> None:
    _hold(lab)
    lab.steady()
    reaped = lab.store.reap()
    assert (reaped.child, list(reaped.jobs)) == ("c1", [("a", "recovered")])
    assert lab.store.reap().child == ""
    invariants(lab)


def test_the_lease_that_expired_first_is_reaped_first(lab: Lab) -> None:
    lab.store.heartbeat(["c2"])
    lab.advance(1000)
    lab.store.heartbeat(["c1"])
    lab.steady()
    assert [lab.store.reap().child for _ in range(3)] == ["c2", "c1", ""]


def test_no_child_is_reaped_before_a_whole_lease_after_the_first_heartbeat(lab: Lab) -> None:
    _hold(lab)
    lab.advance(20_000)
    assert lab.store.reap().wait_ms == 15_000  # there has been no heartbeat at all
    lab.store.heartbeat([])
    assert lab.store.reap().wait_ms == 15_000
    lab.advance(5000)
    lab.store.heartbeat([])
    assert lab.store.reap().wait_ms == 10_000
    assert lab.status("a") == "processing"
    lab.steady(ms=10_000)
    assert lab.store.reap().child == "c1"


def test_after_an_outage_a_whole_lease_passes_again(lab: Lab) -> None:
    _hold(lab)
    lab.steady()
    lab.store.heartbeat(["c1"])
    lab.advance(30_000)  # Redis down for twice the lease
    before = lab.dump()
    assert lab.store.reap().wait_ms == 15_000  # even if the reap comes before the first heartbeat
    assert lab.dump() == before
    lab.store.heartbeat([])
    assert lab.store.reap().wait_ms == 15_000
    lab.store.heartbeat(["c1"])
    lab.steady("c1", ms=14_000)
    assert lab.store.reap().child == ""
    assert lab.status("a") == "processing"


def test_on_another_redis_process_a_whole_lease_passes_again(lab: Lab) -> None:
    _hold(lab)
    lab.steady()
    lab.redis.hset(lab.keys.meta, "run_id", "another")
    assert lab.store.reap().wait_ms == 15_000
    lab.store.heartbeat([])
    assert lab.store.reap().wait_ms == 15_000


def _beat_late(lab: Lab, *children: str, gap: int, beats: int) -> None:
    for _ in range(beats):
        lab.advance(gap)
        lab.store.heartbeat(children)


def test_constantly_late_heartbeats_delay_reaping_but_do_not_prevent_it(lab: Lab) -> None:
    """Each gap is longer than half a lease, so a whole lease never passes without one."""
    _hold(lab)
    lab.store.heartbeat(["alive"])
    _beat_late(lab, "alive", gap=9000, beats=6)
    assert lab.store.reap().wait_ms == 6000
    assert lab.status("a") == "processing"
    _beat_late(lab, "alive", gap=9000, beats=1)
    assert lab.store.reap().jobs == [("a", "recovered")]
    assert lab.store.reap().child == ""  # the living child has kept its lease
    invariants(lab)


def test_a_gap_of_over_a_lease_restarts_the_long_wait(lab: Lab) -> None:
    _hold(lab)
    lab.store.heartbeat(["alive"])
    _beat_late(lab, "alive", gap=9000, beats=6)
    _beat_late(lab, "alive", gap=15_001, beats=1)
    _beat_late(lab, "alive", gap=9000, beats=6)
    assert lab.store.reap().wait_ms == 6000


@pytest.mark.parametrize("field", ["run_id", "beat_ms", "steady_ms", "reached_ms"])
def test_a_field_deleted_by_hand_only_causes_a_delay(lab: Lab, field: str) -> None:
    _hold(lab)
    lab.steady()
    lab.redis.hdel(lab.keys.meta, field)
    assert lab.store.reap().wait_ms == 15_000


def test_a_child_named_dead_is_reaped_without_waiting(lab: Lab) -> None:
    _hold(lab)
    assert lab.store.reap("c1", ["a"]).jobs == [("a", "recovered")]


def test_a_lease_deleted_by_hand_hides_no_named_child(lab: Lab) -> None:
    _hold(lab)
    lab.redis.delete(lab.keys.workers)
    assert lab.store.reap("c1", ["a"]).jobs == [("a", "recovered")]
    invariants(lab)


# -- refusals


def test_a_missing_hash_is_skipped(lab: Lab) -> None:
    lab.add("a", "b", "c")
    lab.claim(jobs=3)
    lab.redis.delete(lab.keys.job("a"), lab.keys.job("b"))
    lab.redis.set(lab.keys.job("b"), "theirs")
    lab.redis.rpush(lab.keys.child_processing("c1"), "no number")
    assert lab.store.reap("c1", []).jobs == [("c", "released")]
    assert lab.held() == []


@pytest.mark.parametrize("name", ["queued", "processing", "failed", "cancelled", "wake", "meta"])
def test_jobs_of_a_queue_with_a_key_of_another_type_stay(lab: Lab, name: str) -> None:
    lab.add("a1", "a2", queue="sound")
    lab.add("b1", "b2")
    for queue in ("sound", "default", "sound", "default"):
        lab.take(queues=[queue])
    with lab.broken(name):
        reaped = lab.store.reap("c1", ["a1"])
        assert (reaped.more, reaped.stuck) == (False, True)
        assert dict(reaped.jobs) == {"a1": "recovered", "a2": "released"}
        assert lab.held() == ["2:b1", "4:b2"]
        before = lab.dump()
        assert lab.store.reap("c1", ["a1"]) == ReapReply("c1", stuck=True, jobs=[])
        assert lab.dump() == before
    reaped = lab.store.reap("c1", ["a1"])
    assert (dict(reaped.jobs), reaped.stuck) == ({"b1": "released", "b2": "released"}, False)
    assert lab.redis.zscore(lab.keys.workers, "c1") is None
    invariants(lab)


def test_jobs_whose_outcomes_are_still_to_be_reported_stay(lab: Lab) -> None:
    """They belong to a broken queue, which is repaired before the dead child is reaped."""
    lab.add("a", "b")
    a, _ = lab.claim(jobs=2).jobs
    reaped = lab.store.reap("c1", ["b"], ["a"])
    assert (dict(reaped.jobs), reaped.stuck) == ({"b": "recovered"}, True)
    assert lab.finish(outcome(a)) == [1]
    assert lab.store.reap("c1", ["b"]) == ReapReply("c1", jobs=[])
    assert lab.redis.zscore(lab.keys.workers, "c1") is None
    invariants(lab)


def test_a_child_whose_jobs_must_stay_does_not_keep_others_from_being_reaped(lab: Lab) -> None:
    lab.add("a", queue="sound")
    lab.add("b")
    lab.take("c1")
    lab.take("c2", queues=["sound"])
    lab.steady()
    with lab.broken("queued"):
        assert [lab.store.reap().child for _ in range(3)] == ["c1", "c2", ""]
        lab.steady()
        assert lab.store.reap() == ReapReply("c1", stuck=True, jobs=[])
    lab.steady()
    assert lab.store.reap().jobs == [("b", "recovered")]
    invariants(lab)


@pytest.mark.parametrize("is_named", [False, True])
def test_a_processing_list_of_another_type_does_not_prevent_recovery(
    lab: Lab, is_named: bool
) -> None:
    lab.add("a", "b")
    lab.take("c1")
    lab.take("c2")
    key = lab.keys.child_processing("c1")
    lab.redis.delete(key)
    lab.redis.set(key, "theirs")
    lab.steady()
    reaped = lab.store.reap("c1", ["a"]) if is_named else lab.store.reap()
    assert reaped == ReapReply("c1", jobs=[], unreadable=True)
    assert lab.store.reap().jobs == [("b", "recovered")]
    assert lab.store.reap().child == ""
    assert lab.store.recover_orphans("default", 0)[1] == [("a", "c1", "recovered")]
    assert str(lab.redis.get(key)) == "theirs"
    lab.redis.delete(key)
    invariants(lab)


def test_many_jobs_that_must_stay_hide_no_others(lab: Lab) -> None:
    lab.add(*[f"b{n}" for n in range(100)])
    lab.add("a", queue="sound")
    lab.claim(jobs=100)
    lab.take(queues=["sound"])
    lab.add(*[f"c{n}" for n in range(50)])
    lab.claim(jobs=50)
    with lab.broken("queued"):
        jobs = [job for _ in range(3) for job in lab.store.reap("c1", []).jobs]
        assert jobs == [("a", "released")]
        assert len(lab.held()) == 150
    while lab.held():
        lab.store.reap("c1", [])
    assert len(lab.ids("queued")) == 150
    invariants(lab)


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    lab.add("a", "b", priority=2)
    lab.claim(jobs=2)
    lab.redis.hset(lab.keys.job("a"), "recoveries", 2)
    with lab.full():
        assert dict(lab.store.reap("c1", ["a"]).jobs) == {"a": "poison", "b": "released"}
    invariants(lab)
