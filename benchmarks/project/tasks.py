"""The tasks of the benchmarks."""

from __future__ import annotations

import asyncio
import time

from django.contrib.contenttypes.models import ContentType

from django_redisqueue import Limit, task

from .counting.base import connections


@task
def noop(value: object = None) -> None:
    """Does nothing, with one small argument."""


@task(concurrency=Limit(100, key="lane"))
def limited(lane: int) -> None:
    """Does nothing, under a limit that it never reaches."""


@task
def stamp(value: object = None) -> float:
    """Records when it started."""
    return time.time()


@task
def sleep(seconds: float) -> None:
    time.sleep(seconds)


@task
def hold_gil(exponent: int) -> int:
    """Compute in a single C call, during which no other thread of the process runs."""
    return len(bin(3**exponent))


@task(max_attempts=1)
def fail() -> None:
    raise ValueError("fails on purpose")


@task
async def async_sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


@task
async def async_query(seconds: float) -> int:
    """Sleep, query the database, and return the peak number of open connections."""
    await asyncio.sleep(seconds)
    await ContentType.objects.acount()
    return connections.peak
