"""audit_lanes: whatever was broken by hand, jobs run and no limit is exceeded."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from django_redisqueue.exceptions import WrongKeyType
from django_redisqueue.worker.maintenance.upkeep import LaneAudit

from .harness import BrokerHarness, invariants, outcome

KEY = "c:t:1"
ONE = f"|{KEY} c:t=1"


def audit(broker: BrokerHarness) -> int:
    """Run a whole round; returns how much it repaired."""
    total, where = 0, ("", "")
    for _ in range(100):
        mended, *following = broker.store.audit_lanes(*where)
        total, where = total + mended, (following[0], following[1])
        if where == ("", ""):
            return total
    raise AssertionError("it goes on for ever")


def drain(broker: BrokerHarness) -> list[str]:
    ran: list[str] = []
    for _ in range(20):  # the rate allows one start per second
        jobs = broker.claim(jobs=8).jobs
        ran += [job.id for job in jobs]
        broker.finish(*map(outcome, jobs))
        broker.advance(1000)
        broker.store.promote([])
    return ran


def delete_ready(broker: BrokerHarness) -> None:
    broker.redis.delete(broker.keys.queue("default").shares)
    broker.redis.delete(*broker.redis.keys(f"{broker.keys.base}q:default:lanes:*"))


BREAKS: dict[str, Callable[[BrokerHarness], object]] = {
    "the ready lanes": delete_ready,
    "the shares": lambda broker: broker.redis.delete(broker.keys.queue("default").shares),
    "where lanes are parked": lambda broker: broker.redis.delete(
        broker.keys.queue("default").parked
    ),
    "the parked lanes": lambda broker: broker.redis.delete(
        broker.keys.queue("default").parked_at(KEY)
    ),
    "the limits that are waited for": lambda broker: broker.redis.delete(
        broker.keys.waiting_limits
    ),
    "the rates that are waited for": lambda broker: broker.redis.delete(broker.keys.due_limits),
    "the lanes": lambda broker: broker.redis.delete(
        *broker.redis.keys(f"{broker.keys.base}q:default:lane:*")
    ),
    "the mark of the queue": lambda broker: broker.redis.hdel(
        broker.keys.queue("default").meta, "keyed"
    ),
}


@pytest.mark.parametrize("what", BREAKS)
def test_keys_deleted_by_hand_are_rebuilt(broker: BrokerHarness, what: str) -> None:
    lanes = {"a": ONE, "b": ONE, "c": f"s{ONE}", "d": "s", "r": "|r:r: r:r=60/60000000/1"}
    for name, lane in lanes.items():
        broker.add(*[f"{name}{n}" for n in range(20 if name == "d" else 3)], lane=lane)
    running = [job for _ in range(3) for job in broker.claim(jobs=4).jobs]
    BREAKS[what](broker)
    assert audit(broker) > 0
    invariants(broker)
    assert audit(broker) == 0
    broker.finish(*map(outcome, running))
    assert len(drain(broker)) == 32 - len(running)


def test_a_consistent_shard_is_left_unchanged(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=ONE)
    broker.add("c", "d", lane="s|r:r: r:r=1/60000000/1")
    broker.add("e", lane="|k:t:1 k:t=2/5000")
    broker.taken(jobs=2)
    broker.taken("c2", jobs=2)
    with broker.unchanged():
        assert audit(broker) == 0


def test_jobs_missing_from_every_list_still_run(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=ONE)
    broker.add("c", lane="s")
    broker.redis.delete(broker.keys.queue("default").keyed)
    for _ in range(2):
        broker.claim("c2", min_priority=1)  # finds nothing, and leaves the queue unchanged
    assert broker.redis.hexists(broker.keys.queue("default").meta, "keyed")
    assert drain(broker) == ["a", "c", "b"]
    assert not broker.redis.hexists(broker.keys.queue("default").meta, "keyed")
    invariants(broker)


def test_the_slot_of_a_job_that_is_not_running_is_freed(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=ONE)
    broker.redis.zadd(broker.keys.slots, {f"{KEY} ghost": 0, "nonsense": 0, "c:other:1 b": 0})
    assert broker.taken(jobs=8) == []
    while broker.pop_token():
        pass
    assert audit(broker) == 3
    assert broker.tokens() == 1
    invariants(broker)
    assert drain(broker) == ["a", "b"]


def test_a_lane_parked_at_a_limit_with_room_is_woken(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=ONE)
    broker.take()
    assert broker.taken("c2") == []
    broker.redis.hset(broker.keys.limits, "c:t", "5")
    audit(broker)
    invariants(broker)
    assert broker.taken("c2", jobs=8) == ["b"]


def test_a_lane_parked_at_a_limit_that_is_not_its_own(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=ONE)
    held, queue, lane = broker.take(), broker.keys.queue("default"), f"|{KEY}"
    assert broker.taken("c2") == []
    broker.redis.hset(broker.keys.limits, "c:other", "0")
    broker.redis.hset(queue.parked, lane, "c:other:1")
    broker.redis.rename(queue.parked_at(KEY), queue.parked_at("c:other:1"))
    while broker.pop_token():
        pass
    assert audit(broker) > 0
    assert broker.tokens() == 1
    assert broker.taken("c2") == []  # it waits for its own limit again
    broker.finish(outcome(held))
    assert broker.taken("c2") == ["b"]
    invariants(broker)


def test_a_parked_lane_that_is_also_ready(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=ONE)
    queue, lane = broker.keys.queue("default"), f"|{KEY}"
    ((_, score),) = broker.redis.zrange(queue.ready_lanes(""), 0, -1, withscores=True)
    ((_, share),) = broker.redis.zrange(queue.shares, 0, -1, withscores=True)
    broker.take()
    assert broker.taken("c2") == []
    broker.redis.zadd(queue.ready_lanes(""), {lane: score})
    broker.redis.zadd(queue.shares, {"": share})
    assert audit(broker) == 1
    invariants(broker)


def test_a_lane_whose_key_has_the_wrong_type_does_not_stop_the_others(
    broker: BrokerHarness,
) -> None:
    broker.add("a", lane=ONE)
    broker.add("b", lane="|c:t:2 c:t=1")
    queue = broker.keys.queue("default")
    broker.redis.delete(queue.shares)
    broker.redis.set(queue.lane(f"|{KEY}"), "theirs")
    assert audit(broker) == 1
    assert broker.taken() == ["b"]


def test_a_job_that_was_ended_by_hand(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=ONE)
    broker.redis.hset(broker.keys.job("a"), "status", "cancelled")
    assert audit(broker) == 1
    assert broker.ids("keyed") == ["b"]


def test_a_round_takes_several_passes(
    broker: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """There are more slots and jobs than a pass reads; the next pass continues where it ended."""
    broker.redis.zadd(broker.keys.slots, {f"{KEY} ghost{n}": 0 for n in range(850)})
    for queue in ("x", "y"):
        for at in range(0, 400, 100):
            names = [f"{queue}{n}" for n in range(at, at + 100)]
            broker.add(*names, queue=queue, lane=f"{queue}{ONE}")
    broker.redis.delete(broker.keys.queue("y").shares)
    upkeep = LaneAudit(broker.store)
    upkeep.run_once()
    assert "repaired 850 slots and lanes" in caplog.text
    upkeep.run_once()
    assert "repaired 1 slots and lanes" in caplog.text
    invariants(broker)


def test_rates_whose_buckets_are_full_leave_the_list(broker: BrokerHarness) -> None:
    broker.add("a", lane="|c:t:|r:api: c:t=9 r:api=1/60000000/1")
    held = broker.take()
    full = {f"r:full:{n}": 0 for n in range(150)}  # two pages
    broker.redis.zadd(broker.keys.rates, full)
    assert audit(broker) == 0
    assert broker.redis.zrange(broker.keys.rates, 0, -1) == ["r:api:"]
    broker.finish(outcome(held))


def test_rates_that_are_in_use_are_passed_once(broker: BrokerHarness) -> None:
    used = {f"r:used:{n}": 0 for n in range(250)}  # three pages
    broker.redis.zadd(broker.keys.rates, used)
    broker.redis.mset({broker.keys.tat(key): "1 1" for key in used})
    broker.add("a", lane=ONE)
    broker.redis.delete(broker.keys.queue("default").shares)
    assert audit(broker) == 1
    assert broker.redis.zcard(broker.keys.rates) == 250


def test_a_broken_queue_does_not_stop_the_others(broker: BrokerHarness) -> None:
    broker.add("x1", queue="x", lane=ONE)
    broker.add("y1", queue="y", lane=ONE)
    broker.redis.delete(broker.keys.queue("y").shares)
    with broker.broken("keyed", "x"):
        assert audit(broker) == 1
    assert broker.taken(queues=["y"]) == ["y1"]


@pytest.mark.parametrize(
    "name",
    [
        "limits", "slots", "waiting_limits", "due_limits", "rates", "changed_limits",
        "limit_passes", "waiting_chunks", "queues", "timer",
    ],
)  # fmt: skip
def test_a_key_of_the_wrong_type(broker: BrokerHarness, name: str) -> None:
    key = getattr(broker.keys, name)
    broker.redis.set(key, "theirs")
    with pytest.raises(WrongKeyType, match=re.escape(f"the key {key} holds a string")):
        audit(broker)


def test_a_full_redis(broker: BrokerHarness) -> None:
    broker.add("a", lane=ONE)
    broker.redis.delete(broker.keys.queue("default").shares)
    with broker.full():
        assert audit(broker) == 1
