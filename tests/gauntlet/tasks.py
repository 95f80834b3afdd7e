"""The jobs of the gauntlet. Each run marks its start and end in the ledger."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from django_redisqueue import Backoff, Chunk, ChunkItem, Limit, Rate, listener, task
from tests.app.tasks import bump

from .ledger import running, write

LIMIT, KEYED_LIMIT = 3, 1
RATE, WINDOW_MS, BURST = 5, 500, 2
TOPIC = "gauntlet"
LISTENERS = 2
SOON = Backoff(base=0.1, jitter=0)
# For tasks that need the database: attempts fail while it is down.
PATIENT: dict[str, Any] = {"max_attempts": 1000, "backoff": Backoff(base=0.2, factor=1)}


@task(takes_context=True)
def plain(context: Any, call: str, seconds: float = 0.0) -> str:
    with running("plain", call, context.job.id):
        time.sleep(seconds)
    return call


@task(takes_context=True)
async def in_a_loop(context: Any, call: str) -> str:
    with running("async", call, context.job.id):
        await asyncio.sleep(0.05)
    return call


@task(takes_context=True, max_attempts=3, backoff=SOON)
def retried(context: Any, call: str) -> int:
    with running("retried", call, context.job.id, attempt=context.attempt):
        if context.attempt == 1:
            raise ConnectionError("the first attempt")
    return int(context.attempt)


@task(takes_context=True, max_attempts=2, backoff=SOON)
def failing(context: Any, call: str) -> None:
    with running("failing", call, context.job.id):
        raise ConnectionError("as always")


@task(takes_context=True, concurrency=Limit(LIMIT))
def limited(context: Any, call: str) -> None:
    with running("limited", call, context.job.id, limit="all"):
        time.sleep(0.05)


@task(takes_context=True, concurrency=Limit(KEYED_LIMIT, key="key"))
def keyed(context: Any, call: str, key: str) -> None:
    with running("keyed", call, context.job.id, limit=key):
        time.sleep(0.03)


@task(takes_context=True, rate=Rate(RATE, f"{WINDOW_MS}ms", burst=BURST))
def rated(context: Any, call: str) -> None:
    with running("rated", call, context.job.id):
        pass


@task(takes_context=True, unique="until_finished", unique_by="key")
def unique(context: Any, call: str, key: str) -> None:
    with running("unique", call, context.job.id, limit=key):
        time.sleep(0.1)


@task(takes_context=True, unique="keep_last", unique_by="key")
def newest(context: Any, call: str, key: str, number: int) -> None:
    with running("newest", call, context.job.id, key=key, number=number):
        time.sleep(0.05)


@task(takes_context=True, exactly_once=True, **PATIENT)
def counted(context: Any, call: str) -> None:
    """Increments its counter, and enqueues a job that increments another."""
    with running("exactly_once", call, context.job.id):
        bump(call)
        counted_too.enqueue(f"{call}+")


@task(takes_context=True, exactly_once=True, **PATIENT)
def counted_too(context: Any, call: str) -> None:
    with running("exactly_once", call, context.job.id):
        bump(call)


@task(takes_context=True, **PATIENT)
def long_work(context: Any, call: str) -> Any:
    """Two steps, one of them with a transaction, then a sleep, and an event that the producer
    sends."""
    with running("steps", call, context.job.id):
        context.step("first", len, call)
        context.step("book", bump, call, atomic=True)
        context.sleep(0.3)
        return context.wait_for(f"gauntlet:{call}", timeout="1h")


@task(takes_context=True, chunk=Chunk(10, wait=0.2), max_attempts=2, backoff=SOON)
def in_chunks(context: Any, items: list[ChunkItem]) -> None:
    for item in items:
        write("start", kind="chunk", call=item.args[0], job=item.id)
    for item in items:
        write("end", kind="chunk", call=item.args[0], job=item.id)


@task(takes_context=True)
def part(context: Any, call: str, name: str) -> str:
    """A job of a workflow; it records what it received from its parents."""
    got = sorted(str(result) for result in context.parent_results.values())
    with running("workflow", call, context.job.id, part=name, parents=got):
        pass
    return name


@task(takes_context=True)
def ended(context: Any, call: str) -> None:
    """The callback of a workflow."""
    with running("callback", call, context.job.id):
        pass


def _listen(context: Any, call: str, name: str) -> str:
    with running("listener", call, context.job.id, listener=name):
        return name


@listener(TOPIC, takes_context=True)
def first(context: Any, call: str) -> str:
    return _listen(context, call, "first")


@listener(TOPIC, takes_context=True, max_attempts=3, backoff=SOON)
def second(context: Any, call: str) -> str:
    return _listen(context, call, "second")


@task(takes_context=True)
def merged(context: Any, call: str) -> None:
    with running("merged", call, context.job.id, results=dict(context.gather.results)):
        pass


@task(takes_context=True)
def late(context: Any, call: str) -> None:
    """No gather here may fail."""
    with running("late", call, context.job.id, reason=str(context.gather.reason)):
        pass


@task(takes_context=True)
def due(context: Any) -> None:
    moment = str(context.due_at.timestamp())
    with running("schedule", "schedule", context.job.id, due=moment):
        pass
