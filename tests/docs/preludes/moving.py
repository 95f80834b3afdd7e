"""Before docs/moving.md: what Celery gives, and a class whose instances are jobs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def shared_task(*, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda func: func


job = SimpleNamespace(pk=42)


class Sync:
    timeout = 60

    def __init__(self, pk: int) -> None:
        self.pk = pk

    def run(self) -> None: ...
