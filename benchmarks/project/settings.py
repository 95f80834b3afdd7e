"""Defaults everywhere, so that the results apply to applications.

`BENCHMARK_URL` names the Redis of a benchmark, `BENCHMARK_FOLDER` a folder for its database;
`BENCHMARK_DATABASES` is JSON merged into `DATABASES`. The mirror is off unless `BENCHMARK_MIRROR`
is 1; `bridge` and `idle` measure its cost. `BENCHMARK_SCHEDULES` is a number of schedules that are
not due. With several shards (`BENCHMARK_SHARDS`), the queue `default` has jobs in all of them.
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

SHARDS = int(os.environ.get("BENCHMARK_SHARDS", "1"))

REDISQUEUE = {
    "CONNECTION": {"URL": os.environ["BENCHMARK_URL"]},
    "SHARDS": SHARDS,
    "QUEUES": {"default": {"SPREAD": SHARDS > 1}},
    "MIRROR": os.environ.get("BENCHMARK_MIRROR") == "1",
    "SCHEDULES": {
        f"schedule-{n}": {"task": "benchmarks.project.tasks.noop", "cron": f"{n % 60} 0 1 1 *"}
        for n in range(int(os.environ.get("BENCHMARK_SCHEDULES", "0")))
    },
}
