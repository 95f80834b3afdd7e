"""Tasks for all tests: each does one observable thing."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from importlib.util import find_spec
from itertools import count as numbers
from pathlib import Path
from typing import Any

import django
from django.db.models import F

from django_redisqueue import Backoff, Retry, task

from .models import Counter

NO_DELAY = Backoff(base=0, jitter=0)


def bump(name: str) -> int:
    """Increment the counter of that name and return its new value (exact if only one job runs at a
    time)."""
    Counter.objects.get_or_create(name=name)
    Counter.objects.filter(name=name).update(value=F("value") + 1)
    return Counter.objects.get(name=name).value


@task
def noop(x: Any = None) -> Any:
    return x


@task
def add(a: float, b: float) -> float:
    return a + b


@task
def fail(message: str = "boom") -> None:
    raise ValueError(message)


@task(max_attempts=5, backoff=NO_DELAY)
def flaky(key: str, failures: int) -> int:
    """Fail the first ``failures`` runs, counted in the Counter ``key``; return how many ran."""
    runs = bump(key)
    if runs <= failures:
        raise ConnectionError(f"run {runs} of {key} fails")
    return runs


@task(max_attempts=3, takes_context=True)
def retry_later(context: Any, delay: float) -> int:
    """Ask for another attempt until the last; return its number."""
    if context.attempt < 3:
        raise Retry("not yet", delay=delay)
    attempt: int = context.attempt
    return attempt


@task
def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@task
def spin(seconds: float) -> None:
    """A pure Python loop: busy, but open to interrupts."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@task
def block_in_c(seconds: float) -> None:
    """One C call of this length that holds the GIL and that no signal interrupts. It sleeps instead
    of computing, because the processes of other tests need the cores."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).poll(None, 0, round(seconds * 1000))
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@task
def exit_softly(code: int = 1) -> None:
    raise SystemExit(code)


@task
def count(name: str) -> int:
    return bump(name)


@task(takes_context=True)
def progress(context: Any, n: int) -> int:
    for done in range(1, n + 1):
        context.progress(done, n, f"step {done}")
    return n


@task(takes_context=True)
def context_info(context: Any) -> dict[str, Any]:
    return {
        "job": context.job.id,
        "attempt": context.attempt,
        "cancelled": context.cancelled,
        "pid": os.getpid(),
    }


@task(takes_context=True)
def until_cancelled(context: Any, seconds: float) -> str:
    """Look for a cancel, politely, for at most ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if context.cancelled:
            return "saw the cancel"
        time.sleep(0.01)
    return "saw none"


@task
async def async_sleep(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@task
async def async_query() -> int:
    return await Counter.objects.acount()


@task
async def async_fail(message: str = "boom") -> None:
    await asyncio.sleep(0)
    raise ValueError(message)


@task
def ledger(folder: str, name: str) -> int:
    """Leave the file ``<folder>/<name>.<n>``, n = 1, 2, ...: a second run cannot go unnoticed."""
    for n in numbers(1):
        try:
            os.close(os.open(Path(folder) / f"{name}.{n}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        return n
    raise AssertionError


@task
def pid() -> int:
    return os.getpid()


@task
def large_result(size: int) -> str:
    return "x" * size


@task
def bad_result() -> Any:
    return object()


@task
def leak(megabytes: int) -> int:
    """Keep memory forever, for workers that are recycled because of it."""
    _leaked.append(bytearray(megabytes * 2**20))
    return len(_leaked)


_leaked: list[bytearray] = []


@task
def spawn(depth: int) -> str | None:
    """A job that enqueues a job, ``depth`` times over; returns the id of the next."""
    return spawn.enqueue(depth - 1).id if depth > 0 else None


@task(name="tests.renamed", aliases=["tests.old_name"])
def renamed(x: Any = None) -> Any:
    return x


if django.VERSION >= (6, 0) or find_spec("django_tasks") is not None:
    # Where Django has its own Tasks, workers that import this module also know those tasks.
    from . import django_tasks  # noqa: F401
    from .other_tasks import *  # noqa: F403
