"""From a job to Django's ``TaskResult``."""

from __future__ import annotations

import builtins
from dataclasses import replace
from datetime import datetime
from typing import Any

from .. import exceptions
from ..clock import from_ms
from ..jobdata import JobData, JobError
from ..states import Status
from .django_tasks import InvalidTask, Task, TaskError, TaskResult, TaskResultStatus

STATUSES = {
    Status.PROCESSING: TaskResultStatus.RUNNING,
    Status.COMPLETED: TaskResultStatus.SUCCESSFUL,
    Status.FAILED: TaskResultStatus.FAILED,
    Status.CANCELLED: TaskResultStatus.FAILED,  # Django has no word for it; its errors say so
}  # all others are READY
RAN = (Status.PROCESSING, Status.COMPLETED)  # in these one try more has begun than was spent
FORGOTTEN = "unknown"  # Redis keeps a job's latest worker, not those of its earlier tries


def new_result(
    task: Task[Any, Any], job_id: str, alias: str, args: Any, kwargs: Any, **known: Any
) -> TaskResult[Any, Any]:
    """A result of which ``known`` is known, and nothing has happened else."""
    fields: dict[str, Any] = {
        "status": TaskResultStatus.READY,
        "enqueued_at": None,
        "started_at": None,
        "finished_at": None,
        "last_attempted_at": None,
        "errors": [],
        "worker_ids": [],
        **known,
    }
    return TaskResult(task=task, id=job_id, args=args, kwargs=kwargs, backend=alias, **fields)


def from_job(task: Task[Any, Any], data: JobData, alias: str) -> TaskResult[Any, Any]:
    """The result of a job as Redis has it."""
    tries = data.attempts + (data.status in RAN)
    started = from_ms(data.started_ms) if tries else None
    result = new_result(
        task, data.id, alias, list(data.args), dict(data.kwargs),
        status=STATUSES.get(data.status, TaskResultStatus.READY),
        enqueued_at=from_ms(data.enqueued_ms), started_at=started, last_attempted_at=started,
        finished_at=from_ms(data.finished_ms), errors=_errors(data),
        worker_ids=workers(tries, data.child),
    )  # fmt: skip
    object.__setattr__(result, "_return_value", data.result)
    return result


def workers(tries: int, latest: str) -> list[str]:
    """One id a try, for Django counts attempts by them."""
    return [FORGOTTEN] * (tries - 1) + [latest or FORGOTTEN] if tries else []


def _errors(data: JobData) -> list[TaskError]:
    error = data.error
    if error is None and data.status is Status.CANCELLED:
        error = JobError("JobCancelled", "cancelled before it ran")
    if error is None:
        return []
    text = error.traceback or str(error)
    return [TaskError(exception_class_path=_class_path(error.type), traceback=text)]


def _class_path(kind: str) -> str:
    """The dotted path of an exception class from its name as an error keeps it."""
    if "." in kind:
        return kind
    module = "builtins" if hasattr(builtins, kind) else exceptions.__name__
    return f"{module}.{kind}"


def as_enqueued(task: Task[Any, Any], data: JobData) -> Task[Any, Any]:
    """The task with the options of that call."""
    due = from_ms(data.due_ms) if data.status is Status.SCHEDULED else None
    try:
        return replace(task, priority=data.priority, queue_name=data.queue, run_after=due)
    except InvalidTask:  # the settings have changed since
        return task


def made_at(job_id: str) -> datetime | None:
    """The instant in ``job_<ms>_...``."""
    digits = job_id.split("_")[1] if job_id.startswith("job_") else ""
    return from_ms(int(digits)) if digits.isdigit() else None
