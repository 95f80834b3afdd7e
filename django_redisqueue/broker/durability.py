"""Would Redis still have a job after a crash? The relay asks this before it deletes a row.

Every script that creates a job of an outbox adds its id to one sorted set, scored by the time. An
id in the set was accepted, whatever has become of its job. An id not in the set was not accepted,
or Redis has lost it with its latest writes. So the set tells the relay whether to send a row
(again) and whether to delete it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from typing import Any

from ..conf import Settings
from ..core.parsing import clock_ms, score_ms
from ..exceptions import RedisRefused
from .base import QueryBase, slices
from .connection import RedisConnection

# More than twice the period of `appendfsync everysec`, because Redis delays writes only when its
# disk is over two seconds late. Needed with WAITAOF too: with `everysec`, Valkey 9.1 confirmed
# writes almost a second before its fdatasync.
FSYNCED_MS = 5_000
# With `appendfsync no` WAITAOF never confirms; the kernel writes data older than half a minute.
LEFT_TO_THE_SYSTEM_MS = 60_000
IDS = 500  # ids per command, which takes Redis about 0.1 ms
WAIT_MS = 1_500  # for the disk, and again for replicas
ASK_AGAIN = 60.0  # s until WAITAOF is tried again on a server that refused it


class Durability(QueryBase):
    """Queries on one connection. ``replicas``: how many of them must also have a job."""

    def __init__(
        self, connection: RedisConnection, settings: Settings | None = None, *, replicas: int = 0
    ) -> None:
        super().__init__(connection, settings)
        self._replicas = replicas
        self._waits = [("WAIT", replicas, WAIT_MS)] if replicas else []
        self._by_age_until = 0.0  # monotonic

    def accepted(self, ids: Sequence[str], *, wait: bool = True) -> dict[str, bool]:
        """The accepted ids among these, with True for those that would survive a crash.

        One round trip, which waits up to ``WAIT_MS`` for the disk and again for replicas. Without
        ``wait``, all values are False. Raises RedisQueueError.
        """
        if not ids:
            return {}
        if wait and time.monotonic() >= self._by_age_until:
            try:
                return self._look(ids, [("WAITAOF", 1, 0, WAIT_MS), *self._waits])
            except RedisRefused as error:  # an older server, one without AOF, or no permission
                if "waitaof" not in str(error).lower():
                    raise
                self._by_age_until = time.monotonic() + ASK_AGAIN
        return self._look(ids, self._waits if wait else None)

    def _look(self, ids: Sequence[str], waits: Sequence[tuple[Any, ...]] | None) -> dict[str, bool]:
        """Read the ids, then write once, and wait for that write, which comes after those of the
        ids. All on one connection, so a failover in between ends in an error."""
        fence = [("HSET", self.keys.meta, "fence", 1), *waits] if waits else []
        looks = [("ZMSCORE", self.keys.outbox, *part) for part in slices(ids, IDS)]
        clock, *replies = self.connection.pipeline([("TIME",), *looks, *fence])
        scores = list(chain.from_iterable(replies[: len(looks)]))
        settled_ms = None
        if waits is not None:
            settled_ms = _settled_ms(replies[len(looks) + 1 :], self._replicas)
        now_ms = clock_ms(clock)
        return {
            job_id: settled_ms is not None and now_ms - score_ms(score) >= settled_ms
            for job_id, score in zip(ids, scores, strict=True)
            if score is not None
        }

    def forget(self, ids: Sequence[str]) -> None:
        """Remove ids whose rows are deleted, so that they will not be sent again."""
        if ids:
            self.connection.pipeline(
                [("ZREM", self.keys.outbox, *part) for part in slices(ids, IDS)]
            )

    def older_than(self, age_ms: int, count: int) -> list[str]:
        """The ids accepted longest ago, at least ``age_ms``."""
        before = self.now_ms() - age_ms
        return self.connection.call(
            "ZRANGEBYSCORE", self.keys.outbox, "-inf", before, "LIMIT", 0, count
        )


def _settled_ms(replies: Sequence[Any], replicas: int) -> int | None:
    """How many ms ago a job must have been accepted to be safe, by the replies to WAITAOF and WAIT;
    None if too few replicas have it."""
    is_unwritten = False
    for reply in replies:
        if isinstance(reply, list):
            is_unwritten = int(reply[0]) < 1
        elif int(reply) < replicas:
            return None
    return LEFT_TO_THE_SYSTEM_MS if is_unwritten else FSYNCED_MS
