"""start_gather: a gather starts in one step; and what happens to it as its jobs end and time
passes."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.replies import Outcome
from django_redisqueue.exceptions import LeaseLost, RedisFull

from .gathers import DELAY_MS, KEEP_MS, TTL_MS, Query
from .harness import ERROR, BrokerHarness, invariants, outcome

NOTHING = ("collecting", "")


def test_a_start_queues_one_job_per_listener(broker: BrokerHarness) -> None:
    query = Query(broker)
    assert query.start() == 1
    assert broker.ids("queued") == [query.job(n) for n in range(3)]
    assert broker.job(query.job(1))["listener"] == "b"
    assert broker.tokens() == 1
    assert (query.state(), query.data().missing) == (NOTHING, ("a", "b", "c"))
    assert 0 < query.ttl_ms() <= TTL_MS
    assert broker.redis.hgetall(broker.keys.gather(query.key)) == {"queryDoneCount": "0"}
    assert broker.redis.zscore(broker.keys.gathers, query.key) == broker.now + DELAY_MS
    assert broker.redis.zscore(broker.keys.newest_gathers, query.key) == broker.now
    assert broker.redis.pttl(broker.keys.gather_plan(query.key)) == -1
    assert broker.meta()["enqueued_total"] == 3
    assert broker.event_statuses(query.job(0)) == ["queued"]
    invariants(broker)


def test_a_limited_number_of_gathers_is_listed_the_newest_ones(broker: BrokerHarness) -> None:
    broker.redis.zadd(broker.keys.newest_gathers, {f"old{n}": n + 1 for n in range(10_000)})
    query = Query(broker)
    query.start()
    assert broker.redis.zcard(broker.keys.newest_gathers) == 10_000
    assert not broker.redis.zscore(broker.keys.newest_gathers, "old0")
    assert query.queries.newest(2) == [(query.key, broker.now), ("old9999", 10_000)]


def test_a_repeated_start_changes_nothing(broker: BrokerHarness) -> None:
    query = Query(broker)
    assert query.start() == 1
    with broker.unchanged():
        assert query.start() == 0


def test_results_that_remain_without_a_plan_are_forgotten(broker: BrokerHarness) -> None:
    query = Query(broker)
    broker.redis.hset(broker.keys.gather(query.key), "a", '"old"')
    assert query.start() == 1
    assert query.queries.results(query.key) == {}


def test_a_key_in_use_is_refused(broker: BrokerHarness) -> None:
    Query(broker).start()
    with broker.unchanged():
        assert Query(broker, name="1").start() == -1


def test_a_start_that_arrives_when_everything_is_forgotten_starts_nothing(
    broker: BrokerHarness,
) -> None:
    query = Query(broker, "a")
    query.start()
    query.run_one()
    query.run_one()
    broker.advance(TTL_MS)
    query.look()
    assert not query.is_known
    assert query.start() == 0
    assert broker.ids("queued") == []


@pytest.mark.parametrize("key", ["gather_plan", "gather", "gathers", "newest_gathers", "timer"])
def test_a_key_of_the_wrong_type_is_named_and_nothing_is_created(
    broker: BrokerHarness, key: str
) -> None:
    query = Query(broker)
    name = getattr(broker.keys, key)
    name = name(query.key) if callable(name) else name
    with broker.refused_over(name):
        query.start()


def test_a_queue_of_the_wrong_type_is_named_and_nothing_is_created(broker: BrokerHarness) -> None:
    with broker.refused_over(broker.keys.queue("default").queued, "list"):
        Query(broker).start()


def test_a_lane_of_the_wrong_type_is_named_and_nothing_is_created(broker: BrokerHarness) -> None:
    query = Query(broker)
    last = query.plan.listeners[-1]._replace(lane="|c:t: c:t=1")
    query.plan = query.plan._replace(listeners=[*query.plan.listeners[:-1], last])
    with broker.refused_over(f"{broker.keys.queue('default').queued}:lane:|c:t:", "zset"):
        query.start()


def test_the_jobs_of_listeners_obey_the_limits_that_they_bring_and_are_indexed(
    broker: BrokerHarness,
) -> None:
    query = Query(broker)
    listeners = [
        one._replace(lane="|c:t: c:t=1", options='{"index":"tag:x"}')
        for one in query.plan.listeners
    ]
    query.plan = query.plan._replace(listeners=listeners)
    query.start()
    assert broker.redis.scard(broker.keys.index("tag:x")) == 3
    assert broker.taken(jobs=3) == [query.job(0)]
    invariants(broker)


def test_a_full_redis_refuses_a_start_but_no_result(broker: BrokerHarness) -> None:
    query = Query(broker, "a")
    query.start()
    job = query.take()
    with broker.full():
        with pytest.raises(RedisFull):
            Query(broker, key="other", name="1").start()
        assert query.finish(job) == 1
    assert query.state() == ("released", "")
    assert not broker.redis.exists(broker.keys.gather_plan("other"))


def test_the_threshold_releases_the_follow_up_once(broker: BrokerHarness) -> None:
    query = Query(broker, threshold=2)
    query.start()
    query.run_one(body="[1]")
    assert query.state() == NOTHING
    query.run_one(body='{"n":2}')
    assert query.state() == ("released", "")
    assert broker.ids("queued") == [query.job(2), query.job("then")]
    assert query.ttl_ms() == -1  # they are kept for it
    query.run_one(body="3")  # a later result is kept, and triggers nothing
    assert query.queries.results(query.key) == {"a": "[1]", "b": '{"n":2}', "c": "3"}
    assert (query.data().done_count, query.data().missing) == (3, ())
    assert broker.ids("queued") == [query.job("then")]
    then = query.take()
    assert (then.task, then.payload) == ("app.then", '[[],{"x":1}]')
    assert broker.taken("runner") == []
    invariants(broker)


def test_a_run_unknown_to_redis_gets_no_key(broker: BrokerHarness) -> None:
    """A master that was replaced may not know the follow-up, which the new master has started."""
    query = Query(broker, "a")
    query.start()
    job = query.take()
    assert query.queries.key_of_run(job.id) == "key-1"
    query.finish(job)
    for job_id in (job.id, query.job("never")):
        with pytest.raises(LeaseLost, match=f"has no record that job {job_id} is running"):
            query.queries.key_of_run(job_id)
    assert query.queries.key_of_run(query.take().id) == "key-1"
    assert query.queries.key_of(job.id) == "key-1"


def test_the_follow_up_keeps_its_options(broker: BrokerHarness) -> None:
    query = Query(
        broker, "a", queue="other", options='{"timeout_ms":5}', priority="7", audit="final",
    )  # fmt: skip
    query.start()
    query.run_one()
    job = broker.job(query.job("then"))
    assert (job["queue"], job["options"], job["priority"], job["audit"]) == (
        "other", '{"timeout_ms":5}', "7", "final",
    )  # fmt: skip
    assert broker.ids("priority", "other") == [query.job("then")]
    invariants(broker)


def test_a_delayed_follow_up_is_scheduled(broker: BrokerHarness) -> None:
    query = Query(broker, "a", when="+5000")
    query.start()
    query.run_one()
    assert broker.ids("scheduled") == [query.job("then")]
    invariants(broker)


def test_a_redelivered_result_counts_once(broker: BrokerHarness) -> None:
    query = Query(broker)
    query.start()
    job = query.take()
    assert [query.finish(job), query.finish(job), query.finish(job)] == [1, 2, 2]
    assert query.data().done_count == 1


def test_a_stored_result_is_not_counted_again(broker: BrokerHarness) -> None:
    """Even if Redis has gone back in time for a job, but not for its gather."""
    query = Query(broker)
    query.start()
    job = query.take()
    assert query.finish(job, body='"first"') == 1
    broker.redis.hset(broker.keys.job(job.id), "status", "processing")
    assert query.finish(job, body='"again"') == 1
    assert query.data().done_count == 1
    assert query.queries.results(query.key) == {"a": '"first"'}


def test_a_stale_result_counts_for_nothing(broker: BrokerHarness) -> None:
    query = Query(broker, "a")
    query.start()
    stale = query.take()
    broker.store.reap("runner", [stale.id])
    again = query.take()
    assert query.finish(stale, body='"stale"') == 0
    assert query.state() == NOTHING
    assert query.finish(again, body='"true"') == 1
    assert query.queries.results(query.key) == {"a": '"true"'}


def test_results_of_one_batch_release_once(broker: BrokerHarness) -> None:
    query = Query(broker)
    query.start()
    jobs = broker.claim("runner", 3).jobs
    assert broker.finish(*[outcome(job) for job in jobs], child="runner") == [1, 1, 1]
    assert broker.ids("queued") == [query.job("then")]
    invariants(broker)


@pytest.mark.parametrize("way", ["fail", "cancel", "poison", "clear"])
def test_a_loss_that_cannot_be_made_up_fails_the_gather_at_once(
    broker: BrokerHarness, way: str
) -> None:
    query = Query(broker, threshold=2)
    query.start()
    query.run_one()
    query.run_one("failed")
    assert query.state() == NOTHING  # the last one may still return
    if way == "fail":
        query.run_one("failed")
    elif way == "cancel":
        broker.store.cancel([query.job(2)])
    elif way == "clear":
        broker.store.clear("default", "queued")
    else:
        broker.redis.hset(broker.keys.job(query.job(2)), "recoveries", 99)
        broker.store.reap("runner", [query.take().id])
    assert query.state() == ("failed", "unreachable")
    assert query.data().missing == ("b", "c")
    assert query.job("failure") in broker.ids("queued")
    assert broker.status(query.job("then")) is None
    assert query.ttl_ms() == -1  # for the follow-up
    invariants(broker)


def test_without_a_follow_up_the_results_just_expire(broker: BrokerHarness) -> None:
    query = Query(broker, "ab", failure=False)
    query.start()
    query.run_one()
    query.run_one("failed")
    assert query.state() == ("failed", "unreachable")
    assert broker.ids("queued") == []
    assert 0 < query.ttl_ms() <= TTL_MS


def test_a_follow_up_that_its_unique_key_refuses_does_not_keep_the_results(
    broker: BrokerHarness,
) -> None:
    unique = "key until_finished - -"
    broker.add("owner", unique=unique)
    broker.take("other")
    query = Query(broker, "a", unique=unique)
    query.start()
    query.run_one()
    assert (query.state(), broker.status(query.job("then"))) == (("released", ""), None)
    assert 0 < query.ttl_ms() <= TTL_MS


@pytest.mark.parametrize("is_found_by_a_check", [False, True])
def test_without_a_follow_up_a_gather_is_forgotten_with_its_results(
    broker: BrokerHarness, is_found_by_a_check: bool
) -> None:
    query = Query(broker, "ab", failure=False)
    query.start()
    if is_found_by_a_check:
        broker.redis.delete(*[broker.keys.job(query.job(n)) for n in range(2)])
        broker.advance(DELAY_MS)
        query.look()
    else:
        query.run_one()
        query.run_one("failed")
    assert query.state() == ("failed", "unreachable")
    broker.advance(TTL_MS - 1)  # after the check that was due next
    query.look()
    assert query.is_known
    broker.advance(1)
    query.look()
    assert not query.is_known


def test_the_result_of_a_listener_retried_by_hand_is_kept_and_triggers_nothing(
    broker: BrokerHarness,
) -> None:
    query = Query(broker, "ab")
    query.start()
    query.run_one("failed")
    assert query.state() == ("failed", "unreachable")
    assert query.run_one() == "1"
    assert query.run_one() == "failure"
    broker.store.requeue([query.job(0)])
    assert query.run_one() == "0"
    assert set(query.queries.results(query.key)) == {"a", "b"}
    assert (query.state(), query.data().missing) == (("failed", "unreachable"), ("a", "b"))
    assert broker.ids("queued") == []


def test_a_retry_by_hand_before_the_end_can_still_reach_it(broker: BrokerHarness) -> None:
    query = Query(broker, threshold=2)
    query.start()
    query.run_one("failed")
    broker.store.requeue([query.job(0)])
    query.run_one("failed")  # b has failed; a and c may still return
    assert query.state() == NOTHING
    assert (query.run_one(), query.run_one()) == ("2", "0")
    assert query.state() == ("released", "")


def test_a_retried_attempt_does_not_count_as_a_loss(broker: BrokerHarness) -> None:
    query = Query(broker, "a")
    query.start()
    query.run_one("retrying")
    assert query.state() == NOTHING


def test_a_gather_fails_after_its_last_check(broker: BrokerHarness) -> None:
    query = Query(broker, threshold=2)
    query.start()
    query.run_one()
    for left in (2, 1):
        broker.advance(DELAY_MS)
        query.look()
        assert (query.state(), query.data().polls_left) == (NOTHING, left)
    broker.advance(DELAY_MS - 1)
    query.look()
    assert query.state() == NOTHING
    broker.advance(1)
    query.look()
    assert query.state() == ("failed", "late")
    assert query.data().missing == ("b", "c")
    assert broker.ids("queued").count(query.job("failure")) == 1
    query.run_one()
    query.run_one()
    assert broker.status(query.job("then")) is None  # too late


@pytest.mark.parametrize("ended_by", ["look", "result", "loss"])
def test_lost_results_fail_the_gather_and_are_not_recreated(
    broker: BrokerHarness, ended_by: str
) -> None:
    query = Query(broker)
    query.start()
    query.run_one()
    query.expire()
    if ended_by == "look":
        broker.advance(DELAY_MS)
        query.look()
    else:
        query.run_one("completed" if ended_by == "result" else "failed")
    assert query.state() == ("failed", "expired")
    assert query.data().missing == ("a", "b", "c")
    query.run_one()
    assert query.ttl_ms() == -2
    assert broker.status(query.job("failure")) is not None


def test_an_expiry_before_the_next_check_is_seen_in_time(broker: BrokerHarness) -> None:
    query = Query(broker)
    query.plan = query.plan._replace(ttl_ms=1000)
    query.start()
    assert broker.redis.zscore(broker.keys.gathers, query.key) == broker.now + 1050
    broker.advance(1050)
    query.look()  # Redis's own clock is not that far: it still exists
    assert (query.state(), query.data().polls_left) == (NOTHING, 3)
    assert broker.redis.zscore(broker.keys.gathers, query.key) == broker.now - 1050 + DELAY_MS


def test_an_expiry_between_two_checks_is_seen_in_time(broker: BrokerHarness) -> None:
    query = Query(broker)
    query.plan = query.plan._replace(ttl_ms=DELAY_MS + 1000)
    query.start()
    broker.advance(DELAY_MS)
    query.look()
    assert broker.redis.zscore(broker.keys.gathers, query.key) == broker.now + 1050


def test_a_gather_is_forgotten_a_while_after_its_follow_up_has_run(broker: BrokerHarness) -> None:
    query = Query(broker, "a")
    query.start()
    query.run_one()
    broker.advance(TTL_MS)
    query.look()
    assert query.is_known  # the follow-up has not run
    assert query.ttl_ms() == -1
    assert query.run_one() == "then"
    assert 0 < query.ttl_ms() <= TTL_MS
    broker.advance(TTL_MS)
    query.look()
    assert not query.is_known
    assert query.ttl_ms() == -2
    assert not broker.redis.exists(broker.keys.gathers)
    assert Query(broker, name="1").start() == 1  # the key is free


def test_results_wait_for_a_manual_retry_of_the_follow_up(broker: BrokerHarness) -> None:
    query = Query(broker, "a")
    query.start()
    query.run_one()
    query.run_one("failed")
    assert query.ttl_ms() == -1
    broker.advance(KEEP_MS - 1)
    query.look()
    broker.store.requeue([query.job("then")])
    broker.advance(1)
    query.look()
    assert (query.is_known, query.ttl_ms()) == (True, -1)  # it is queued
    assert query.run_one() == "then"
    assert query.ttl_ms() > 0
    broker.advance(TTL_MS)
    query.look()
    assert not query.is_known


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_gather_with_a_failed_follow_up_is_forgotten_with_failed_jobs(
    broker: BrokerHarness, is_edited: bool
) -> None:
    query = Query(broker, "a")
    query.start()
    query.run_one()
    query.run_one("failed")
    if is_edited:
        broker.redis.hdel(broker.keys.gather_plan(query.key), "keep_until_ms")
    broker.advance(TTL_MS if is_edited else KEEP_MS)
    query.look()
    assert (query.is_known, query.ttl_ms()) == (False, -2)


def test_a_gather_is_forgotten_sooner_when_its_follow_up_is_gone(broker: BrokerHarness) -> None:
    query = Query(broker, "a")
    query.start()
    query.run_one()
    query.run_one("failed")
    broker.advance(TTL_MS)
    query.look()
    assert query.is_known
    assert broker.store.delete([query.job("then")]) == [1]
    broker.advance(TTL_MS)
    query.look()
    assert (query.is_known, query.ttl_ms()) == (False, -2)


def test_a_job_of_an_earlier_gather_does_not_affect_the_present_one(broker: BrokerHarness) -> None:
    old = Query(broker, "ab", threshold=1)
    old.start()
    broker.store.cancel([old.job(1)])
    old.run_one()
    old.run_one()
    broker.advance(TTL_MS)
    old.look()
    new = Query(broker, "ab", name="1")
    assert new.start() == 1
    broker.store.requeue([old.job(1)])
    assert [broker.take("runner").id for _ in range(3)] == [new.job(0), new.job(1), old.job(1)]
    last = broker.job(old.job(1))
    broker.finish(outcome_of(old.job(1), last), child="runner")
    assert (new.state(), new.data().done_count) == (NOTHING, 0)


def outcome_of(job_id: str, job: dict[str, str]) -> Outcome:
    """An outcome of a job that was claimed elsewhere."""
    return Outcome(job_id, int(job["lease"]), 1, "completed", '"old"')


def test_a_plan_of_the_wrong_type_does_not_block_the_jobs(broker: BrokerHarness) -> None:
    query = Query(broker, "a")
    query.start()
    job = query.take()
    broker.redis.set(broker.keys.gather_plan(query.key), "mine")
    assert query.finish(job) == 1
    broker.advance(DELAY_MS)
    query.look()
    assert broker.redis.get(broker.keys.gather_plan(query.key)) == "mine"
    assert not broker.redis.exists(broker.keys.gathers)


def test_a_list_of_gathers_of_the_wrong_type_costs_no_results(broker: BrokerHarness) -> None:
    query = Query(broker, "ab")
    query.start()
    key = broker.keys.gathers
    broker.redis.rename(key, "theirs")
    broker.redis.set(key, "mine")
    for _ in query.plan.listeners:
        query.run_one()
    assert query.state() == ("released", "")
    broker.redis.rename("theirs", key)
    assert query.run_one() == "then"
    broker.advance(TTL_MS)
    query.look()
    assert not query.is_known


def test_the_timer_is_told_when_to_check(broker: BrokerHarness) -> None:
    assert broker.store.promote(["default"])[:2] == (0, -1)
    query = Query(broker)
    query.start()
    assert broker.redis.llen(broker.keys.timer) == 1  # it is woken
    assert broker.store.promote(["default"])[:2] == (0, DELAY_MS)


def test_many_that_fail_in_one_batch_are_checked_in_steps(broker: BrokerHarness) -> None:
    wide = [f"l{n}" for n in range(100)]
    queries = [Query(broker, wide, key=f"k{n}", name=str(n), threshold=100) for n in range(3)]
    for query in queries:
        query.start()
    first = [f"{query.id}.0" for query in queries]
    jobs = [job for _ in range(3) for job in broker.claim("runner", 100).jobs if job.id in first]
    assert (
        broker.finish(*[outcome(job, "failed", ERROR) for job in jobs], child="runner") == [1] * 3
    )
    assert [query.data().status for query in queries] == ["failed", "collecting", "collecting"]
    queries[0].look()
    assert [query.state() for query in queries] == [("failed", "unreachable")] * 3


def test_many_that_are_forgotten_at_the_same_time_are_checked_in_steps(
    broker: BrokerHarness,
) -> None:
    wide = [f"l{n}" for n in range(100)]
    queries = [Query(broker, wide, key=f"k{n}", name=str(n), failure=False) for n in range(3)]
    for query in queries:
        query.start()
        broker.redis.delete(*[broker.keys.job(query.job(n)) for n in range(100)])
    broker.advance(DELAY_MS)
    query.look()
    assert [query.state() for query in queries] == [("failed", "unreachable")] * 3
    broker.advance(TTL_MS)
    known = []
    for _ in range(3):
        broker.store.advance()
        known.append(sum(query.is_known for query in queries))
    assert known == [2, 1, 0]
