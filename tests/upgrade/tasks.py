"""Tasks that both versions run. A file in the site's folder decides how they end."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from django_redisqueue import Backoff, listener, task

FOLDER = Path(os.environ.get("UPGRADE_FOLDER", "/nonexistent"))


def hold(name: str) -> None:
    """Record that ``name`` is running; return when the file "hold" is gone."""
    (FOLDER / f"{name}.runs").touch()
    while (FOLDER / "hold").exists():
        time.sleep(0.02)


@task
def add(a: int, b: int) -> int:
    return a + b


@task(exactly_once=True)
def once(a: int) -> int:
    return a


@task(redact=("card",))
def charge(card: str) -> str:
    return "charged"


@task
def held(name: str) -> str:
    hold(name)
    return name


@task(max_attempts=1)
def broken() -> str:
    if (FOLDER / "hold").exists():
        raise ValueError("broken")
    return "mended"


@task(max_attempts=3, backoff=Backoff(base=60))
def flaky() -> str:
    if (FOLDER / "hold").exists():
        raise OSError("not yet")
    return "steady"


@listener("upgrade")
def quick_half(number: int) -> int:
    return number


@listener("upgrade")
def held_half(number: int) -> int:
    hold("gather")
    return number + 1


@task(takes_context=True)
def merge(context: Any, number: int) -> dict[str, Any]:
    return dict(context.gather.results)
