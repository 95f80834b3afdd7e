"""Makes the relay of a worker look often, at a Redis whose disk is slow: no row goes meanwhile."""

from __future__ import annotations

from datetime import timedelta

from django_redisqueue.broker import durability
from django_redisqueue.outbox import relay
from django_redisqueue.worker.maintenance import maintenance, periodic
from tests.support.constants import replace

replace(periodic, CHECK_DUE=0.2)
replace(maintenance, RELAY=0.2, RENEW=0.2)
replace(relay, GRACE=timedelta(seconds=0.3))
replace(durability, FSYNCED_MS=600_000)
