"""audit_lanes: whatever was broken by hand, jobs run and no limit is exceeded."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from django_redisqueue.exceptions import WrongKeyType
from django_redisqueue.worker.maintenance.upkeep import LaneAudit

from .lab import Lab, invariants, outcome

KEY = "c:t:1"
ONE = f"|{KEY} c:t=1"


def audit(lab: Lab) -> int:
    """Run a whole round; returns how much it repaired."""
    total, where = 0, ("", "")
    for _ in range(100):
        mended, *following = lab.store.audit_lanes(*where)
        total, where = total + mended, (following[0], following[1])
        if where == ("", ""):
            return total
    raise AssertionError("it goes on for ever")


def drain(lab: Lab) -> list[str]:
    ran: list[str] = []
    for _ in range(20):  # the rate allows one start per second
        jobs = lab.claim(jobs=8).jobs
        ran += [job.id for job in jobs]
        lab.finish(*map(outcome, jobs))
        lab.advance(1000)
        lab.store.promote([])
    return ran


def delete_ready(lab: Lab) -> None:
    lab.redis.delete(lab.keys.queue("default").shares)
    lab.redis.delete(*lab.redis.keys(f"{lab.keys.base}q:default:lanes:*"))


BREAKS: dict[str, Callable[[Lab], object]] = {
    "the ready lanes": delete_ready,
    "the shares": lambda lab: lab.redis.delete(lab.keys.queue("default").shares),
    "where lanes are parked": lambda lab: lab.redis.delete(lab.keys.queue("default").parked),
    "the parked lanes": lambda lab: lab.redis.delete(lab.keys.queue("default").parked_at(KEY)),
    "the limits that are waited for": lambda lab: lab.redis.delete(lab.keys.waiting_limits),
    "the rates that are waited for": lambda lab: lab.redis.delete(lab.keys.due_limits),
    "the lanes": lambda lab: lab.redis.delete(*lab.redis.keys(f"{lab.keys.base}q:default:lane:*")),
    "the mark of the queue": lambda lab: lab.redis.hdel(lab.keys.queue("default").meta, "keyed"),
}


@pytest.mark.parametrize("what", BREAKS)
def test_keys_deleted_by_hand_are_rebuilt(lab: Lab, what: str) -> None:
    lanes = {"a": ONE, "b": ONE, "c": f"s{ONE}", "d": "s", "r": "|r:r: r:r=60/60000000/1"}
    for name, lane in lanes.items():
        lab.add(*[f"{name}{n}" for n in range(20 if name == "d" else 3)], lane=lane)
    running = [job for _ in range(3) for job in lab.claim(jobs=4).jobs]
    BREAKS[what](lab)
    assert audit(lab) > 0
    invariants(lab)
    assert audit(lab) == 0
    lab.finish(*map(outcome, running))
    assert len(drain(lab)) == 32 - len(running)


def test_a_consistent_shard_is_left_unchanged(lab: Lab) -> None:
    lab.add("a", "b", lane=ONE)
    lab.add("c", "d", lane="s|r:r: r:r=1/60000000/1")
    lab.add("e", lane="|k:t:1 k:t=2/5000")
    lab.taken(jobs=2)
    lab.taken("c2", jobs=2)
    before = lab.dump()
    assert audit(lab) == 0
    assert lab.dump() == before


def test_jobs_missing_from_every_list_still_run(lab: Lab) -> None:
    lab.add("a", "b", lane=ONE)
    lab.add("c", lane="s")
    lab.redis.delete(lab.keys.queue("default").keyed)
    for _ in range(2):
        lab.claim("c2", min_priority=1)  # finds nothing, and leaves the queue unchanged
    assert lab.redis.hexists(lab.keys.queue("default").meta, "keyed")
    assert drain(lab) == ["a", "c", "b"]
    assert not lab.redis.hexists(lab.keys.queue("default").meta, "keyed")
    invariants(lab)


def test_the_slot_of_a_job_that_is_not_running_is_freed(lab: Lab) -> None:
    lab.add("a", "b", lane=ONE)
    lab.redis.zadd(lab.keys.slots, {f"{KEY} ghost": 0, "nonsense": 0, "c:other:1 b": 0})
    assert lab.taken(jobs=8) == []
    while lab.pop_token():
        pass
    assert audit(lab) == 3
    assert lab.tokens() == 1
    invariants(lab)
    assert drain(lab) == ["a", "b"]


def test_a_lane_parked_at_a_limit_with_room_is_woken(lab: Lab) -> None:
    lab.add("a", "b", lane=ONE)
    lab.take()
    assert lab.taken("c2") == []
    lab.redis.hset(lab.keys.limits, "c:t", "5")
    audit(lab)
    invariants(lab)
    assert lab.taken("c2", jobs=8) == ["b"]


def test_a_job_that_was_ended_by_hand(lab: Lab) -> None:
    lab.add("a", "b", lane=ONE)
    lab.redis.hset(lab.keys.job("a"), "status", "cancelled")
    assert audit(lab) == 1
    assert lab.ids("keyed") == ["b"]


def test_a_round_takes_several_passes(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """There are more slots and jobs than a pass reads; the next pass continues where it ended."""
    lab.redis.zadd(lab.keys.slots, {f"{KEY} ghost{n}": 0 for n in range(850)})
    for queue in ("x", "y"):
        for at in range(0, 400, 100):
            names = [f"{queue}{n}" for n in range(at, at + 100)]
            lab.add(*names, queue=queue, lane=f"{queue}{ONE}")
    lab.redis.delete(lab.keys.queue("y").shares)
    upkeep = LaneAudit(lab.store)
    upkeep.run_once()
    assert "mended 850 slots and lanes" in caplog.text
    upkeep.run_once()
    assert "mended 1 slots and lanes" in caplog.text
    invariants(lab)


def test_rates_whose_buckets_are_full_leave_the_list(lab: Lab) -> None:
    lab.add("a", lane="|c:t:|r:api: c:t=9 r:api=1/60000000/1")
    held = lab.take()
    full = {f"r:full:{n}": 0 for n in range(150)}  # two pages
    lab.redis.zadd(lab.keys.rates, full)
    assert audit(lab) == 0
    assert lab.redis.zrange(lab.keys.rates, 0, -1) == ["r:api:"]
    lab.finish(outcome(held))


def test_a_broken_queue_does_not_stop_the_others(lab: Lab) -> None:
    lab.add("x1", queue="x", lane=ONE)
    lab.add("y1", queue="y", lane=ONE)
    lab.redis.delete(lab.keys.queue("y").shares)
    with lab.broken("keyed", "x"):
        assert audit(lab) == 1
    assert lab.taken(queues=["y"]) == ["y1"]


@pytest.mark.parametrize("name", ["limits", "slots", "waiting_limits", "due_limits", "rates"])
def test_a_key_of_the_wrong_type(lab: Lab, name: str) -> None:
    key = getattr(lab.keys, name)
    lab.redis.set(key, "theirs")
    with pytest.raises(WrongKeyType, match=re.escape(f"the key {key} holds a string")):
        audit(lab)


def test_a_full_redis(lab: Lab) -> None:
    lab.add("a", lane=ONE)
    lab.redis.delete(lab.keys.queue("default").shares)
    with lab.full():
        assert audit(lab) == 1
