"""Jobs of which Redis says that a child holds them, while the child has reported their end.

That is so when Redis went back in time: it crashed with its last second unwritten, or a replica
without it was promoted. The child renews its lease, so nobody would ever reap them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from ..exceptions import RedisQueueError
from ..store.transitions import Transitions
from ..store.verbs import BATCH

logger = logging.getLogger("django_redisqueue")

Held = Callable[[], Mapping[str, set[str]]]  # child -> ids that it runs or has yet to report


class Strays:
    """Looks once after each outage, when a whole lease has passed since: what a child holds from
    before by then, it runs, or it has yet to report."""

    def __init__(self, store: Transitions, held: Held) -> None:
        self._store = store
        self._held = held
        self._steady_ms = 0  # of the last heartbeat
        self._due: float | None = None

    def after_beat(self, steady_ms: int) -> None:
        """``steady_ms``: since when this very Redis has been beaten without a gap."""
        if self._steady_ms and steady_ms != self._steady_ms:
            self._due = time.monotonic() + self._store.settings.lease_ms / 1000
        self._steady_ms = steady_ms
        if self._due is not None and time.monotonic() >= self._due:
            self._due = None
            self._look()

    def _look(self) -> None:
        for child, known in self._held().items():
            try:
                while len(self._hand_back(child, known)) == BATCH:
                    continue
            except RedisQueueError as error:
                logger.error("what child %s holds by mistake stays with it: %s", child, error)

    def _hand_back(self, child: str, known: set[str]) -> list[str]:
        ids = self._store.disown(child, self._steady_ms, sorted(known))
        for job_id in ids:
            logger.warning(
                "job %s has ended in child %s, but Redis went back to a time before: it runs again",
                job_id, child,
            )  # fmt: skip
        return ids
