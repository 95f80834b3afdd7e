"""release_unique: frees a key by hand."""

from __future__ import annotations

import re

import pytest

from django_redisqueue.core.job_data import NewJob
from django_redisqueue.exceptions import RedisQueueError

from .harness import PAYLOAD, BrokerHarness, invariants, outcome


def add(broker: BrokerHarness, name: str, mode: str = "until_finished - -") -> bool:
    return broker.store.enqueue([NewJob(name, "default", "t", PAYLOAD, unique=f"k {mode}")])[0]


@pytest.mark.parametrize("mode", ["until_finished - -", "for 100000 -", "once 100000 mark"])
def test_a_new_job_takes_the_key_and_the_old_one_continues(
    broker: BrokerHarness, mode: str
) -> None:
    add(broker, "a", mode)
    assert broker.store.release_unique("k") == "a"
    assert broker.store.release_unique("k") == ""
    left = {broker.keys.unique("k"), broker.keys.uniques, broker.keys.unique_lifetimes}
    assert not left & invariants(broker).keys()
    assert add(broker, "b", mode)
    assert broker.finish(outcome(broker.take(), "completed", "1")) == [1]
    assert str(broker.redis.get(broker.keys.unique("k"))).startswith("b")


def test_a_key_that_no_job_has(broker: BrokerHarness) -> None:
    assert broker.store.release_unique("k") == ""
    assert broker.dump() == {}


def test_a_key_that_another_job_has_taken_meanwhile(broker: BrokerHarness) -> None:
    add(broker, "a")
    assert broker.store.release_unique("k", "b") == ""
    assert broker.store.release_unique("k", "") == ""
    assert broker.redis.get(broker.keys.unique("k")) == "a"
    assert broker.store.release_unique("k", "a") == "a"


def test_a_full_redis(broker: BrokerHarness) -> None:
    add(broker, "a")
    with broker.full():
        assert broker.store.release_unique("k") == "a"
    assert not broker.redis.exists(broker.keys.unique("k"))


@pytest.mark.parametrize("name", ["unique", "uniques", "unique_lifetimes"])
def test_a_key_of_the_wrong_type(broker: BrokerHarness, name: str) -> None:
    key = broker.keys.unique("k") if name == "unique" else getattr(broker.keys, name)
    broker.redis.hset(key, "x", "1")
    with pytest.raises(RedisQueueError, match=re.escape(f"the key {key} holds a hash where a")):
        broker.store.release_unique("k")
