"""Like ``quick``, but with a Redis whose disk is slow: meanwhile no row is deleted."""

from __future__ import annotations

from django_redisqueue.broker import durability
from tests.outbox import quick  # noqa: F401
from tests.support.constants import replace

replace(durability, FSYNCED_MS=600_000)
