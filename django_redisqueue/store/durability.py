"""Whether Redis would still have a job after a crash: what the outbox asks before it deletes a row.

Every script that makes a job of an outbox notes its id in one sorted set, with the instant. An id
that is in it has been accepted, whatever has become of the job since; one that is missing has not,
or Redis has lost it with the data since its last write to disk. So the set answers both questions
of the relay: is this row to be sent (again), and may it go?
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from typing import Any

from ..conf import Settings
from ..exceptions import RedisRefused
from ..link import Link
from .reader import Reader, clock_ms

# Twice the period of `appendfsync everysec`, and as much again: Redis holds back writes while its
# disk is more than two seconds late. Also where WAITAOF is asked: with `everysec` Valkey 9.1 was
# seen to confirm writes most of a second before its fdatasync.
SETTLED_MS = 5_000
# With `appendfsync no` WAITAOF never confirms; the system writes what is older than half a minute.
LEFT_TO_THE_SYSTEM_MS = 60_000
IDS = 500  # a command, which holds Redis for some 0.1 ms
WAIT_MS = 1_500  # for the disk, and again for replicas
ASK_AGAIN = 60.0  # s until a server that did not know WAITAOF, or had no AOF, is asked once more


class Durability(Reader):
    """The questions, on one link. ``replicas``: how many must have a job, too."""

    def __init__(self, link: Link, settings: Settings | None = None, *, replicas: int = 0) -> None:
        super().__init__(link, settings)
        self._replicas = replicas
        self._by_age_until = 0.0  # monotonic

    def accepted(self, ids: Sequence[str], *, wait: bool = True) -> dict[str, bool]:
        """Those of these ids that Redis has accepted; True if that would survive a crash.

        One round trip, which takes up to ``WAIT_MS`` for the disk and again for replicas; without
        ``wait`` all are False. Raises RedisQueueError.
        """
        if not ids:
            return {}
        if wait and time.monotonic() >= self._by_age_until:
            try:
                return self._look(ids, [("WAITAOF", 1, 0, WAIT_MS), *self._wait()])
            except RedisRefused as error:  # an older server, one without AOF, or no permission
                if "waitaof" not in str(error).lower():
                    raise
                self._by_age_until = time.monotonic() + ASK_AGAIN
        return self._look(ids, self._wait() if wait else None)

    def _wait(self) -> list[tuple[Any, ...]]:
        return [("WAIT", self._replicas, WAIT_MS)] if self._replicas else []

    def _look(self, ids: Sequence[str], waits: Sequence[tuple[Any, ...]] | None) -> dict[str, bool]:
        """All on one connection: the ids are looked at, then a write follows theirs, and only that
        one is waited for. After a failover in between there is no reply but an error."""
        fence = [("HSET", self.keys.meta, "fence", 1), *waits] if waits else []
        looks = [
            ("ZMSCORE", self.keys.outbox, *ids[at : at + IDS]) for at in range(0, len(ids), IDS)
        ]
        clock, *replies = self.link.pipeline([("TIME",), *looks, *fence])
        scores = list(chain.from_iterable(replies[: len(looks)]))
        settled_ms = None
        if waits is not None:
            settled_ms = _settled_ms(replies[len(looks) + 1 :], self._replicas)
        now_ms = clock_ms(clock)
        return {
            job_id: settled_ms is not None and now_ms - int(float(score)) >= settled_ms
            for job_id, score in zip(ids, scores, strict=True)
            if score is not None
        }

    def forget(self, ids: Sequence[str]) -> None:
        """Their rows are gone: nobody will send them again."""
        if ids:
            self.link.pipeline(
                [("ZREM", self.keys.outbox, *ids[at : at + IDS]) for at in range(0, len(ids), IDS)]
            )

    def older_than(self, age_ms: int, count: int) -> list[str]:
        """The ids that were accepted longest ago, at least ``age_ms``."""
        before = self.now_ms() - age_ms
        ids: list[str] = self.link.call(
            "ZRANGEBYSCORE", self.keys.outbox, "-inf", before, "LIMIT", 0, count
        )
        return ids


def _settled_ms(replies: Sequence[Any], replicas: int) -> int | None:
    """How long ago a job must have been accepted, given the replies to WAITAOF and WAIT; None:
    too few replicas have it."""
    is_unwritten = False
    for reply in replies:
        if isinstance(reply, list):
            is_unwritten = int(reply[0]) < 1
        elif int(reply) < replicas:
            return None
    return LEFT_TO_THE_SYSTEM_MS if is_unwritten else SETTLED_MS
