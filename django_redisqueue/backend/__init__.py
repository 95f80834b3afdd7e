"""A backend for Django's own Tasks (Django 6.0 and newer), so that its ``@task`` runs here.

    TASKS = {"default": {"BACKEND": "django_redisqueue.backend.RedisQueueBackend", "QUEUES": []}}

``QUEUES`` names queues of ``REDISQUEUE["QUEUES"]``; an empty list stands for all of them. A task is
registered under its dotted path when Django validates it, as it does where ``@task`` stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from django.core.checks import CheckMessage, Error
from django.utils import timezone

from ..codec import encode_payload
from ..conf import did_you_mean, get_settings
from ..exceptions import ConfigurationError, InvalidName, JobNotFound
from ..jobs import get_job
from ..registry import lookup
from ..tasks import Task as OurTask
from .django_tasks import (
    BaseTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    normalize_json,
    task_enqueued,
)
from .results import as_enqueued, from_job, new_result
from .running import known_task, make_known


class RedisQueueBackend(BaseTaskBackend):
    """Enqueues after commit, as all of this package does; needs no Redis until then."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Task[Any, Any]) -> None:
        """Raise Django's InvalidTask unless the task can run here; let our workers know it."""
        run_after: object = task.run_after
        if isinstance(run_after, timedelta):  # documented, yet refused by Django 6.0 and 6.1
            object.__setattr__(task, "run_after", timezone.now() + run_after)
        super().validate_task(task)
        make_known(task)

    def enqueue(
        self, task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult[Any, Any]:
        """Queue a run after the commit. ``task_enqueued`` is sent once Redis has taken it."""
        self.validate_task(task)
        args, kwargs = _normalised(task, args, kwargs)
        ours: OurTask = lookup(task.module_path)
        job = ours.using(
            queue_name=task.queue_name, priority=int(task.priority), run_after=task.run_after
        ).enqueue(*args, **kwargs)
        result = new_result(task, job.id, self.alias, args, kwargs, enqueued_at=timezone.now())
        job.when_sent(lambda: task_enqueued.send(type(self), task_result=result))
        return result

    def get_result(self, result_id: str) -> TaskResult[Any, Any]:
        """The result as Redis has it now. Raises TaskResultDoesNotExist."""
        try:
            data = get_job(result_id).data
        except (JobNotFound, InvalidName) as error:
            raise TaskResultDoesNotExist(str(error)) from error
        task = known_task(data.task)
        if task is None:
            raise TaskResultDoesNotExist(f"job {result_id} is of {data.task}, no Django task")
        return from_job(as_enqueued(task, data), data, self.alias)

    def check(self, **_: Any) -> list[CheckMessage]:
        """System checks: every queue must be one of ours."""
        try:
            known = get_settings().queues
        except ConfigurationError:
            return []  # django_redisqueue.E001 says so
        return [
            Error(
                f'TASKS[{self.alias!r}]["QUEUES"] names {queue!r}, which is not in '
                f'REDISQUEUE["QUEUES"]{did_you_mean(queue, known) or "."}',
                hint=f"Add it there; it has {', '.join(sorted(known))}.",
                id="django_redisqueue.E005",
            )
            for queue in sorted(self.queues - set(known))
        ]


def _normalised(
    task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments as Django normalises them, but refused with words that name the argument."""
    try:
        return cast(list[Any], normalize_json(list(args))), cast(
            dict[str, Any], normalize_json(kwargs)
        )
    except (TypeError, ValueError):
        encode_payload(args, kwargs, get_settings().max_payload_bytes, task.module_path)
        raise
