"""Divides by a hundred the time for which a bridge waits for a message."""

from __future__ import annotations

from django_redisqueue.worker.maintenance import bridge
from tests.support.constants import replace

replace(bridge, READ_INTERVAL=bridge.READ_INTERVAL / 100)
