"""Tasks of Django's own ``@task`` (Django 6.0 and newer)."""

from __future__ import annotations

import asyncio
from typing import Any

from django.tasks import TaskContext, task


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
def give_back(kind: str) -> Any:
    return {"range": range(3), "bytes": b"abc", "object": object(), "nan": float("nan")}[kind]
