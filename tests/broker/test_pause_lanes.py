"""pause_lanes: the jobs of one share or limit key of a queue wait, and the others continue."""

from __future__ import annotations

import re

import pytest

from django_redisqueue.broker.policies import LanePause, LimitQueries
from django_redisqueue.exceptions import WrongKeyType

from .lab import T0, Lab, invariants, outcome
from .test_audit_lanes import audit

ONE = "|c:t:1 c:t=1"


@pytest.mark.parametrize("key", ["s:gold", "c:t:1"])
def test_its_jobs_wait_and_others_continue(lab: Lab, key: str) -> None:
    lab.add("a", "b", lane="gold|c:t:1 c:t=2")
    lab.add("c", lane="|c:t:2 c:t=2")
    lab.add("plain")
    assert lab.store.pause_lanes("default", key, True)
    assert not lab.store.pause_lanes("default", key, True)
    assert sorted(lab.taken(jobs=8)) == ["c", "plain"]
    lab.add("d", lane="gold|c:t:1 c:t=2")
    invariants(lab)
    assert lab.taken("c2", jobs=8) == []
    while lab.pop_token():
        pass
    assert lab.store.pause_lanes("default", key, False)
    assert not lab.store.pause_lanes("default", key, False)
    assert lab.tokens() == 1
    invariants(lab)
    assert lab.taken("c2", jobs=8) == ["a", "b"]


def test_only_in_this_queue_and_running_jobs_finish(lab: Lab) -> None:
    lab.add("x1", "x2", queue="x", lane=ONE)
    lab.add("y1", queue="y", lane=ONE)
    job = lab.take(queues=["x"])
    lab.store.pause_lanes("x", "c:t:1", True)
    assert lab.taken("c2", queues=["x", "y"]) == []
    assert lab.finish(outcome(job)) == [1]
    invariants(lab)
    assert lab.taken(queues=["x", "y"]) == ["y1"]


def test_a_paused_lane_keeps_no_slot_from_others(lab: Lab) -> None:
    lab.add("holder", lane="other|c:all: c:all=1")
    job = lab.take()
    lab.add("a", lane="gold|c:all: c:all=1")
    lab.add("b", lane="other|c:all: c:all=1")
    assert lab.taken(jobs=8) == []
    lab.store.pause_lanes("default", "s:gold", True)
    lab.finish(outcome(job))
    assert lab.taken(jobs=8) == ["b"]
    invariants(lab)


def test_two_pauses_of_a_lane(lab: Lab) -> None:
    lab.add("a", lane="gold|c:t:1 c:t=1")
    for key in ("s:gold", "c:t:1"):
        lab.store.pause_lanes("default", key, True)
        assert lab.taken() == []
    lab.store.pause_lanes("default", "s:gold", False)
    assert lab.taken() == []
    invariants(lab)
    lab.store.pause_lanes("default", "c:t:1", False)
    assert lab.taken() == ["a"]


def test_many_lanes_are_resumed_in_steps(lab: Lab) -> None:
    """If the caller dies between two of the steps, the audit finds the remaining lanes."""
    lab.store.pause_lanes("default", "s:gold", True)
    for n in range(250):
        lab.add(f"j{n}", lane=f"gold|c:t:{n} c:t=1")
    while lab.redis.exists(lab.keys.queue("default").shares):
        assert lab.taken(jobs=64) == []
    invariants(lab)
    assert audit(lab) == 0
    lab.store._run("pause_lanes", "default", "s:gold", 0, "")
    assert lab.redis.hlen(lab.keys.queue("default").parked) == 150
    assert audit(lab) == 150
    invariants(lab)
    assert sum(len(lab.taken(f"c{n}", jobs=64)) for n in range(10)) == 250


def test_cancelled_and_cleared_jobs_leave_a_paused_lane(lab: Lab) -> None:
    lab.add("a", "b", lane=ONE)
    lab.store.pause_lanes("default", "c:t:1", True)
    assert lab.taken() == []
    lab.store.cancel(["a"])
    invariants(lab)
    lab.store.clear("default", "queued")
    assert lab.ids("keyed") == []
    invariants(lab)


def test_who_paused_what(lab: Lab) -> None:
    lab.store.pause_lanes("default", "s:gold", True, "ann b")
    lab.store.pause_lanes("default", "c:t:1", True)
    found = LimitQueries(lab.connection).pauses("other", "default")
    assert found == [
        LanePause("default", "c:t:1", T0, ""), LanePause("default", "s:gold", T0, "ann b"),
    ]  # fmt: skip
    assert [one.name for one in found] == ["limit t:1", "share gold"]


def test_a_full_redis(lab: Lab) -> None:
    with lab.full():
        assert lab.store.pause_lanes("default", "s:gold", True)


def test_a_key_of_the_wrong_type(lab: Lab) -> None:
    with (
        lab.broken("pauses") as words,
        pytest.raises(WrongKeyType, match=re.escape(words.replace("zset", "hash"))),
    ):
        lab.store.pause_lanes("default", "s:gold", True)
