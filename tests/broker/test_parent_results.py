"""Results of parents: each is stored once, with the parent, however many jobs may read it. It stays
as long as one of them may, counts like every finished job, and only the byte cap removes it
earlier."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_redisqueue.broker.workflows import RESULTS_A_ROUND_TRIP, _batches
from django_redisqueue.exceptions import LeaseLost, ResultGone

from .lab import ERROR, Lab, invariants, outcome
from .workflows import LabWorkflow

MB = 1_000_000
LATER = 20_000  # ms; after the resend window


def result_of(size: int) -> str:
    """JSON of this many bytes."""
    return '"' + "r" * (size - 2) + '"'


def used(lab: Lab) -> int:
    """Bytes of all keys."""
    sizes = [lab.redis.memory_usage(key, 0) for key in lab.redis.scan_iter()]
    return sum(size or 0 for size in sizes)


def prune(lab: Lab, status: str = "completed") -> tuple[int, int, bool]:
    """As much as age and count allow."""
    lab.advance(LATER)
    return lab.store.prune("default", status, 0, 0)


def caps(lab: Lab, size: int) -> None:
    lab.store.settings = replace(lab.store.settings, finished_max_bytes=size)


# -- one copy


def test_two_hundred_followers_share_one_result(lab: Lab) -> None:
    lab.add("p")
    job = lab.take()
    names = [f"f{n}" for n in range(200)]
    for at in (0, 90, 180):
        lab.add(*names[at : at + 90], after="wait p")
    before = used(lab)
    lab.finish(outcome(job, body=result_of(MB)))
    for _ in lab.advancing():
        pass
    assert used(lab) - before < 1.5 * MB
    assert sorted(lab.ids("queued")) == sorted(names)
    assert lab.workflows.parent_results("f199") == {"p": "r" * (MB - 2)}
    assert lab.meta()["finished_bytes"] > MB
    invariants(lab)


def test_a_job_with_many_completed_parents_copies_nothing(lab: Lab) -> None:
    names = [f"p{n}" for n in range(99)]
    lab.end(*names, body=result_of(MB // 10))
    before = used(lab)
    lab.add("late", after=" ".join(["wait", *names]))
    assert used(lab) - before < MB // 10
    results = lab.workflows.parent_results("late")
    assert list(results) == names
    assert {len(result) for result in results.values()} == {MB // 10 - 2}
    invariants(lab)


def test_a_workflow_keeps_no_copies(lab: Lab) -> None:
    workflow = LabWorkflow(lab, {0: [], 1: [0], 2: [0]})
    workflow.push()
    before = used(lab)
    workflow.run_one(body=result_of(MB))
    assert used(lab) - before < 1.5 * MB
    assert lab.workflows.parent_results(workflow.job(2)) == {workflow.job(0): "r" * (MB - 2)}
    assert lab.meta()["finished_bytes"] > MB


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


@pytest.mark.parametrize("verdict", ["failed", "cancelled", "retrying", "queued"])
def test_a_parent_stays_until_its_follower_has_completed(lab: Lab, verdict: str) -> None:
    lab.end("p")
    lab.add("f", after="wait p")
    assert prune(lab) == (0, 0, False)
    job = lab.take()
    assert prune(lab) == (0, 0, False)
    lab.finish(outcome(job, verdict, "" if verdict == "queued" else ERROR))
    assert prune(lab) == (0, 0, False)
    assert (lab.store.delete(["p"]), lab.store.clear("default", "completed").done) == ([0], 0)
    lab.store.requeue(["f"])
    lab.store.promote(["default"])
    job = lab.take()
    assert lab.workflows.parent_results("f") == {"p": "ok"}
    lab.finish(outcome(job))
    assert prune(lab)[0] == 2
    assert not list(lab.redis.scan_iter("*job:*"))
    invariants(lab)


def test_a_parent_stays_until_its_failed_follower_is_deleted(lab: Lab) -> None:
    lab.end("p")
    lab.add("f", after="wait p")
    lab.finish(outcome(lab.take(), "failed", ERROR))
    assert prune(lab) == (0, 0, False)
    assert prune(lab, "failed") == (1, 0, False)
    assert prune(lab) == (1, 0, False)
    assert not list(lab.redis.scan_iter("*job:*"))


def test_a_parent_without_a_result_is_not_kept(lab: Lab) -> None:
    lab.add("p", "q")
    first, second = lab.claim(jobs=2).jobs
    lab.add("f", after="wait p")
    lab.finish(outcome(first, body="null"), outcome(second, body="null"))
    lab.add("g", after="wait q")
    assert prune(lab) == (2, 0, False)
    assert lab.workflows.parent_results("f") == {"p": None}
    assert lab.workflows.parent_results("g") == {"q": None}


def test_parents_in_a_workflow_stay_until_all_of_it_has_completed(lab: Lab) -> None:
    workflow = LabWorkflow(lab, {0: [], 1: [0], 2: [1]})
    workflow.push()
    assert [workflow.run_one(body="1") for _ in range(2)] == [0, 1]
    assert workflow.run_one("failed") == 2
    assert prune(lab)[0] == 0
    lab.store.requeue([workflow.job(2)])
    assert lab.workflows.parent_results(workflow.job(2)) == {workflow.job(1): 1}
    assert workflow.run_one(body="1") == 2
    assert prune(lab)[0] == 3
    invariants(lab)


def test_a_job_that_outlives_its_workflow_learns_that_its_input_is_gone(lab: Lab) -> None:
    workflow = LabWorkflow(lab, {0: [], 1: [0], 2: []})
    workflow.push()
    assert workflow.run_one(body="1") == 0
    failing, running = lab.claim(jobs=2).jobs
    lab.finish(outcome(failing, "failed", ERROR))
    lab.store.control_workflow(workflow.id, "clean")
    workflow.advance()
    assert prune(lab) == (1, 0, False)
    with pytest.raises(ResultGone, match=workflow.id):
        lab.workflows.parent_results(running.id)


@pytest.mark.parametrize("state", ["waiting", "deleted", "completed"])
def test_a_run_unknown_to_redis_gets_no_results(lab: Lab, state: str) -> None:
    """A failover undid the end of the parents, or another run completed, which frees the results:
    None would not be what the parents returned."""
    lab.add("p")
    lab.add("f", after="wait p")
    if state == "deleted":
        lab.redis.delete(lab.keys.job("f"))
    elif state == "completed":
        lab.finish(outcome(lab.take()))
        lab.finish(outcome(lab.take()))
        assert lab.status("f") == "completed"
    with pytest.raises(LeaseLost, match="has no record that job f is running"):
        lab.workflows.parent_results("f")


# -- the byte cap


def test_the_byte_cap_first_removes_results_that_no_job_needs(lab: Lab) -> None:
    lab.end("p", body=result_of(MB))
    lab.end("q", body=result_of(MB))
    lab.add("f", after="wait p")
    lab.advance(LATER)
    caps(lab, 3 * MB // 2)
    assert lab.store.prune("default", "completed", 100, LATER * 10) == (1, 1, False)
    assert lab.workflows.parent_results("f") == {"p": "r" * (MB - 2)}
    invariants(lab)


def test_the_byte_cap_removes_needed_results_in_a_second_pass(lab: Lab) -> None:
    lab.end("p", body=result_of(MB))
    lab.add("f", after="wait p")
    caps(lab, MB // 2)
    assert lab.store.prune("default", "completed", 100, LATER * 10) == (0, 0, False)
    assert lab.store.prune("default", "completed", 100, LATER * 10) == (1, 1, False)
    assert lab.meta()["forced_total"] == 1
    lab.store.advance()
    assert not lab.redis.exists(lab.keys.followers("p"))
    with pytest.raises(ResultGone, match="FINISHED_MAX_BYTES"):
        lab.workflows.parent_results("f")
    assert lab.taken() == ["f"]
    invariants(lab)


def test_the_byte_cap_keeps_a_result_while_followers_are_being_notified(lab: Lab) -> None:
    lab.add("p")
    job = lab.take()
    for at in (0, 90):
        lab.add(*[f"f{n}" for n in range(at, at + 90)], after="wait p")
    lab.finish(outcome(job, body=result_of(MB)))
    caps(lab, MB // 2)
    for _ in range(3):
        assert lab.store.prune("default", "completed", 100, LATER * 10)[0] == 0
    for _ in lab.advancing():
        pass
    assert len(lab.ids("queued")) == 180
