"""Shortens the time from a job's timeout to the kill of its child."""

from __future__ import annotations

from django_redisqueue.worker.supervisor import watchdog
from tests.support.constants import replace

replace(watchdog, HARD_GRACE_MS=300)
