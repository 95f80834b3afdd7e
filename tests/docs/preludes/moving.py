"""Before docs/moving.md: what Celery gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def shared_task(*, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda func: func
