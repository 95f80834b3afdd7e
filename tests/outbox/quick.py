"""Makes a worker's relay run often, for tests that wait for it."""

from __future__ import annotations

from datetime import timedelta

from django_redisqueue.broker import durability
from django_redisqueue.outbox import relay
from django_redisqueue.worker.maintenance import maintenance
from tests.support.constants import replace

replace(maintenance, CHECK_DUE=0.2)
replace(maintenance, RELAY=0.2, RENEW=0.2)
replace(relay, GRACE=timedelta(seconds=0.3))
replace(durability, FSYNCED_MS=300)
