"""Django's ``TaskResult`` made from a job."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.conf import settings as django_settings
from django.utils import timezone

from .. import exceptions
from ..client.large_results import read_result
from ..core.clock import instant
from ..core.codec import dumps, loads
from ..core.job_data import JobData, JobError
from ..core.statuses import Status
from ..exceptions import CorruptJob
from .django_tasks import Task, TaskError, TaskResult, TaskResultStatus, normalize_json
from .tasks import copy_unvalidated, decode_overrides

STATUSES = {
    Status.PROCESSING: TaskResultStatus.RUNNING,
    Status.COMPLETED: TaskResultStatus.SUCCESSFUL,
    Status.FAILED: TaskResultStatus.FAILED,
    Status.CANCELLED: TaskResultStatus.FAILED,  # Django has no such status; the errors show it
}  # all others are READY
RAN = (Status.PROCESSING, Status.COMPLETED)  # statuses with one attempt more than was spent
UNKNOWN_WORKER = "unknown"  # the worker of an attempt that Redis no longer stores


def new_result(
    task: Task[Any, Any], job_id: str, alias: str, args: Any, kwargs: Any, **known: Any
) -> TaskResult[Any, Any]:
    """A result with these fields, and defaults for the others."""
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
    """The result of a job."""
    # A crash spends no attempt of the job, but Django counts it.
    tries = data.attempts + data.recoveries + (data.status in RAN)
    started_ms = data.started_ms if tries else None
    result = new_result(
        task, data.id, alias, list(data.args), dict(data.kwargs),
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
    """The task with the options of that call, for ``alias`` unless the job has another. Raises
    CorruptJob."""
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
        return value  # it has a NaN, and the next check says where


def to_django_datetime(value_ms: int | None) -> datetime | None:
    """An instant as ``timezone.now()`` would return it."""
    if value_ms is None:
        return None
    aware = instant(value_ms)
    if django_settings.USE_TZ:
        return aware
    return timezone.make_naive(aware, timezone.get_default_timezone())


def enqueued_at_of(job_id: str) -> datetime | None:
    """The instant in an id: when the task was enqueued, by the producer's clock. Redis has the job
    later, after a commit, and by its own clock."""
    parts = job_id.split("_")
    is_made = parts[0] in ("job", "flow", "gather") and len(parts) > 1 and parts[1].isdecimal()
    return to_django_datetime(int(parts[1])) if is_made else None
