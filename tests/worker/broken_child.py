"""Makes every child die as it starts."""

from __future__ import annotations

from typing import Any

from django_redisqueue.signals import child_started


def die(**_: Any) -> None:
    raise RuntimeError("this child cannot start")


child_started.connect(die, dispatch_uid="tests.worker.broken_child")
