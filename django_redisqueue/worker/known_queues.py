"""The queues of a shard, asked for once a minute."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..broker.commands import Commands
from ..broker.queries import Queries

KNOWN_FOR = 60.0  # s until Redis is asked again


class KnownQueues:
    """Those of the settings and all others in Redis, which are seldom new: an idle shard is not
    asked for them in every pass. Passes of one thread share it."""

    def __init__(self, store: Commands, queues: Sequence[str]) -> None:
        self._queries = Queries(store.connection, store.settings)
        self._own = queues
        self._queues: Sequence[str] = ()
        self._ask_at = 0.0

    def names(self) -> Sequence[str]:
        now = time.monotonic()
        if now >= self._ask_at:
            self._queues = [*self._own, *self._queries.former_queues(self._own)]
            self._ask_at = now + KNOWN_FOR
        return self._queues
