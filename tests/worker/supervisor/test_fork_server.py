"""The fork server: failed forks, exit causes, and how it ends."""

from __future__ import annotations

import sys

import psutil
import pytest

from django_redisqueue.worker.supervisor.fork_server import ChildExited
from tests.worker import tasks
from tests.worker.processes import eventually, is_alive
from tests.worker.stage import Stage


def test_the_other_children_go_on_when_a_fork_fails(stage: Stage) -> None:
    stage.alter("failing_forks")  # those of the second job child and of maintenance
    worker = stage.worker("--processes", "2", MIRROR=False)
    job = tasks.run_then_sleep.enqueue(stage.book, "job", 1.5)
    eventually(lambda: len(worker.children) == 3, why=stage.report)
    stage.ended(job)
    assert (job.status, job.recoveries, stage.runs()["job"]) == ("completed", 0, 1)
    assert worker.output.count("Resource temporarily unavailable; trying again in 1 s") == 2
    worker.term()
    assert worker.wait() == 0


@pytest.mark.parametrize(
    ("code", "words"), [(3, "exit code 3"), (-9, "signal SIGKILL"), (-40, "signal 40")]
)
def test_every_exit_has_a_cause(code: int, words: str) -> None:
    """Real-time signals have no names."""
    assert ChildExited(1, code).cause == words


def test_a_worker_whose_launcher_ignores_sigchld_ends_in_order(stage: Stage) -> None:
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        "os.execvp(sys.argv[1], sys.argv[1:])"
    )
    worker = stage.worker("--processes", "1", prefix=[sys.executable, "-c", ignoring])
    worker.wait_until_up(2)
    worker.term()
    assert worker.wait() == 0, worker.output


def test_a_killed_fork_server_ends_the_worker_and_nothing_is_lost(stage: Stage) -> None:
    worker = stage.worker("--processes", "2").wait_until_up(3)
    jobs = tasks.run_then_sleep.enqueue_many([(stage.book, f"slow{n}", 0.3) for n in range(6)])
    eventually(lambda: len(stage.runs()) >= 2, why=stage.report)
    children = [psutil.Process(pid) for pid in worker.children]
    worker.fork_server.kill()
    assert worker.wait(10) != 0
    assert not any(is_alive(child) for child in children)
    assert "the fork server process is gone" in worker.output
    # What ran was given back at once: no lease had to lapse.
    assert stage.stats()["processing"] == 0
    stage.worker("--processes", "2")
    stage.until_done(6)
    assert stage.statuses(jobs) == {"completed": 6}
