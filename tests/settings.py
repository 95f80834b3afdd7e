"""Settings of the test suite, and of the worker processes that its tests start.

A test that starts processes tells them by the environment where everything is:

- `REDISQUEUE_TEST_URL`: the Redis server that the test started. Without it nothing answers, so
  that no test can reach a developer's Redis by accident.
- `REDISQUEUE_TEST_FOLDER`: a folder for SQLite files that several processes share. Without it
  the databases are in memory.
- `REDISQUEUE_TEST_SETTINGS`: JSON that is laid over `REDISQUEUE`.
- `REDISQUEUE_TEST_SHARDS`: how many shards there are where `REDISQUEUE` does not say it.
- `REDISQUEUE_TEST_CLUSTER`: if set, tests run on a Redis Cluster (see tests/support/cluster.py).
- `REDISQUEUE_TEST_MEDIA`: the folder of the default storage.
- `REDISQUEUE_TEST_STORAGE`: a class for the storage of large results.
- `REDISQUEUE_TEST_DATABASES`: JSON that is laid over `DATABASES` (see tests/support/postgres.py).
"""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import django

from django_redisqueue import conf

conf.DEFAULTS["SHARDS"] = int(os.environ.get("REDISQUEUE_TEST_SHARDS", "1"))

SECRET_KEY = "only for tests"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_redisqueue",
    "tests.app",
    "example_project.reports",
]

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "tests.app.middleware.strict_csp",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

ROOT_URLCONF = "tests.app.urls"
ALLOWED_HOSTS = ["*"]
STATIC_URL = "static/"
MEDIA_ROOT = os.environ.get("REDISQUEUE_TEST_MEDIA", "/dev/null/media")
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
if "REDISQUEUE_TEST_STORAGE" in os.environ:
    STORAGES["redisqueue"] = {"BACKEND": os.environ["REDISQUEUE_TEST_STORAGE"]}
# Cheap passwords: tests create hundreds of users.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def sqlite(alias: str) -> dict[str, Any]:
    folder = os.environ.get("REDISQUEUE_TEST_FOLDER")
    if folder is None:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    name = str(Path(folder) / f"{alias}.sqlite3")
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": name,
        "TEST": {"NAME": name},
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }


def use_pymysql() -> None:
    """Let Django use PyMySQL where mysqlclient, which must be compiled, is not installed."""
    if find_spec("MySQLdb") is None:
        import pymysql

        # the version of mysqlclient that Django requires
        pymysql.version_info = (2, 2, 1, "final", 0)
        pymysql.install_as_MySQLdb()


DATABASES: dict[str, Any] = {
    "default": sqlite("default"),
    "other": sqlite("other"),
    **json.loads(os.environ.get("REDISQUEUE_TEST_DATABASES", "{}")),
}
if any("mysql" in database["ENGINE"] for database in DATABASES.values()):
    use_pymysql()

REDISQUEUE: dict[str, Any] = {
    "CONNECTION": {
        "URL": os.environ.get("REDISQUEUE_TEST_URL", "unix:///nonexistent/redis.sock"),
    },
    "MIRROR": False,  # the mirror's tests turn it on
    **json.loads(os.environ.get("REDISQUEUE_TEST_SETTINGS", "{}")),
}

# Django's own Tasks; on 5.2 those of the django-tasks package.
if django.VERSION < (6, 0) and find_spec("django_tasks") is not None:
    INSTALLED_APPS.append("django_tasks")
_module = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
_backend = {"BACKEND": "django_redisqueue.backend.RedisQueueBackend", "QUEUES": []}
TASKS: dict[str, Any] = {
    "default": _backend,
    "second": _backend,
    "dummy": {"BACKEND": f"{_module}.backends.dummy.DummyBackend", "QUEUES": []},
}
