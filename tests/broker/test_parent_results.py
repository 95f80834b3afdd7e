"""Results of parents: each is stored once, with the parent, however many jobs may read it. It stays
as long as one of them may, counts like every finished job, and only the byte cap removes it
earlier."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_redisqueue.broker.workflows import RESULTS_A_ROUND_TRIP, _batches
from django_redisqueue.exceptions import LeaseLost, ResultGone

from .harness import ERROR, BrokerHarness, invariants, outcome
from .workflows import BrokerWorkflow

MB = 1_000_000
LATER = 20_000  # ms; after the resend window


def result_of(size: int) -> str:
    """JSON of this many bytes."""
    return '"' + "r" * (size - 2) + '"'


def used(broker: BrokerHarness) -> int:
    """Bytes of all keys."""
    sizes = [broker.redis.memory_usage(key, 0) for key in broker.redis.scan_iter()]
    return sum(size or 0 for size in sizes)


def prune(broker: BrokerHarness, status: str = "completed") -> tuple[int, int, bool]:
    """As much as age and count allow."""
    broker.advance(LATER)
    return broker.store.prune("default", status, 0, 0)


def caps(broker: BrokerHarness, size: int) -> None:
    broker.store.settings = replace(broker.store.settings, finished_max_bytes=size)


# -- one copy


def test_two_hundred_followers_share_one_result(broker: BrokerHarness) -> None:
    broker.add("p")
    job = broker.take()
    names = [f"f{n}" for n in range(200)]
    for at in (0, 90, 180):
        broker.add(*names[at : at + 90], after="wait p")
    before = used(broker)
    broker.finish(outcome(job, body=result_of(MB)))
    for _ in broker.advancing():
        pass
    assert used(broker) - before < 1.5 * MB
    assert sorted(broker.ids("queued")) == sorted(names)
    assert broker.workflows.parent_results("f199") == {"p": "r" * (MB - 2)}
    assert broker.meta()["finished_bytes"] > MB
    invariants(broker)


def test_a_job_with_many_completed_parents_copies_nothing(broker: BrokerHarness) -> None:
    names = [f"p{n}" for n in range(99)]
    broker.end(*names, body=result_of(MB // 10))
    before = used(broker)
    broker.add("late", after=" ".join(["wait", *names]))
    assert used(broker) - before < MB // 10
    results = broker.workflows.parent_results("late")
    assert list(results) == names
    assert {len(result) for result in results.values()} == {MB // 10 - 2}
    invariants(broker)


def test_a_workflow_keeps_no_copies(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0], 2: [0]})
    workflow.push()
    before = used(broker)
    workflow.run_one(body=result_of(MB))
    assert used(broker) - before < 1.5 * MB
    assert broker.workflows.parent_results(workflow.job(2)) == {workflow.job(0): "r" * (MB - 2)}
    assert broker.meta()["finished_bytes"] > MB


def test_they_are_read_one_megabyte_per_round_trip() -> None:
    half = RESULTS_A_ROUND_TRIP // 2
    sizes = [half, half, 1, 3 * half, 1, 1]
    assert [sizes[part] for part in _batches(sizes)] == [
        [half, half],
        [1],
        [3 * half],
        [1, 1],
    ]


# -- as long as a job may read it


@pytest.mark.parametrize("kind", ["failed", "cancelled", "retrying", "queued"])
def test_a_parent_stays_until_its_follower_has_completed(broker: BrokerHarness, kind: str) -> None:
    broker.end("p")
    broker.add("f", after="wait p")
    assert prune(broker) == (0, 0, False)
    job = broker.take()
    assert prune(broker) == (0, 0, False)
    broker.finish(outcome(job, kind, "" if kind == "queued" else ERROR))
    assert prune(broker) == (0, 0, False)
    assert (broker.store.delete(["p"]), broker.store.clear("default", "completed").done) == ([0], 0)
    broker.store.requeue(["f"])
    broker.store.promote(["default"])
    job = broker.take()
    assert broker.workflows.parent_results("f") == {"p": "ok"}
    broker.finish(outcome(job))
    assert prune(broker)[0] == 2
    assert not list(broker.redis.scan_iter("*job:*"))
    invariants(broker)


def test_a_parent_stays_until_its_failed_follower_is_deleted(broker: BrokerHarness) -> None:
    broker.end("p")
    broker.add("f", after="wait p")
    broker.finish(outcome(broker.take(), "failed", ERROR))
    assert prune(broker) == (0, 0, False)
    assert prune(broker, "failed") == (1, 0, False)
    assert prune(broker) == (1, 0, False)
    assert not list(broker.redis.scan_iter("*job:*"))


def test_a_parent_without_a_result_is_not_kept(broker: BrokerHarness) -> None:
    broker.add("p", "q")
    first, second = broker.claim(jobs=2).jobs
    broker.add("f", after="wait p")
    broker.finish(outcome(first, body="null"), outcome(second, body="null"))
    broker.add("g", after="wait q")
    assert prune(broker) == (2, 0, False)
    assert broker.workflows.parent_results("f") == {"p": None}
    assert broker.workflows.parent_results("g") == {"q": None}


def test_parents_in_a_workflow_stay_until_all_of_it_has_completed(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0], 2: [1]})
    workflow.push()
    assert [workflow.run_one(body="1") for _ in range(2)] == [0, 1]
    assert workflow.run_one("failed") == 2
    assert prune(broker)[0] == 0
    broker.store.requeue([workflow.job(2)])
    assert broker.workflows.parent_results(workflow.job(2)) == {workflow.job(1): 1}
    assert workflow.run_one(body="1") == 2
    assert prune(broker)[0] == 3
    invariants(broker)


def test_a_job_that_outlives_its_workflow_learns_that_its_input_is_gone(
    broker: BrokerHarness,
) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0], 2: []})
    workflow.push()
    assert workflow.run_one(body="1") == 0
    failing, running = broker.claim(jobs=2).jobs
    broker.finish(outcome(failing, "failed", ERROR))
    broker.store.control_workflow(workflow.id, "clean")
    workflow.advance()
    assert prune(broker) == (1, 0, False)
    with pytest.raises(ResultGone, match=workflow.id):
        broker.workflows.parent_results(running.id)


@pytest.mark.parametrize("state", ["waiting", "deleted", "completed"])
def test_a_run_unknown_to_redis_gets_no_results(broker: BrokerHarness, state: str) -> None:
    """A failover undid the end of the parents, or another run completed, which frees the results:
    None would not be what the parents returned."""
    broker.add("p")
    broker.add("f", after="wait p")
    if state == "deleted":
        broker.redis.delete(broker.keys.job("f"))
    elif state == "completed":
        broker.finish(outcome(broker.take()))
        broker.finish(outcome(broker.take()))
        assert broker.status("f") == "completed"
    with pytest.raises(LeaseLost, match="has no record that job f is running"):
        broker.workflows.parent_results("f")


# -- the byte cap


def test_the_byte_cap_first_removes_results_that_no_job_needs(broker: BrokerHarness) -> None:
    broker.end("p", body=result_of(MB))
    broker.end("q", body=result_of(MB))
    broker.add("f", after="wait p")
    broker.advance(LATER)
    caps(broker, 3 * MB // 2)
    assert broker.store.prune("default", "completed", 100, LATER * 10) == (1, 1, False)
    assert broker.workflows.parent_results("f") == {"p": "r" * (MB - 2)}
    invariants(broker)


def test_the_byte_cap_removes_needed_results_in_a_second_pass(broker: BrokerHarness) -> None:
    broker.end("p", body=result_of(MB))
    broker.add("f", after="wait p")
    caps(broker, MB // 2)
    assert broker.store.prune("default", "completed", 100, LATER * 10) == (0, 0, False)
    assert broker.store.prune("default", "completed", 100, LATER * 10) == (1, 1, False)
    assert broker.meta()["forced_total"] == 1
    broker.store.advance()
    assert not broker.redis.exists(broker.keys.followers("p"))
    with pytest.raises(ResultGone, match="FINISHED_MAX_BYTES"):
        broker.workflows.parent_results("f")
    assert broker.taken() == ["f"]
    invariants(broker)


def test_the_byte_cap_keeps_a_result_while_followers_are_being_notified(
    broker: BrokerHarness,
) -> None:
    broker.add("p")
    job = broker.take()
    for at in (0, 90):
        broker.add(*[f"f{n}" for n in range(at, at + 90)], after="wait p")
    broker.finish(outcome(job, body=result_of(MB)))
    caps(broker, MB // 2)
    for _ in range(3):
        assert broker.store.prune("default", "completed", 100, LATER * 10)[0] == 0
    for _ in broker.advancing():
        pass
    assert len(broker.ids("queued")) == 180
