"""``manage.py redisqueue_worker``: runworker, for projects where another app has a runworker."""

from __future__ import annotations

from .runworker import Command

__all__ = ["Command"]
