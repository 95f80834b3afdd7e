"""Chunks in real workers: many jobs run in one call, and each of them ends on its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from django_redisqueue import Job, JobQueue
from tests.support.burst import work
from tests.worker import chunk_tasks, tasks
from tests.worker.harness import WorkerHarness
from tests.worker.processes import WorkerProcess, eventually


@pytest.fixture
def worker(harness: WorkerHarness) -> WorkerProcess:
    """One child, with its queue paused."""
    harness.configure(TASK_MODULES=["tests.worker.tasks", "tests.worker.chunk_tasks"])
    harness.alter("quick_kill")
    worker = harness.worker("--processes", "1").wait_until_up(2)
    harness.warm_up(100)
    JobQueue("default").pause()
    return worker


def ended(harness: WorkerHarness, jobs: Sequence[Job]) -> list[Job]:
    JobQueue("default").resume()
    return [harness.ended(job) for job in jobs]


def test_the_jobs_of_one_key_run_in_one_call_and_each_has_its_own_outcome(
    harness: WorkerHarness, worker: WorkerProcess
) -> None:
    texts = ["a", "fail b", "retry c", "d"]
    jobs = [chunk_tasks.index.enqueue(text, tenant) for text in texts for tenant in ("x", "y")]
    for at, job in enumerate(ended(harness, jobs)):
        text = texts[at // 2]
        if text == "fail b":
            assert job.error is not None
            assert (job.status, job.error.message, job.attempts) == ("failed", "not this one", 1)
        # and then, run alone, it asks for another attempt but has none left
        elif text == "retry c":
            assert (job.status, job.attempts) == ("failed", 2)
        else:
            assert (job.status, job.result) == ("completed", texts)


def test_the_first_claim_of_a_child_has_a_whole_chunk(queue_settings: dict[str, Any]) -> None:
    texts = [f"text {n}" for n in range(10)]
    jobs = chunk_tasks.index.enqueue_many([(text, "x") for text in texts])
    work()
    for job in jobs:
        job.refresh()
        assert job.result == texts


def test_an_exception_applies_to_all_jobs_of_the_chunk(
    harness: WorkerHarness, worker: WorkerProcess
) -> None:
    jobs = [chunk_tasks.index.enqueue(text, tenant=1) for text in ("a", "fail b", "raise c")]
    first, failed, raised = ended(harness, jobs)
    assert (first.status, first.attempts) == ("completed", 1)
    assert (failed.status, failed.attempts) == ("failed", 1)  # it was said before
    assert (raised.status, raised.attempts) == ("completed", 1)


def test_each_job_remembers_its_steps(harness: WorkerHarness, worker: WorkerProcess) -> None:
    jobs = [chunk_tasks.trace_step.enqueue(harness.book, f"n{n}") for n in range(3)]
    for job in ended(harness, jobs):
        assert (job.status, job.attempts, job.result) == ("completed", 1, 1)
    assert {harness.runs()[f"n{n}"] for n in range(3)} == {1}


def test_a_crash_recovers_all_and_each_runs_alone_then(
    harness: WorkerHarness, worker: WorkerProcess
) -> None:
    jobs = [chunk_tasks.trace_all.enqueue(harness.book, f"n{n}", "exit", 0) for n in range(4)]
    beside = tasks.run.enqueue(harness.book, "beside")
    ended(harness, [*jobs, beside])
    assert harness.statuses([*jobs, beside]) == {"completed": 5}
    assert {job.recoveries for job in jobs} == {1}
    assert {harness.runs()[f"n{n}"] for n in range(4)} == {2}
    assert (harness.runs()["call"], harness.runs()["beside"]) == (5, 1)


def test_a_chunk_that_ignores_its_timeout_is_killed_and_all_of_it_has_timed_out(
    harness: WorkerHarness, worker: WorkerProcess
) -> None:
    jobs = [chunk_tasks.hang.using(timeout=0.2).enqueue() for _ in range(3)]
    for job in ended(harness, jobs):
        assert job.error is not None
        assert (job.status, job.error.reason, job.recoveries) == ("failed", "timeout", 0)
        assert "its process was killed" in job.error.message
    assert worker.output.count("did not stop at its timeout") == 1


def test_a_cancel_of_one_job_does_not_interrupt_the_others(
    harness: WorkerHarness, worker: WorkerProcess
) -> None:
    jobs = [chunk_tasks.trace_all.enqueue(harness.book, f"n{n}", "", 2.0) for n in range(3)]
    JobQueue("default").resume()
    eventually(lambda: harness.runs()["call"])
    assert jobs[0].cancel()
    ended(harness, jobs)
    assert harness.statuses(jobs) == {"completed": 3}
    assert harness.runs()["call"] == 1


def test_the_chunk_of_a_killed_worker_runs_in_the_next_one(
    harness: WorkerHarness, worker: WorkerProcess
) -> None:
    jobs = [chunk_tasks.trace_all.enqueue(harness.book, f"n{n}", "", 60) for n in range(3)]
    JobQueue("default").resume()
    eventually(lambda: harness.runs()["call"])
    os.kill(harness.pid("call"), signal.SIGKILL)
    ended(harness, jobs)
    assert harness.statuses(jobs) == {"completed": 3}
    assert {harness.runs()[f"n{n}"] for n in range(3)} == {2}
