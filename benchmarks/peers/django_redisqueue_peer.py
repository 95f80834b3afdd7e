"""django_redisqueue: defaults without the mirror; one child, 8 for 10 ms.

It is the settings module of its own Django.
"""

import os
import sys
from functools import cache
from types import ModuleType

import django
from work import URL

PACKAGES = ("django-redisqueue",)
SECRET_KEY = "only for benchmarks"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_redisqueue"]
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
REDISQUEUE = {
    "CONNECTION": {"URL": URL},
    "MIRROR": False,
    "TASK_MODULES": ["django_redisqueue_tasks"],
}


def enqueue(kind: str, number: int) -> None:
    (tasks().async_job if kind == "async" else tasks().job).enqueue(kind, number)


@cache
def tasks() -> ModuleType:
    os.environ["DJANGO_SETTINGS_MODULE"] = "django_redisqueue_peer"
    django.setup()
    import django_redisqueue_tasks

    return django_redisqueue_tasks


def worker(kind: str) -> list[str]:
    command = [sys.executable, "-m", "django", "runworker", "--settings", "django_redisqueue_peer"]
    processes = "8" if kind == "ten_ms" else "1"
    return [*command, "--processes", processes, "--async-concurrency", "100"]
