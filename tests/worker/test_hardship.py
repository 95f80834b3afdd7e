"""A machine that runs short, of processes, of disk, of an init; and what a worker makes of it."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from django_redisqueue.conf import load
from django_redisqueue.exceptions import InvalidOption
from django_redisqueue.worker import service
from django_redisqueue.worker.beacon import Beacon
from django_redisqueue.worker.identity import machine, parse_child
from django_redisqueue.worker.loop import ChildOptions
from django_redisqueue.worker.probe import Health, look
from django_redisqueue.worker.resources import bury_strangers
from django_redisqueue.worker.seat import Seat
from django_redisqueue.worker.service import WorkerOptions
from django_redisqueue.worker.zygote import Died

from . import fork_tasks, tasks
from .processes import eventually
from .stage import QUICK, Stage

PR_SET_CHILD_SUBREAPER = 36
NEW_PIDS = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def test_a_machine_without_room_for_a_process_keeps_those_there_are(stage: Stage) -> None:
    stage.configure(TASK_MODULES=[*QUICK["TASK_MODULES"], "tests.worker.few_forks"], MIRROR=False)
    stage.environment["FORKS_THAT_FAIL"] = "3,4"  # of the second job child and of maintenance
    worker = stage.worker("--processes", "2")
    job = tasks.run_then_sleep.enqueue(stage.book, "job", 1.5)
    eventually(lambda: len(worker.children) == 3, why=stage.report)
    stage.ended(job)
    assert (job.status, job.recoveries, stage.runs()["job"]) == ("completed", 0, 1)
    assert worker.output.count("Resource temporarily unavailable; trying again in 1 s") == 2
    worker.term()
    assert worker.wait() == 0


def limited(how: str) -> list[str]:
    """What starts a program with a limit of open files."""
    return ["sh", "-c", f'ulimit {how}; exec "$@"', "sh"]


def test_more_processes_than_there_may_be_files_are_refused_before_anything(stage: Stage) -> None:
    worker = stage.worker("--processes", "300", prefix=limited("-n 1024"), MIRROR=False)
    assert worker.wait() == 1
    assert worker.output == (
        "CommandError: --processes 300 needs 1236 open files, and this process may have 1024: "
        "raise that (ulimit -n 1236, or LimitNOFILE=1236 in its systemd unit), or lower "
        "--processes to 247\n"
    )
    assert stage.redis.keys() == []
    few = stage.worker("--processes", "5", prefix=limited("-n 30"), MIRROR=False)
    assert few.wait() == 1
    assert few.output.endswith("in its systemd unit), or lower --processes\n")


def test_the_number_of_processes_that_is_named_does_fit(stage: Stage) -> None:
    prefix = limited("-n 72")
    worker = stage.worker("--processes", "10", prefix=prefix, MIRROR=False)
    assert worker.wait() == 1
    assert worker.output.endswith("or lower --processes to 9\n")
    job = tasks.limit_of_files.enqueue()
    stage.worker("--processes", "9", prefix=prefix, MIRROR=False)
    assert stage.ended(job).result == 72


def test_a_limit_that_is_raised_for_the_seats_is_not_that_of_jobs(stage: Stage) -> None:
    """Twenty-one seats have 84 files."""
    job = tasks.limit_of_files.enqueue()
    worker = stage.worker("--processes", "20", prefix=limited("-S -n 64"), MIRROR=False)
    worker.wait_until_up(21)
    assert stage.ended(job).result == 64
    assert psutil.Process(worker.pid).rlimit(psutil.RLIMIT_NOFILE)[0] == 116
    eventually(lambda: max(_open_files(child) for child in worker.children) < 32)
    worker.term()
    assert worker.wait() == 0


def _open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_seats_that_can_not_be_had_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(number: int, slots: int) -> Seat:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    monkeypatch.setattr(service, "Seat", full)
    options = WorkerOptions(processes=2, child=ChildOptions(queues=("default",)))
    with pytest.raises(InvalidOption) as caught:
        service.Service(options, load({"MIRROR": False}))
    assert str(caught.value) == (
        "there is no room for 3 child processes ([Errno 23] Too many open files in system): lower "
        "--processes"
    )


@pytest.mark.parametrize(
    ("code", "words"), [(3, "exit code 3"), (-9, "signal SIGKILL"), (-40, "signal 40")]
)
def test_every_end_has_its_words(code: int, words: str) -> None:
    """Real-time signals have no names."""
    assert Died(1, code).cause == words


def test_a_heartbeat_file_that_can_not_be_written_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    beacon = Beacon(str(folder / "beat"))
    shutil.rmtree(folder)
    beacon.beat(True)
    beacon.beat(True)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert f"the heartbeat file {folder / 'beat'} cannot be written" in told[0]
    folder.mkdir()
    beacon.beat(True)
    assert look(folder / "beat", 5)[0] is Health.ALIVE
    shutil.rmtree(folder)
    beacon.beat(True)
    assert len(caplog.records) == 2
    beacon.remove()


def test_a_process_that_proc_hides_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """hidepid: another user's processes have no folder in /proc, but can be asked after."""
    worker = parse_child(f"alpha.{machine()}.{2**22 + 1}.5.1")
    assert worker is not None
    assert worker.is_gone

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(f"{pid} {number}")

    monkeypatch.setattr(os, "kill", refuse)
    assert not worker.is_gone


def _as_the_first_process(out: int) -> None:
    """Have a grandchild left to this process, and bury it, but not a dead child of its own."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    bury_strangers(0)  # nobody is there
    parent = subprocess.Popen(["sh", "-c", "sleep 0.05 & echo $!"], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    orphan = int(parent.stdout.readline())
    parent.wait()
    eventually(lambda: psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE)
    bury_strangers(0)
    assert not psutil.pid_exists(orphan)
    own = os.fork()
    if own == 0:
        os._exit(7)
    eventually(lambda: psutil.Process(own).status() == psutil.STATUS_ZOMBIE)
    bury_strangers(own)
    assert os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]) == 7
    os.write(out, b"done")


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="there are subreapers on Linux only")
def test_strangers_are_buried_and_ones_own_are_not() -> None:
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
def test_the_first_process_of_a_container_hears_sigterm_before_its_redis_is_there(
    stage: Stage,
) -> None:
    """The kernel spares a first process that has no handler."""
    worker = stage.worker("--processes", "1", prefix=NEW_PIDS, address="127.0.0.1:1")
    eventually(lambda: "trying again until it answers" in worker.output, why=stage.report)
    psutil.Process(worker.pid).children()[0].send_signal(signal.SIGTERM)
    assert worker.wait(5) == 130
    assert "stopped before it took a job" in worker.output


def test_a_worker_whose_launcher_ignores_sigchld_ends_in_order(stage: Stage) -> None:
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        "os.execvp(sys.argv[1], sys.argv[1:])"
    )
    worker = stage.worker("--processes", "1", prefix=[sys.executable, "-c", ignoring])
    worker.wait_until_up(2)
    worker.term()
    assert worker.wait() == 0, worker.output


@in_new_pids
def test_the_first_process_of_a_container_leaves_no_zombies(stage: Stage) -> None:
    stage.configure(TASK_MODULES=[*QUICK["TASK_MODULES"], "tests.worker.fork_tasks"])
    worker = stage.worker("--processes", "1", prefix=NEW_PIDS)
    fork_tasks.leave_a_program.enqueue(stage.book, "left")
    stage.until_done(0, failed=1)
    assert stage.runs()["left"] == 3

    def programs() -> list[str]:
        tree = psutil.Process(worker.pid).children(recursive=True)
        found = []
        for each in tree:
            with suppress(psutil.NoSuchProcess):  # it has ended since
                found += [str(each)] if each.name() == "sleep" else []
        return found

    eventually(lambda: not programs(), why=programs)
    supervisor = psutil.Process(worker.pid).children()[0]
    supervisor.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
