"""django-q2: Redis without acknowledgement, one worker (8 for 10 ms), no results, no scheduler.

It is the settings module of its own Django.
"""

import os
import sys
from collections.abc import Callable
from functools import cache

import django
from work import CONCURRENCY, URL

PACKAGES = ("django-q2", "redis", "hiredis")
SECRET_KEY = "only for benchmarks"
INSTALLED_APPS = ["django_q"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
Q_CLUSTER = {
    "name": "peer", "workers": CONCURRENCY or 1, "save_limit": -1, "scheduler": False,
    "timeout": 600, "retry": 660, "redis": URL, "log_level": "ERROR",
}  # fmt: skip


def enqueue(kind: str, number: int) -> None:
    async_task()("work.work", kind, number)


@cache
def async_task() -> Callable[..., str]:
    os.environ["DJANGO_SETTINGS_MODULE"] = "django_q2_peer"
    django.setup()
    from django_q.tasks import async_task

    return async_task


def worker(kind: str) -> list[str] | None:
    command = [sys.executable, "-m", "django", "qcluster", "--settings", "django_q2_peer"]
    return None if kind == "async" else command
