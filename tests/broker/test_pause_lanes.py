"""pause_lanes: the jobs of one share or limit key of a queue wait, and the others continue."""

from __future__ import annotations

import re

import pytest

from django_redisqueue.broker.policies import LanePause, LimitQueries
from django_redisqueue.exceptions import WrongKeyType

from .harness import T0, BrokerHarness, invariants, outcome
from .test_audit_lanes import audit

ONE = "|c:t:1 c:t=1"


@pytest.mark.parametrize("key", ["s:gold", "c:t:1"])
def test_its_jobs_wait_and_others_continue(broker: BrokerHarness, key: str) -> None:
    broker.add("a", "b", lane="gold|c:t:1 c:t=2")
    broker.add("c", lane="|c:t:2 c:t=2")
    broker.add("plain")
    assert broker.store.pause_lanes("default", key, True)
    assert not broker.store.pause_lanes("default", key, True)
    assert sorted(broker.taken(jobs=8)) == ["c", "plain"]
    broker.add("d", lane="gold|c:t:1 c:t=2")
    invariants(broker)
    assert broker.taken("c2", jobs=8) == []
    while broker.pop_token():
        pass
    assert broker.store.pause_lanes("default", key, False)
    assert not broker.store.pause_lanes("default", key, False)
    assert broker.tokens() == 1
    invariants(broker)
    assert broker.taken("c2", jobs=8) == ["a", "b"]


def test_only_in_this_queue_and_running_jobs_finish(broker: BrokerHarness) -> None:
    broker.add("x1", "x2", queue="x", lane=ONE)
    broker.add("y1", queue="y", lane=ONE)
    job = broker.take(queues=["x"])
    broker.store.pause_lanes("x", "c:t:1", True)
    assert broker.taken("c2", queues=["x", "y"]) == []
    assert broker.finish(outcome(job)) == [1]
    invariants(broker)
    assert broker.taken(queues=["x", "y"]) == ["y1"]


def test_a_paused_lane_keeps_no_slot_from_others(broker: BrokerHarness) -> None:
    broker.add("holder", lane="other|c:all: c:all=1")
    job = broker.take()
    broker.add("a", lane="gold|c:all: c:all=1")
    broker.add("b", lane="other|c:all: c:all=1")
    assert broker.taken(jobs=8) == []
    broker.store.pause_lanes("default", "s:gold", True)
    broker.finish(outcome(job))
    assert broker.taken(jobs=8) == ["b"]
    invariants(broker)


def test_two_pauses_of_a_lane(broker: BrokerHarness) -> None:
    broker.add("a", lane="gold|c:t:1 c:t=1")
    for key in ("s:gold", "c:t:1"):
        broker.store.pause_lanes("default", key, True)
        assert broker.taken() == []
    broker.store.pause_lanes("default", "s:gold", False)
    assert broker.taken() == []
    invariants(broker)
    broker.store.pause_lanes("default", "c:t:1", False)
    assert broker.taken() == ["a"]


def test_many_lanes_are_resumed_in_steps(broker: BrokerHarness) -> None:
    """If the caller dies between two of the steps, the audit finds the remaining lanes."""
    broker.store.pause_lanes("default", "s:gold", True)
    for n in range(250):
        broker.add(f"j{n}", lane=f"gold|c:t:{n} c:t=1")
    while broker.redis.exists(broker.keys.queue("default").shares):
        assert broker.taken(jobs=64) == []
    invariants(broker)
    assert audit(broker) == 0
    broker.store._run("pause_lanes", "default", "s:gold", 0, "")
    assert broker.redis.hlen(broker.keys.queue("default").parked) == 150
    assert audit(broker) == 150
    invariants(broker)
    assert sum(len(broker.taken(f"c{n}", jobs=64)) for n in range(10)) == 250


def test_cancelled_and_cleared_jobs_leave_a_paused_lane(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=ONE)
    broker.store.pause_lanes("default", "c:t:1", True)
    assert broker.taken() == []
    broker.store.cancel(["a"])
    invariants(broker)
    broker.store.clear("default", "queued")
    assert broker.ids("keyed") == []
    invariants(broker)


def test_who_paused_what(broker: BrokerHarness) -> None:
    broker.store.pause_lanes("default", "s:gold", True, "ann b")
    broker.store.pause_lanes("default", "c:t:1", True)
    found = LimitQueries(broker.connection).pauses("other", "default")
    assert found == [
        LanePause("default", "c:t:1", T0, ""), LanePause("default", "s:gold", T0, "ann b"),
    ]  # fmt: skip
    assert [one.name for one in found] == ["limit t:1", "share gold"]


def test_a_full_redis(broker: BrokerHarness) -> None:
    with broker.full():
        assert broker.store.pause_lanes("default", "s:gold", True)


def test_a_key_of_the_wrong_type(broker: BrokerHarness) -> None:
    with (
        broker.broken("pauses") as words,
        pytest.raises(WrongKeyType, match=re.escape(words.replace("zset", "hash"))),
    ):
        broker.store.pause_lanes("default", "s:gold", True)
