"""Jobs that fork or start programs: the new processes are not workers, and can be ended."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from django_redisqueue.broker.connection import WORKER_TIMEOUT
from tests.worker import fork_tasks, tasks
from tests.worker.harness import QUICK, WorkerHarness
from tests.worker.processes import eventually, is_alive


@pytest.fixture
def forking(harness: WorkerHarness) -> WorkerHarness:
    harness.configure(TASK_MODULES=[*QUICK["TASK_MODULES"], "tests.worker.fork_tasks"])
    return harness


@pytest.mark.parametrize(
    ("task", "how"),
    [
        ("fork", "return"), ("fork", "raise"), ("fork", "exit"),
        ("async_fork", "return"), ("thread_fork", "return"),
    ],
)  # fmt: skip
def test_a_forked_process_that_leaves_its_task_ends_there(
    forking: WorkerHarness, task: str, how: str
) -> None:
    worker = forking.worker("--processes", "1").wait_until_up(2)
    job: Any = getattr(fork_tasks, task).enqueue(forking.book, "forks", how)
    forking.ended(job)
    assert (job.status, job.result) == ("completed", "the job's own")
    eventually(lambda: forking.runs()["forks-fork"], why=forking.report)
    forked = forking.pid("forks-fork")
    eventually(lambda: not is_running(forked), why=forking.report)
    # The child continues alone: a second reader of its connection would swallow replies.
    jobs = tasks.run.enqueue_many([(forking.book, f"after{n}") for n in range(300)])
    forking.until_done(301)
    assert {forking.runs()[f"after{n}"] for n in range(300)} == {1}
    assert {forking.pid(f"after{n}") for n in range(300)} == {forking.pid("forks")}
    assert forking.count("recovered_total") == 0
    assert len(jobs) == 300
    code = {"return": 0, "raise": 1, "exit": 3}[how]
    told = f"a process that a job forked returned from the task, and was ended (exit code {code})"
    assert told in worker.output
    assert ("ValueError: in the fork" in worker.output) == (how == "raise")


@pytest.mark.parametrize("naps", [(), (0.0, 1.0)])
def test_a_pool_of_processes_can_be_left(forking: WorkerHarness, naps: tuple[float, ...]) -> None:
    """Even while one of them has only just been forked: it must not miss its SIGTERM."""
    forking.worker("--processes", "1").wait_until_up(2)
    job = forking.ended(fork_tasks.pool.enqueue(*naps))
    assert (job.status, job.result) == ("completed", [0, 1, 4, 9])


def test_a_pool_of_new_processes_sets_up_django(forking: WorkerHarness) -> None:
    """As docs/worker.md says: without it, they fail to import the task, and the pool hangs."""
    forking.worker("--processes", "1", fresh=True).wait_until_up(2)
    job = forking.ended(fork_tasks.pool_of_new_processes.enqueue())
    assert (job.status, job.result) == ("completed", [0, 1, 4, 9])


@pytest.mark.parametrize("kind", ["pool", "executor", "manager", "daemon"])
def test_processes_that_jobs_have_kept_end_with_their_child(
    forking: WorkerHarness, kind: str
) -> None:
    """Otherwise each child that is replaced (``--max-jobs``) leaves some behind for ever."""
    forking.worker("--processes", "1", "--max-jobs", "1").wait_until_up(2)
    kept, folder = forking.ended(fork_tasks.keep_processes.enqueue(kind)).result
    eventually(lambda: not is_running(kept), why=forking.report)
    eventually(lambda: not Path(folder).exists(), why=forking.report)


def is_running(pid: int) -> bool:
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def test_a_program_that_a_job_started_can_be_terminated(forking: WorkerHarness) -> None:
    forking.worker("--processes", "1").wait_until_up(2)
    job = forking.ended(fork_tasks.terminate_program.enqueue())
    assert (job.status, job.result) == ("completed", -signal.SIGTERM)


def test_a_child_ignores_a_direct_sigterm(forking: WorkerHarness) -> None:
    worker = forking.worker("--processes", "1").wait_until_up(2)
    job = forking.running(tasks.run_then_sleep.enqueue(forking.book, "slow", 1.5))
    for pid in worker.children:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            psutil.Process(pid).send_signal(number)
    forking.ended(job)
    assert (job.status, forking.runs()["slow"], job.recoveries) == ("completed", 1, 0)


@pytest.mark.parametrize(
    ("first", "last", "task"),
    [
        (1, 2, "close_files"), (0, 3, "close_files"), (3, 256, "close_files"),
        (3, 256, "async_close_files"),
    ],
)  # fmt: skip
def test_a_job_that_closes_the_files_of_its_process_affects_no_other_job(
    forking: WorkerHarness, first: int, last: int, task: str
) -> None:
    """Otherwise another job's output could go to a connection that got the closed file's number,
    and so on."""
    worker = forking.worker("--processes", "1").wait_until_up(2)
    closes: Any = getattr(fork_tasks, task)
    job = forking.ended(closes.enqueue(forking.book, "closes", first, last))
    assert (job.status, job.result, job.recoveries) == ("completed", "closed", 0)
    check_replaced(forking, "closes")
    assert "died (exit code 1)" in worker.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "threads"),
    [("leave_files_open", 1), ("leave_files_open", 2), ("async_leave_files_open", 1)],
)
def test_a_child_is_replaced_when_jobs_have_left_open_as_many_files_as_it_may_open(
    forking: WorkerHarness, task: str, threads: int
) -> None:
    """Otherwise further jobs would fail. The job itself, in a thread or on an event loop, could not
    be reported, because reporting needs a connection."""
    worker = forking.worker("--processes", "1", "--threads", str(threads)).wait_until_up(2)
    job = forking.ended(getattr(fork_tasks, task).enqueue(forking.book, "leaves"))
    assert (job.status, job.result, job.recoveries) == ("completed", "left", 0)
    check_replaced(forking, "leaves")
    assert "left open all files" in worker.output


def check_replaced(harness: WorkerHarness, before: str) -> None:
    """Check that later jobs run once, in a different child than the job ``before``."""
    tasks.run.enqueue_many([(harness.book, f"after{n}") for n in range(50)])
    harness.until_done(51, 8)
    assert set(harness.runs().values()) == {1}
    after = {harness.pid(f"after{n}") for n in range(50)}
    assert len(after) == 1
    assert harness.pid(before) not in after
    assert harness.count("recovered_total") == 0


def test_a_task_that_stops_the_event_loop_affects_no_other_job(forking: WorkerHarness) -> None:
    worker = forking.worker("--processes", "1").wait_until_up(2)
    other = tasks.async_run.enqueue(forking.book, "other", 0.3)
    job = fork_tasks.stop_the_loop.enqueue()
    later = tasks.async_run.enqueue(forking.book, "later", 0.0)
    forking.until_done(3)
    job.refresh()
    assert job.result == "went on"
    assert forking.statuses([other, later]) == {"completed": 2}
    assert "a task has stopped the event loop it runs on; it continues" in worker.output


def test_a_forked_process_has_its_own_connections(forking: WorkerHarness) -> None:
    """Otherwise each would read replies meant for the other, which would wait for them."""
    forking.worker("--processes", "1").wait_until_up(2)
    job = forking.ended(fork_tasks.steps_in_both.enqueue())
    assert job.status == "completed"
    code, seconds = job.result
    assert code == 0
    assert seconds < WORKER_TIMEOUT
