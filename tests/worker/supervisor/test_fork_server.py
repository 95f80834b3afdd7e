"""The fork server, and a worker as the first process of a container."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

from django_redisqueue.worker.supervisor.fork_server import exit_cause
from django_redisqueue.worker.supervisor.supervisor import reap_orphans
from tests.support.commands import Script
from tests.worker import fork_tasks, tasks
from tests.worker.harness import QUICK, WorkerHarness
from tests.worker.processes import eventually, is_alive


def test_the_other_children_continue_when_a_fork_fails(harness: WorkerHarness) -> None:
    harness.alter("failing_forks")  # the fork of the second job child, twice
    worker = harness.worker("--processes", "2", MIRROR=False)
    job = tasks.run_then_sleep.enqueue(harness.book, "job", 1.5)
    eventually(lambda: len(worker.children) == 3, why=harness.report)
    harness.ended(job)
    assert (job.status, job.recoveries, harness.runs()["job"]) == ("completed", 0, 1)
    assert worker.output.count("Resource temporarily unavailable; trying again in 1 s") == 1
    assert re.search(r"no process for child \S+\.3: ", worker.output)  # maintenance comes first
    worker.term()
    assert worker.wait() == 0


@pytest.mark.parametrize(
    ("code", "words"), [(3, "exit code 3"), (-9, "signal SIGKILL"), (-40, "signal 40")]
)
def test_every_exit_has_a_cause(code: int, words: str) -> None:
    """Real-time signals have no names."""
    assert exit_cause(code) == words


LOADED = """
import psutil
from django_redisqueue.worker.supervisor.fork_server import ForkServer

loaded = [[number] for number in range(200_000)]  # 16 MB
server = ForkServer(lambda *_: 0)
server.spawn("jobs", 0, "child")
for _ in ("the child has started", "it has ended, and shares no more memory"):
    server.connection.recv_bytes()
print(psutil.Process(server.pid).memory_full_info().uss)
server.stop()
"""


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="elsewhere only root may ask for this")
def test_the_fork_server_copies_nothing_that_was_loaded_before() -> None:
    script = Script(LOADED)
    assert script.wait() == 0, script.output
    assert int(script.output) < 8 * 2**20


def test_a_worker_whose_launcher_ignores_sigchld_ends_in_order(harness: WorkerHarness) -> None:
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        "os.execvp(sys.argv[1], sys.argv[1:])"
    )
    worker = harness.worker("--processes", "1", prefix=[sys.executable, "-c", ignoring])
    worker.wait_until_up(2)
    worker.term()
    assert worker.wait() == 0, worker.output


def test_killing_the_fork_server_ends_the_worker_and_loses_nothing(harness: WorkerHarness) -> None:
    worker = harness.worker("--processes", "2").wait_until_up(3)
    jobs = tasks.run_then_sleep.enqueue_many([(harness.book, f"slow{n}", 0.3) for n in range(6)])
    eventually(lambda: len(harness.runs()) >= 2, why=harness.report)
    children = [psutil.Process(pid) for pid in worker.children]
    worker.fork_server.kill()
    assert worker.wait(10) != 0
    assert not any(is_alive(child) for child in children)
    assert "the fork server process is gone" in worker.output
    # Running jobs were released at once: no lease had to expire.
    assert harness.stats()["processing"] == 0
    harness.worker("--processes", "2")
    harness.until_done(6)
    assert harness.statuses(jobs) == {"completed": 6}


PR_SET_CHILD_SUBREAPER = 36
NEW_PIDS = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _as_the_first_process(out: int) -> None:
    """Adopt a grandchild and reap it, but do not reap a dead child of its own."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    reap_orphans(0)  # there is no child
    parent = subprocess.Popen(["sh", "-c", "sleep 0.05 & echo $!"], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    orphan = int(parent.stdout.readline())
    parent.wait()
    eventually(lambda: psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE)
    reap_orphans(0)
    assert not psutil.pid_exists(orphan)
    own = os.fork()
    if own == 0:
        os._exit(7)
    eventually(lambda: psutil.Process(own).status() == psutil.STATUS_ZOMBIE)
    reap_orphans(own)
    assert os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]) == 7
    os.write(out, b"done")


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="only Linux has subreapers")
def test_orphans_are_reaped_and_own_children_are_not() -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _as_the_first_process(write)
        finally:
            os._exit(0)
    os.close(write)
    assert os.read(read, 10) == b"done"
    os.waitpid(pid, 0)


in_new_pids = pytest.mark.skipif(
    subprocess.run([*NEW_PIDS, "true"], capture_output=True, check=False).returncode != 0,
    reason="this user may not make a pid namespace",
)


@in_new_pids
def test_sigterm_ends_a_worker_that_waits_for_redis(harness: WorkerHarness) -> None:
    """The kernel does not apply SIGTERM's default action to the first process."""
    worker = harness.worker("--processes", "1", prefix=NEW_PIDS, address="127.0.0.1:1")
    eventually(lambda: "trying again until it answers" in worker.output, why=harness.report)
    psutil.Process(worker.pid).children()[0].send_signal(signal.SIGTERM)
    assert worker.wait(5) == 130
    assert "stopped before it took a job" in worker.output


@in_new_pids
def test_a_worker_leaves_no_zombies(harness: WorkerHarness) -> None:
    harness.configure(TASK_MODULES=[*QUICK["TASK_MODULES"], "tests.worker.fork_tasks"])
    worker = harness.worker("--processes", "1", prefix=NEW_PIDS)
    fork_tasks.leave_a_program.enqueue(harness.book, "left")
    harness.until_done(0, failed=1)
    assert harness.runs()["left"] == 3

    def programs() -> list[str]:
        tree = psutil.Process(worker.pid).children(recursive=True)
        found = []
        for each in tree:
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                found += [str(each)] if each.name() == "sleep" else []
        return found

    eventually(lambda: not programs(), why=programs)
    supervisor = psutil.Process(worker.pid).children()[0]
    supervisor.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
