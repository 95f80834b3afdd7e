"""Lets a worker rest soon after the last transition, and otherwise look often."""

from __future__ import annotations

from django_redisqueue.worker.maintenance import bridge, leader, maintenance
from django_redisqueue.worker.supervisor import shard_roles
from tests.support.constants import replace

replace(shard_roles, QUIET_AFTER=-9.0)  # with LEASE and RESEND_WINDOW of a stage: 2.5 s
replace(leader, AWAKE=0.5, NOTE_CHECK=0.1)
replace(maintenance, LEASE_MS=1500, RENEW=0.2, PRUNE=0.2, PRUNE_OTHERS=0.2, AUDIT=0.2)
replace(bridge, LEASE_MS=1500, RENEW=0.2, RETRY=0.2)
