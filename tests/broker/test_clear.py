"""clear: deletes finished jobs, and cancels waiting ones."""

from __future__ import annotations

import pytest

from django_redisqueue.exceptions import JobNotFound, RedisQueueError

from .harness import ERROR, FINISHED, BrokerHarness, invariants, outcome


@pytest.mark.parametrize("status", FINISHED)
def test_finished_jobs_are_deleted(broker: BrokerHarness, status: str) -> None:
    broker.end("a", "b", "c", kind=status)
    broker.advance(10_000)
    assert broker.store.clear("default", status).done == 3
    assert broker.ids(status) == []
    assert [broker.job(name) for name in "abc"] == [{}] * 3
    assert broker.meta()["finished_bytes"] == 0
    invariants(broker)
    assert broker.store.clear("default", status).done == 0


@pytest.mark.parametrize("status", FINISHED)
def test_the_oldest_go_first(broker: BrokerHarness, status: str) -> None:
    broker.end(*[f"j{n}" for n in range(5)], kind=status)
    assert broker.store.clear("default", status, 2).done == 2
    assert broker.ids(status) == ["j4", "j3", "j2"]
    invariants(broker)


def test_jobs_whose_results_are_needed_are_passed_over(broker: BrokerHarness) -> None:
    """However small the steps are."""
    broker.end("needed", "other")
    broker.add("unfinished")
    broker.add("follower", after="wait needed unfinished")
    assert broker.store.clear("default", "completed", 1) == (1, 0)
    assert broker.store.clear("default", "completed", 1) == (1, 1)
    assert broker.ids("completed") == ["needed"]
    invariants(broker)


@pytest.mark.parametrize("status", FINISHED)
def test_a_repeated_enqueue_still_finds_a_cleared_job_for_a_while(
    broker: BrokerHarness, status: str
) -> None:
    broker.end("a", kind=status)
    broker.advance(4000)
    assert broker.store.clear("default", status).done == 1
    assert broker.add("a") == [False]
    assert broker.ids("queued") == []
    assert 0 < broker.redis.pttl(broker.keys.job("a")) <= 6000
    with pytest.raises(JobNotFound):
        broker.queries.job("a")
    assert broker.store.cancel(["a"]) == broker.store.requeue(["a"]) == [-1]
    invariants(broker)


@pytest.mark.parametrize(
    ("status", "options"),
    [
        ("queued", {}),
        ("queued", {"priority": 4}),
        ("queued", {"priority": -4}),
        ("scheduled", {"when": "+1000"}),
    ],
)
def test_waiting_jobs_become_cancelled(
    broker: BrokerHarness, status: str, options: dict[str, object]
) -> None:
    broker.add("a", "b", **options)
    assert broker.store.clear("default", status).done == 2
    assert broker.ids("cancelled") == ["b", "a"]
    assert broker.event_statuses("a")[-1] == "cancelled"
    assert broker.events("a")[-1]["seq"] == 2
    assert broker.meta()["cancelled_total"] == 2
    assert "lingers" not in broker.job("a")
    invariants(broker)
    broker.advance(1000)
    assert broker.taken(jobs=5) == []


def test_retrying_jobs_become_cancelled(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.finish(outcome(broker.take(), "retrying", ERROR))
    assert broker.store.clear("default", "retrying").done == 1
    assert broker.status("a") == "cancelled"
    invariants(broker)


def test_both_lists_of_queued_jobs_are_emptied_in_bounded_steps(broker: BrokerHarness) -> None:
    broker.add(*[f"l{n}" for n in range(100)])
    broker.add("l100")
    broker.add(*[f"p{n}" for n in range(30)], priority=1)
    steps = []
    while step := broker.store.clear("default", "queued").seen:
        steps.append(step)
        invariants(broker)
    assert steps == [100, 1, 30]
    assert len(broker.ids("cancelled")) == 131


def test_lingering_ids_also_leave_the_queue(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c")
    broker.store.cancel(["a", "b"])
    broker.advance(10_001)
    broker.store.prune("default", "cancelled", 1, 10**9)
    assert broker.job("a") == {"lingers": "1"}
    assert broker.store.clear("default", "queued").done == 3
    assert broker.ids("queued") == []
    assert broker.job("a") == {}
    assert broker.event_statuses("b").count("cancelled") == 1
    invariants(broker)


def test_running_jobs_of_the_queue_are_left_alone(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    job = broker.take()
    broker.store.clear("default", "queued")
    assert broker.finish(outcome(job)) == [1]
    invariants(broker)


@pytest.mark.parametrize("status", ["processing", "waiting", "wake", "meta", ""])
def test_other_lists_cannot_be_cleared(broker: BrokerHarness, status: str) -> None:
    broker.add("a", "b")
    broker.take()
    with broker.unchanged(), pytest.raises(RedisQueueError, match="cannot be cleared"):
        broker.store.clear("default", status)


def test_foreign_and_missing_keys_of_jobs(broker: BrokerHarness) -> None:
    broker.end("a", "b", "c")
    broker.redis.delete(broker.keys.job("a"), broker.keys.job("b"))
    broker.redis.set(broker.keys.job("b"), "theirs")
    assert broker.store.clear("default", "completed").done == 3
    assert broker.redis.get(broker.keys.job("b")) == "theirs"


@pytest.mark.parametrize(
    ("status", "name"),
    [("queued", "queued"), ("queued", "priority"), ("queued", "cancelled"), ("failed", "meta")],
)
def test_a_key_of_another_type_is_named_and_nothing_is_written(
    broker: BrokerHarness, status: str, name: str
) -> None:
    broker.end("f", kind="failed")
    broker.add("a")
    with broker.refused_over(getattr(broker.keys.queue("default"), name)):
        broker.store.clear("default", status)


@pytest.mark.parametrize("status", ["queued", "completed"])
def test_it_works_on_a_full_redis(broker: BrokerHarness, status: str) -> None:
    broker.end("a")
    broker.add("b")
    with broker.full():
        assert broker.store.clear("default", status).done == 1
    invariants(broker)


@pytest.mark.parametrize("kind", ["plain", "priority", "failed"])
def test_only_the_intended_jobs_are_cleared(broker: BrokerHarness, kind: str) -> None:
    """The caller has read the list, whose first job has gone since."""
    names = ["a", "b", "c", "d"]
    if kind == "failed":
        broker.end(*names, kind="failed")
        broker.store.delete(["a"])
    else:
        broker.add(*names, priority=5 if kind == "priority" else 0)
        broker.claim()
    status = "failed" if kind == "failed" else "queued"
    assert broker.store.clear("default", status, 2, meant=["a", "b"]) == (1, 1)
    assert broker.store.clear("default", status, 2, meant=["a", "b"]) == (0, 0)
    assert [broker.job(name).get("status") for name in "cd"] == [status, status]
    invariants(broker)
