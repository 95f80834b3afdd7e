"""step: what a running job remembers until it ends; fenced like every write of a child."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_redisqueue.broker.replies import ClaimedJob
from django_redisqueue.broker.steps import StepQueries

from .harness import ERROR, BrokerHarness, invariants, outcome


def remembered(broker: BrokerHarness, job_id: str = "a") -> dict[str, str]:
    found = dict(broker.redis.hgetall(broker.keys.steps(job_id)))
    found.pop("bytes", None)
    return found


def store(broker: BrokerHarness, job: ClaimedJob, field: str = "step:s", value: str = "1") -> int:
    return broker.store.step("c1", job.id, job.lease, field, value)


def with_step(broker: BrokerHarness, job_id: str = "a") -> ClaimedJob:
    broker.add(job_id)
    job = broker.take()
    assert store(broker, job) == 1
    return job


def test_it_is_stored_and_leaves_the_fast_path(broker: BrokerHarness) -> None:
    job = with_step(broker)
    assert remembered(broker) == {"step:s": "1"}
    assert (broker.job("a")["watched"], broker.job("a")["seq"]) == ("s", "2")
    assert store(broker, job, "step:t", "[]") == store(broker, job, "step:s", "22") == 1
    assert remembered(broker) == {"step:s": "22", "step:t": "[]"}
    assert StepQueries(broker.connection).names("a") == [("step", "s"), ("step", "t")]
    invariants(broker)
    assert broker.finish(outcome(job)) == [1]
    assert remembered(broker) == {}
    assert broker.event_statuses("a") == ["queued", "processing", "completed"]
    invariants(broker)


def test_only_the_run_that_holds_the_job_gets_the_steps(broker: BrokerHarness) -> None:
    """A former master may lack some of them, so that work would be repeated."""
    broker.finish(outcome(with_step(broker), "queued"))
    job, queries = broker.take(), StepQueries(broker.connection)
    assert queries.steps("c1", job.id, job.lease) == {"step:s": "1"}
    assert queries.steps("c2", job.id, job.lease) is None
    assert queries.steps("c1", job.id, job.lease + 1) is None
    broker.finish(outcome(job, "queued"))
    assert queries.steps("c1", job.id, job.lease) is None
    assert queries.steps("c1", "never", job.lease) is None


@pytest.mark.parametrize(("child", "lease"), [("c2", 1), ("c1", 0), ("c1", 2)])
def test_a_stale_writer_changes_nothing(broker: BrokerHarness, child: str, lease: int) -> None:
    broker.add("a")
    broker.take()
    with broker.unchanged():
        assert broker.store.step(child, "a", lease, "step:s", "1") == 0
        assert broker.store.step("c1", "never", 1, "step:s", "1") == 0


@pytest.mark.parametrize("kind", ["completed", "failed", "cancelled", "retrying", "queued"])
def test_a_job_that_no_longer_runs_stores_none(broker: BrokerHarness, kind: str) -> None:
    job = with_step(broker)
    broker.finish(outcome(job, kind, ERROR))
    with broker.unchanged():
        assert store(broker, job) == 0


@pytest.mark.parametrize("kind", ["retrying", "queued", "delayed"])
def test_the_next_run_has_the_steps(broker: BrokerHarness, kind: str) -> None:
    broker.finish(outcome(with_step(broker), kind, ERROR, "1"))
    broker.advance(1)
    job = broker.take()
    assert (job.lease, remembered(broker)) == (2, {"step:s": "1"})
    broker.finish(outcome(job))
    assert remembered(broker) == {}
    invariants(broker)


@pytest.mark.parametrize("kind", ["failed", "cancelled"])
def test_a_requeue_continues_from_the_steps(broker: BrokerHarness, kind: str) -> None:
    broker.finish(outcome(with_step(broker), kind, ERROR))
    invariants(broker)
    assert broker.store.requeue(["a"]) == [1]
    assert remembered(broker) == {"step:s": "1"}
    invariants(broker)
    broker.finish(outcome(broker.take()))
    invariants(broker)


@pytest.mark.parametrize("how", ["delete", "clear", "prune", "delete before the mirror"])
@pytest.mark.parametrize("kind", ["failed", "cancelled"])
def test_the_steps_are_deleted_with_the_job(broker: BrokerHarness, kind: str, how: str) -> None:
    broker.finish(outcome(with_step(broker), kind, ERROR))
    if "before" not in how:
        broker.redis.delete(broker.keys.events)
    broker.advance(20_000)
    if how == "prune":
        assert broker.store.prune("default", kind, 0, 0)[0] == 1
    elif how == "clear":
        assert broker.store.clear("default", kind).done == 1
    else:
        assert broker.store.delete(["a"]) == [1]
    assert not broker.redis.exists(broker.keys.steps("a"))
    if "before" not in how:
        assert broker.meta()["finished_bytes"] == 0


def test_a_crash_and_a_cancel_keep_the_steps(broker: BrokerHarness) -> None:
    with_step(broker)
    broker.store.reap("c1", ["a"])
    assert remembered(broker) == {"step:s": "1"}
    broker.store.cancel(["a"])
    assert remembered(broker) == {"step:s": "1"}
    invariants(broker)


def test_the_total_size_of_a_jobs_steps_is_capped(broker: BrokerHarness) -> None:
    job = with_step(broker)
    broker.store.settings = replace(broker.store.settings, max_result_bytes=300)
    with broker.unchanged():
        assert store(broker, job, "step:t", "x" * 100) == -1
    assert store(broker, job, "step:s", "x" * 190) == 1
    assert store(broker, job, "step:s", "x" * 195) == -1


def test_new_steps_forgive_recoveries(broker: BrokerHarness) -> None:
    """A long job may be killed often, but not three times at the same point."""
    broker.add("a")
    for n in range(10):
        job = broker.take()
        assert job.recoveries == n
        store(broker, job, "cursor:c", str(n))
        broker.store.reap("c1", ["a"])
    for _ in range(2):
        broker.take()
        broker.store.reap("c1", ["a"])
    assert (broker.status("a"), broker.job("a")["reason"]) == ("failed", "poison")
    invariants(broker)


def test_a_key_of_another_type_is_named(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    with broker.refused_over(broker.keys.steps("a"), "hash"):
        store(broker, job)


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    with broker.full():
        assert store(broker, job) == 1


def test_other_jobs_of_the_batch_stay_on_the_fast_path(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    first, second = broker.claim(jobs=2).jobs
    store(broker, first)
    assert broker.finish(outcome(first), outcome(second)) == [1, 1]
    assert "seq" not in broker.redis.hgetall(broker.keys.job("b"))
    assert sorted(broker.ids("completed")) == ["a", "b"]
    invariants(broker)
