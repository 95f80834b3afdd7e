"""Tasks of Django's own ``@task``."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from .django_api import TAKES_OPTIONS, TaskContext, task


@task
def add(a: int, b: int) -> int:
    return a + b


@task(priority=7)
def urgent(x: Any = None) -> Any:
    return x


@task
def fail(message: str) -> None:
    raise ValueError(message)


@task
async def sleep(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@task
async def async_fail(message: str) -> None:
    raise ValueError(message)


@task(takes_context=True)
def with_context(context: TaskContext, *args: Any, **kwargs: Any) -> dict[str, Any]:
    result = context.task_result
    return {
        "attempt": context.attempt,
        "id": result.id,
        "status": result.status,
        "args": result.args,
        "kwargs": result.kwargs,
        "workers": result.worker_ids,
        "got": [list(args), kwargs],
    }


@task
def return_odd_value(kind: str) -> Any:
    return VALUES[kind]


VALUES = {
    "range": range(3),
    "bytes": b"abc",
    "object": object(),
    "nan": float("nan"),
    "keys": {1: "a", None: [{True: (1, 2)}], 0.5: b"x"},
}


@task(takes_context=True)
def again(context: TaskContext, times: int) -> dict[str, Any]:
    """Enqueues itself with its own options; returns what it saw of itself."""
    this = context.task_result.task
    next_id = this.enqueue(times - 1).id if times else None
    return {
        "next": next_id,
        "queue": this.queue_name,
        "priority": this.priority,
        "alias": this.backend,
        "run_after": this.run_after and this.run_after.isoformat(),
        "timeout": getattr(this, "timeout", None),
    }


@task(takes_context=True)
def crash_once(context: TaskContext, path: str) -> dict[str, Any]:
    """Dies with its worker on the first run."""
    if not os.path.exists(path):
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    result = context.task_result
    return {
        "attempt": context.attempt,
        "workers": result.worker_ids,
        "started_at": str(result.started_at),
        "last_attempted_at": str(result.last_attempted_at),
    }


if TAKES_OPTIONS:

    @task(max_attempts=3, retry_on=(ValueError,), backoff=[0], timeout=60, tags={"kind": "flaky"})
    def flaky(message: str) -> None:
        raise ValueError(message)

    @task(max_attempts=3, no_retry_on=(ValueError,), redact=("message",))
    def final(message: str) -> None:
        raise ValueError(message)

    @task(redact=("message",))
    async def async_final(message: str) -> None:
        raise ValueError(message)
