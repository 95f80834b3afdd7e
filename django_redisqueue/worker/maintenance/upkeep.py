"""Periodic upkeep of a shard. Each class does one bounded pass; maintenance.py calls them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from ...broker.commands import Commands
from ...broker.continuations import (
    STEP,
    Continuation,
    ContinuationStep,
    UnreadableContinuation,
    abandoned_continuations,
    delete_continuation,
)
from ...broker.queries import Queries
from ...broker.retry import BlockedQueues
from ...conf import Settings
from ...core.statuses import Status
from ...exceptions import RedisQueueError, RedisUnavailable, WrongKeyType

logger = logging.getLogger("django_redisqueue")

STUCK_MS = 1000  # until the next try, if a key of the wrong type blocks promotion
STEPS_A_PASS = 50  # of at most 100 jobs
AUDIT_STEPS = 10  # of at most 100 jobs
KNOWN_FOR = 60.0  # s until Redis is asked again for its queues
LINGERING = 1000  # cancelled ids that a queue's list may hold: claims drop them at no cost


class Promoter:
    """Moves due jobs into their queues, and continues what scripts have left for later.

    ``schedule_ms``: time until the next schedule was due at the last pass, or -1."""

    def __init__(self, store: Commands, queues: tuple[str, ...]) -> None:
        self._store = store
        self.schedule_ms = -1
        self._queues = queues
        self._broken = BlockedQueues("maintenance")

    @property
    def is_blocked(self) -> bool:
        """Whether a key of a wrong type blocks some queue."""
        return self._broken.is_blocked

    def run_once(self) -> int:
        """Promote all due jobs. Returns ms until the next is due, -1 if none is scheduled."""
        while True:
            moved, next_ms, broken, self.schedule_ms = self._store.promote(self._queues)
            self._broken.note(broken)
            if next_ms != 0:
                return next_ms
            while self._store.advance():
                moved += 1
            if not moved and self._store.promote(self._queues).next_ms == 0:
                return STUCK_MS


class ContinuationRunner:
    """Continues clearing and requeueing whose callers died half-way."""

    def __init__(self, store: Commands) -> None:
        self._store = store
        self._verbs = {"clear": store.clear, "requeue": store.requeue_oldest}

    def run_once(self) -> bool:
        """True if there is more to do now."""
        more = False
        for rest in abandoned_continuations(self._store.connection, self._store.keys):
            if isinstance(rest, UnreadableContinuation):
                #: What was left of a clear or a requeue cannot be read, because another program has
                #: changed it. Repeat the action if jobs are left.
                logger.error("dropped a verb that was to go on: %s", rest.problem)
                delete_continuation(self._store.connection, self._store.keys, rest.token)
                continue
            #: A process died while it cleared or requeued many jobs, and a worker finishes that. Do
            #: nothing.
            logger.info(
                "queue %s: to %s %s jobs goes on without its caller, %d left",
                rest.queue, rest.verb, rest.status, rest.left,
            )  # fmt: skip
            try:
                more = self._go_on(rest) or more
            except RedisUnavailable:
                raise
            except RedisQueueError as error:  # concerns this queue alone
                #: A clear or a requeue whose caller died waits, because a key of the queue has a
                #: wrong type. Rename or delete that key.
                logger.error("queue %s: to %s goes on later: %s", rest.queue, rest.verb, error)
        return more

    def _go_on(self, rest: Continuation) -> bool:
        left = rest.left
        for _ in range(STEPS_A_PASS):
            step = ContinuationStep(rest.token, left, 0)
            taken = self._verbs[rest.verb](rest.queue, rest.status, min(left, STEP), step)
            left -= taken.seen
            if taken.seen == 0 or left == 0:
                return False
        return True


class LaneAudit:
    """Repairs slots and lanes that were changed by hand, so that no job waits for ever.

    Reads at most AUDIT_STEPS pages per pass, and one in an idle shard.
    """

    def __init__(self, store: Commands) -> None:
        self._store = store
        self._next = ("", "")

    def run_once(self) -> bool:
        """Always False: the next pass continues, because none of this is urgent."""
        total = 0
        for _ in range(AUDIT_STEPS):
            mended, *following = self._store.audit_lanes(*self._next)
            self._next = (following[0], following[1])
            total += mended
            if self._next == ("", ""):
                break
        if total:
            #: Slots of limits, or lanes of jobs, did not agree with the jobs, because keys of Redis
            #: were deleted or changed by hand. Nothing else to do; do not do that.
            logger.warning("mended %d slots and lanes that were changed by hand", total)
        return False


class AgingDeployment:
    """Tells Redis the option ``AGING`` of the queues of this worker's settings."""

    def __init__(self, store: Commands, settings: Settings) -> None:
        self._store = store
        self._aging_ms = {name: queue.aging_ms for name, queue in settings.queues.items()}

    def run_once(self) -> bool:
        """Returns False: it never has more to do."""
        self._store.set_aging(self._aging_ms)
        return False


class KnownQueues:
    """The queues of a shard: those of the settings and all others in Redis.

    New queues are rare, so Redis is asked for them once a minute. Not thread-safe.
    """

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


class Pruner:
    """Deletes finished jobs of some statuses by count, age and bytes."""

    def __init__(
        self,
        store: Commands,
        settings: Settings,
        statuses: Sequence[Status],
        known: KnownQueues | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._statuses = statuses
        self._known = known or KnownQueues(store, list(settings.queues))

    def run_once(self) -> int:
        """Prune all queues that Redis knows. Returns how many jobs were deleted."""
        known = self._known.names()
        return sum(self._prune(queue, status) for queue in known for status in self._statuses)

    def compact(self) -> bool:
        """Drop cancelled ids from the lists of all queues: claims do that too, but a queue may
        have no worker. True if there is more to do now."""
        more = [self._compact(queue) for queue in self._known.names()]
        return any(more)

    def _compact(self, queue: str) -> bool:
        with suppress(WrongKeyType):  # the queue is blocked, which the promoter has logged
            return all(self._store.compact(queue, LINGERING) for _ in range(STEPS_A_PASS))
        return False

    def _prune(self, queue: str, status: Status) -> int:
        limits = self._settings.queues.get(queue, self._settings.retention)
        failed = status is Status.FAILED
        keep = limits.keep_failed if failed else limits.keep_completed
        ttl_ms = limits.failed_ttl_ms if failed else limits.result_ttl_ms
        total = 0
        for _ in range(STEPS_A_PASS):
            try:
                gone, forced, more = self._store.prune(queue, status.value, keep, ttl_ms)
            except WrongKeyType:  # the queue is blocked, which the promoter has logged
                break
            total += gone
            if forced:
                #: Finished jobs leave Redis earlier than KEEP_* and the TTLs say, because they take
                #: too much memory. Their records stay; raise FINISHED_MAX_BYTES or return less.
                logger.warning(
                    "queue %s: %d %s jobs let go before their time, for FINISHED_MAX_BYTES",
                    queue, forced, status.value,
                )  # fmt: skip
            if not more:
                break
        return total
