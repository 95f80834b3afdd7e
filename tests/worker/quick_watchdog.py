"""Shortens what the processes of a worker promise its watchdog, to just over their longest wait."""

from __future__ import annotations

from django_redisqueue.worker import bridge, desk, maintenance, watch
from django_redisqueue.worker.seat import KEEP_ALIVE, Seat

_keep_alive = Seat.keep_alive


def _sooner(self: Seat, seconds: float = KEEP_ALIVE) -> None:
    _keep_alive(self, seconds * 0.5)


Seat.keep_alive = _sooner  # type: ignore[method-assign]
watch.SILENT_FOR_MS = 300
desk.HANGS = 1.0
bridge.BUSY = maintenance.BUSY = KEEP_ALIVE
