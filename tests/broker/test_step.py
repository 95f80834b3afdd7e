"""step: what a running job remembers until it ends; fenced like every write of a child."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_redisqueue.broker.replies import ClaimedJob
from django_redisqueue.broker.steps import StepQueries
from django_redisqueue.exceptions import WrongKeyType

from .lab import ERROR, Lab, invariants, outcome


def remembered(lab: Lab, job_id: str = "a") -> dict[str, str]:
    found = dict(lab.redis.hgetall(lab.keys.steps(job_id)))
    found.pop("bytes", None)
    return found


def store(lab: Lab, job: ClaimedJob, field: str = "step:s", value: str = "1") -> int:
    return lab.store.step("c1", job.id, job.lease, field, value)


def with_step(lab: Lab, job_id: str = "a") -> ClaimedJob:
    lab.add(job_id)
    job = lab.take()
    assert store(lab, job) == 1
    return job


def test_it_is_stored_and_leaves_the_fast_path(lab: Lab) -> None:
    job = with_step(lab)
    assert remembered(lab) == {"step:s": "1"}
    assert (lab.job("a")["watched"], lab.job("a")["seq"]) == ("s", "2")
    assert store(lab, job, "step:t", "[]") == store(lab, job, "step:s", "22") == 1
    assert remembered(lab) == {"step:s": "22", "step:t": "[]"}
    assert StepQueries(lab.connection).names("a") == [("step", "s"), ("step", "t")]
    invariants(lab)
    assert lab.finish(outcome(job)) == [1]
    assert remembered(lab) == {}
    assert lab.story("a") == ["queued", "processing", "completed"]
    invariants(lab)


def test_only_the_run_that_holds_the_job_gets_the_steps(lab: Lab) -> None:
    """A former master may lack some of them, so that work would be repeated."""
    lab.finish(outcome(with_step(lab), "queued"))
    job, queries = lab.take(), StepQueries(lab.connection)
    assert queries.steps("c1", job.id, job.lease) == {"step:s": "1"}
    assert queries.steps("c2", job.id, job.lease) is None
    assert queries.steps("c1", job.id, job.lease + 1) is None
    lab.finish(outcome(job, "queued"))
    assert queries.steps("c1", job.id, job.lease) is None
    assert queries.steps("c1", "never", job.lease) is None


@pytest.mark.parametrize(("child", "lease"), [("c2", 1), ("c1", 0), ("c1", 2)])
def test_a_stale_writer_changes_nothing(lab: Lab, child: str, lease: int) -> None:
    lab.add("a")
    lab.take()
    before = lab.dump()
    assert lab.store.step(child, "a", lease, "step:s", "1") == 0
    assert lab.store.step("c1", "never", 1, "step:s", "1") == 0
    assert lab.dump() == before


@pytest.mark.parametrize("verdict", ["completed", "failed", "cancelled", "retrying", "queued"])
def test_a_job_that_no_longer_runs_stores_none(lab: Lab, verdict: str) -> None:
    job = with_step(lab)
    lab.finish(outcome(job, verdict, ERROR))
    before = lab.dump()
    assert store(lab, job) == 0
    assert lab.dump() == before


@pytest.mark.parametrize("verdict", ["retrying", "queued", "delayed"])
def test_the_next_run_has_the_steps(lab: Lab, verdict: str) -> None:
    lab.finish(outcome(with_step(lab), verdict, ERROR, "1"))
    lab.advance(1)
    job = lab.take()
    assert (job.lease, remembered(lab)) == (2, {"step:s": "1"})
    lab.finish(outcome(job))
    assert remembered(lab) == {}
    invariants(lab)


@pytest.mark.parametrize("verdict", ["failed", "cancelled"])
def test_a_requeue_continues_from_the_steps(lab: Lab, verdict: str) -> None:
    lab.finish(outcome(with_step(lab), verdict, ERROR))
    invariants(lab)
    assert lab.store.requeue(["a"]) == [1]
    assert remembered(lab) == {"step:s": "1"}
    invariants(lab)
    lab.finish(outcome(lab.take()))
    invariants(lab)


@pytest.mark.parametrize("how", ["delete", "clear", "prune", "delete before the mirror"])
@pytest.mark.parametrize("verdict", ["failed", "cancelled"])
def test_the_steps_are_deleted_with_the_job(lab: Lab, verdict: str, how: str) -> None:
    lab.finish(outcome(with_step(lab), verdict, ERROR))
    if "before" not in how:
        lab.redis.delete(lab.keys.events)
    lab.advance(20_000)
    if how == "prune":
        assert lab.store.prune("default", verdict, 0, 0)[0] == 1
    elif how == "clear":
        assert lab.store.clear("default", verdict).done == 1
    else:
        assert lab.store.delete(["a"]) == [1]
    assert not lab.redis.exists(lab.keys.steps("a"))
    if "before" not in how:
        assert lab.meta()["finished_bytes"] == 0


def test_a_crash_and_a_cancel_keep_the_steps(lab: Lab) -> None:
    with_step(lab)
    lab.store.reap("c1", ["a"])
    assert remembered(lab) == {"step:s": "1"}
    lab.store.cancel(["a"])
    assert remembered(lab) == {"step:s": "1"}
    invariants(lab)


def test_the_total_size_of_a_jobs_steps_is_capped(lab: Lab) -> None:
    job = with_step(lab)
    lab.store.settings = replace(lab.store.settings, max_result_bytes=300)
    before = lab.dump()
    assert store(lab, job, "step:t", "x" * 100) == -1
    assert lab.dump() == before
    assert store(lab, job, "step:s", "x" * 190) == 1
    assert store(lab, job, "step:s", "x" * 195) == -1


def test_new_steps_forgive_recoveries(lab: Lab) -> None:
    """A long job may be killed often, but not three times at the same point."""
    lab.add("a")
    for n in range(10):
        job = lab.take()
        assert job.recoveries == n
        store(lab, job, "cursor:c", str(n))
        lab.store.reap("c1", ["a"])
    for _ in range(2):
        lab.take()
        lab.store.reap("c1", ["a"])
    assert (lab.status("a"), lab.job("a")["reason"]) == ("failed", "poison")
    invariants(lab)


def test_a_key_of_another_type_is_named(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    lab.redis.set(lab.keys.steps("a"), "theirs")
    before = lab.dump()
    with pytest.raises(WrongKeyType, match="holds a string where a hash belongs"):
        store(lab, job)
    assert lab.dump() == before


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    with lab.full():
        assert store(lab, job) == 1


def test_other_jobs_of_the_batch_stay_on_the_fast_path(lab: Lab) -> None:
    lab.add("a", "b")
    first, second = lab.claim(jobs=2).jobs
    store(lab, first)
    assert lab.finish(outcome(first), outcome(second)) == [1, 1]
    assert "seq" not in lab.redis.hgetall(lab.keys.job("b"))
    assert sorted(lab.ids("completed")) == ["a", "b"]
    invariants(lab)
