"""Shortens what the processes of a worker promise its watchdog, and what they wait for."""

from __future__ import annotations

from django_redisqueue.broker import connection
from django_redisqueue.worker.child_state import KEEP_ALIVE, ChildState
from django_redisqueue.worker.maintenance import bridge, maintenance, periodic
from django_redisqueue.worker.supervisor import watchdog
from tests.support.constants import replace

_keep_alive = ChildState.keep_alive


def _sooner(self: ChildState, seconds: float = KEEP_ALIVE) -> None:
    _keep_alive(self, seconds * 0.2)


replace(ChildState, keep_alive=_sooner)
replace(watchdog, UNRESPONSIVE_MS=300)
replace(periodic, HUNG_AFTER=1.0)
replace(maintenance, BUSY=KEEP_ALIVE, RENEW=1.0)
replace(bridge, BUSY=KEEP_ALIVE, RENEW=1.0)
replace(connection, BLOCK_SECONDS=1)
