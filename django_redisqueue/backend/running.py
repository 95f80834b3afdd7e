"""A Django task as a task of ours, with the signals that Django promises."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any

from django.utils import timezone

from ..codec import encode_result
from ..conf import get_settings
from ..exceptions import JobAbandoned
from ..options import TaskOptions
from ..parameters import parameters_of
from ..registry import register
from ..signals import child_started
from ..tasks import Task as OurTask
from .django_tasks import (
    Task,
    TaskContext,
    TaskError,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from .results import made_at, new_result, workers

_django_tasks: dict[str, Task[Any, Any]] = {}


def known_task(name: str) -> Task[Any, Any] | None:
    """The Django task of that name, as it was defined."""
    return _django_tasks.get(name)


def make_known(task: Task[Any, Any]) -> None:
    """Register the task, unless it is a copy (``using``) of one that is."""
    name = task.module_path
    known = _django_tasks.get(name)
    if known is not None and known.func is task.func:
        return
    wrapper = _async_wrapper(task) if iscoroutinefunction(task.func) else _sync_wrapper(task)
    ours = OurTask(
        func=wrapper,
        name=name,
        options=TaskOptions(takes_context=True),
        queue_name=task.queue_name,
        priority=int(task.priority),
        is_async=iscoroutinefunction(wrapper),
        parameters=parameters_of(task.func, int(task.takes_context)),
    )
    register(ours, [name])
    _django_tasks[name] = task


def _sync_wrapper(task: Task[Any, Any]) -> Callable[..., Any]:
    @wraps(task.func)
    def run(context: Any, /, *args: Any, **kwargs: Any) -> Any:
        this = _Run(task, context, args, kwargs)
        task_started.send(this.sender, task_result=this.result)
        try:
            value = this.succeeded(task.func(*this.arguments, **kwargs))
        except JobAbandoned:
            raise  # another worker has the job: what this run did is nobody's result
        except BaseException as error:
            this.failed(error)
            task_finished.send(this.sender, task_result=this.result)
            raise
        task_finished.send(this.sender, task_result=this.result)
        return value

    return run


def _async_wrapper(task: Task[Any, Any]) -> Callable[..., Any]:
    @wraps(task.func)
    async def run(context: Any, /, *args: Any, **kwargs: Any) -> Any:
        this = _Run(task, context, args, kwargs)
        await task_started.asend(this.sender, task_result=this.result)
        try:
            value = this.succeeded(await task.func(*this.arguments, **kwargs))
        except JobAbandoned:
            raise
        except BaseException as error:
            this.failed(error)
            await task_finished.asend(this.sender, task_result=this.result)
            raise
        await task_finished.asend(this.sender, task_result=this.result)
        return value

    return run


class _Run:
    """One run in a worker: the TaskResult that its context and its signals show."""

    def __init__(
        self, task: Task[Any, Any], context: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        now, job_id = timezone.now(), context.job.id
        self.sender = type(task.get_backend())
        # From what is at hand: a look into Redis could fail, and with it the job.
        self.result = new_result(
            task, job_id, task.backend, args, kwargs,
            status=TaskResultStatus.RUNNING, enqueued_at=made_at(job_id),
            started_at=now, last_attempted_at=now,
            worker_ids=workers(context.attempt, _worker_ids[-1]),
        )  # fmt: skip
        self.arguments = args
        if task.takes_context:
            self.arguments = (TaskContext(task_result=self.result), *args)

    def succeeded(self, value: Any) -> Any:
        """The value as JSON will carry it. Raises what makes the job fail if it can not."""
        value = normalize_json(value)
        encode_result(value, get_settings().max_result_bytes, self.result.task.module_path)
        self._end(TaskResultStatus.SUCCESSFUL)
        object.__setattr__(self.result, "_return_value", value)
        return value

    def failed(self, error: BaseException) -> None:
        """Note what it raised."""
        kind = type(error)
        self._end(TaskResultStatus.FAILED)
        self.result.errors.append(
            TaskError(
                exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
                traceback="".join(format_exception(error)),
            )
        )

    def _end(self, status: TaskResultStatus) -> None:
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "finished_at", timezone.now())


_worker_ids = [f"{socket.gethostname()}-{os.getpid()}"]


def _remember_worker(*, child: str, **_: Any) -> None:
    _worker_ids.append(child)


child_started.connect(_remember_worker, dispatch_uid="django_redisqueue.backend")
