"""Tasks that the API may enqueue, and one that it may not (tests.app.tasks has more of those)."""

from __future__ import annotations

from typing import Any

from django_redisqueue import task


@task(api=True)
def open_task(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


@task(api=True, queue_name="default", priority=7)
def urgent_task(x: int = 0) -> int:
    return x


@task(api=True, redact=("card",))
def secret_task(card: str, amount: int = 0) -> int:
    return amount
