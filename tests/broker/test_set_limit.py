"""set_limit: overrides the number of one limit key, or the weight of one share, by hand."""

from __future__ import annotations

import re

import pytest

from django_redisqueue.core.job_data import NewJob
from django_redisqueue.exceptions import WrongKeyType

from .lab import PAYLOAD, Lab, invariants, outcome

KEY = "c:t:1"
ONE = f"|{KEY} c:t=1"


def test_a_raised_limit_starts_jobs_that_wait_for_it(lab: Lab) -> None:
    lab.add("a", "b", "c", "d", lane=ONE)
    lab.add("other", "x", lane="|c:t:2 c:t=1")
    assert lab.taken(jobs=8) == ["a", "other"]
    while lab.pop_token():
        pass
    assert lab.store.set_limit(KEY, "3")
    assert lab.tokens() == 1
    invariants(lab)
    assert lab.taken("c2", jobs=8) == ["b", "c"]
    assert not lab.store.set_limit(KEY, "3")


def test_it_overrides_the_numbers_of_jobs_until_it_is_removed(lab: Lab) -> None:
    lab.store.set_limit(KEY, "2")
    lab.add("a", "b", "c", "d", lane=ONE)
    first, second = lab.claim(jobs=8).jobs
    lab.finish(outcome(first))
    lab.add("e", lane=ONE)
    assert lab.store.set_limit(KEY, "")
    assert not lab.store.set_limit(KEY, "")
    assert lab.taken("c2", jobs=8) == []
    lab.finish(outcome(second))
    assert lab.taken("c2", jobs=8) == ["c"]
    assert lab.redis.hgetall(lab.keys.limits) == {"c:t": "1"}
    invariants(lab)


def test_removing_an_override_wakes_lanes_if_the_jobs_number_is_higher(lab: Lab) -> None:
    lab.store.set_limit(KEY, "1")
    lab.add("a", "b", "c", lane=f"|{KEY} c:t=2")
    assert lab.taken(jobs=8) == ["a"]
    lab.store.set_limit(KEY, "")
    assert lab.taken("c2", jobs=8) == ["b"]
    invariants(lab)


def test_many_lanes_of_several_queues_wait(lab: Lab) -> None:
    queues = ("x", "y")
    for n in range(150):
        lab.add(f"j{n}", queue=queues[n % 2], lane=f"s{n}|{KEY} c:t=1")
    while lab.claim(jobs=8, queues=queues).jobs:
        pass
    lab.store.set_limit(KEY, "1000")
    claimed: list[str] = []
    for child in range(20):
        claimed += lab.taken(f"d{child}", jobs=64, queues=queues)
    assert len(claimed) == 149
    invariants(lab)


def test_a_rate(lab: Lab) -> None:
    lab.add("a", "b", "c", lane="|r:r:1 r:r=1/60000000/1")
    assert lab.taken(jobs=8) == ["a"]
    assert lab.taken(jobs=8) == []
    lab.store.set_limit("r:r:1", "60/60000000/1")
    lab.advance(60_002)
    lab.store.promote([])
    assert lab.taken() == ["b"]
    assert lab.taken() == []
    assert lab.store.promote([]).next_ms == 1001
    invariants(lab)


def test_a_weight(lab: Lab) -> None:
    lab.add(*[f"a{n}" for n in range(30)], lane="a")
    lab.add(*[f"b{n}" for n in range(30)], lane="b")
    assert lab.store.set_limit("s:a", "3")
    assert [name[0] for name in lab.taken(jobs=12)].count("a") == 9
    assert lab.store.set_limit("s:a", "")
    assert lab.redis.hgetall(lab.keys.limits) == {}


def test_a_full_redis(lab: Lab) -> None:
    lab.add("a", "b", lane=ONE)
    lab.taken(jobs=8)
    with lab.full():
        assert lab.store.set_limit(KEY, "2")
        assert lab.store.set_limit("s:a", "2")
    assert lab.redis.hget(lab.keys.limits, "set") == "2"


@pytest.mark.parametrize("name", ["limits", "slots", "waiting_limits", "due_limits", "timer"])
def test_a_key_of_the_wrong_type(lab: Lab, name: str) -> None:
    lab.store.enqueue([NewJob("a", "default", "t", PAYLOAD, lane=ONE)])
    key = getattr(lab.keys, name)
    lab.redis.delete(key)
    lab.redis.set(key, "theirs")
    with pytest.raises(WrongKeyType, match=re.escape(f"{key} holds a string")):
        lab.store.set_limit(KEY, "2")
