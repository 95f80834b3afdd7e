"""Makes the relay of a worker look often, for the tests that wait for it."""

from __future__ import annotations

from datetime import timedelta

from django_redisqueue.store import durability
from django_redisqueue.worker import maintenance, relay

maintenance.RELAY = 0.2
maintenance.RENEW = 0.2
relay.YOUNG = timedelta(seconds=0.3)
durability.SETTLED_MS = 300
