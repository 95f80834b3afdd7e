"""A backend for Django's own Tasks (Django 6.0 and newer, or the django-tasks package on 5.2), so
that this package runs them.

    TASKS = {"default": {"BACKEND": "django_redisqueue.backend.RedisQueueBackend", "QUEUES": []}}

``QUEUES`` names queues in ``REDISQUEUE["QUEUES"]``; an empty list means all of them. A task is
registered under its dotted path when Django validates it, which ``@task`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.utils import timezone

from ..client.enqueue import uncommitted_jobs
from ..client.jobs import Job, get_job
from ..client.registry import lookup
from ..client.tasks import Signature
from ..conf import get_settings
from ..core.clock import to_ms
from ..core.codec import encode_payload
from ..core.job_data import JobData
from ..exceptions import (
    ConfigurationError,
    InvalidArguments,
    InvalidName,
    InvalidOption,
    JobNotFound,
    did_you_mean,
)
from .django_tasks import (
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    task_enqueued,
)
from .registration import (
    NOT_IMPORTED,
    REMEDY,
    is_ours,
    placeholder,
    register_task,
    registered_task,
    to_queue_task,
    unimported_tasks,
    warn_if_unimported,
)
from .results import as_enqueued, as_json, enqueued_at_of, from_job, new_result, without_redacted
from .tasks import RedisQueueTask, check_options

__all__ = ["RedisQueueBackend", "RedisQueueTask"]


class RedisQueueBackend(BaseTaskBackend):
    """Enqueues after the commit, like everything in this package; needs no Redis until then."""

    task_class = RedisQueueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, dict(params))
        if self.options:
            raise InvalidTaskBackend(
                f'TASKS[{alias!r}]["OPTIONS"] has {", ".join(map(repr, self.options))}, but this '
                "backend has no OPTIONS: its settings are in REDISQUEUE, and a task's in @task"
            )

    @property
    def queues(self) -> set[str]:
        """The queues that tasks of this alias may name."""
        try:
            return self._named or set(get_settings().queues)
        except ConfigurationError:
            return set()  # check E001 reports it

    @queues.setter
    def queues(self, names: set[str]) -> None:
        self._named = names

    def validate_task(self, task: Task[Any, Any]) -> None:
        """Raise Django's InvalidTask unless the task can run here; registers it."""
        run_after: object = task.run_after
        if run_after is not None and not isinstance(run_after, datetime):
            # Django documents a timedelta, but 6.0 and 6.1 refuse it.
            object.__setattr__(task, "run_after", _from_now(run_after))
        self._check_queue(task.queue_name)
        super().validate_task(task)
        check_options(task)
        register_task(task)

    def _check_queue(self, name: str) -> None:
        try:
            known = get_settings().queues
        except ConfigurationError:
            return
        if name not in known:
            raise InvalidTask(
                f"Queue {name!r} is not valid for backend. "
                f'REDISQUEUE["QUEUES"] has {", ".join(sorted(known))}{did_you_mean(name, known)}'
            )

    def enqueue(
        self, task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult[Any, Any]:
        """Queue a run after the commit. ``task_enqueued`` is sent once Redis has accepted it. The
        result of a duplicate is that of the job that has its unique key."""
        self.validate_task(task)
        warn_if_unimported(task)
        args, kwargs = _normalised(task, args, kwargs)
        return self._enqueued(task, to_queue_task(task).enqueue(*args, **kwargs), args, kwargs)

    def enqueue_many(
        self, task: Task[Any, Any], calls: Iterable[Sequence[Any]]
    ) -> list[TaskResult[Any, Any]]:
        """Queue one run for each sequence of positional arguments, in scripts of up to 100 jobs;
        all are validated before the first is sent."""
        self.validate_task(task)
        warn_if_unimported(task)
        many = [_normalised(task, args, {})[0] for args in calls]
        jobs = to_queue_task(task).enqueue_many(many)
        return [self._enqueued(task, job, args, {}) for job, args in zip(jobs, many, strict=True)]

    def _enqueued(
        self, task: Task[Any, Any], job: Job, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult[Any, Any]:
        if job.is_duplicate:
            return self.get_result(job.id)
        shown = without_redacted(task, args, kwargs)
        result = new_result(task, job.id, self.alias, *shown, enqueued_at=enqueued_at_of(job.id))
        job.on_sent(lambda: self._sent(job, result))
        return result

    def _sent(self, job: Job, result: TaskResult[Any, Any]) -> None:
        if not job.is_duplicate:
            task_enqueued.send_robust(type(self), task_result=result)

    def signature(
        self, task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Signature:
        """The task with these arguments, for a workflow, a chain or a gather to enqueue."""
        self.validate_task(task)
        return Signature(to_queue_task(task), *_normalised(task, args, kwargs))

    def get_result(self, result_id: str) -> TaskResult[Any, Any]:
        """The result as it is now. Raises TaskResultDoesNotExist."""
        data = _job_of(result_id)
        task, alias = registered_task(data.task), self.alias
        if task is not None and is_ours(task.backend):
            alias = task.backend
        elif task is None:
            if lookup(data.task) is not None:
                raise TaskResultDoesNotExist(
                    f"the task of job {result_id}, {data.task}, is not a Django task"
                )
            task = placeholder(data.task)
        return from_job(as_enqueued(task, data, alias), data)

    def check(self, **_: Any) -> list[CheckMessage]:
        """System checks of the installed apps, the queues, and the tasks that workers import."""
        return list(self._faults())

    def _faults(self) -> Iterator[CheckMessage]:
        for name in unimported_tasks(self.alias):
            yield Warning(
                NOT_IMPORTED % (name, name.rpartition(".")[0]),
                hint=REMEDY,
                id="django_redisqueue.W017",
            )
        if not apps.is_installed("django_redisqueue"):
            yield Error(
                f"TASKS[{self.alias!r}] uses django_redisqueue, which is not in INSTALLED_APPS: "
                "no worker can be started, and workers find no tasks.",
                hint='Add "django_redisqueue" to INSTALLED_APPS.',
                id="django_redisqueue.E009",
            )
        try:
            known = get_settings().queues
        except ConfigurationError:
            return  # check E001 reports it
        for queue in sorted(self.queues - set(known)):
            yield Error(
                f'TASKS[{self.alias!r}]["QUEUES"] names {queue!r}, which is not in '
                f'REDISQUEUE["QUEUES"]{did_you_mean(queue, known)}.',
                hint=f"Add it there; it now has {', '.join(sorted(known))}.",
                id="django_redisqueue.E005",
            )


def _job_of(result_id: str) -> JobData:
    try:
        return get_job(result_id).data
    except (InvalidName, JobNotFound) as error:
        why = str(error)
        if any(job.id == result_id for job in uncommitted_jobs()):
            why = (
                f"job {result_id} is not in Redis yet, because its transaction has not committed; "
                "ask after the commit"
            )
        raise TaskResultDoesNotExist(why) from error


def _from_now(delay: object) -> datetime:
    try:
        delay_ms = to_ms(delay, "run_after, unless a datetime,")
    except InvalidOption as error:
        raise InvalidTask(str(error)) from error
    return timezone.now() + timedelta(milliseconds=delay_ms)


def _normalised(
    task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as JSON returns them; an error names the argument."""
    try:
        return as_json(list(args)), as_json(dict(kwargs))
    except (TypeError, ValueError) as error:
        try:
            encode_payload(args, kwargs, get_settings().max_payload_bytes, task.module_path)
        except InvalidArguments as ours:
            raise InvalidArguments(f"{error}: {ours}") from error
        raise
