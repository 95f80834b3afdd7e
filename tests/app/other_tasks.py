"""A task for another backend, which ``using`` sends to this one."""

from __future__ import annotations

from typing import Any

from .django_api import TaskContext, task

__all__ = ["elsewhere"]


@task(backend="dummy", queue_name="theirs", takes_context=True)
def elsewhere(context: TaskContext, x: Any = None) -> Any:
    return [x, context.task_result.task.backend]
