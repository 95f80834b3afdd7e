"""How a worker runs a Django task: inside a ``Task``, with the signals that Django promises."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any

from asgiref.sync import sync_to_async

from ..client.jobs import get_job
from ..conf import get_settings
from ..core.clock import real_ms
from ..core.codec import encode_result, loads
from ..exceptions import JobAbandoned, JobSuspended, RedisQueueError
from ..signals import child_started
from .django_tasks import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    task_backends,
    task_finished,
    task_started,
)
from .results import (
    as_json,
    enqueued_at_of,
    from_job,
    new_result,
    to_django_datetime,
    worker_ids_of,
)
from .tasks import copy_unvalidated, decode_overrides


def wrapped(task: Task[Any, Any]) -> Callable[..., Any]:
    """The task's function as workers call it, with a JobContext."""
    return _async_wrapper(task) if iscoroutinefunction(task.func) else _sync_wrapper(task)


def _sync_wrapper(task: Task[Any, Any]) -> Callable[..., Any]:
    @wraps(task.func)
    def run(context: Any, /, *args: Any, **kwargs: Any) -> Any:
        this = _TaskRun(task, context, args, kwargs)
        task_started.send(this.sender, task_result=this.result)
        try:
            value = this.succeeded(task.func(*this.arguments, **kwargs))
        except (JobAbandoned, JobSuspended):
            raise  # another worker has the job, so this run has no result
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
        if _is_first(context):
            this = _TaskRun(task, context, args, kwargs)
        else:
            this = await sync_to_async(_TaskRun)(task, context, args, kwargs)
        await task_started.asend(this.sender, task_result=this.result)
        try:
            value = this.succeeded(await task.func(*this.arguments, **kwargs))
        except (JobAbandoned, JobSuspended):
            raise
        except BaseException as error:
            this.failed(error)
            await task_finished.asend(this.sender, task_result=this.result)
            raise
        await task_finished.asend(this.sender, task_result=this.result)
        return value

    return run


def _is_first(context: Any) -> bool:
    return context.attempt == 1 and not (context.claimed and context.claimed.recoveries)


def _as_enqueued(definition: Task[Any, Any], context: Any) -> Task[Any, Any]:
    claimed = context.claimed
    if claimed is None:
        return definition
    options = loads(claimed.options) if claimed.options else {}
    return copy_unvalidated(definition, {**decode_overrides(options), "queue_name": claimed.queue})


def _stored_result(task: Task[Any, Any], context: Any) -> TaskResult[Any, Any] | None:
    """The result of earlier runs in Redis; None when Redis does not answer, which must not fail the
    job."""
    try:
        return from_job(task, get_job(context.job.id).data, task.backend)
    except RedisQueueError:
        return None


def _initial_result(
    task: Task[Any, Any], context: Any, args: Any, kwargs: dict[str, Any]
) -> TaskResult[Any, Any]:
    """The result as far as it is known without reading Redis."""
    now, job_id = to_django_datetime(real_ms()), context.job.id
    lost = context.claimed.recoveries if context.claimed else 0
    return new_result(
        task, job_id, task.backend, args, kwargs,
        status=TaskResultStatus.RUNNING, enqueued_at=enqueued_at_of(job_id),
        started_at=now, last_attempted_at=now,
        worker_ids=worker_ids_of(context.attempt + lost, (), _worker_ids[-1]),
    )  # fmt: skip


class _TaskRun:
    """One run in a worker: the TaskResult that its context and its signals show."""

    def __init__(
        self, definition: Task[Any, Any], context: Any, args: Any, kwargs: dict[str, Any]
    ) -> None:
        task = _as_enqueued(definition, context)
        self.sender = type(task_backends[task.backend])
        known = None if _is_first(context) else _stored_result(task, context)
        self.result = known or _initial_result(task, context, args, kwargs)
        self.arguments = args
        if task.takes_context:
            self.arguments = (TaskContext(task_result=self.result), *args)

    def succeeded(self, value: Any) -> Any:
        """The value as JSON returns it. Raises when it cannot be stored, which fails the job."""
        value = as_json(value)
        encode_result(value, get_settings().max_result_bytes, self.result.task.module_path)
        self._end(TaskResultStatus.SUCCESSFUL)
        object.__setattr__(self.result, "_return_value", value)
        return value

    def failed(self, error: BaseException) -> None:
        """Add the exception to the result."""
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
        object.__setattr__(self.result, "finished_at", to_django_datetime(real_ms()))


_worker_ids = [f"{socket.gethostname()}-{os.getpid()}"]


def _remember_worker(*, child: str, **_: Any) -> None:
    _worker_ids.append(child)


child_started.connect(_remember_worker, dispatch_uid="django_redisqueue.backend")
