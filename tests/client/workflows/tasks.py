"""Tasks for the tests of workflows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django_redisqueue import task


@task(takes_context=True)
def gathered(context: Any) -> list[Any]:
    """What its parents returned."""
    return list(context.parent_results.values())


@task
def fails_once(folder: str) -> None:
    """Fail in the first run that this folder sees."""
    try:
        (Path(folder) / "first").open("x").close()
    except FileExistsError:
        return
    raise ValueError("the first time")


@task
def doubles_at_second(number: int, folder: str) -> int:
    """Returns twice the number, but fails in the first run that this folder sees."""
    fails_once.call(folder)
    return 2 * number


@task
def who() -> int:
    """The worker that ran it: the parent of its fork server."""
    return os.getpgid(0)
