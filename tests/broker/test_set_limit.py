"""set_limit: overrides the number of one limit key, or the weight of one share, by hand."""

from __future__ import annotations

import re

import pytest

from django_redisqueue.core.job_data import NewJob
from django_redisqueue.exceptions import WrongKeyType

from .harness import PAYLOAD, BrokerHarness, invariants, outcome

KEY = "c:t:1"
ONE = f"|{KEY} c:t=1"


def test_a_raised_limit_starts_jobs_that_wait_for_it(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c", "d", lane=ONE)
    broker.add("other", "x", lane="|c:t:2 c:t=1")
    assert broker.taken(jobs=8) == ["a", "other"]
    while broker.pop_token():
        pass
    assert broker.store.set_limit(KEY, "3")
    assert broker.tokens() == 1
    invariants(broker)
    assert broker.taken("c2", jobs=8) == ["b", "c"]
    assert not broker.store.set_limit(KEY, "3")


def test_it_overrides_the_numbers_of_jobs_until_it_is_removed(broker: BrokerHarness) -> None:
    broker.store.set_limit(KEY, "2")
    broker.add("a", "b", "c", "d", lane=ONE)
    first, second = broker.claim(jobs=8).jobs
    broker.finish(outcome(first))
    broker.add("e", lane=ONE)
    assert broker.store.set_limit(KEY, "")
    assert not broker.store.set_limit(KEY, "")
    assert broker.taken("c2", jobs=8) == []
    broker.finish(outcome(second))
    assert broker.taken("c2", jobs=8) == ["c"]
    assert broker.redis.hgetall(broker.keys.limits) == {"c:t": "1"}
    invariants(broker)


def test_removing_an_override_wakes_lanes_if_the_jobs_number_is_higher(
    broker: BrokerHarness,
) -> None:
    broker.store.set_limit(KEY, "1")
    broker.add("a", "b", "c", lane=f"|{KEY} c:t=2")
    assert broker.taken(jobs=8) == ["a"]
    broker.store.set_limit(KEY, "")
    assert broker.taken("c2", jobs=8) == ["b"]
    invariants(broker)


def test_many_lanes_of_several_queues_wait(broker: BrokerHarness) -> None:
    queues = ("x", "y")
    for n in range(150):
        broker.add(f"j{n}", queue=queues[n % 2], lane=f"s{n}|{KEY} c:t=1")
    while broker.claim(jobs=8, queues=queues).jobs:
        pass
    broker.store.set_limit(KEY, "1000")
    claimed: list[str] = []
    for child in range(20):
        claimed += broker.taken(f"d{child}", jobs=64, queues=queues)
    assert len(claimed) == 149
    invariants(broker)


def test_a_rate(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c", lane="|r:r:1 r:r=1/60000000/1")
    assert broker.taken(jobs=8) == ["a"]
    assert broker.taken(jobs=8) == []
    broker.store.set_limit("r:r:1", "60/60000000/1")
    broker.advance(60_002)
    broker.store.promote([])
    assert broker.taken() == ["b"]
    assert broker.taken() == []
    assert broker.store.promote([]).next_ms == 1001
    invariants(broker)


def test_a_weight(broker: BrokerHarness) -> None:
    broker.add(*[f"a{n}" for n in range(30)], lane="a")
    broker.add(*[f"b{n}" for n in range(30)], lane="b")
    assert broker.store.set_limit("s:a", "3")
    assert [name[0] for name in broker.taken(jobs=12)].count("a") == 9
    assert broker.store.set_limit("s:a", "")
    assert broker.redis.hgetall(broker.keys.limits) == {}


def test_a_full_redis(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=ONE)
    broker.taken(jobs=8)
    with broker.full():
        assert broker.store.set_limit(KEY, "2")
        assert broker.store.set_limit("s:a", "2")
    assert broker.redis.hget(broker.keys.limits, "set") == "2"


@pytest.mark.parametrize("name", ["limits", "slots", "waiting_limits", "due_limits", "timer"])
def test_a_key_of_the_wrong_type(broker: BrokerHarness, name: str) -> None:
    broker.store.enqueue([NewJob("a", "default", "t", PAYLOAD, lane=ONE)])
    key = getattr(broker.keys, name)
    broker.redis.set(key, "theirs")
    with pytest.raises(WrongKeyType, match=re.escape(f"{key} holds a string")):
        broker.store.set_limit(KEY, "2")
