"""Sync jobs in threads: many at a time, and as safe as jobs in the main thread."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app import tasks as app_tasks
from tests.worker import fork_tasks, tasks, thread_tasks
from tests.worker.harness import WorkerHarness
from tests.worker.processes import WorkerProcess, eventually

MODULES = [f"tests.worker.{name}" for name in ("tasks", "thread_tasks", "fork_tasks")]


@pytest.fixture
def worker(harness: WorkerHarness, database: Path) -> Iterator[WorkerProcess]:
    """One child with four threads."""
    harness.configure(TASK_MODULES=MODULES)
    harness.alter("quick_kill")
    return harness.worker("--processes", "1", "--threads", "4").wait_until_up(2)


def results(harness: WorkerHarness, jobs: list[Any]) -> list[Any]:
    for job in jobs:
        harness.ended(job)
        assert job.status == "completed", job.error
    return [job.result for job in jobs]


def test_as_many_jobs_as_threads_run_at_a_time(
    harness: WorkerHarness, worker: WorkerProcess
) -> None:
    """Async jobs run alongside. What a job leaves in its thread's context does not reach the next
    job."""
    beside = tasks.async_gauge.enqueue_many([(0.2,)] * 8)
    peaks = results(harness, thread_tasks.gauge.enqueue_many([(0.05,)] * 40))
    assert max(peaks) == 4
    assert max(results(harness, beside)) > 4
    left = thread_tasks.leave_context.enqueue_many([(f"n{n}",) for n in range(20)])
    assert set(results(harness, left)) == {""}
    assert "with 4 threads each" in worker.output


def test_a_child_killed_with_jobs_in_its_threads(
    harness: WorkerHarness, worker: WorkerProcess
) -> None:
    """All jobs that had started are recovered and run again alone; nothing else runs twice."""
    done = tasks.run.enqueue_many([(harness.book, f"done{n}") for n in range(20)])
    eventually(lambda: harness.statuses(done) == {"completed": 20}, why=harness.report)
    running = [thread_tasks.nap_at_first.enqueue(harness.book, f"running{n}") for n in range(4)]
    waiting = tasks.run.enqueue_many([(harness.book, f"waiting{n}") for n in range(5)])
    eventually(lambda: sum(f"running{n}" in harness.runs() for n in range(4)) == 4)
    os.kill(harness.pid("running0"), signal.SIGKILL)
    results(harness, running + waiting)
    runs = harness.runs()
    assert {runs[f"running{n}"] for n in range(4)} == {2}
    assert {runs[f"done{n}"] for n in range(20)} | {runs[f"waiting{n}"] for n in range(5)} == {1}
    assert {job.recoveries for job in running} == {1}
    assert {job.recoveries for job in waiting} == {0}
    order = [name for name in harness.in_order() if name.startswith("running")]
    for n in range(4):  # a second run and its end: no other recovered job started in between
        second = len(order) - 1 - order[::-1].index(f"running{n}")
        assert order[second + 1] == f"running{n} to its end"


def test_timeouts_and_cancels_reach_a_job_between_two_bytecodes(
    harness: WorkerHarness, worker: WorkerProcess
) -> None:
    children = worker.children
    late = app_tasks.spin.using(timeout=0.2).enqueue(30)
    unwanted = harness.running(thread_tasks.nap_to_end.enqueue(harness.book, "unwanted", 30))
    beside = thread_tasks.nap_to_end.enqueue(harness.book, "beside", 0.5)
    unwanted.cancel()
    for job in (late, unwanted, beside):
        harness.ended(job)
    assert late.error is not None
    assert (late.status, late.error.reason) == ("failed", "timeout")
    assert "longer than its timeout" in late.error.message
    assert "in spin" in late.error.traceback.splitlines()[1]
    assert (unwanted.status, unwanted.attempts) == ("cancelled", 0)
    assert beside.status == "completed"
    assert worker.children == children


def test_a_job_that_no_interrupt_reaches_is_killed_and_only_it_is_blamed(
    harness: WorkerHarness, worker: WorkerProcess
) -> None:
    beside = thread_tasks.nap_at_first.enqueue(harness.book, "beside")
    eventually(lambda: harness.runs()["beside"])
    stuck = tasks.run_then_sleep.using(timeout=0.2).enqueue(harness.book, "stuck", 60)
    harness.ended(stuck)
    assert stuck.error is not None
    assert "its process was killed" in stuck.error.message
    assert (stuck.status, stuck.attempts, stuck.recoveries) == ("failed", 1, 0)
    harness.ended(beside)
    assert (beside.status, beside.attempts, beside.recoveries) == ("completed", 0, 0)
    assert harness.runs()["beside"] == 2


def test_a_process_that_a_job_forks_in_its_thread_ends_with_the_task(
    harness: WorkerHarness, worker: WorkerProcess
) -> None:
    hows = ["return", "raise", "exit"]
    jobs = [fork_tasks.fork.enqueue(harness.book, how, how) for how in hows]
    assert results(harness, jobs) == ["the job's own"] * 3
    eventually(lambda: worker.output.count("returned from the task") == 3)
    assert harness.runs() == {name: 1 for how in hows for name in (how, f"{how}-fork")}


def test_jobs_in_threads_finish_when_the_worker_stops(
    harness: WorkerHarness, worker: WorkerProcess
) -> None:
    running = [thread_tasks.nap_to_end.enqueue(harness.book, f"n{n}", 2.0) for n in range(4)]
    eventually(lambda: len(harness.runs()) == 4, why=harness.report)
    waiting = tasks.run.enqueue(harness.book, "waiting")
    worker.term()
    assert worker.wait() == 0
    assert harness.statuses(running) == {"completed": 4}
    assert harness.statuses([waiting]) == {"queued": 1}


def test_each_thread_has_its_own_connections_and_closes_them(
    harness: WorkerHarness, database: Path
) -> None:
    harness.configure(TASK_MODULES=MODULES)
    harness.worker("--processes", "1", "--threads", "4", "--max-jobs", "20").wait_until_up(2)
    rows = thread_tasks.add_row.enqueue_many([(f"row{n}",) for n in range(20)])
    assert results(harness, rows) == [[False, True]] * 20
    left = thread_tasks.has_connection.enqueue_many([()] * 20)
    assert set(results(harness, left)) == {False}
    with sqlite3.connect(database) as connection:
        names = connection.execute("SELECT name FROM app_counter").fetchall()
        receipts = connection.execute("SELECT count(*) FROM django_redisqueue_receipt").fetchone()
    assert sorted(name for (name,) in names) == sorted(f"row{n}" for n in range(20))
    assert receipts == (20,)
