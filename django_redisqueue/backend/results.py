"""From a job to Django's ``TaskResult``."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.conf import settings as django_settings
from django.utils import timezone

from .. import exceptions
from ..clock import instant
from ..codec import dumps, loads
from ..exceptions import CorruptJob
from ..jobdata import JobData, JobError
from ..largeresults import read_result
from ..states import Status
from .django_tasks import Task, TaskError, TaskResult, TaskResultStatus, normalize_json
from .tasks import decode_mark, rebuilt

STATUSES = {
    Status.PROCESSING: TaskResultStatus.RUNNING,
    Status.COMPLETED: TaskResultStatus.SUCCESSFUL,
    Status.FAILED: TaskResultStatus.FAILED,
    Status.CANCELLED: TaskResultStatus.FAILED,  # Django has no word for it; its errors say so
}  # all others are READY
RAN = (Status.PROCESSING, Status.COMPLETED)  # in these one try more has begun than was spent
FORGOTTEN = "unknown"  # a worker of a try that Redis has no room to remember


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
    # A crash spends no attempt of the job, but it was a run that Django's attempts count.
    tries = data.attempts + data.recoveries + (data.status in RAN)
    started_ms = data.started_ms if tries else None
    result = new_result(
        task, data.id, alias, list(data.args), dict(data.kwargs),
        status=STATUSES.get(data.status, TaskResultStatus.READY),
        enqueued_at=made_at(data.id) or moment(data.enqueued_ms),
        started_at=moment(data.first_ms or started_ms), last_attempted_at=moment(started_ms),
        finished_at=moment(data.finished_ms), errors=_errors(data),
        worker_ids=workers(tries, data.ran, data.child),
    )  # fmt: skip
    value = read_result(data.result_file) if data.result_file else data.result
    object.__setattr__(result, "_return_value", value)
    return result


def workers(tries: int, earlier: Sequence[str], latest: str) -> list[str]:
    """One id a try, for Django counts attempts by them."""
    if tries <= len(earlier):
        return list(earlier[:tries])
    missing = tries - len(earlier) - 1
    return [*earlier, *[FORGOTTEN] * missing, latest or FORGOTTEN]


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


def as_enqueued(task: Task[Any, Any], data: JobData, alias: str) -> Task[Any, Any]:
    """The task with the options of that call; of ``alias``, unless the job says another. Raises
    CorruptJob."""
    try:
        said = decode_mark(data.options)
    except (ValueError, TypeError) as error:
        raise CorruptJob(f"the hash of job {data.id} cannot be read: {error}") from None
    own = {"backend": alias, "queue_name": data.queue, "priority": data.priority}
    return rebuilt(task, {**own, **said, "queue_name": data.queue})


def as_json(value: Any) -> Any:
    """The value as it comes back from JSON: by Django's rules, then with texts for keys, as
    ``json`` writes them."""
    value = normalize_json(value)
    if not isinstance(value, dict | list):
        return value
    try:
        return loads(dumps(value))
    except ValueError:
        return value  # it has a NaN, of which the next check says where


def moment(value_ms: int | None) -> datetime | None:
    """An instant as Django's Tasks show it, which is as ``timezone.now()`` does."""
    if value_ms is None:
        return None
    aware = instant(value_ms)
    if django_settings.USE_TZ:
        return aware
    return timezone.make_naive(aware, timezone.get_default_timezone())


def made_at(job_id: str) -> datetime | None:
    """The instant in an id: when its task was enqueued, by the clock of who did it. Redis has it
    later, after a commit, and by its own clock."""
    parts = job_id.split("_")
    is_made = parts[0] in ("job", "flow", "gather") and len(parts) > 1 and parts[1].isdecimal()
    return moment(int(parts[1])) if is_made else None
