"""revoke: what one call has claimed goes back to the head, in the order it had."""

from __future__ import annotations

import re

import pytest

from django_redisqueue.exceptions import WrongKeyType

from .lab import Lab, invariants, outcome


@pytest.mark.parametrize("priority", [0, 3, -3])
def test_only_that_call_and_in_its_order(lab: Lab, priority: int) -> None:
    lab.add(*"abcdef", priority=priority)
    lab.claim(jobs=2, call=1)
    lab.claim(jobs=2, call=11)
    assert lab.store.revoke("c1", 11) == 2
    assert lab.held() == ["1:a", "1:b"]
    invariants(lab)
    assert lab.taken("c2", jobs=4) == ["c", "d", "e", "f"]
    assert lab.store.revoke("c1", 1) == 2
    assert lab.taken("c2", jobs=4) == ["a", "b"]
    invariants(lab)


def test_nothing_is_spent_and_a_token_is_left(lab: Lab) -> None:
    lab.add("a")
    assert lab.pop_token()
    lab.claim(call=5)
    lab.store.revoke("c1", 5)
    assert lab.tokens() == 1
    again = lab.take()
    assert (again.attempts, again.recoveries, again.lease) == (0, 0, 2)


def test_a_repeat_and_an_unknown_call_change_nothing(lab: Lab) -> None:
    lab.add("a", "b")
    lab.claim(call=5)
    lab.store.revoke("c1", 5)
    before = lab.dump()
    assert lab.store.revoke("c1", 5) == lab.store.revoke("c1", 6) == lab.store.revoke("c9", 5) == 0
    assert lab.dump() == before


def test_what_had_been_settled_stays_so(lab: Lab) -> None:
    lab.add("a", "b")
    a, _ = lab.claim(jobs=2, call=5).jobs
    lab.finish(outcome(a))
    assert lab.store.revoke("c1", 5) == 1
    assert (lab.status("a"), lab.status("b")) == ("completed", "queued")
    invariants(lab)


def test_a_flagged_job_becomes_cancelled(lab: Lab) -> None:
    lab.add("a", "b")
    lab.claim(jobs=2, call=5)
    lab.store.cancel(["a"])
    lab.store.revoke("c1", 5)
    assert (lab.status("a"), lab.status("b")) == ("cancelled", "queued")
    invariants(lab)


def test_a_job_that_another_holds_by_now_stays_with_it(lab: Lab) -> None:
    lab.add("a")
    job = lab.take("c1", call=5)
    lab.store.reap("c1", [])
    lab.take("c2")
    lab.redis.rpush(lab.keys.held("c1"), f"5:{job.id}")  # a list that was restored by hand
    assert lab.store.revoke("c1", 5) == 0
    assert lab.job("a")["child"] == "c2"


def test_a_missing_hash_leaves_the_list(lab: Lab) -> None:
    lab.add("a", "b")
    lab.claim(jobs=2, call=5)
    lab.redis.delete(lab.keys.job("a"))
    assert lab.store.revoke("c1", 5) == 1
    assert lab.held() == []


@pytest.mark.parametrize("name", ["queued", "processing", "wake", "meta"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(lab: Lab, name: str) -> None:
    lab.add("a", queue="sound")
    lab.add("b")
    lab.claim(jobs=2, call=5, queues=["sound", "default"])
    key = getattr(lab.keys.queue("default"), name)
    lab.redis.delete(key)
    lab.redis.set(key, "theirs")
    before = lab.dump()
    with pytest.raises(WrongKeyType, match=re.escape(f"the key {key} holds a string")):
        lab.store.revoke("c1", 5)
    assert lab.dump() == before


def test_a_full_redis_lets_it_through(lab: Lab) -> None:
    lab.add("a", priority=3)
    lab.claim(call=5)
    with lab.full():
        assert lab.store.revoke("c1", 5) == 1
    invariants(lab)
