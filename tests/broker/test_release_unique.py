"""release_unique: frees a key by hand."""

from __future__ import annotations

import re

import pytest

from django_redisqueue.core.job_data import NewJob
from django_redisqueue.exceptions import RedisQueueError

from .lab import PAYLOAD, Lab, invariants, outcome


def add(lab: Lab, name: str, mode: str = "until_finished - -") -> bool:
    return lab.store.enqueue([NewJob(name, "default", "t", PAYLOAD, unique=f"k {mode}")])[0]


@pytest.mark.parametrize("mode", ["until_finished - -", "for 100000 -", "once 100000 mark"])
def test_a_new_job_takes_the_key_and_the_old_one_continues(lab: Lab, mode: str) -> None:
    add(lab, "a", mode)
    assert lab.store.release_unique("k") == "a"
    assert lab.store.release_unique("k") == ""
    left = {lab.keys.unique("k"), lab.keys.uniques, lab.keys.unique_lifetimes}
    assert not left & invariants(lab).keys()
    assert add(lab, "b", mode)
    assert lab.finish(outcome(lab.take(), "completed", "1")) == [1]
    assert str(lab.redis.get(lab.keys.unique("k"))).startswith("b")


def test_a_key_that_no_job_has(lab: Lab) -> None:
    assert lab.store.release_unique("k") == ""
    assert lab.dump() == {}


def test_a_full_redis(lab: Lab) -> None:
    add(lab, "a")
    with lab.full():
        assert lab.store.release_unique("k") == "a"
    assert not lab.redis.exists(lab.keys.unique("k"))


@pytest.mark.parametrize("name", ["unique", "uniques", "unique_lifetimes"])
def test_a_key_of_the_wrong_type(lab: Lab, name: str) -> None:
    key = lab.keys.unique("k") if name == "unique" else getattr(lab.keys, name)
    lab.redis.hset(key, "x", "1")
    with pytest.raises(RedisQueueError, match=re.escape(f"the key {key} holds a hash where a")):
        lab.store.release_unique("k")
