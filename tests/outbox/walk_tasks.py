"""Tasks that walk over rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.db.models import F

from django_redisqueue import task
from tests.app.models import Counter
from tests.worker.processes import eventually
from tests.worker.tasks import trace


def bump(row: Counter) -> None:
    Counter.objects.filter(pk=row.pk).update(value=F("value") + 1)


@task(takes_context=True, exactly_once=True)
def bump_all(context: Any, folder: str, chunk: int) -> None:
    (Path(folder) / "pid").write_text(str(os.getpid()))
    for row in context.iterate(Counter.objects.all(), chunk=chunk):
        bump(row)


def bump_and_wait(context: Any, folder: str) -> None:
    for row in context.iterate(Counter.objects.order_by("pk")):
        trace(folder, row.name)
        bump(row)
        eventually((Path(folder) / f"go{row.name[1:]}").exists)


@task(takes_context=True, exactly_once=True)
def wait_at_each(context: Any, folder: str) -> None:
    bump_and_wait(context, folder)


@task(takes_context=True)
def wait_at_each_plainly(context: Any, folder: str) -> None:
    bump_and_wait(context, folder)
