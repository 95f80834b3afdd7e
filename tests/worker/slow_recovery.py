"""Makes a worker slow to recover the jobs of dead children."""

from __future__ import annotations

import time
from collections.abc import Sequence

from django_redisqueue.worker.reaper import Reaper, ReapReport

SECONDS = 0.6
_reap_dead = Reaper.reap_dead


def _slowly(
    self: Reaper, child: str, started: Sequence[str] | None, keep: Sequence[str] = ()
) -> ReapReport:
    if started is None or started:  # the child died, instead of ending in order
        time.sleep(SECONDS)
    return _reap_dead(self, child, started, keep)


Reaper.reap_dead = _slowly  # type: ignore[method-assign]
