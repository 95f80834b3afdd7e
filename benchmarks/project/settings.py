"""Defaults everywhere, so that what is measured is what an application gets.

`BENCHMARK_URL` names the Redis of one benchmark, `BENCHMARK_FOLDER` a folder for its database;
`BENCHMARK_DATABASES` is JSON that is laid over `DATABASES`. The mirror is off unless
`BENCHMARK_MIRROR` is 1: what it costs is measured by itself, in `bridge` and `idle`.
"""

import json
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
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL;",
        },
    },
    **json.loads(os.environ.get("BENCHMARK_DATABASES", "{}")),
}

REDISQUEUE = {
    "CONNECTION": {"URL": os.environ["BENCHMARK_URL"]},
    "MIRROR": os.environ.get("BENCHMARK_MIRROR") == "1",
}
