"""Chunk tasks."""

from __future__ import annotations

import os
import time
from typing import Any

from django_redisqueue import Backoff, Chunk, ChunkItem, task

from .tasks import trace

NO_DELAY = Backoff(base=0, jitter=0)


@task(
    chunk=Chunk(10, by="tenant", parameters=("text", "tenant")),
    takes_context=True,
    max_attempts=2,
    backoff=NO_DELAY,
)
def index(context: Any, items: list[ChunkItem]) -> list[list[str]]:
    """Does what the argument of each item says; returns the arguments of all items for each
    item."""
    together = [item.args[0] for item in items]
    for at, item in enumerate(items):
        match item.args[0].partition(" ")[0]:
            case "fail":
                context.fail(item, "not this one")
            case "retry":
                context.retry(at)
            case "raise" if item.attempt == 1:
                raise ConnectionError("all of them")
    return [together] * len(items)


@task(chunk=Chunk(10), takes_context=True, max_attempts=2, backoff=NO_DELAY)
def trace_step(context: Any, items: list[ChunkItem]) -> list[Any]:
    """Has a step per item, and fails the first time."""
    found = [context.step(item, "s", trace, *item.args) for item in items]
    if items[0].attempt == 1:
        raise ConnectionError("after the steps")
    return found


@task(chunk=Chunk(10))
def trace_all(items: list[ChunkItem]) -> None:
    """Records a run per item and one of the call; then, if there are several items, does what the
    first one says."""
    for item in items:
        trace(item.args[0], item.args[1])
    how, seconds = items[0].args[2:]
    trace(items[0].args[0], "call")
    end = time.monotonic() + seconds
    while len(items) > 1 and time.monotonic() < end:
        time.sleep(0.01)
    if len(items) > 1 and how == "exit":
        os._exit(1)


@task(chunk=Chunk(10))
def hang(items: list[ChunkItem]) -> None:
    """Swallows its timeout."""
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            continue
