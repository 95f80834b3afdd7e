"""Makes the relay of a worker look often, at a Redis whose disk is slow: no row goes meanwhile."""

from __future__ import annotations

from datetime import timedelta

from django_redisqueue.store import durability
from django_redisqueue.worker import maintenance, relay

maintenance.RELAY = 0.2
maintenance.RENEW = 0.2
relay.YOUNG = timedelta(seconds=0.3)
durability.SETTLED_MS = 600_000
