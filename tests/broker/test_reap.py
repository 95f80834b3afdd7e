"""reap: the jobs of a dead child are returned, poison is contained, and outages are blamed on no
job."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.replies import FinishCode, ReapReply

from .harness import BrokerHarness, invariants, outcome


def test_started_jobs_are_recovered_and_others_released_in_their_order(
    broker: BrokerHarness,
) -> None:
    broker.add(*"abcd")
    broker.claim(jobs=4)
    broker.add("e")
    reaped = broker.store.reap("c1", ["a", "b"])
    assert (reaped.child, reaped.more) == ("c1", False)
    assert dict(reaped.jobs) == {
        "a": "recovered", "b": "recovered", "c": "released", "d": "released",
    }  # fmt: skip
    assert broker.ids("queued") == list("abcde")
    assert [broker.job(name).get("recoveries") for name in "abcd"] == ["1", "1", "0", "0"]
    assert broker.queries.workers() == []
    assert broker.held() == []
    meta = broker.meta()
    assert (meta["recovered_total"], meta["released_total"]) == (2, 2)
    event = broker.events("a")[-1]
    assert (event["status"], event["workerId"], event["recoveries"]) == ("queued", "c1", 1)
    assert event["attempt"] == 0
    invariants(broker)


def test_all_jobs_are_blamed_when_it_is_unknown_which_had_started(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.claim(jobs=2)
    assert dict(broker.store.reap("c1").jobs) == {"a": "recovered", "b": "recovered"}


@pytest.mark.parametrize("priority", [0, 9, -9])
def test_recovered_jobs_go_to_the_head_of_their_band_and_leave_a_token(
    broker: BrokerHarness, priority: int
) -> None:
    broker.add("a", "b", "c", priority=priority)
    broker.claim(jobs=2)
    assert broker.pop_token()
    broker.store.reap("c1", [])
    assert broker.tokens() == 1
    assert broker.taken("c2", jobs=3) == ["a", "b", "c"]
    invariants(broker)


def test_no_attempt_is_used(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.take()
    broker.store.reap("c1", ["a"])
    assert broker.take().attempts == 0


def test_only_a_run_that_had_started_is_recorded(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.claim(jobs=2)
    started_ms = str(broker.now)
    broker.store.reap("c1", ["a"])
    runs = [[broker.job(name).get(field) for field in ("ran", "first_ms")] for name in "ab"]
    assert runs == [["c1", started_ms], [None, None]]


def test_a_second_reap_finds_nothing(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.take()
    broker.store.reap("c1", ["a"])
    with broker.unchanged():
        reaped = broker.store.reap("c1", ["a"])
        assert (list(reaped.jobs), reaped.more) == ([], False)


def test_what_the_child_had_finished_is_not_touched(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    a, _ = broker.claim(jobs=2).jobs
    broker.finish(outcome(a))
    assert broker.store.reap("c1", ["a", "b"]).jobs == [("b", "recovered")]
    assert broker.status("a") == "completed"


def test_a_job_that_another_child_holds_stays_there(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.take("c2")
    broker.redis.rpush(broker.keys.child_processing("c1"), "1:a")
    assert broker.store.reap("c1", ["a"]).jobs == []
    invariants(broker)


def test_the_old_holder_has_lost_its_lease(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    broker.store.reap("c1", ["a"])
    assert broker.finish(outcome(job)) == [FinishCode.LEASE_LOST]


@pytest.mark.parametrize("count", [99, 100, 101, 102, 200, 201])
def test_a_large_list_is_returned_in_steps_and_in_order(broker: BrokerHarness, count: int) -> None:
    names = [f"j{n}" for n in range(count)]
    for at in range(0, count, 100):
        broker.add(*names[at : at + 100])
    while broker.taken(jobs=100):
        pass
    steps, jobs = 0, 0
    while True:
        reaped = broker.store.reap("c1", [])
        steps, jobs = steps + 1, jobs + len(reaped.jobs)
        assert len(reaped.jobs) <= 100
        invariants(broker)
        if not reaped.more:
            break
        assert [child for child, _ in broker.queries.workers()] == ["c1"]
    assert (steps, jobs) == (-(-count // 100), count)
    assert broker.ids("queued") == names
    assert broker.queries.workers() == []


# -- poison


def _crash(broker: BrokerHarness, child: str = "c1") -> list[tuple[str, str]]:
    broker.take(child)
    return list(broker.store.reap(child).jobs)


def test_a_third_crash_of_a_job_that_ran_alone_is_poison(broker: BrokerHarness) -> None:
    broker.add("a")
    assert [_crash(broker) for _ in range(3)] == [
        [("a", "recovered")], [("a", "recovered")], [("a", "poison")],
    ]  # fmt: skip
    stored = broker.job("a")
    assert (stored["status"], stored["reason"]) == ("failed", "poison")
    assert broker.queries.job("a").attempts == 3, (
        "each start was one, though no worker could say so"
    )
    assert broker.events("a")[-1]["attempt"] == 3
    assert broker.queries.job("a").error is not None
    assert "3 times" in str(broker.queries.job("a").error)
    assert broker.ids("failed") == ["a"]
    assert broker.events("a")[-1]["reason"] == "poison"
    invariants(broker)


def test_a_job_that_was_not_alone_gets_another_run_alone(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.redis.hset(broker.keys.job("a"), "recoveries", 0)
    jobs = broker.claim(jobs=2).jobs
    for job in jobs:  # as if each had crashed twice before
        broker.redis.hset(broker.keys.job(job.id), "recoveries", 2)
    assert dict(broker.store.reap("c1").jobs) == {"a": "recovered", "b": "recovered"}
    assert _crash(broker) == [("a", "poison")]
    broker.finish(outcome(broker.take()))
    assert broker.status("b") == "completed"
    invariants(broker)


def test_the_only_job_that_had_started_counts_as_alone(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.claim(jobs=2)
    broker.redis.hset(broker.keys.job("a"), "recoveries", 2)
    assert dict(broker.store.reap("c1", ["a"]).jobs) == {"a": "poison", "b": "released"}


@pytest.mark.parametrize("started", [[], ["b"]])
def test_a_job_that_had_not_started_is_never_poison(
    broker: BrokerHarness, started: list[str]
) -> None:
    broker.add("a", "b")
    broker.claim(jobs=2)
    broker.redis.hset(broker.keys.job("a"), "recoveries", 99)
    assert dict(broker.store.reap("c1", started).jobs)["a"] == "released"
    assert broker.job("a")["recoveries"] == "99"


def test_the_last_of_many_jobs_does_not_count_as_alone(broker: BrokerHarness) -> None:
    for at in range(2):
        broker.add(*[f"{at}.{n}" for n in range(100)])
    broker.claim(jobs=100)
    broker.claim(jobs=1)
    for job_id in ("0.0", "1.0"):
        broker.redis.hset(broker.keys.job(job_id), "recoveries", 2)
    became = dict(broker.store.reap("c1").jobs) | dict(broker.store.reap("c1").jobs)
    assert len(became) == 101
    assert set(became.values()) == {"recovered"}


# -- whose lease has expired (law 5)


def _hold(broker: BrokerHarness, child: str = "c1") -> None:
    broker.add("a")
    broker.take(child)


def test_nothing_has_expired(broker: BrokerHarness) -> None:
    _hold(broker)
    broker.steady(ms=15_000)
    reaped = broker.store.reap()
    assert (reaped.child, reaped.wait_ms) == ("", 0)


def test_any_reaper_reaps_a_child_with_an_expired_lease(broker: BrokerHarness) -> None:
    _hold(broker)
    broker.steady()
    reaped = broker.store.reap()
    assert (reaped.child, list(reaped.jobs)) == ("c1", [("a", "recovered")])
    assert broker.store.reap().child == ""
    invariants(broker)


def test_the_lease_that_expired_first_is_reaped_first(broker: BrokerHarness) -> None:
    broker.store.heartbeat(["c2"])
    broker.advance(1000)
    broker.store.heartbeat(["c1"])
    broker.steady()
    assert [broker.store.reap().child for _ in range(3)] == ["c2", "c1", ""]


def test_no_child_is_reaped_before_a_whole_lease_after_the_first_heartbeat(
    broker: BrokerHarness,
) -> None:
    _hold(broker)
    broker.advance(20_000)
    assert broker.store.reap().wait_ms == 15_000  # there has been no heartbeat at all
    broker.store.heartbeat([])
    assert broker.store.reap().wait_ms == 15_000
    broker.advance(5000)
    broker.store.heartbeat([])
    assert broker.store.reap().wait_ms == 10_000
    assert broker.status("a") == "processing"
    broker.steady(ms=10_000)
    assert broker.store.reap().child == "c1"


def test_after_an_outage_a_whole_lease_passes_again(broker: BrokerHarness) -> None:
    _hold(broker)
    broker.steady()
    broker.store.heartbeat(["c1"])
    broker.advance(30_000)  # Redis down for twice the lease
    before = broker.dump()
    # even if the reap comes before the first heartbeat
    assert broker.store.reap().wait_ms == 15_000
    assert broker.dump() == before
    broker.store.heartbeat([])
    assert broker.store.reap().wait_ms == 15_000
    broker.store.heartbeat(["c1"])
    broker.steady("c1", ms=14_000)
    assert broker.store.reap().child == ""
    assert broker.status("a") == "processing"


def test_on_another_redis_process_a_whole_lease_passes_again(broker: BrokerHarness) -> None:
    _hold(broker)
    broker.steady()
    broker.redis.hset(broker.keys.meta, "run_id", "another")
    assert broker.store.reap().wait_ms == 15_000
    broker.store.heartbeat([])
    assert broker.store.reap().wait_ms == 15_000


def _beat_late(broker: BrokerHarness, *children: str, gap: int, beats: int) -> None:
    for _ in range(beats):
        broker.advance(gap)
        broker.store.heartbeat(children)


def test_constantly_late_heartbeats_delay_reaping_but_do_not_prevent_it(
    broker: BrokerHarness,
) -> None:
    """Each gap is longer than half a lease, so a whole lease never passes without one."""
    _hold(broker)
    broker.store.heartbeat(["alive"])
    _beat_late(broker, "alive", gap=9000, beats=6)
    assert broker.store.reap().wait_ms == 6000
    assert broker.status("a") == "processing"
    _beat_late(broker, "alive", gap=9000, beats=1)
    assert broker.store.reap().jobs == [("a", "recovered")]
    assert broker.store.reap().child == ""  # the living child has kept its lease
    invariants(broker)


def test_a_gap_of_over_a_lease_restarts_the_long_wait(broker: BrokerHarness) -> None:
    _hold(broker)
    broker.store.heartbeat(["alive"])
    _beat_late(broker, "alive", gap=9000, beats=6)
    _beat_late(broker, "alive", gap=15_001, beats=1)
    _beat_late(broker, "alive", gap=9000, beats=6)
    assert broker.store.reap().wait_ms == 6000


@pytest.mark.parametrize("field", ["run_id", "beat_ms", "steady_ms", "reached_ms"])
def test_a_field_deleted_by_hand_only_causes_a_delay(broker: BrokerHarness, field: str) -> None:
    _hold(broker)
    broker.steady()
    broker.redis.hdel(broker.keys.meta, field)
    assert broker.store.reap().wait_ms == 15_000


def test_a_child_named_dead_is_reaped_without_waiting(broker: BrokerHarness) -> None:
    _hold(broker)
    assert broker.store.reap("c1", ["a"]).jobs == [("a", "recovered")]


def test_a_lease_deleted_by_hand_hides_no_named_child(broker: BrokerHarness) -> None:
    _hold(broker)
    broker.redis.delete(broker.keys.workers)
    assert broker.store.reap("c1", ["a"]).jobs == [("a", "recovered")]
    invariants(broker)


# -- refusals


def test_a_missing_hash_is_skipped(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c")
    broker.claim(jobs=3)
    broker.redis.delete(broker.keys.job("a"), broker.keys.job("b"))
    broker.redis.set(broker.keys.job("b"), "theirs")
    broker.redis.rpush(broker.keys.child_processing("c1"), "no number")
    assert broker.store.reap("c1", []).jobs == [("c", "released")]
    assert broker.held() == []


def test_a_hash_without_a_task_does_not_stop_it(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.claim(jobs=2)
    broker.redis.hdel(broker.keys.job("a"), "task")
    assert dict(broker.store.reap("c1", []).jobs) == {"a": "released", "b": "released"}


@pytest.mark.parametrize("name", ["queued", "processing", "failed", "cancelled", "wake", "meta"])
def test_jobs_of_a_queue_with_a_key_of_another_type_stay(broker: BrokerHarness, name: str) -> None:
    broker.add("a1", "a2", queue="sound")
    broker.add("b1", "b2")
    for queue in ("sound", "default", "sound", "default"):
        broker.take(queues=[queue])
    with broker.broken(name):
        reaped = broker.store.reap("c1", ["a1"])
        assert (reaped.more, reaped.stuck) == (False, True)
        assert dict(reaped.jobs) == {"a1": "recovered", "a2": "released"}
        assert broker.held() == ["2:b1", "4:b2"]
        with broker.unchanged():
            assert broker.store.reap("c1", ["a1"]) == ReapReply("c1", stuck=True, jobs=[])
    reaped = broker.store.reap("c1", ["a1"])
    assert (dict(reaped.jobs), reaped.stuck) == ({"b1": "released", "b2": "released"}, False)
    assert broker.redis.zscore(broker.keys.workers, "c1") is None
    invariants(broker)


def test_jobs_whose_outcomes_are_still_to_be_reported_stay(broker: BrokerHarness) -> None:
    """They belong to a broken queue, which is repaired before the dead child is reaped."""
    broker.add("a", "b")
    a, _ = broker.claim(jobs=2).jobs
    reaped = broker.store.reap("c1", ["b"], ["a"])
    assert (dict(reaped.jobs), reaped.stuck) == ({"b": "recovered"}, True)
    assert broker.finish(outcome(a)) == [1]
    assert broker.store.reap("c1", ["b"]) == ReapReply("c1", jobs=[])
    assert broker.redis.zscore(broker.keys.workers, "c1") is None
    invariants(broker)


def test_a_job_that_must_stay_does_not_delay_the_rest_of_a_long_list(
    broker: BrokerHarness,
) -> None:
    for at in range(2):
        broker.add(*[f"{at}.{n}" for n in range(75)])
        broker.claim(jobs=75)
    replies = [broker.store.reap("c1", [], ["1.74"]) for _ in range(2)]
    assert [(reply.more, reply.stuck) for reply in replies] == [(True, False), (False, True)]
    assert broker.held() == ["2:1.74"]


def test_a_child_whose_jobs_must_stay_does_not_keep_others_from_being_reaped(
    broker: BrokerHarness,
) -> None:
    broker.add("a", queue="sound")
    broker.add("b")
    broker.take("c1")
    broker.take("c2", queues=["sound"])
    broker.steady()
    with broker.broken("queued"):
        assert [broker.store.reap().child for _ in range(3)] == ["c1", "c2", ""]
        broker.steady()
        assert broker.store.reap() == ReapReply("c1", stuck=True, jobs=[])
    broker.steady()
    assert broker.store.reap().jobs == [("b", "recovered")]
    invariants(broker)


@pytest.mark.parametrize("is_named", [False, True])
def test_a_processing_list_of_another_type_does_not_prevent_recovery(
    broker: BrokerHarness, is_named: bool
) -> None:
    broker.add("a", "b")
    broker.take("c1")
    broker.take("c2")
    key = broker.keys.child_processing("c1")
    broker.redis.set(key, "theirs")
    broker.steady()
    reaped = broker.store.reap("c1", ["a"]) if is_named else broker.store.reap()
    assert reaped == ReapReply("c1", jobs=[], unreadable=True)
    assert broker.store.reap().jobs == [("b", "recovered")]
    assert broker.store.reap().child == ""
    assert broker.store.recover_orphans("default", 0)[1] == [("a", "c1", "recovered")]
    assert str(broker.redis.get(key)) == "theirs"
    broker.redis.delete(key)
    invariants(broker)


def test_many_jobs_that_must_stay_hide_no_others(broker: BrokerHarness) -> None:
    broker.add(*[f"b{n}" for n in range(100)])
    broker.add("a", queue="sound")
    broker.claim(jobs=100)
    broker.take(queues=["sound"])
    broker.add(*[f"c{n}" for n in range(50)])
    broker.claim(jobs=50)
    with broker.broken("queued"):
        jobs = [job for _ in range(3) for job in broker.store.reap("c1", []).jobs]
        assert jobs == [("a", "released")]
        assert len(broker.held()) == 150
    while broker.held():
        broker.store.reap("c1", [])
    assert len(broker.ids("queued")) == 150
    invariants(broker)


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    broker.add("a", "b", priority=2)
    broker.claim(jobs=2)
    broker.redis.hset(broker.keys.job("a"), "recoveries", 2)
    with broker.full():
        assert dict(broker.store.reap("c1", ["a"]).jobs) == {"a": "poison", "b": "released"}
    invariants(broker)
