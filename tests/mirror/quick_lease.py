"""Divides by ten the lease of a bridge, and the time between two attempts to get it."""

from __future__ import annotations

from django_redisqueue.worker.maintenance import bridge
from tests.support.constants import replace

replace(bridge, LEASE_MS=bridge.LEASE_MS // 10, RENEW=bridge.RENEW / 10, RETRY=bridge.RETRY / 10)
