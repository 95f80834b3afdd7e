"""Django's ``TaskResult``: created from a job, and kept by a worker while it runs the job."""

from __future__ import annotations

import builtins
import os
import socket
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.utils import timezone

from .. import exceptions
from ..client.jobs import get_job
from ..client.large_results import read_result
from ..client.registry import lookup
from ..conf import get_settings
from ..core.clock import instant, real_ms
from ..core.codec import dumps, encode_result, loads
from ..core.job_data import JobData, JobError
from ..core.redaction import redact
from ..core.statuses import Status
from ..exceptions import CorruptJob, JobAbandoned, JobSuspended, RedisQueueError
from ..signals import child_started
from .django_tasks import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from .tasks import copy_unvalidated, decode_overrides

STATUSES = {
    Status.PROCESSING: TaskResultStatus.RUNNING,
    Status.COMPLETED: TaskResultStatus.SUCCESSFUL,
    Status.FAILED: TaskResultStatus.FAILED,
    Status.CANCELLED: TaskResultStatus.FAILED,  # Django has no such status; the errors show it
}  # all others are READY
RAN = (Status.PROCESSING, Status.COMPLETED)  # statuses with one attempt more than were spent
UNKNOWN_WORKER = "unknown"  # the worker of an attempt that Redis no longer stores


def new_result(
    task: Task[Any, Any], job_id: str, alias: str, args: Any, kwargs: Any, **known: Any
) -> TaskResult[Any, Any]:
    """A result with these fields, and defaults for the others."""
    instants = ("enqueued_at", "started_at", "finished_at", "last_attempted_at")
    fields: dict[str, Any] = {
        **dict.fromkeys(instants),
        "status": TaskResultStatus.READY,
        "errors": [],
        "worker_ids": [],
        **known,
    }
    return TaskResult(task=task, id=job_id, args=args, kwargs=kwargs, backend=alias, **fields)


def without_redacted(
    task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments as ``get_result`` returns them."""
    redaction = lookup(task.module_path).redaction
    if redaction is None:
        return args, kwargs
    return redact(args, kwargs, redaction.marks(args, kwargs))


def from_job(task: Task[Any, Any], data: JobData) -> TaskResult[Any, Any]:
    # A crash spends no attempt of the job, but Django counts it.
    tries = data.attempts + data.recoveries + (data.status in RAN)
    started_ms = data.started_ms if tries else None
    result = new_result(
        task, data.id, task.backend, list(data.args), dict(data.kwargs),
        status=STATUSES.get(data.status, TaskResultStatus.READY),
        enqueued_at=enqueued_at_of(data.id) or to_django_datetime(data.enqueued_ms),
        started_at=to_django_datetime(data.first_ms or started_ms),
        last_attempted_at=to_django_datetime(started_ms),
        finished_at=to_django_datetime(data.finished_ms), errors=_errors(data),
        worker_ids=worker_ids_of(tries, data.ran, data.child),
    )  # fmt: skip
    value = read_result(data.result_file) if data.result_file else data.result
    object.__setattr__(result, "_return_value", value)
    return result


def worker_ids_of(tries: int, earlier: Sequence[str], latest: str) -> list[str]:
    """One id per attempt, because Django counts attempts by them."""
    if tries <= len(earlier):
        return list(earlier[:tries])
    missing = tries - len(earlier) - 1
    return [*earlier, *[UNKNOWN_WORKER] * missing, latest or UNKNOWN_WORKER]


def _errors(data: JobData) -> list[TaskError]:
    error = data.error
    if error is None and data.status is Status.CANCELLED:
        error = JobError("JobCancelled", "cancelled before it ran")
    if error is None:
        return []
    text = error.traceback or str(error)
    return [TaskError(exception_class_path=_class_path(error.type), traceback=text)]


def _class_path(kind: str) -> str:
    """The dotted path of an exception class from the name stored with an error."""
    if "." in kind:
        return kind
    module = "builtins" if hasattr(builtins, kind) else exceptions.__name__
    return f"{module}.{kind}"


def as_enqueued(task: Task[Any, Any], data: JobData, alias: str) -> Task[Any, Any]:
    """The task with the options of that call, and ``alias`` by default. Raises CorruptJob."""
    try:
        options = decode_overrides(data.options)
    except (ValueError, TypeError) as error:
        raise CorruptJob(f"the hash of job {data.id} cannot be read: {error}") from None
    own = {"backend": alias, "queue_name": data.queue, "priority": data.priority}
    return copy_unvalidated(task, {**own, **options, "queue_name": data.queue})


def as_json(value: Any) -> Any:
    """The value as JSON returns it: normalised by Django's rules, with string keys."""
    value = normalize_json(value)
    if not isinstance(value, dict | list):
        return value
    try:
        return loads(dumps(value))
    except ValueError:
        return value  # it has a NaN; the next check says where


def to_django_datetime(value_ms: int | None) -> datetime | None:
    """An instant as ``timezone.now()`` would return it."""
    if value_ms is None:
        return None
    aware = instant(value_ms)
    if django_settings.USE_TZ:
        return aware
    return timezone.make_naive(aware, timezone.get_default_timezone())


def enqueued_at_of(job_id: str) -> datetime | None:
    """The instant in an id: when the task was enqueued, by the producer's clock. Redis receives the
    job later, after a commit, and uses its own clock."""
    parts = job_id.split("_")
    is_made = parts[0] in ("job", "flow", "gather") and len(parts) > 1 and parts[1].isdecimal()
    return to_django_datetime(int(parts[1])) if is_made else None


def wrapped(task: Task[Any, Any]) -> Callable[..., Any]:
    """The task's function as workers call it, with a JobContext."""
    return _async_wrapper(task) if iscoroutinefunction(task.func) else _sync_wrapper(task)


def _sync_wrapper(task: Task[Any, Any]) -> Callable[..., Any]:
    @wraps(task.func)
    def run(context: Any, /, *args: Any, **kwargs: Any) -> Any:
        this = _TaskRun(task, context, args, kwargs)
        task_started.send_robust(this.sender, task_result=this.result)
        try:
            value = task.func(*this.arguments, **kwargs)
        except (JobAbandoned, JobSuspended):
            raise  # another worker has the job, so this run has no result
        except BaseException as error:
            this.failed(error)
            if not this.redacts:
                task_finished.send_robust(this.sender, task_result=this.result)
                raise
            failure = error
        else:
            value = this.returned(value)
            task_finished.send_robust(this.sender, task_result=this.result)
            return value
        # Outside the handler: Django logs an exception that is being handled, with its secrets.
        task_finished.send_robust(this.sender, task_result=this.result)
        raise failure

    return run


def _async_wrapper(task: Task[Any, Any]) -> Callable[..., Any]:
    @wraps(task.func)
    async def run(context: Any, /, *args: Any, **kwargs: Any) -> Any:
        if _is_first(context):
            this = _TaskRun(task, context, args, kwargs)
        else:
            this = await sync_to_async(_TaskRun)(task, context, args, kwargs)
        await task_started.asend_robust(this.sender, task_result=this.result)
        try:
            value = await task.func(*this.arguments, **kwargs)
        except BaseException as error:
            meant = _meant_by(error, context)
            if isinstance(meant, JobAbandoned | JobSuspended):
                raise
            this.failed(meant)
            if not this.redacts:
                traceback = error.__traceback__
                await task_finished.asend_robust(this.sender, task_result=this.result)
                error.__traceback__ = traceback  # without the thread of synchronous receivers
                raise
            failure = error
        else:
            value = this.returned(value)
            await task_finished.asend_robust(this.sender, task_result=this.result)
            return value
        await task_finished.asend_robust(this.sender, task_result=this.result)
        raise failure

    return run


def _meant_by(error: BaseException, context: Any) -> BaseException:
    """The interrupt of the job, which asyncio can only raise as a CancelledError, or the error."""
    if isinstance(error, CancelledError) and context.interrupt is not None:
        interrupt: BaseException = context.interrupt
        return interrupt.with_traceback(error.__traceback__)
    return error


def _is_first(context: Any) -> bool:
    return context.attempt == 1 and not context.claimed.recoveries


def _stored_result(task: Task[Any, Any], context: Any) -> TaskResult[Any, Any] | None:
    """The result of earlier runs in Redis; None if Redis does not answer: the job must not fail."""
    try:
        return from_job(task, get_job(context.job.id).data)
    except RedisQueueError:
        return None


def _initial_result(
    task: Task[Any, Any], context: Any, args: Any, kwargs: dict[str, Any]
) -> TaskResult[Any, Any]:
    """The result as far as it is known without reading Redis."""
    now, job_id = to_django_datetime(real_ms()), context.job.id
    return new_result(
        task, job_id, task.backend, *without_redacted(task, args, kwargs),
        status=TaskResultStatus.RUNNING, enqueued_at=enqueued_at_of(job_id),
        started_at=now, last_attempted_at=now,
        worker_ids=worker_ids_of(context.attempt + context.claimed.recoveries, (), _worker_ids[-1]),
    )  # fmt: skip


class _TaskRun:
    """One run in a worker: the TaskResult that its context and its signals show."""

    def __init__(
        self, definition: Task[Any, Any], context: Any, args: Any, kwargs: dict[str, Any]
    ) -> None:
        options = loads(context.claimed.options or "{}")
        changes = {**decode_overrides(options), "queue_name": context.claimed.queue}
        task = copy_unvalidated(definition, changes)
        self.sender = type(task_backends[task.backend])
        self.redacts = bool(getattr(definition, "redact", None))
        known = None if _is_first(context) else _stored_result(task, context)
        self.result = known or _initial_result(task, context, args, kwargs)
        self.arguments = args
        if task.takes_context:
            self.arguments = (TaskContext(task_result=self.result), *args)

    def returned(self, value: Any) -> Any:
        """The value as JSON returns it. One that cannot be stored is returned unchanged: the worker
        refuses it as well, and then fails the job without another attempt."""
        try:
            stored = as_json(value)
            encode_result(stored, get_settings().max_result_bytes, self.result.task.module_path)
        except Exception as error:
            self.failed(error)
            return value
        self._end(TaskResultStatus.SUCCESSFUL)
        object.__setattr__(self.result, "_return_value", stored)
        return stored

    def failed(self, error: BaseException) -> None:
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
