"""Tasks for the tests of the outbox, of receipts and of redaction."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.db import OperationalError, connection, transaction

from django_redisqueue import Backoff, task
from tests.app.models import Counter
from tests.app.tasks import bump
from tests.worker.tasks import trace

NO_DELAY = Backoff(base=0, jitter=0)


@task(redact=("card", "token"))
def charge(order: int, card: str, *, token: str = "", note: str = "") -> str:
    return f"{order} {card} {token} {note}"


@task(redact=("secrets", "others"), takes_context=True)
def vault(context: Any, name: str, /, *secrets: str, shown: int = 0, **others: str) -> int:
    return len(secrets) + len(others)


@task(outbox=True)
def stored(x: Any = None) -> Any:
    return x


@task(audit="none")
def unheard(x: Any = None) -> Any:
    return x


@task(exactly_once=True)
def count_once(name: str) -> int:
    return bump(name)


@task(exactly_once=True, using="other")
def count_on_other(name: str) -> str:
    Counter.objects.using("other").create(name=name)
    return name


@task(exactly_once=True, max_attempts=3, backoff=NO_DELAY)
def fail_once(folder: str, name: str) -> int:
    """Its first run changes the database, enqueues a job, and raises."""
    n = trace(folder, name)
    value = bump(name)
    bump_later.enqueue(f"{name}-later")
    if n == 1:
        raise ConnectionError("the first run")
    return value


@task
def bump_later(name: str) -> int:
    return bump(name)


@task(exactly_once=True)
def count_and_enqueue(name: str) -> int:
    bump_later.enqueue(f"{name}-later")
    return bump(name)


@task(exactly_once=True)
def slow_once(folder: str, name: str, seconds: float) -> int:
    """Adds its own row in each run, and sleeps with the transaction open."""
    n = trace(folder, name)
    Counter.objects.create(name=f"{name}-{n}")
    time.sleep(seconds)
    return n


@task(exactly_once=True, timeout=1)  # enough for the first connection to the database
def late_once(folder: str, name: str) -> int:
    n = trace(folder, name)
    Counter.objects.create(name=f"{name}-{n}")
    time.sleep(30)
    return n


@task(exactly_once=True)
def bad_result_once(name: str) -> object:
    bump(name)
    return object()


@task(exactly_once=True, timeout=1)  # enough for the first connection to the database
def slow_hook_once(name: str) -> int:
    """Its timeout passes after its commit."""
    transaction.on_commit(lambda: time.sleep(2))
    return bump(name)


@task(exactly_once=True, timeout=1)
def endless_hook_once(name: str) -> int:
    """Hangs after its commit until its process is killed."""
    transaction.on_commit(lambda: time.sleep(60))
    return bump(name)


@task(exactly_once=True)
def bad_hook_once(name: str) -> int:
    """Its work commits, and then one of the application's hooks raises."""
    transaction.on_commit(lambda: 1 / 0)
    return bump(name)


@task(exactly_once=True)
def cut_off_once(name: str) -> int:
    """Loses its connection between its work and the commit, as in a failover of the database."""
    value = bump(name)
    is_mysql = connection.vendor == "mysql"
    end = "KILL CONNECTION_ID()" if is_mysql else "SELECT pg_terminate_backend(pg_backend_pid())"
    with connection.cursor() as cursor, suppress(OperationalError):
        cursor.execute(end)
    return value


def die_once(folder: str, name: str) -> None:
    """SIGKILL this process, unless a process has already died under this name."""
    try:
        os.close(os.open(Path(folder) / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    os.kill(os.getpid(), 9)
