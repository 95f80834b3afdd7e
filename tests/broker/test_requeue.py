"""requeue: failed and cancelled jobs start again as a new generation."""

from __future__ import annotations

import re

import pytest

from django_redisqueue.exceptions import RedisQueueError, WrongKeyType

from .lab import ERROR, Lab, invariants, outcome


@pytest.mark.parametrize("verdict", ["failed", "cancelled"])
def test_a_job_goes_to_the_tail_with_all_its_attempts(lab: Lab, verdict: str) -> None:
    lab.add("a")
    lab.finish(outcome(lab.take(), "retrying", ERROR, "1"))
    lab.advance(1)
    lab.finish(outcome(lab.take(), verdict, ERROR, "why"))
    lab.add("b")
    assert lab.store.requeue(["a"]) == [1]
    assert lab.ids("queued") == ["b", "a"]
    assert lab.ids(verdict) == []
    stored = lab.job("a")
    assert (stored["status"], stored["generation"], stored["lease"]) == ("queued", "1", "2")
    assert not stored.keys() & {"attempts", "error", "reason", "finished_ms", "bytes", "due_ms"}
    assert lab.meta()["requeued_total"] == 1
    assert lab.meta()["finished_bytes"] == 0
    assert lab.story("a")[-2:] == [verdict, "queued"]
    invariants(lab)
    lab.taken()
    assert lab.take().lease == 3


@pytest.mark.parametrize("priority", [0, 7])
def test_a_token_is_left(lab: Lab, priority: int) -> None:
    lab.end("a", verdict="failed", priority=priority)
    lab.pop_token()
    lab.store.requeue(["a"])
    assert lab.tokens() == 1
    assert lab.taken() == ["a"]
    invariants(lab)


def test_a_poisoned_job_restarts_with_no_recoveries(lab: Lab) -> None:
    lab.add("a")
    for _ in range(3):
        lab.take()
        lab.store.reap("c1", ["a"])
    assert lab.status("a") == "failed"
    lab.store.requeue(["a"])
    assert lab.take().recoveries == 0


def test_a_lingering_cancelled_id_takes_its_old_place_and_only_that(lab: Lab) -> None:
    lab.add("a", "b")
    lab.store.cancel(["a"])
    assert lab.store.requeue(["a"]) == [1]
    assert lab.ids("queued") == ["a", "b"]
    assert "lingers" not in lab.job("a")
    invariants(lab)
    lab.store.cancel(["a"])
    lab.taken()
    lab.store.requeue(["a"])
    assert lab.ids("queued") == ["a"]
    invariants(lab)


@pytest.mark.parametrize("verdict", ["completed", "retrying", "queued"])
def test_other_jobs_are_left_alone(lab: Lab, verdict: str) -> None:
    lab.end("a", verdict=verdict)
    before = lab.dump()
    assert lab.store.requeue(["a", "never"]) == [0, -1]
    assert lab.dump() == before


def test_a_repeat_changes_nothing(lab: Lab) -> None:
    lab.end("a", verdict="failed")
    assert lab.store.requeue(["a", "a"]) == [1, 0]
    before = lab.dump()
    assert lab.store.requeue(["a"]) == [0]
    assert lab.dump() == before
    invariants(lab)


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_the_oldest_of_a_list_go_first(lab: Lab, status: str) -> None:
    lab.end(*[f"j{n:03}" for n in range(100)], verdict=status)
    lab.end(*[f"j{n:03}" for n in range(100, 150)], verdict=status)
    assert lab.store.requeue_oldest("default", status, 100).done == 100
    assert lab.ids("queued") == [f"j{n:03}" for n in range(100)]
    invariants(lab)
    assert lab.store.requeue_oldest("default", status, 100).done == 50
    assert lab.store.requeue_oldest("default", status, 100).done == 0
    assert lab.ids("queued") == [f"j{n:03}" for n in range(150)]
    invariants(lab)


def test_an_id_without_a_hash_leaves_the_list(lab: Lab) -> None:
    lab.end("a", "b", verdict="failed")
    lab.redis.delete(lab.keys.job("a"))
    assert lab.store.requeue_oldest("default", "failed", 10) == (2, 1)
    assert (lab.ids("failed"), lab.ids("queued")) == ([], ["b"])


@pytest.mark.parametrize("status", ["completed", "queued", "processing"])
def test_only_failed_and_cancelled_lists(lab: Lab, status: str) -> None:
    lab.end("a")
    before = lab.dump()
    with pytest.raises(RedisQueueError, match="only failed or cancelled jobs can be requeued"):
        lab.store.requeue_oldest("default", status, 10)
    assert lab.dump() == before


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("name", ["queued", "priority", "wake"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(
    lab: Lab, name: str, by_name: bool
) -> None:
    lab.end("a", verdict="failed")
    key = getattr(lab.keys.queue("default"), name)
    lab.redis.delete(key)
    lab.redis.set(key, "theirs")
    before = lab.dump()
    with pytest.raises(WrongKeyType, match=re.escape(f"the key {key} holds a string")):
        lab.store.requeue(["a"]) if by_name else lab.store.requeue_oldest("default", "failed", 9)
    assert lab.dump() == before


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    lab.end("a", verdict="failed")
    with lab.full():
        assert lab.store.requeue(["a"]) == [1]
    invariants(lab)
