"""clear: deletes finished jobs, and cancels waiting ones."""

from __future__ import annotations

import re

import pytest

from django_redisqueue.exceptions import JobNotFound, RedisQueueError, WrongKeyType

from .lab import ERROR, FINISHED, Lab, invariants, outcome


@pytest.mark.parametrize("status", FINISHED)
def test_finished_jobs_are_deleted(lab: Lab, status: str) -> None:
    lab.end("a", "b", "c", verdict=status)
    lab.advance(10_000)
    assert lab.store.clear("default", status).done == 3
    assert lab.ids(status) == []
    assert [lab.job(name) for name in "abc"] == [{}] * 3
    assert lab.meta()["finished_bytes"] == 0
    invariants(lab)
    assert lab.store.clear("default", status).done == 0


@pytest.mark.parametrize("status", FINISHED)
def test_the_oldest_go_first(lab: Lab, status: str) -> None:
    lab.end(*[f"j{n}" for n in range(5)], verdict=status)
    assert lab.store.clear("default", status, 2).done == 2
    assert lab.ids(status) == ["j4", "j3", "j2"]
    invariants(lab)


@pytest.mark.parametrize("status", FINISHED)
def test_a_repeated_enqueue_still_finds_a_cleared_job_for_a_while(lab: Lab, status: str) -> None:
    lab.end("a", verdict=status)
    lab.advance(4000)
    assert lab.store.clear("default", status).done == 1
    assert lab.add("a") == [False]
    assert lab.ids("queued") == []
    assert 0 < lab.redis.pttl(lab.keys.job("a")) <= 6000
    with pytest.raises(JobNotFound):
        lab.queries.job("a")
    assert lab.store.cancel(["a"]) == lab.store.requeue(["a"]) == [-1]
    invariants(lab)


@pytest.mark.parametrize(
    ("status", "options"),
    [
        ("queued", {}),
        ("queued", {"priority": 4}),
        ("queued", {"priority": -4}),
        ("scheduled", {"when": "+1000"}),
    ],
)
def test_waiting_jobs_become_cancelled(lab: Lab, status: str, options: dict[str, object]) -> None:
    lab.add("a", "b", **options)
    assert lab.store.clear("default", status).done == 2
    assert lab.ids("cancelled") == ["b", "a"]
    assert lab.story("a")[-1] == "cancelled"
    assert lab.events("a")[-1]["seq"] == 2
    assert lab.meta()["cancelled_total"] == 2
    assert "lingers" not in lab.job("a")
    invariants(lab)
    lab.advance(1000)
    assert lab.taken(jobs=5) == []


def test_retrying_jobs_become_cancelled(lab: Lab) -> None:
    lab.add("a")
    lab.finish(outcome(lab.take(), "retrying", ERROR))
    assert lab.store.clear("default", "retrying").done == 1
    assert lab.status("a") == "cancelled"
    invariants(lab)


def test_both_lists_of_queued_jobs_are_emptied_in_bounded_steps(lab: Lab) -> None:
    lab.add(*[f"l{n}" for n in range(100)])
    lab.add("l100")
    lab.add(*[f"p{n}" for n in range(30)], priority=1)
    steps = []
    while step := lab.store.clear("default", "queued").seen:
        steps.append(step)
        invariants(lab)
    assert steps == [100, 1, 30]
    assert len(lab.ids("cancelled")) == 131


def test_lingering_ids_also_leave_the_queue(lab: Lab) -> None:
    lab.add("a", "b", "c")
    lab.store.cancel(["a", "b"])
    lab.advance(10_001)
    lab.store.prune("default", "cancelled", 1, 10**9)
    assert lab.job("a") == {"lingers": "1"}
    assert lab.store.clear("default", "queued").done == 3
    assert lab.ids("queued") == []
    assert lab.job("a") == {}
    assert lab.story("b").count("cancelled") == 1
    invariants(lab)


def test_running_jobs_of_the_queue_are_left_alone(lab: Lab) -> None:
    lab.add("a", "b")
    job = lab.take()
    lab.store.clear("default", "queued")
    assert lab.finish(outcome(job)) == [1]
    invariants(lab)


@pytest.mark.parametrize("status", ["processing", "waiting", "wake", "meta", ""])
def test_other_lists_cannot_be_cleared(lab: Lab, status: str) -> None:
    lab.add("a", "b")
    lab.take()
    before = lab.dump()
    with pytest.raises(RedisQueueError, match="cannot be cleared"):
        lab.store.clear("default", status)
    assert lab.dump() == before


def test_foreign_and_missing_keys_of_jobs(lab: Lab) -> None:
    lab.end("a", "b", "c")
    lab.redis.delete(lab.keys.job("a"), lab.keys.job("b"))
    lab.redis.set(lab.keys.job("b"), "theirs")
    assert lab.store.clear("default", "completed").done == 3
    assert lab.redis.get(lab.keys.job("b")) == "theirs"


@pytest.mark.parametrize(
    ("status", "name"),
    [("queued", "queued"), ("queued", "priority"), ("queued", "cancelled"), ("failed", "meta")],
)
def test_a_key_of_another_type_is_named_and_nothing_is_written(
    lab: Lab, status: str, name: str
) -> None:
    lab.end("f", verdict="failed")
    lab.add("a")
    key = getattr(lab.keys.queue("default"), name)
    lab.redis.delete(key)
    lab.redis.set(key, "theirs")
    before = lab.dump()
    with pytest.raises(WrongKeyType, match=re.escape(f"the key {key} holds a string")):
        lab.store.clear("default", status)
    assert lab.dump() == before


@pytest.mark.parametrize("status", ["queued", "completed"])
def test_it_works_on_a_full_redis(lab: Lab, status: str) -> None:
    lab.end("a")
    lab.add("b")
    with lab.full():
        assert lab.store.clear("default", status).done == 1
    invariants(lab)


@pytest.mark.parametrize("kind", ["plain", "priority", "failed"])
def test_only_the_intended_jobs_are_cleared(lab: Lab, kind: str) -> None:
    """The caller has read the list, whose first job has gone since."""
    names = ["a", "b", "c", "d"]
    if kind == "failed":
        lab.end(*names, verdict="failed")
        lab.store.delete(["a"])
    else:
        lab.add(*names, priority=5 if kind == "priority" else 0)
        lab.claim()
    status = "failed" if kind == "failed" else "queued"
    assert lab.store.clear("default", status, 2, meant=["a", "b"]) == (1, 1)
    assert lab.store.clear("default", status, 2, meant=["a", "b"]) == (0, 0)
    assert [lab.job(name).get("status") for name in "cd"] == [status, status]
    invariants(lab)
