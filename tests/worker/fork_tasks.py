"""Tasks that fork or start programs, as libraries may do."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing.util import get_temp_dir
from typing import Any

import django
from asgiref.sync import sync_to_async

from django_redisqueue import task

from .tasks import trace


def _fork_and_leave(folder: str, name: str, how: str) -> str:
    """Both processes leave the task: the forked one returns, raises, or calls ``sys.exit``."""
    trace(folder, name)
    if os.fork():
        return "the job's own"
    trace(folder, f"{name}-fork")
    if how == "raise":
        raise ValueError("in the fork")
    if how == "exit":
        sys.exit(3)
    return "the fork's"


@task
def fork(folder: str, name: str, how: str) -> str:
    return _fork_and_leave(folder, name, how)


@task
async def async_fork(folder: str, name: str, how: str) -> str:
    return _fork_and_leave(folder, name, how)


@task
async def thread_fork(folder: str, name: str, how: str) -> str:
    return await sync_to_async(_fork_and_leave)(folder, name, how)


def _square(n: int) -> int:
    return n * n


_naps: list[float] = []  # s that newly forked processes sleep before the worker's code runs in them
os.register_at_fork(
    after_in_child=lambda: time.sleep(_naps[0]) if _naps else None,
    after_in_parent=lambda: _naps.pop(0) if _naps else None,
)


@task(timeout=5)
def pool(*naps: float) -> list[int]:
    """Leaving the block terminates the pool's processes, and waits for them."""
    _naps[:] = naps
    with multiprocessing.get_context("fork").Pool(2) as processes:
        return processes.map(_square, range(4))


@task
def pool_of_new_processes() -> list[int]:
    """What ``multiprocessing.Pool`` starts from Python 3.14 on: processes without Django."""
    with multiprocessing.get_context("forkserver").Pool(2, initializer=django.setup) as processes:
        return processes.map(_square, range(4))


_kept: list[Any] = []


@task
def keep_processes(kind: str) -> tuple[int, str]:
    """Keeps a pool or the like for later jobs of this process, as modules do that start it once.
    Returns the id of its process, and the folder for its sockets."""
    fork = multiprocessing.get_context("fork")
    if kind == "pool":
        _kept.append(fork.Pool(1))
        pid = _kept[0].apply(os.getpid)
    elif kind == "executor":
        _kept.append(ProcessPoolExecutor(1, mp_context=fork))
        pid = _kept[0].submit(os.getpid).result()
    elif kind == "manager":
        _kept.append(fork.Manager())
        pid = _kept[0]._process.pid
    else:
        _kept.append(fork.Process(target=time.sleep, args=(600,), daemon=True))
        _kept[0].start()
        pid = _kept[0].pid
    return pid, get_temp_dir()


@task(timeout=5)
def terminate_program() -> int:
    program = subprocess.Popen(["sleep", "60"])
    program.terminate()
    return program.wait()


@task
def leave_a_program(folder: str, name: str) -> None:
    """Dies before a program that it started."""
    trace(folder, name)
    subprocess.Popen(["sleep", "0.3"])
    os._exit(1)


@task
def close_files(folder: str, name: str, first: int, last: int) -> str:
    trace(folder, name)
    os.closerange(first, last)
    return "closed"


@task
async def async_close_files(folder: str, name: str, first: int, last: int) -> str:
    return close_files.func(folder, name, first, last)


_files: list[int] = []


@task
def leave_files_open(folder: str, name: str) -> str:
    """Leaves open as many files as its process may open."""
    trace(folder, name)
    with suppress(OSError):
        while True:
            _files.append(os.open(os.devnull, os.O_RDONLY))
    return "left"


@task
async def async_leave_files_open(folder: str, name: str) -> str:
    return leave_files_open.func(folder, name)


@task
async def stop_the_loop() -> str:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)
    return "went on"


@task(takes_context=True)
def steps_in_both(context: Any) -> list[int]:
    """The forked process also remembers steps of the job. Returns its exit code, and how many
    seconds the slower process took."""
    context.step("before", abs, 1)  # connects
    begun, pid = time.monotonic(), os.fork()
    name = "own" if pid else "fork"
    found = [context.step(f"{name}{n}", abs, n) for n in range(200)]
    if not pid:
        os._exit(0 if found == [*range(200)] else 1)
    return [os.waitpid(pid, 0)[1], int(time.monotonic() - begun)]
