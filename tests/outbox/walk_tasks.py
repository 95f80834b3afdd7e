"""Tasks that walk over rows."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.db.models import F

from django_redisqueue import task
from tests.app.models import Counter
from tests.worker.processes import eventually
from tests.worker.tasks import trace


def bump(row: Counter) -> None:
    Counter.objects.filter(pk=row.pk).update(value=F("value") + 1)


@task(takes_context=True, exactly_once=True)
def bump_all(context: Any, folder: str, chunk: int, rows_a_kill: int, kills: int) -> None:
    """Waits to be killed before it has processed more rows than its earlier runs were meant to."""
    n = trace(folder, "run")
    (Path(folder) / "pid").write_text(str(os.getpid()))
    for row in context.iterate(Counter.objects.all(), chunk=chunk):
        bump(row)
        if n <= kills and int(row.name[1:]) >= n * rows_a_kill:
            time.sleep(60)


def bump_and_wait(context: Any, folder: str) -> None:
    for row in context.iterate(Counter.objects.order_by("pk")):
        bump_one_and_wait(context, folder, row)


def bump_one_and_wait(context: Any, folder: str, row: Counter) -> None:
    """An item ends when its file exists, or when the job is told to end."""
    trace(folder, row.name)
    bump(row)
    go = Path(folder) / f"go{row.name[1:]}"
    eventually(lambda: go.exists() or context.stopping or context.cancelled)


@task(takes_context=True, exactly_once=True)
def wait_at_each(context: Any, folder: str) -> None:
    bump_and_wait(context, folder)


@task(takes_context=True)
def wait_at_each_plainly(context: Any, folder: str) -> None:
    bump_and_wait(context, folder)


@task(takes_context=True)
async def wait_at_each_async(context: Any, folder: str) -> None:
    async for row in context.aiterate(Counter.objects.order_by("pk")):
        await sync_to_async(bump_one_and_wait)(context, folder, row)
