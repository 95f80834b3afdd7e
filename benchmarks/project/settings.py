"""Defaults everywhere, so that what is measured is what an application gets.

`BENCHMARK_URL` names the Redis of one benchmark, `BENCHMARK_FOLDER` a folder for its database.
"""

import os
from pathlib import Path

SECRET_KEY = "only for benchmarks"
USE_TZ = True

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_redisqueue",
    "benchmarks.project",
]

DATABASES = {
    "default": {
        "ENGINE": "benchmarks.project.counting",
        "NAME": str(Path(os.environ.get("BENCHMARK_FOLDER", ".")) / "db.sqlite3"),
        "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL;"},
    }
}

REDISQUEUE = {"CONNECTION": {"URL": os.environ["BENCHMARK_URL"]}}
