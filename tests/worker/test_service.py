"""A worker needs open files for each of its children, and says so before it starts."""

from __future__ import annotations

import os

import psutil

from . import tasks
from .processes import eventually
from .stage import Stage


def limited(how: str) -> list[str]:
    """What starts a program with a limit of open files."""
    return ["sh", "-c", f'ulimit {how}; exec "$@"', "sh"]


def test_too_many_processes_for_the_limit_of_open_files_are_refused_at_once(stage: Stage) -> None:
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


def test_the_suggested_number_of_processes_fits(stage: Stage) -> None:
    prefix = limited("-n 72")
    worker = stage.worker("--processes", "10", prefix=prefix, MIRROR=False)
    assert worker.wait() == 1
    assert worker.output.endswith("or lower --processes to 9\n")
    job = tasks.limit_of_files.enqueue()
    stage.worker("--processes", "9", prefix=prefix, MIRROR=False)
    assert stage.ended(job).result == 72


def test_jobs_do_not_inherit_the_raised_limit_of_open_files(stage: Stage) -> None:
    """The supervisor has 84 pipe ends for 21 children."""
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
