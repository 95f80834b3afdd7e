"""What the processes of one run of the suite share: folders that the first of them fills."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

VARIABLE = "REDISQUEUE_TEST_SUITE"  # the folder of this run, in the environment
_ALIVE = "alive"


@cache
def run_folder() -> Path:
    """The folder of this run, which goes with the process that asks for it first: with xdist that
    is the one that starts the others."""
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    # Not pytest's folder: a socket's path has 104 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="drq-suite-", dir="/tmp"))
    os.mkfifo(folder / _ALIVE)
    os.open(folder / _ALIVE, os.O_RDWR)  # held open until this process ends
    os.environ[VARIABLE] = str(folder)
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def open_until_the_end() -> int:
    """A descriptor that is at its end of file, and so becomes readable, when the run ends."""
    return os.open(run_folder() / _ALIVE, os.O_RDONLY | os.O_NONBLOCK)


def shared(name: str, fill: Callable[[Path], object]) -> Path:
    """The folder of this name, which ``fill`` has filled in the process that asked first."""
    folder = run_folder() / name
    with (run_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = run_folder() / f"{name}.unfinished"
            unfinished.mkdir()
            fill(unfinished)
            unfinished.rename(folder)
    return folder
