"""Makes a worker slow to give back what dead children held, for tests of who waits for that."""

from __future__ import annotations

import time
from collections.abc import Sequence

from django_redisqueue.worker.reaper import Reaper, Report

SECONDS = 0.6
_reap_dead = Reaper.reap_dead


def _slowly(
    self: Reaper, child: str, started: Sequence[str] | None, keep: Sequence[str] = ()
) -> Report:
    if started is None or started:  # of a child that died, not of one that has ended
        time.sleep(SECONDS)
    return _reap_dead(self, child, started, keep)


Reaper.reap_dead = _slowly  # type: ignore[method-assign]
