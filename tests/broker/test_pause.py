"""pause: claims stop, running jobs finish, and resuming wakes a worker."""

from __future__ import annotations

import re

import pytest

from django_redisqueue.broker.policies import LimitQueries, PauseChange
from django_redisqueue.exceptions import WrongKeyType

from .lab import T0, Lab, invariants, outcome


def test_pausing_and_resuming_report_whether_they_changed_anything(lab: Lab) -> None:
    pause = lab.store.pause
    assert [pause("default", on) for on in (True, True, False, False)] == [True, False, True, False]


def test_the_time_is_stored_and_a_repeat_keeps_it(lab: Lab) -> None:
    lab.store.pause("default", True)
    lab.advance(500)
    lab.store.pause("default", True)
    assert lab.meta()["paused"] == T0


def test_who_paused_is_stored_until_the_queue_is_resumed(lab: Lab) -> None:
    key = lab.keys.queue("default").meta
    lab.store.pause("default", True, "ann")
    lab.store.pause("default", True, "bob")
    assert lab.redis.hget(key, "paused_by") == "ann"
    lab.store.pause("default", False)
    assert lab.redis.hget(key, "paused_by") is None
    lab.store.pause("default", True)
    assert lab.redis.hget(key, "paused_by") is None


def test_changes_are_in_the_history_newest_first(lab: Lab) -> None:
    lab.store.pause("default", True, "ann")
    lab.store.pause("default", True, "bob")
    lab.advance(500)
    lab.store.pause("default", False)
    lab.store.pause_lanes("default", "s:gold", True, "eve")
    lab.store.pause_lanes("default", "s:gold", True, "eve")
    found = LimitQueries(lab.connection).pause_history("default")
    assert found == [
        PauseChange(T0 + 500, True, "share gold", "eve"),
        PauseChange(T0 + 500, False, "", ""),
        PauseChange(T0, True, "", "ann"),
    ]


def test_running_jobs_finish_and_others_wait(lab: Lab) -> None:
    lab.add("a", "b")
    job = lab.take()
    lab.store.pause("default", True)
    assert lab.finish(outcome(job)) == [1]
    assert lab.taken() == []
    lab.add("c")
    lab.store.pause("default", False)
    assert lab.taken(jobs=5) == ["b", "c"]
    invariants(lab)


@pytest.mark.parametrize("priority", [0, 3])
def test_resuming_leaves_a_token_when_there_is_work(lab: Lab, priority: int) -> None:
    lab.add("a", priority=priority)
    lab.store.pause("default", True)
    lab.pop_token()
    lab.store.pause("default", False)
    assert lab.tokens() == 1
    invariants(lab)


def test_resuming_an_empty_queue_leaves_no_token(lab: Lab) -> None:
    lab.store.pause("default", True)
    lab.store.pause("default", False)
    assert lab.tokens() == 0


def test_resuming_twice_restores_a_lost_token(lab: Lab) -> None:
    lab.add("a")
    lab.pop_token()
    assert lab.store.pause("default", False) is False
    assert lab.tokens() == 1


@pytest.mark.parametrize("name", ["meta", "wake", "pause_history"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(lab: Lab, name: str) -> None:
    key = getattr(lab.keys.queue("default"), name)
    lab.redis.set(key, "theirs")
    before = lab.dump()
    with pytest.raises(WrongKeyType, match=re.escape(f"the key {key} holds a string")):
        lab.store.pause("default", False)
    assert lab.dump() == before


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    with lab.full():
        assert lab.store.pause("default", True) is True
