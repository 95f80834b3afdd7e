"""Tasks that look for their own context in the places where code of a job runs."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async

from django_redisqueue import Chunk, ChunkItem, JobContext, current_context, task
from django_redisqueue.exceptions import JobCancelled
from django_redisqueue.telemetry import JobFilter

from .tasks import trace

LEFT: list[Context] = []
FACTS = ("job_id", "task", "queue", "attempt")


def seen() -> str | None:
    """The id of the job that this code runs for."""
    context = current_context()
    return None if context is None else context.job.id


async def aseen() -> str | None:
    return seen()


def in_a_thread(func: Any = seen) -> str | None:
    with ThreadPoolExecutor(1) as threads:
        found: str | None = threads.submit(func).result()
    return found


def logged() -> list[object]:
    """What the filter adds to a record that is logged now."""
    record = logging.makeLogRecord({})
    JobFilter().filter(record)
    return [getattr(record, fact) for fact in FACTS]


@task
def here() -> dict[str, Any]:
    context = current_context()
    assert context is not None
    assert context is current_context()
    context.progress(1, 2, "half")
    found = {
        "step": context.step("id", seen),
        "async": async_to_sync(aseen)(),
        "copy": in_a_thread(partial(copy_context().run, seen)),
    }
    return {"ids": found, "thread": in_a_thread(), "logged": logged()}


@task
def leave() -> None:
    assert current_context() is not None
    LEFT[:] = [copy_context()]


@task
async def ahere() -> dict[str, Any]:
    context = current_context()
    assert context is not None
    context.progress(1, 2, "half")
    found = {
        "step": await context.astep("id", seen),
        "sync": await sync_to_async(seen)(),
        "thread": await asyncio.to_thread(seen),
        "task": await asyncio.create_task(aseen()),
    }
    at_once = await asyncio.gather(*(asyncio.to_thread(current_context) for _ in range(5)))
    assert {id(one) for one in at_once} == {id(context)}
    executor = await asyncio.get_running_loop().run_in_executor(None, seen)
    return {"ids": found, "thread": executor, "logged": logged()}


@task(takes_context=True)
def with_context(context: JobContext) -> bool:
    return context is current_context()


@task(takes_context=True)
async def with_acontext(context: JobContext) -> bool:
    return context is current_context()


@task(chunk=Chunk(10, wait=0), takes_context=True)
def together(context: Any, items: list[ChunkItem]) -> list[Any]:
    return [[seen(), *logged()] for _ in items]


@task
def until_cancelled(folder: str) -> None:
    """Its context exists only once it was cancelled."""
    try:
        trace(folder, "started")
        while True:
            time.sleep(0.01)
    except JobCancelled:
        context = current_context()
        assert context is not None
        context.progress(1, 1, f"cancelled: {context.cancelled}")
        raise
