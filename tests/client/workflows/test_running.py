"""Workflows run by real workers."""

from __future__ import annotations

import os
import random
import signal

import pytest

from django_redisqueue import Workflow, chain
from django_redisqueue.exceptions import WaitTimeout, WorkflowFailed
from tests.app.tasks import add, fail, noop
from tests.support.shards import keys_with
from tests.worker.harness import WorkerHarness
from tests.worker.processes import eventually
from tests.worker.tasks import retried_once, run, run_until_gate_opens

from . import tasks

FLOWS = 1000


@pytest.fixture(autouse=True)
def _tasks(harness: WorkerHarness) -> None:
    harness.configure(TASK_MODULES=["tests.worker.tasks", "tests.client.workflows.tasks"])


def test_results_of_parents_reach_their_child(harness: WorkerHarness) -> None:
    harness.worker("--processes", "2")
    with Workflow() as workflow:
        parts = [workflow.add(noop, n) for n in (3, 4, 5)]
        gathered = workflow.add(tasks.gathered, after=parts)
    workflow.wait(timeout=20)
    assert gathered.result == [3, 4, 5]


def test_each_job_of_a_chain_gets_the_previous_result(harness: WorkerHarness) -> None:
    harness.worker()
    workflow = chain(add.s(1, 2), add.s(10), add.s(100))
    workflow.wait(timeout=20)
    assert [job.result for job in workflow.jobs()] == [3, 13, 113]


def test_a_chain_whose_middle_failed_continues_with_its_result_after_a_retry(
    harness: WorkerHarness,
) -> None:
    harness.worker()
    workflow = chain(add.s(1, 2), tasks.doubles_at_second.s(str(harness.folder)), add.s(100))
    with pytest.raises(WorkflowFailed, match="1 of 3 jobs completed, 1 failed"):
        workflow.wait(timeout=20)
    first, middle, last = workflow.jobs()
    assert [job.status for job in (first, middle, last)] == ["completed", "failed", "waiting"]
    middle.requeue()
    assert workflow.wait(timeout=20).generation == 1
    last.refresh()
    assert last.result == 106


def test_a_chain_whose_parents_result_is_gone_fails_with_a_clear_error(
    harness: WorkerHarness,
) -> None:
    harness.worker()
    workflow = chain(add.s(1, 2), tasks.doubles_at_second.s(str(harness.folder)))
    with pytest.raises(WorkflowFailed):
        workflow.wait(timeout=20)
    first, last = workflow.jobs()
    harness.redis.delete(keys_with(first.id).job(first.id))  # as by FINISHED_MAX_BYTES
    last.requeue()
    with pytest.raises(WorkflowFailed):
        workflow.wait(timeout=20)
    last.refresh()
    assert last.error is not None
    assert last.error.type == "django_redisqueue.exceptions.ResultGone"
    assert first.id in last.error.message


def test_a_pause_holds_back_unstarted_jobs_and_a_release_keeps_the_order(
    harness: WorkerHarness,
) -> None:
    # One job at a time: jobs that a slow one keeps waiting in its child go back out of order.
    harness.worker("--processes", "1", BATCH_WINDOW_MS=0).wait_until_up(2)
    gate = harness.gate()
    with Workflow() as workflow:
        running = workflow.add(run_until_gate_opens, harness.book, "running", gate)
        again = workflow.add(retried_once, harness.book, "again")
        others = [workflow.add(run, harness.book, f"{n}") for n in range(3)]
        later = workflow.add(run.using(run_after=0.5), harness.book, "later")
    harness.running(running)
    workflow.pause()
    harness.open_gate(gate)
    harness.ended(running)
    eventually(lambda: workflow.data.waiting == 5, why=harness.report)
    assert harness.runs() == {"running": 1}
    noop.enqueue().wait(timeout=10)  # another job is not delayed
    assert [job.status for job in (again, *others, later)] == ["waiting"] * 5
    workflow.release()
    workflow.wait(timeout=20)
    assert harness.in_order()[:2] == ["running", "again"]
    assert [name for name in harness.in_order() if name not in ("running", "again")] == [
        "0",
        "1",
        "2",
        "later",
    ]


def test_a_failed_workflow_calls_back_and_a_retry_completes_it(harness: WorkerHarness) -> None:
    harness.worker()
    with Workflow(
        on_failure=run.s(harness.book, "failed"), on_complete=run.s(harness.book, "complete")
    ) as workflow:
        bad = workflow.add(tasks.fails_once, str(harness.folder))
        last = workflow.add(noop, "last", after=bad)
    with pytest.raises(WorkflowFailed, match="is failed: 0 of 2 jobs completed, 1 failed"):
        workflow.wait(timeout=20)
    bad.requeue()
    workflow.wait(timeout=20)
    assert last.result == "last"
    eventually(lambda: harness.runs() == {"failed": 1, "complete": 1}, why=harness.report)


def test_waiting_has_a_limit(harness: WorkerHarness) -> None:
    with Workflow() as workflow:
        workflow.add(noop)
    with pytest.raises(WaitTimeout, match="did not end in time"):
        workflow.wait(timeout=0.2)


def test_a_job_that_fails_for_good_stops_its_dependants(harness: WorkerHarness) -> None:
    harness.worker()
    with Workflow() as workflow:
        bad = workflow.add(fail)
        after = workflow.add(noop, after=bad)
    with pytest.raises(WorkflowFailed):
        workflow.wait(timeout=20)
    assert after.status == "waiting"


def test_agents_of_different_queues_share_one_workflow(harness: WorkerHarness) -> None:
    harness.configure(QUEUES={"default": {}, "heavy": {}})
    harness.worker("--queues", "default")
    harness.worker("--queues", "heavy")
    with Workflow() as workflow:
        light = workflow.add(tasks.who)
        heavy = workflow.add(tasks.who.using(queue_name="heavy"), after=light)
        workflow.add(noop, after=heavy)
    workflow.wait(timeout=20)
    assert light.result != heavy.result


def test_agents_down_to_a_priority_leave_the_rest_to_others(harness: WorkerHarness) -> None:
    harness.configure(QUEUES={"default": {}, "heavy": {}})
    harness.worker("--queues", "default", "--min-priority", "5")
    harness.worker("--queues", "heavy")
    with Workflow(priority=10) as workflow:
        urgent = workflow.add(tasks.who)
        heavy = workflow.add(tasks.who.using(queue_name="heavy", priority=0), after=urgent)
        low = workflow.add(tasks.who.using(priority=0), after=urgent)
        last = workflow.add(tasks.who, after=heavy)
    harness.ended(last)
    assert (workflow.data.completed, low.status) == (3, "queued")
    assert urgent.result == last.result != heavy.result
    harness.worker("--queues", "default")
    assert workflow.wait(timeout=20).completed == 4
    low.refresh()
    assert low.result not in (urgent.result, heavy.result)


def test_a_wide_workflow_is_started_and_notified_by_the_workers_alone(
    harness: WorkerHarness,
) -> None:
    harness.worker("--processes", "2")
    with Workflow() as workflow:
        first = workflow.add(noop)
        middle = [workflow.add(noop, n, after=first) for n in range(1000)]
        workflow.add(noop, after=middle)
    assert workflow.wait(timeout=30).completed == 1002


def test_jobs_that_wait_outside_a_workflow_start_once_under_kills(harness: WorkerHarness) -> None:
    worker = harness.worker("--processes", "2").wait_until_up(3)
    parents = noop.enqueue_many([(n,) for n in range(300)])
    children = []
    for n, parent in enumerate(parents):
        children.append(tasks.gathered.using(after=parent).enqueue())
        if n % 100 == 50:
            os.kill(worker.children[0], signal.SIGKILL)
    last = run.using(after=children[-50:]).enqueue(harness.book, "last")
    last.wait(timeout=60)
    assert harness.runs() == {"last": 1}
    eventually(
        lambda: all(child.refresh() or child.status == "completed" for child in children),
        60, every=0.2, why=harness.report,
    )  # fmt: skip
    assert [child.result for child in children] == [[n] for n in range(300)]


def test_kills_at_random_lose_nothing_and_call_back_once(harness: WorkerHarness) -> None:
    """Fan-out and fan-in while children and supervisors are killed."""
    chance = random.Random(7)
    workers = [harness.worker("--processes", "2").wait_until_up(3) for _ in range(2)]
    workflows, kills = [], 0
    for n in range(FLOWS):
        with Workflow(on_complete=run.s(harness.book, f"done{n}")) as workflow:
            first = workflow.add(noop)
            middle = [workflow.add(noop, part, after=first) for part in range(8)]
            workflow.add(noop, after=middle)
        workflows.append(workflow)
        if chance.random() < 0.02:
            victims = chance.choice(workers).children
            if victims:
                os.kill(chance.choice(victims), signal.SIGKILL)
                kills += 1
        if n in (FLOWS // 3, 2 * FLOWS // 3):
            which = chance.randrange(2)
            workers[which].kill()
            workers[which] = harness.worker("--processes", "2")
    assert kills >= 5, "hardly anything was killed"
    eventually(
        lambda: all(workflow.status == "completed" for workflow in workflows),
        60,
        every=0.2,
        why=harness.report,
    )
    assert all(workflow.data.completed == 10 for workflow in workflows)
    done = {f"done{n}": 1 for n in range(FLOWS)}
    eventually(lambda: harness.runs().keys() == done.keys(), 30, every=0.1, why=harness.report)
    harness.until_done(11 * FLOWS)  # each job and each callback was accepted once
