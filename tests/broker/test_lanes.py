"""Jobs with lanes: which of them a claim takes, and when the others return.

``REDISQUEUE_NOISY=100000`` gives the noisy neighbour of a quiet share that many jobs.
"""

from __future__ import annotations

import os

import pytest

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.statuses import Status
from django_redisqueue.exceptions import WrongKeyType

from .harness import ERROR, PAYLOAD, BrokerHarness, invariants, outcome
from .workflows import BrokerWorkflow

ONE = "|c:t:1 c:t=1"
NOISY = int(os.environ.get("REDISQUEUE_NOISY", "2000"))


def test_no_more_than_the_limit_are_claimed(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c", lane="|c:t: c:t=2")
    assert broker.taken(jobs=8) == ["a", "b"]
    assert broker.taken("c2", jobs=8) == []
    invariants(broker)


def test_a_finished_jobs_slot_goes_to_the_next_job(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=ONE)
    job = broker.take()
    assert broker.taken("c2") == []
    codes, claim = broker.store.finish(ClaimRequest("c1", ("default",)), 9, [outcome(job)], 5)
    assert (codes, [job.id for job in claim.jobs]) == ([1], ["b"])
    assert not broker.redis.exists(f"{broker.keys.base}limits:passes")
    invariants(broker)


def test_a_batch_has_jobs_with_and_without_lanes(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c", lane="gold")
    broker.add("x", priority=5)
    broker.add("y", "z")
    assert sorted(broker.taken(jobs=6)) == ["a", "b", "c", "x", "y", "z"]


def test_a_lane_that_was_called_in_vain_calls_the_next(broker: BrokerHarness) -> None:
    for name in "abc":
        broker.add(name, lane=f"{name}{ONE}")
    job = broker.take()
    assert broker.taken("c2", jobs=8) == []
    broker.finish(outcome(job))
    broker.store.cancel(["b"])  # whose lane was called
    assert broker.taken("c2", jobs=8) == ["c"]
    invariants(broker)


@pytest.mark.parametrize("kind", ["completed", "failed", "retrying", "delayed", "cancelled"])
def test_every_end_of_a_run_frees_its_slot(broker: BrokerHarness, kind: str) -> None:
    broker.add("a", "b", lane=ONE)
    job = broker.take()
    assert broker.taken("c2") == []
    while broker.pop_token():
        pass
    assert broker.finish(outcome(job, kind)) == [1]
    assert broker.tokens() == 1
    assert broker.taken("c2") == ["b"]


def test_a_slot_whose_holder_died_is_free_when_it_is_reaped(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=ONE)
    broker.take()
    broker.store.reap("c1", ["a"])
    invariants(broker)
    assert broker.taken("c2", jobs=2) == ["a"]


def test_a_released_job_is_first_again(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=ONE)
    job = broker.take()
    assert broker.store.release("c1", [(job.id, job.lease)]) == [1]
    assert broker.taken("c2", jobs=2) == ["a"]


def test_a_stale_release_frees_nothing(broker: BrokerHarness) -> None:
    """The old holder of a job reports after the job got a new one."""
    broker.add("a", "b", lane=ONE)
    old = broker.take()
    broker.store.reap("c1", ["a"])
    assert broker.taken("c2") == ["a"]
    assert broker.finish(outcome(old)) == [0]
    assert broker.taken("c3") == []
    invariants(broker)


def test_a_blocked_lane_does_not_block_the_others(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=ONE)
    broker.add("c", lane="|c:t:2 c:t=1")
    assert broker.taken(jobs=8) == ["a", "c"]


def test_first_in_first_out_over_lanes_without_shares(broker: BrokerHarness) -> None:
    for n in range(6):
        broker.add(f"j{n}", lane=f"|c:t:{n % 2} c:t=9")
    assert broker.taken(jobs=8) == [f"j{n}" for n in range(6)]


def test_priority_within_a_lane_and_between_lanes(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane="|c:t:1 c:t=9")
    broker.add("c", lane="|c:t:1 c:t=9", priority=5)
    broker.add("d", lane="|c:t:2 c:t=9", priority=7)
    broker.add("e", lane="|c:t:2 c:t=9", priority=-7)
    assert broker.taken(jobs=8) == ["d", "c", "a", "b", "e"]


@pytest.mark.parametrize("jobs", [1, 8])
def test_a_cancelled_job_does_not_let_a_lower_priority_start(
    broker: BrokerHarness, jobs: int
) -> None:
    broker.add("low", priority=-5)
    broker.add("cancelled")
    broker.add("a", "b", lane="|c:t:1 c:t=9")
    broker.store.cancel(["cancelled"])
    taken = [name for n in range(3) for name in broker.taken(f"c{n}", jobs=jobs)]
    assert taken == ["a", "b", "low"]


def test_a_child_takes_no_lower_priority_than_it_may(broker: BrokerHarness) -> None:
    broker.add("a", lane=ONE, priority=3)
    broker.add("b", lane="|c:t:1 c:t=9", priority=-3)
    assert broker.taken(jobs=8, min_priority=0) == ["a"]
    assert broker.taken(jobs=8, min_priority=-3) == ["b"]


def test_all_limits_are_checked_before_one_is_taken(broker: BrokerHarness) -> None:
    """A lane that was woken in vain, because of its second limit, gives way at the first."""
    both = "|c:t:1|c:all: c:t=1 c:all=1"
    broker.add("holder", lane="|c:t:1 c:t=1")
    broker.add("other", lane="|c:all: c:all=1")
    holder, other = broker.take(), broker.take("c2")
    broker.add("both", lane=both)
    broker.add("next", lane="|c:t:1 c:t=1")
    assert broker.taken("c3", jobs=8) == []
    broker.finish(outcome(holder))  # calls both lanes' first: "both", which the other limit refuses
    assert broker.taken("c3", jobs=8) == ["next"]
    broker.finish(outcome(other), child="c2")
    assert broker.taken("c2", jobs=8) == []
    invariants(broker)


def test_a_limit_of_several_queues_with_one_paused(broker: BrokerHarness) -> None:
    """A lane that is not looked at keeps no slot from a lane of another queue."""
    broker.add("x1", "x2", queue="x", lane=ONE)
    broker.add("y1", "y2", queue="y", lane=ONE)
    job = broker.take(queues=["x"])
    assert broker.taken("c2", queues=["x", "y"]) == []
    broker.store.pause("x", True)
    broker.finish(outcome(job))
    invariants(broker)
    job = broker.take("c2", queues=["x", "y"])
    assert job.id == "y1"
    broker.finish(outcome(job), child="c2")
    assert broker.taken("c2", queues=["x", "y"]) == ["y2"]


def test_the_newest_number_applies(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c", "d", lane=ONE)
    assert broker.taken(jobs=8) == ["a"]
    broker.redis.delete(broker.keys.timer)
    broker.add("e", lane="|c:t:1 c:t=3")
    assert broker.redis.llen(broker.keys.timer) == 1
    broker.store.promote([])
    assert broker.taken(jobs=8) == ["b", "c"]
    invariants(broker)


def test_more_lanes_wait_for_a_raised_limit_than_one_call_checks(broker: BrokerHarness) -> None:
    for n in range(250):
        broker.add(f"j{n}", lane=f"s{n}|c:all: c:all=1")
    broker.take()
    while broker.claim("c2", 8).jobs or broker.redis.exists(broker.keys.queue("default").shares):
        pass
    broker.add("new", lane="s|c:all: c:all=300")
    while broker.store.promote([]).next_ms == 0:
        pass
    claimed: list[str] = []
    for child in range(20):
        claimed += broker.taken(f"d{child}", jobs=64)
    assert len(claimed) == 250


def test_a_call_looks_at_a_limited_number_of_raised_limits(broker: BrokerHarness) -> None:
    for n in range(15):
        broker.add(f"a{n}", f"b{n}", lane=f"|c:t{n}: c:t{n}=1")
    broker.taken(jobs=64)
    for n in range(15):
        broker.add(f"c{n}", lane=f"|c:t{n}: c:t{n}=2")
    assert broker.store.promote([]).next_ms == 0
    assert broker.redis.hlen(f"{broker.keys.base}limits:changed") == 5
    assert broker.store.promote([]).next_ms == -1
    assert len(broker.taken("c2", jobs=64)) == 15


def test_limits_that_stay_full_do_not_hide_the_one_that_was_raised(broker: BrokerHarness) -> None:
    lanes = [f"|c:t:{n:03} c:t=1" for n in range(101)]
    for n, lane in enumerate(lanes):
        broker.add(f"a{n}", f"b{n}", lane=lane)
    while broker.taken(jobs=64):
        pass
    for n in range(100):
        broker.store.set_limit(f"c:t:{n:03}", "1")
    broker.add("c", lane="|c:t:100 c:t=2")
    assert [broker.store.promote([]).next_ms for _ in range(3)] == [0, -1, -1]
    assert broker.taken("c2", jobs=64) == ["b100"]


def test_a_batch_of_ends_leaves_room_for_as_many(broker: BrokerHarness) -> None:
    broker.add(*"abcd", lane="|c:t: c:t=2")
    jobs = broker.claim(jobs=2).jobs
    assert broker.taken("c2") == []  # the lane waits
    broker.add("low", priority=-5)
    ended = [outcome(job, "failed", ERROR) for job in jobs]
    _, claim = broker.store.finish(ClaimRequest("c1", ("default",)), 9, ended, 5)
    assert [job.id for job in claim.jobs] == ["c", "d", "low"]
    invariants(broker)


def test_a_cancelled_job_leaves_its_lane(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c", lane=ONE)
    broker.store.cancel(["b"])
    invariants(broker)
    job = broker.take()
    assert broker.taken("c2") == []
    broker.store.cancel(["c"])
    invariants(broker)
    assert not broker.redis.exists(broker.keys.waiting_limits)
    broker.finish(outcome(job))
    assert broker.ids("keyed") == []


def test_counts_pages_and_clear(broker: BrokerHarness) -> None:
    broker.add("a", "b", priority=0)
    broker.add("high", priority=2)
    broker.add("low", priority=-2)
    broker.add("c", "d", "e", lane=ONE)
    stats = broker.queries.stats(["default"])["default"]
    assert stats["queued"] == 7
    assert broker.queries.overview(["default"])[0].counts["queued"] == 7
    pages = [broker.queries.ids("default", Status.QUEUED, at, at + 1) for at in range(0, 8, 2)]
    assert pages == [["high", "a"], ["b", "low"], ["c", "d"], ["e"]]
    order: list[str] = []
    while oldest := broker.queries.oldest("default", Status.QUEUED, 2):
        order += oldest
        assert broker.store.clear("default", "queued", 2).seen == len(oldest)
        invariants(broker)
    assert order == ["a", "b", "high", "low", "c", "d", "e"]


def test_jobs_without_lanes_are_one_share(broker: BrokerHarness) -> None:
    broker.add("p1", "p2", "p3")
    for n in range(3):
        broker.add(f"a{n}", f"b{n}", lane="")
    broker.redis.flushdb()
    broker.add("p1", "p2", "p3")
    broker.add("a1", "a2", lane="a")
    broker.add("b1", "b2", lane="b")
    taken = broker.taken(jobs=7)
    assert {*taken[:3]} == {"p1", "a1", "b1"}
    assert {*taken[3:6]} == {"p2", "a2", "b2"}
    assert taken[6] == "p3"
    invariants(broker)


@pytest.mark.parametrize("jobs", [7, 64])
def test_a_quiet_share_is_not_starved(broker: BrokerHarness, jobs: int) -> None:
    """The last of ten jobs starts within twenty starts of a noisy neighbour's jobs."""
    for at in range(0, NOISY, 1000):
        broker.add(*[f"n{n}" for n in range(at, at + 1000)], lane="noisy")
    assert len(broker.taken(jobs=64)) == 64
    broker.add(*[f"q{n}" for n in range(10)], lane="quiet")
    order: list[str] = []
    while "q9" not in order:
        order += broker.taken("c2", jobs=jobs)
    before = sum(name[0] == "n" for name in order[: order.index("q9")])
    print(f"{before} of {NOISY} noisy jobs started before the last quiet one")
    assert before <= 20


def test_shares_that_wait_for_the_same_limit_take_turns(broker: BrokerHarness) -> None:
    for name in "ab":
        broker.add(*[f"{name}{n}" for n in range(9)], lane=f"{name}|c:all: c:all=1")
    order = ""
    for _ in range(8):
        job = broker.take()
        assert broker.taken("c2") == []  # both wait now
        broker.finish(outcome(job))
        order += job.id[0]
    assert order.count("a") in (4, 5)


def test_idling_earns_no_credit(broker: BrokerHarness) -> None:
    broker.add(*[f"a{n}" for n in range(60)], lane="a")
    assert len(broker.taken(jobs=20)) == 20
    broker.add(*[f"b{n}" for n in range(60)], lane="b")
    taken = broker.taken("c2", jobs=20)
    assert sum(name[0] == "b" for name in taken) in (10, 11)


def test_a_share_that_sends_one_job_at_a_time_does_not_starve_others(broker: BrokerHarness) -> None:
    broker.add(*[f"a{n}" for n in range(20)], lane="a")
    order: list[str] = []
    for n in range(20):
        broker.add(f"b{n}", lane="b")
        order += broker.taken()
    assert sum(name[0] == "a" for name in order) in (9, 10, 11)


def test_a_place_whose_lanes_were_deleted_by_hand_is_forgotten(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=ONE)
    job = broker.take()
    assert broker.taken("c2") == []
    assert broker.redis.delete(f"{broker.keys.queue('default').parked}:c:t:1") == 1
    broker.finish(outcome(job))
    assert not broker.redis.exists(broker.keys.waiting_limits)


def test_lanes_of_a_broken_queue_do_not_stop_an_end(broker: BrokerHarness) -> None:
    broker.add("x1", queue="x", lane=ONE)
    broker.add("y1", queue="y", lane=ONE)
    job = broker.take(queues=["x"])
    assert broker.taken("c2", queues=["y"]) == []
    with broker.broken("keyed", "y"):
        assert broker.finish(outcome(job)) == [1]
    assert broker.redis.exists(broker.keys.waiting_limits)


def test_a_wrong_type_refuses_the_enqueue(broker: BrokerHarness) -> None:
    broker.redis.set(broker.keys.slots, "theirs")
    with pytest.raises(WrongKeyType, match="slots holds a string where a zset belongs"):
        broker.add("a", lane=ONE)
    assert not broker.redis.exists(broker.keys.job("a"))
    broker.redis.delete(broker.keys.slots)
    broker.add("a", lane=ONE)
    broker.redis.set(broker.keys.slots, "theirs")
    assert broker.taken() == []  # how much is used is unknown, so nothing starts


def test_a_suspect_in_a_lane_runs_alone(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane="|c:t:1 c:t=9")
    broker.take()
    broker.store.reap("c1", ["a"])
    broker.add("plain")
    assert broker.taken("c2", jobs=1) in (["a"], ["plain"])
    broker.add("other")
    claim = broker.claim("c3", 8)
    assert "a" not in [job.id for job in claim.jobs] or len(claim.jobs) == 1
    invariants(broker)


def test_jobs_of_a_workflow_take_lanes_when_they_are_freed(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0], 2: [0]})
    workflow.jobs = [job._replace(lane=ONE) for job in workflow.jobs]
    assert workflow.push() == 1
    broker.add("first", lane="|c:t:2 c:t=1")
    job = broker.take()
    assert job.id == workflow.job(0)
    broker.finish(outcome(job))
    invariants(broker)
    taken = broker.taken(jobs=8)
    assert taken == ["first", workflow.job(1)]
    invariants(broker)


def test_a_conflict_discards_the_new_job(broker: BrokerHarness) -> None:
    lane = f"{ONE} !discard"
    assert broker.add("a", "b", lane=lane) == [True, True]
    assert (broker.status("a"), broker.status("b")) == ("queued", "cancelled")
    assert broker.job("b")["reason"] == "conflict"
    job = broker.take()
    broker.add("c", lane=lane)
    assert broker.status("c") == "cancelled"
    broker.finish(outcome(job))
    broker.add("d", lane=lane)
    assert broker.taken() == ["d"]
    invariants(broker)


def test_a_conflict_cancels_the_oldest(broker: BrokerHarness) -> None:
    """First the running job, which is asked to stop; then the waiting ones."""
    lane = f"{ONE} !cancel_oldest"
    broker.add("a", lane=lane)
    job = broker.take()
    broker.add("b", lane=lane)
    assert "cancel_ms" in broker.job("a")
    assert broker.status("b") == "queued"
    broker.add("c", lane=lane)
    assert (broker.status("b"), broker.status("c")) == ("cancelled", "queued")
    assert broker.job("b")["reason"] == "conflict"
    invariants(broker)
    assert broker.taken("c2") == []
    assert broker.finish(outcome(job, "cancelled")) == [1]
    assert broker.taken("c2") == ["c"]


def test_a_conflict_cancels_the_oldest_of_very_many(broker: BrokerHarness) -> None:
    """A script looks at 100 of them."""
    lane = "|c:t:1 c:t=120 !cancel_oldest"
    ids = [f"a{n:03}" for n in range(120)]
    broker.add(*ids, lane=lane)
    for _ in range(2):
        broker.taken(jobs=60)
    broker.add("new", "newer", lane=lane)
    assert [job_id for job_id in ids if "cancel_ms" in broker.job(job_id)] == ids[:2]
    assert (broker.status("new"), broker.status("newer")) == ("queued", "queued")
    invariants(broker)


def test_only_due_jobs_can_conflict(broker: BrokerHarness) -> None:
    broker.add("a", lane=f"{ONE} !discard")
    broker.add("b", lane=f"{ONE} !discard", when="+1000")
    assert broker.status("b") == "scheduled"


def test_a_rate_limited_service_blocks_its_rate(broker: BrokerHarness) -> None:
    rate = "|r:r: r:r=6/60000000/1"
    broker.add("a", "b", lane=rate)
    job = broker.take()
    assert broker.finish(outcome(job, "limited", ERROR, "30000")) == [1]
    assert (broker.status("a"), broker.job("a").get("attempts", "0")) == ("retrying", "0")
    broker.advance(29_999)
    broker.store.promote([])
    assert broker.taken() == []
    broker.advance(1)
    broker.store.promote([])
    assert len(broker.taken()) == 1
    invariants(broker)


@pytest.mark.parametrize("other", [("limited", "5000"), ("cancelled", "expired")])
def test_a_blocked_rate_is_not_opened_earlier_by_another_outcome(
    broker: BrokerHarness, other: tuple[str, str]
) -> None:
    broker.add("a", "b", "c", lane="|r:r: r:r=60/60000000/10")
    a, b = broker.take(), broker.take()
    kind, detail = other
    broker.finish(outcome(a, "limited", ERROR, "30000"), outcome(b, kind, ERROR, detail))
    broker.advance(29_999)
    broker.store.promote([])
    assert broker.taken() == []
    broker.advance(1)
    broker.store.promote([])
    assert broker.taken(jobs=1) == ["c"]
    invariants(broker)


def test_a_rate_calls_one_lane_for_each_token(broker: BrokerHarness) -> None:
    for name in "abc":
        broker.add(name, lane=f"{name}|r:r: r:r=1/60000000/1")
    assert [broker.taken(), broker.taken()] == [["a"], []]
    assert 0 < broker.redis.pttl(f"{broker.keys.base}limit:r:r::tat") <= 60_001  # type: ignore[operator]
    broker.advance(2 * 60_001)
    assert broker.store.promote([]).next_ms == 60_001
    assert broker.redis.hlen(broker.keys.queue("default").parked) == 1
    invariants(broker)


def test_no_window_has_more_starts_than_a_rate_allows(broker: BrokerHarness) -> None:
    """Not even one that begins with a burst."""
    broker.add(*[f"j{n}" for n in range(20)], lane="|r:r: r:r=6/60000000/4")
    starts: list[int] = []
    for second in range(200):
        while broker.taken():
            starts.append(second)
        broker.advance(1000)
        broker.store.promote([])
    assert max(sum(at <= one < at + 60 for one in starts) for at in starts) == 6


def test_an_expired_job_returns_its_token(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane="|r:r: r:r=1/60000000/1")
    job = broker.take()
    assert broker.taken() == []
    assert broker.finish(outcome(job, "cancelled", ERROR, "expired")) == [1]
    assert (broker.status("a"), broker.job("a")["reason"]) == ("cancelled", "expired")
    broker.advance(1)
    broker.store.promote([])
    assert broker.taken() == ["b"]
    invariants(broker)


def test_an_expired_job_returns_no_token_after_another_start(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c", lane="|r:r: r:r=2/60000000/2")
    job = broker.take()
    broker.advance(1)
    assert broker.taken("c2") == ["b"]
    broker.finish(outcome(job, "cancelled", ERROR, "expired"))
    broker.store.promote([])
    assert broker.taken() == []


def test_a_weight_multiplies_the_turns_of_a_share(broker: BrokerHarness) -> None:
    """The current weight applies: an override for this share, or else that of the newest job."""
    weighed = "a s:a=3"
    broker.add(*[f"a{n}" for n in range(30)], lane=weighed)
    broker.add(*[f"b{n}" for n in range(30)], lane="b s:b=1")
    turns = [name[0] for name in broker.taken(jobs=12)]
    assert turns.count("a") == 9
    broker.store.set_limit("s:a", "1")
    assert [name[0] for name in broker.taken("c2", jobs=12)].count("a") in (6, 7)
    broker.store.set_limit("s:a", "")
    broker.add("b30", lane="b s:b=3")
    broker.add("a30", lane="a")  # from code without WEIGHTS
    assert [name[0] for name in broker.taken("c3", jobs=12)].count("a") in (3, 4)
    assert broker.redis.hgetall(broker.keys.limits) == {"s:b": "3", "weights": "1"}
    invariants(broker)


def test_a_rate_counts_the_part_of_a_millisecond_that_no_clock_shows(
    broker: BrokerHarness,
) -> None:
    broker.add("a", "b", lane="|r:r: r:r=1/10000/1")
    for ms, expected in ((0, ["a"]), (10, []), (1, ["b"])):
        broker.advance(ms)
        broker.store.promote([])
        assert broker.taken(jobs=8) == expected


def test_the_last_weight_in_a_call_applies(broker: BrokerHarness) -> None:
    lanes = {"j1": "a s:a=2", "j2": "a", "j3": "a s:a=3", "j4": "b s:b=4", "j5": "b"}
    jobs = [NewJob(name, "default", "t", PAYLOAD, lane=lane) for name, lane in lanes.items()]
    broker.store.enqueue(jobs)
    assert broker.redis.hgetall(broker.keys.limits) == {"s:a": "3", "weights": "1"}


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf", "1e300"])
def test_an_invalid_weight_stops_no_job(broker: BrokerHarness, weight: str) -> None:
    broker.redis.hset(broker.keys.limits, mapping={"weights": "1", "s:a": weight})
    broker.add(*[f"a{n}" for n in range(4)], lane="a")
    broker.add("b", lane="b")
    assert sorted(broker.taken(jobs=8)) == ["a0", "a1", "a2", "a3", "b"]
    invariants(broker)


@pytest.mark.parametrize("lane", [ONE, "|r:r: r:r=1/60000000/1"])
def test_a_key_of_another_type_in_place_of_the_numbers_stops_no_claim(
    broker: BrokerHarness, lane: str
) -> None:
    broker.add("a", "b", lane=lane)
    broker.redis.set(broker.keys.limits, "theirs")
    jobs = broker.claim(jobs=8).jobs
    assert [job.id for job in jobs] == ["a", "b"]  # no number is no limit
    assert broker.finish(*map(outcome, jobs)) == [1, 1]


def test_shares_without_weights_store_nothing(broker: BrokerHarness) -> None:
    broker.add("a", lane="a s:a=1")
    assert not broker.redis.exists(broker.keys.limits)


@pytest.mark.parametrize("aging", [None, 500])
@pytest.mark.parametrize("share", ["a", "b"])
def test_a_job_that_ends_in_a_claim_may_add_another_to_its_lane(
    broker: BrokerHarness, share: str, aging: int | None
) -> None:
    """The jobs of a deleted workflow do not run; the jobs that waited for them do."""
    broker.store.set_aging({"default": aging})
    lane = "a|c:t: c:t=9"
    broker.add("flow_gone.1", lane=lane)
    broker.add("next", after="go_on flow_gone.1", lane=lane)
    broker.add("other", lane=f"{share}|c:u: c:u=9")
    assert sorted([*broker.taken(jobs=2), *broker.taken(jobs=2)]) == ["next", "other"]
    assert broker.status("flow_gone.1") == "cancelled"
    invariants(broker)
