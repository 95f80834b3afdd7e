"""``manage.py redisqueue_worker``: runworker, for projects where another app has that name too."""

from __future__ import annotations

from .runworker import Command

__all__ = ["Command"]
