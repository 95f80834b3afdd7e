"""Django's own Tasks: those of Django 6.0 and newer, else of the django-tasks package."""

from __future__ import annotations

import django

if django.VERSION >= (6, 0):
    from django.tasks import (
        TaskContext,
        TaskResultStatus,
        default_task_backend,
        task,
        task_backends,
    )
    from django.tasks.exceptions import (
        InvalidTask,
        InvalidTaskBackend,
        TaskResultDoesNotExist,
        TaskResultMismatch,
    )
    from django.tasks.signals import task_enqueued, task_finished, task_started

    DUMMY = "django.tasks.backends.dummy.DummyBackend"
    LOGGER = "django.tasks"
else:
    from django_tasks import (
        TaskContext,
        TaskResultStatus,
        default_task_backend,
        exceptions,
        task,
        task_backends,
    )
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started

    InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
    InvalidTaskBackend = (
        getattr(exceptions, "InvalidTaskBackend", None) or exceptions.InvalidTaskBackendError
    )
    DUMMY = "django_tasks.backends.dummy.DummyBackend"
    LOGGER = "django_tasks"

#: Whether ``@task`` passes options on to ``task_class``; Django 6.0 does not.
TAKES_OPTIONS = not (6, 0) <= django.VERSION < (6, 1)

__all__ = [
    "DUMMY",
    "LOGGER",
    "TAKES_OPTIONS",
    "InvalidTask",
    "InvalidTaskBackend",
    "TaskContext",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "default_task_backend",
    "task",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
