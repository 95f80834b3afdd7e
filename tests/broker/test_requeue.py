"""requeue: failed and cancelled jobs start again as a new generation."""

from __future__ import annotations

import pytest

from django_redisqueue.exceptions import RedisQueueError

from .harness import ERROR, BrokerHarness, invariants, outcome
from .workflows import BrokerWorkflow


@pytest.mark.parametrize("kind", ["failed", "cancelled"])
def test_a_job_goes_to_the_tail_with_all_its_attempts(broker: BrokerHarness, kind: str) -> None:
    broker.add("a")
    broker.finish(outcome(broker.take(), "retrying", ERROR, "1"))
    broker.advance(1)
    broker.finish(outcome(broker.take(), kind, ERROR, "why"))
    broker.add("b")
    assert broker.store.requeue(["a"]) == [1]
    assert broker.ids("queued") == ["b", "a"]
    assert broker.ids(kind) == []
    stored = broker.job("a")
    assert (stored["status"], stored["generation"], stored["lease"]) == ("queued", "1", "2")
    assert not stored.keys() & {"attempts", "error", "reason", "finished_ms", "bytes", "due_ms"}
    assert broker.meta()["requeued_total"] == 1
    assert broker.meta()["finished_bytes"] == 0
    assert broker.event_statuses("a")[-2:] == [kind, "queued"]
    invariants(broker)
    broker.taken()
    assert broker.take().lease == 3


def test_nothing_of_the_earlier_generation_remains(broker: BrokerHarness) -> None:
    broker.end("a", kind="failed")
    earlier = (
        "attempts", "recoveries", "delays", "error", "reason", "cancel_ms", "finished_ms",
        "started_ms", "first_ms", "ran", "due_ms", "progress", "bytes", "forgiven", "waits_for",
        "parked_ms", "newer",
    )  # fmt: skip
    broker.redis.hset(broker.keys.job("a"), mapping=dict.fromkeys(earlier, "1"))
    broker.store.requeue(["a"])
    assert not broker.job("a").keys() & set(earlier)


def test_each_retry_is_a_generation(broker: BrokerHarness) -> None:
    broker.end("a", kind="failed", audit="final")
    for generation in "12":
        broker.store.requeue(["a"])
        assert broker.job("a")["generation"] == generation
        broker.finish(outcome(broker.take(), "failed", ERROR))
    assert broker.event_statuses("a") == ["failed"] * 3  # no others are audited


@pytest.mark.parametrize("priority", [0, 7])
def test_a_token_is_left(broker: BrokerHarness, priority: int) -> None:
    broker.end("a", kind="failed", priority=priority)
    broker.pop_token()
    broker.store.requeue(["a"])
    assert broker.tokens() == 1
    assert broker.taken() == ["a"]
    invariants(broker)


def test_a_poisoned_job_restarts_with_no_recoveries(broker: BrokerHarness) -> None:
    broker.add("a")
    for _ in range(3):
        broker.take()
        broker.store.reap("c1", ["a"])
    assert broker.status("a") == "failed"
    broker.store.requeue(["a"])
    assert broker.take().recoveries == 0


def test_a_lingering_cancelled_id_takes_its_old_place_and_only_that(broker: BrokerHarness) -> None:
    broker.add("a", "b")
    broker.store.cancel(["a"])
    assert broker.store.requeue(["a"]) == [1]
    assert broker.ids("queued") == ["a", "b"]
    assert "lingers" not in broker.job("a")
    assert broker.queries.stats(["default"])["default"]["queued"] == 2
    invariants(broker)
    broker.store.cancel(["a"])
    broker.taken()
    broker.store.requeue(["a"])
    assert broker.ids("queued") == ["a"]
    invariants(broker)


@pytest.mark.parametrize("kind", ["completed", "retrying", "queued"])
def test_other_jobs_are_left_alone(broker: BrokerHarness, kind: str) -> None:
    broker.end("a", kind=kind)
    with broker.unchanged():
        assert broker.store.requeue(["a", "never"]) == [0, -1]


def test_a_repeat_changes_nothing(broker: BrokerHarness) -> None:
    broker.end("a", kind="failed")
    assert broker.store.requeue(["a", "a"]) == [1, 0]
    with broker.unchanged():
        assert broker.store.requeue(["a"]) == [0]
    invariants(broker)


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_the_oldest_of_a_list_go_first(broker: BrokerHarness, status: str) -> None:
    broker.end(*[f"j{n:03}" for n in range(100)], kind=status)
    broker.end(*[f"j{n:03}" for n in range(100, 150)], kind=status)
    assert broker.store.requeue_oldest("default", status, 100).done == 100
    assert broker.ids("queued") == [f"j{n:03}" for n in range(100)]
    invariants(broker)
    assert broker.store.requeue_oldest("default", status, 100).done == 50
    assert broker.store.requeue_oldest("default", status, 100).done == 0
    assert broker.ids("queued") == [f"j{n:03}" for n in range(150)]
    invariants(broker)


def test_a_job_that_is_refused_hides_no_others(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: []})
    workflow.push()
    workflow.run_one("failed")
    broker.store.control_workflow(workflow.id, "clean")
    workflow.advance()
    broker.advance(1)
    broker.end("a", kind="failed")
    assert [broker.store.requeue_oldest("default", "failed", 1) for _ in range(2)] == [
        (1, 0), (1, 1),
    ]  # fmt: skip
    assert (broker.ids("queued"), broker.ids("failed")) == (["a"], [workflow.job(0)])


def test_an_index_of_another_type_is_named_and_nothing_is_written(broker: BrokerHarness) -> None:
    broker.end("a", kind="failed", options='{"index":"tag:x"}')
    with broker.refused_over(broker.keys.index("tag:x"), "set"):
        broker.store.requeue(["a"])


def test_an_id_without_a_hash_leaves_the_list(broker: BrokerHarness) -> None:
    broker.end("a", "b", kind="failed")
    broker.redis.delete(broker.keys.job("a"))
    assert broker.store.requeue_oldest("default", "failed", 10) == (2, 1)
    assert (broker.ids("failed"), broker.ids("queued")) == ([], ["b"])


@pytest.mark.parametrize("status", ["completed", "queued", "processing"])
def test_only_failed_and_cancelled_lists(broker: BrokerHarness, status: str) -> None:
    broker.end("a")
    problem = "only failed or cancelled jobs can be requeued"
    with broker.unchanged(), pytest.raises(RedisQueueError, match=problem):
        broker.store.requeue_oldest("default", status, 10)


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("name", ["queued", "priority", "wake", "failed"])
def test_a_key_of_another_type_is_named_and_nothing_is_written(
    broker: BrokerHarness, name: str, by_name: bool
) -> None:
    broker.end("a", kind="failed")
    with broker.refused_over(getattr(broker.keys.queue("default"), name)):
        broker.store.requeue(["a"]) if by_name else broker.store.requeue_oldest(
            "default", "failed", 9
        )


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    broker.end("a", kind="failed")
    with broker.full():
        assert broker.store.requeue(["a"]) == [1]
    invariants(broker)


def test_a_resumed_workflow_is_not_cleaned_up(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0]}, ttl_ms="60000")
    workflow.push()
    workflow.run_one("failed")
    broker.store.requeue([workflow.job(0)])
    assert workflow.data().ended_ms is None
    broker.advance(60_001)
    workflow.advance()
    assert workflow.run_all() == [0, 1]
    assert workflow.data().status == "completed"


def test_retries_of_several_jobs_resume_their_workflow_once(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: []})
    workflow.push()
    broker.store.cancel([workflow.job(0), workflow.job(1)])
    broker.store.requeue([workflow.job(0), workflow.job(1)])
    assert workflow.data().generation == 1
    workflow.run_all()
    statuses = [event.data["status"] for event in broker.written("workflow")]
    assert statuses == ["running", "failed", "running", "completed"]


@pytest.mark.parametrize("reason", ["skipped", "parent_gone"])
def test_a_retried_job_that_was_skipped_makes_up_for_no_failure(
    broker: BrokerHarness, reason: str
) -> None:
    is_skipped = reason == "skipped"
    workflow = BrokerWorkflow(
        broker, {0: [], 1: [0], 2: []}, on_fail={0: "skip"} if is_skipped else None
    )
    workflow.push()
    workflow.run_one("failed")
    if is_skipped:
        workflow.run_one("failed")
    else:
        broker.store.delete([workflow.job(0)])
        workflow.advance()
    assert broker.job(workflow.job(1))["reason"] == reason
    broker.store.requeue([workflow.job(1)])
    workflow.run_all()
    assert broker.status(workflow.job(1)) == "completed"
    assert workflow.data().status == "failed"


def test_dependants_that_it_overtakes_wait_for_the_next_end(broker: BrokerHarness) -> None:
    """100 dependants are notified per call, and maintenance does the rest."""
    parents = {0: (), **dict.fromkeys(range(1, 151), (0,))}
    workflow = BrokerWorkflow(broker, parents, on_fail={0: "skip"})
    workflow.push_all()
    for _ in broker.advancing():
        pass
    job = broker.take()
    broker.finish(outcome(job, "failed", ERROR))
    waiting = workflow.statuses().count("waiting")
    assert waiting > 0
    assert broker.store.requeue([job.id]) == [1]
    for _ in broker.advancing():
        pass
    assert workflow.statuses().count("waiting") == waiting
    invariants(broker)
