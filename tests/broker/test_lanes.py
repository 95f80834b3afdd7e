"""Jobs with lanes: which of them a claim takes, and when the others return.

``REDISQUEUE_NOISY=100000`` gives the noisy neighbour of a quiet share that many jobs.
"""

from __future__ import annotations

import os

import pytest

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.core.statuses import Status
from django_redisqueue.exceptions import WrongKeyType

from .lab import ERROR, Lab, invariants, outcome
from .workflows import LabWorkflow

ONE = "|c:t:1 c:t=1"
NOISY = int(os.environ.get("REDISQUEUE_NOISY", "2000"))


def test_no_more_than_the_limit_are_claimed(lab: Lab) -> None:
    lab.add("a", "b", "c", lane="|c:t: c:t=2")
    assert lab.taken(jobs=8) == ["a", "b"]
    assert lab.taken("c2", jobs=8) == []
    invariants(lab)


def test_a_finished_jobs_slot_goes_to_the_next_job(lab: Lab) -> None:
    lab.add("a", "b", lane=ONE)
    job = lab.take()
    assert lab.taken("c2") == []
    codes, claim = lab.store.finish(ClaimRequest("c1", ("default",)), 9, [outcome(job)], 5)
    assert (codes, [job.id for job in claim.jobs]) == ([1], ["b"])
    invariants(lab)


@pytest.mark.parametrize("verdict", ["completed", "failed", "retrying", "delayed", "cancelled"])
def test_every_end_of_a_run_frees_its_slot(lab: Lab, verdict: str) -> None:
    lab.add("a", "b", lane=ONE)
    job = lab.take()
    assert lab.taken("c2") == []
    while lab.pop_token():
        pass
    assert lab.finish(outcome(job, verdict)) == [1]
    assert lab.tokens() == 1
    assert lab.taken("c2") == ["b"]


def test_a_slot_whose_holder_died_is_free_when_it_is_reaped(lab: Lab) -> None:
    lab.add("a", "b", lane=ONE)
    lab.take()
    lab.store.reap("c1", ["a"])
    invariants(lab)
    assert lab.taken("c2", jobs=2) == ["a"]


def test_a_released_job_is_first_again(lab: Lab) -> None:
    lab.add("a", "b", lane=ONE)
    job = lab.take()
    assert lab.store.release("c1", [(job.id, job.lease)]) == [1]
    assert lab.taken("c2", jobs=2) == ["a"]


def test_a_stale_release_frees_nothing(lab: Lab) -> None:
    """The old holder of a job reports after the job got a new one."""
    lab.add("a", "b", lane=ONE)
    old = lab.take()
    lab.store.reap("c1", ["a"])
    assert lab.taken("c2") == ["a"]
    assert lab.finish(outcome(old)) == [0]
    assert lab.taken("c3") == []
    invariants(lab)


def test_a_blocked_lane_does_not_block_the_others(lab: Lab) -> None:
    lab.add("a", "b", lane=ONE)
    lab.add("c", lane="|c:t:2 c:t=1")
    assert lab.taken(jobs=8) == ["a", "c"]


def test_first_in_first_out_over_lanes_without_shares(lab: Lab) -> None:
    for n in range(6):
        lab.add(f"j{n}", lane=f"|c:t:{n % 2} c:t=9")
    assert lab.taken(jobs=8) == [f"j{n}" for n in range(6)]


def test_priority_within_a_lane_and_between_lanes(lab: Lab) -> None:
    lab.add("a", "b", lane="|c:t:1 c:t=9")
    lab.add("c", lane="|c:t:1 c:t=9", priority=5)
    lab.add("d", lane="|c:t:2 c:t=9", priority=7)
    lab.add("e", lane="|c:t:2 c:t=9", priority=-7)
    assert lab.taken(jobs=8) == ["d", "c", "a", "b", "e"]


def test_a_child_takes_no_lower_priority_than_it_may(lab: Lab) -> None:
    lab.add("a", lane=ONE, priority=3)
    lab.add("b", lane="|c:t:1 c:t=9", priority=-3)
    assert lab.taken(jobs=8, min_priority=0) == ["a"]
    assert lab.taken(jobs=8, min_priority=-3) == ["b"]


def test_all_limits_are_checked_before_one_is_taken(lab: Lab) -> None:
    """A lane that was woken in vain, because of its second limit, gives way at the first."""
    both = "|c:t:1|c:all: c:t=1 c:all=1"
    lab.add("holder", lane="|c:t:1 c:t=1")
    lab.add("other", lane="|c:all: c:all=1")
    holder, other = lab.take(), lab.take("c2")
    lab.add("both", lane=both)
    lab.add("next", lane="|c:t:1 c:t=1")
    assert lab.taken("c3", jobs=8) == []
    lab.finish(outcome(holder))  # calls both lanes' first: "both", which the other limit refuses
    assert lab.taken("c3", jobs=8) == ["next"]
    lab.finish(outcome(other), child="c2")
    assert lab.taken("c2", jobs=8) == []
    invariants(lab)


def test_a_limit_of_several_queues_with_one_paused(lab: Lab) -> None:
    """A lane that is not looked at keeps no slot from a lane of another queue."""
    lab.add("x1", "x2", queue="x", lane=ONE)
    lab.add("y1", "y2", queue="y", lane=ONE)
    job = lab.take(queues=["x"])
    assert lab.taken("c2", queues=["x", "y"]) == []
    lab.store.pause("x", True)
    lab.finish(outcome(job))
    invariants(lab)
    job = lab.take("c2", queues=["x", "y"])
    assert job.id == "y1"
    lab.finish(outcome(job), child="c2")
    assert lab.taken("c2", queues=["x", "y"]) == ["y2"]


def test_the_newest_number_applies(lab: Lab) -> None:
    lab.add("a", "b", "c", "d", lane=ONE)
    assert lab.taken(jobs=8) == ["a"]
    lab.add("e", lane="|c:t:1 c:t=3")
    lab.store.promote([])
    assert lab.taken(jobs=8) == ["b", "c"]
    invariants(lab)


def test_more_lanes_wait_for_a_raised_limit_than_one_call_checks(lab: Lab) -> None:
    for n in range(250):
        lab.add(f"j{n}", lane=f"s{n}|c:all: c:all=1")
    lab.take()
    while lab.claim("c2", 8).jobs or lab.redis.exists(lab.keys.queue("default").shares):
        pass
    lab.add("new", lane="s|c:all: c:all=300")
    while lab.store.promote([]).next_ms == 0:
        pass
    claimed: list[str] = []
    for child in range(20):
        claimed += lab.taken(f"d{child}", jobs=64)
    assert len(claimed) == 250


def test_a_cancelled_job_leaves_its_lane(lab: Lab) -> None:
    lab.add("a", "b", "c", lane=ONE)
    lab.store.cancel(["b"])
    invariants(lab)
    job = lab.take()
    assert lab.taken("c2") == []
    lab.store.cancel(["c"])
    invariants(lab)
    assert not lab.redis.exists(lab.keys.waiting_limits)
    lab.finish(outcome(job))
    assert lab.ids("keyed") == []


def test_counts_pages_and_clear(lab: Lab) -> None:
    lab.add("a", "b", priority=0)
    lab.add("high", priority=2)
    lab.add("low", priority=-2)
    lab.add("c", "d", "e", lane=ONE)
    stats = lab.queries.stats(["default"])["default"]
    assert stats["queued"] == 7
    assert lab.queries.overview(["default"])[0].counts["queued"] == 7
    pages = [lab.queries.ids("default", Status.QUEUED, at, at + 1) for at in range(0, 8, 2)]
    assert pages == [["high", "a"], ["b", "low"], ["c", "d"], ["e"]]
    order: list[str] = []
    while oldest := lab.queries.oldest("default", Status.QUEUED, 2):
        order += oldest
        assert lab.store.clear("default", "queued", 2).seen == len(oldest)
        invariants(lab)
    assert order == ["a", "b", "high", "low", "c", "d", "e"]


def test_jobs_without_lanes_are_one_share(lab: Lab) -> None:
    lab.add("p1", "p2", "p3")
    for n in range(3):
        lab.add(f"a{n}", f"b{n}", lane="")
    lab.redis.flushdb()
    lab.add("p1", "p2", "p3")
    lab.add("a1", "a2", lane="a")
    lab.add("b1", "b2", lane="b")
    taken = lab.taken(jobs=7)
    assert {*taken[:3]} == {"p1", "a1", "b1"}
    assert {*taken[3:6]} == {"p2", "a2", "b2"}
    assert taken[6] == "p3"
    invariants(lab)


@pytest.mark.parametrize("jobs", [7, 64])
def test_a_quiet_share_is_not_starved(lab: Lab, jobs: int) -> None:
    """The last of ten jobs starts within twenty starts of a noisy neighbour's jobs."""
    for at in range(0, NOISY, 1000):
        lab.add(*[f"n{n}" for n in range(at, at + 1000)], lane="noisy")
    assert len(lab.taken(jobs=64)) == 64
    lab.add(*[f"q{n}" for n in range(10)], lane="quiet")
    order: list[str] = []
    while "q9" not in order:
        order += lab.taken("c2", jobs=jobs)
    before = sum(name[0] == "n" for name in order[: order.index("q9")])
    print(f"{before} of {NOISY} noisy jobs started before the last quiet one")
    assert before <= 20


def test_idling_earns_no_credit(lab: Lab) -> None:
    lab.add(*[f"a{n}" for n in range(60)], lane="a")
    assert len(lab.taken(jobs=20)) == 20
    lab.add(*[f"b{n}" for n in range(60)], lane="b")
    taken = lab.taken("c2", jobs=20)
    assert sum(name[0] == "b" for name in taken) in (10, 11)


def test_a_share_that_sends_one_job_at_a_time_does_not_starve_others(lab: Lab) -> None:
    lab.add(*[f"a{n}" for n in range(20)], lane="a")
    order: list[str] = []
    for n in range(20):
        lab.add(f"b{n}", lane="b")
        order += lab.taken()
    assert sum(name[0] == "a" for name in order) in (9, 10, 11)


def test_lanes_of_a_broken_queue_do_not_stop_an_end(lab: Lab) -> None:
    lab.add("x1", queue="x", lane=ONE)
    lab.add("y1", queue="y", lane=ONE)
    job = lab.take(queues=["x"])
    assert lab.taken("c2", queues=["y"]) == []
    with lab.broken("keyed", "y"):
        assert lab.finish(outcome(job)) == [1]
    assert lab.redis.exists(lab.keys.waiting_limits)


def test_a_wrong_type_refuses_the_enqueue(lab: Lab) -> None:
    lab.redis.set(lab.keys.slots, "theirs")
    with pytest.raises(WrongKeyType, match="slots holds a string where a zset belongs"):
        lab.add("a", lane=ONE)
    assert not lab.redis.exists(lab.keys.job("a"))
    lab.redis.delete(lab.keys.slots)
    lab.add("a", lane=ONE)
    lab.redis.set(lab.keys.slots, "theirs")
    assert lab.taken() == []  # how much is used is unknown, so nothing starts


def test_a_suspect_in_a_lane_runs_alone(lab: Lab) -> None:
    lab.add("a", "b", lane="|c:t:1 c:t=9")
    lab.take()
    lab.store.reap("c1", ["a"])
    lab.add("plain")
    assert lab.taken("c2", jobs=1) in (["a"], ["plain"])
    lab.add("other")
    claim = lab.claim("c3", 8)
    assert "a" not in [job.id for job in claim.jobs] or len(claim.jobs) == 1
    invariants(lab)


def test_jobs_of_a_workflow_take_lanes_when_they_are_freed(lab: Lab) -> None:
    workflow = LabWorkflow(lab, {0: [], 1: [0], 2: [0]})
    workflow.jobs = [job._replace(lane=ONE) for job in workflow.jobs]
    assert workflow.push() == 1
    lab.add("first", lane="|c:t:2 c:t=1")
    job = lab.take()
    assert job.id == workflow.job(0)
    lab.finish(outcome(job))
    invariants(lab)
    taken = lab.taken(jobs=8)
    assert taken == ["first", workflow.job(1)]
    invariants(lab)


def test_a_conflict_discards_the_new_job(lab: Lab) -> None:
    lane = f"{ONE} !discard"
    assert lab.add("a", "b", lane=lane) == [True, True]
    assert (lab.status("a"), lab.status("b")) == ("queued", "cancelled")
    assert lab.job("b")["reason"] == "conflict"
    job = lab.take()
    lab.add("c", lane=lane)
    assert lab.status("c") == "cancelled"
    lab.finish(outcome(job))
    lab.add("d", lane=lane)
    assert lab.taken() == ["d"]
    invariants(lab)


def test_a_conflict_cancels_the_oldest(lab: Lab) -> None:
    """First the running job, which is asked to stop; then the waiting ones."""
    lane = f"{ONE} !cancel_oldest"
    lab.add("a", lane=lane)
    job = lab.take()
    lab.add("b", lane=lane)
    assert "cancel_ms" in lab.job("a")
    assert lab.status("b") == "queued"
    lab.add("c", lane=lane)
    assert (lab.status("b"), lab.status("c")) == ("cancelled", "queued")
    assert lab.job("b")["reason"] == "conflict"
    invariants(lab)
    assert lab.taken("c2") == []
    assert lab.finish(outcome(job, "cancelled")) == [1]
    assert lab.taken("c2") == ["c"]


def test_a_conflict_cancels_the_oldest_of_very_many(lab: Lab) -> None:
    """A script looks at 100 of them."""
    lane = "|c:t:1 c:t=120 !cancel_oldest"
    ids = [f"a{n:03}" for n in range(120)]
    lab.add(*ids, lane=lane)
    for _ in range(2):
        lab.taken(jobs=60)
    lab.add("new", "newer", lane=lane)
    assert [job_id for job_id in ids if "cancel_ms" in lab.job(job_id)] == ids[:2]
    assert (lab.status("new"), lab.status("newer")) == ("queued", "queued")
    invariants(lab)


def test_only_due_jobs_can_conflict(lab: Lab) -> None:
    lab.add("a", lane=f"{ONE} !discard")
    lab.add("b", lane=f"{ONE} !discard", when="+1000")
    assert lab.status("b") == "scheduled"


def test_a_rate_limited_service_blocks_its_rate(lab: Lab) -> None:
    rate = "|r:r: r:r=6/60000000/1"
    lab.add("a", "b", lane=rate)
    job = lab.take()
    assert lab.finish(outcome(job, "limited", ERROR, "30000")) == [1]
    assert (lab.status("a"), lab.job("a").get("attempts", "0")) == ("retrying", "0")
    lab.advance(29_999)
    lab.store.promote([])
    assert lab.taken() == []
    lab.advance(1)
    lab.store.promote([])
    assert len(lab.taken()) == 1
    invariants(lab)


def test_an_expired_job_returns_its_token(lab: Lab) -> None:
    lab.add("a", "b", lane="|r:r: r:r=1/60000000/1")
    job = lab.take()
    assert lab.taken() == []
    assert lab.finish(outcome(job, "cancelled", ERROR, "expired")) == [1]
    assert (lab.status("a"), lab.job("a")["reason"]) == ("cancelled", "expired")
    lab.advance(1)
    lab.store.promote([])
    assert lab.taken() == ["b"]
    invariants(lab)


def test_a_weight_multiplies_the_turns_of_a_share(lab: Lab) -> None:
    """The current weight applies: an override for this share, or else that of the newest job."""
    weighed = "a s:a=3"
    lab.add(*[f"a{n}" for n in range(30)], lane=weighed)
    lab.add(*[f"b{n}" for n in range(30)], lane="b s:b=1")
    turns = [name[0] for name in lab.taken(jobs=12)]
    assert turns.count("a") == 9
    lab.store.set_limit("s:a", "1")
    assert [name[0] for name in lab.taken("c2", jobs=12)].count("a") in (6, 7)
    lab.store.set_limit("s:a", "")
    lab.add("b30", lane="b s:b=3")
    lab.add("a30", lane="a")  # from code without WEIGHTS
    assert [name[0] for name in lab.taken("c3", jobs=12)].count("a") in (3, 4)
    assert lab.redis.hgetall(lab.keys.limits) == {"s:b": "3", "weights": "1"}
    invariants(lab)


def test_shares_without_weights_store_nothing(lab: Lab) -> None:
    lab.add("a", lane="a s:a=1")
    assert not lab.redis.exists(lab.keys.limits)


@pytest.mark.parametrize("aging", [None, 500])
@pytest.mark.parametrize("share", ["a", "b"])
def test_a_job_that_ends_in_a_claim_may_add_another_to_its_lane(
    lab: Lab, share: str, aging: int | None
) -> None:
    """The jobs of a deleted workflow do not run; the jobs that waited for them do."""
    lab.store.set_aging({"default": aging})
    lane = "a|c:t: c:t=9"
    lab.add("flow_gone.1", lane=lane)
    lab.add("next", after="go_on flow_gone.1", lane=lane)
    lab.add("other", lane=f"{share}|c:u: c:u=9")
    assert sorted([*lab.taken(jobs=2), *lab.taken(jobs=2)]) == ["next", "other"]
    assert lab.status("flow_gone.1") == "cancelled"
    invariants(lab)
