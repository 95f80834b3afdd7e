"""The processes of one run of the suite: the folders that they share, and the order of their
tests."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

VARIABLE = "REDISQUEUE_TEST_SUITE"  # the folder of this run, in the environment
TOGETHER = {"browser"}  # folders whose modules share a fixture
MEMORY = "/dev/shm"
_ALIVE = "alive"


def use_memory_for_files() -> None:
    """Put the files of servers and tests into memory, if the system has a folder for that with
    enough space: writing them to a disk takes a tenth of the CPU time, and waits for it."""
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return
    is_large = found.f_bavail * found.f_frsize >= 4 * 2**30
    if "TMPDIR" not in os.environ and is_large and not found.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = MEMORY
        tempfile.tempdir = None  # read the variable again


def short_folder(prefix: str) -> Path:
    """A new folder. It is not pytest's: a socket's path can have at most 104 bytes."""
    parent = MEMORY if os.environ.get("TMPDIR") == MEMORY else "/tmp"
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))


@cache
def run_folder() -> Path:
    """The folder of this run, deleted with the process that asks for it first. Under xdist that is
    the one that starts the others."""
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    folder = short_folder("drq-suite-")
    os.mkfifo(folder / _ALIVE)
    os.open(folder / _ALIVE, os.O_RDWR)  # held open until this process ends
    os.environ[VARIABLE] = str(folder)
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def open_until_the_end() -> int:
    """A descriptor that reaches its end of file, and so becomes readable, when the run ends."""
    return os.open(run_folder() / _ALIVE, os.O_RDONLY | os.O_NONBLOCK)


def shared(name: str, fill: Callable[[Path], object]) -> Path:
    """The folder of this name, which ``fill`` has filled in the first process that asked."""
    folder = run_folder() / name
    with (run_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = run_folder() / f"{name}.unfinished"
            unfinished.mkdir()
            fill(unfinished)
            unfinished.rename(folder)
    return folder


def send_less(config: pytest.Config) -> None:
    """Let this process of xdist send only what is read: one report of a test that passes. Six
    messages cost as much CPU as all else that pytest does for a test. Reports of setup and teardown
    are sent if their times are asked for."""
    is_timed = config.option.durations is not None or config.option.xmlpath
    plugins = config.pluginmanager.get_plugins()
    worker: Any = next(plugin for plugin in plugins if hasattr(plugin, "sendevent"))
    send = worker.sendevent

    def send_what_is_read(name: str, **content: Any) -> None:
        if name == "testreport":
            report = content["data"]
            report["keywords"] = {}  # much of its size
            if report["outcome"] == "passed" and report["when"] != "call" and not is_timed:
                return
        if name not in ("logstart", "logfinish"):
            send(name, **content)

    worker.sendevent = send_what_is_read


def wait_for_processes() -> None:
    """Let xdist wait for its processes. After ten seconds, which all of them can need on a busy
    machine, it would kill them, and the servers that they have yet to end would stay."""
    try:
        from xdist.workermanage import NodeManager
    except ImportError:
        return
    NodeManager.EXIT_TIMEOUT = 300


def dealing_order(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """An order of tests from which xdist deals each process an equal part.

    Each part has modules of every folder, and each begins with a different folder, so that tests
    that wait run at the same time as tests that compute. Modules with slow tests come first in
    their part, because the last ones to run should be short.
    """
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(_module(item), []).append(item)
    slow = {path for path, tests in modules.items() if any(map(_is_slow, tests))}
    paths = sorted(modules)
    mixed: list[pytest.Item] = []
    order: list[pytest.Item] = []
    for number in range(processes):
        part = paths[number::processes]
        first = len(part) * number // processes
        for path in part[first:] + part[:first]:
            mixed += modules[path]
    for left in range(processes, 0, -1):
        size = len(mixed) // left  # as WorkStealingScheduling deals them
        order += sorted(mixed[:size], key=lambda item: _module(item) not in slow)
        del mixed[:size]
    return order


def _module(item: pytest.Item) -> Path:
    return item.path.parent if item.path.parent.name in TOGETHER else item.path


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None
