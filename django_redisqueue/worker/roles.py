"""What exists once a shard: the timer, the pruner, and how chores take turns. One pass each, driven
by maintenance.py."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..conf import Settings
from ..exceptions import RedisQueueError, RedisUnavailable, WrongKeyType
from ..states import Status
from ..store.continuations import STEP, Continuation, Step, Unreadable, drop, left_behind
from ..store.reads import Reads
from ..store.transitions import Transitions
from .brokenqueues import BrokenQueues

logger = logging.getLogger("django_redisqueue")

STUCK_MS = 1000  # until the next try, when a key of a wrong type holds something up
STEPS_A_PASS = 50  # of at most 100 jobs
LINGERING = 1000  # cancelled ids that a queue's list may have: claims drop them at no cost


@dataclass(slots=True)
class Chore:
    """Something to do every ``interval`` s; ``do`` returns True when it wants to go on at once."""

    do: Callable[[], bool]
    interval: float
    due: float = 0.0
    name: str = ""


def do_due(chores: Sequence[Chore]) -> bool:
    """Do what is due; True when there is more to do at once."""
    more = False
    for chore in chores:
        now = time.monotonic()
        if now >= chore.due:
            chore.due = now + chore.interval  # also when it fails
            if chore.do():
                chore.due, more = now, True
    return more


class Timer:
    """Moves due jobs into their queues, and goes on with what scripts have left for later."""

    def __init__(self, store: Transitions, queues: tuple[str, ...]) -> None:
        self._store = store
        self._queues = queues
        self._broken = BrokenQueues("maintenance")

    def run_once(self) -> int:
        """Do all that is due; ms until the next, -1 when nothing is scheduled."""
        while True:
            moved, next_ms, broken = self._store.promote(self._queues)
            self._broken.note(broken)
            if next_ms != 0:
                return next_ms
            while self._store.advance():
                moved += 1
            if not moved and self._store.promote(self._queues).next_ms == 0:
                return STUCK_MS


class Continuer:
    """Goes on with clearing and requeueing that their callers left half-way."""

    def __init__(self, store: Transitions) -> None:
        self._store = store
        self._verbs = {"clear": store.clear, "requeue": store.requeue_oldest}

    def run_once(self) -> bool:
        """A bounded pass; True when there is more to do."""
        more = False
        for rest in left_behind(self._store.link, self._store.keys):
            if isinstance(rest, Unreadable):
                logger.error("dropped a verb that was to go on: %s", rest.problem)
                drop(self._store.link, self._store.keys, rest.token)
                continue
            logger.info(
                "queue %s: to %s %s jobs goes on without its caller, %d left",
                rest.queue, rest.verb, rest.status, rest.left,
            )  # fmt: skip
            try:
                more = self._go_on(rest) or more
            except RedisUnavailable:
                raise
            except RedisQueueError as error:  # of its queue: the others go on
                logger.error("queue %s: to %s goes on later: %s", rest.queue, rest.verb, error)
        return more

    def _go_on(self, rest: Continuation) -> bool:
        left = rest.left
        for _ in range(STEPS_A_PASS):
            step = Step(rest.token, left, 0)
            taken = self._verbs[rest.verb](rest.queue, rest.status, min(left, STEP), step)
            left -= taken.seen
            if taken.seen == 0 or left == 0:
                return False
        return True


class Pruner:
    """Lets finished jobs of some statuses go, by count, age and bytes."""

    def __init__(self, store: Transitions, settings: Settings, statuses: Sequence[Status]) -> None:
        self._store = store
        self._settings = settings
        self._statuses = statuses
        self._reads = Reads(store.link, settings)

    def run_once(self) -> int:
        """A bounded pass over all queues that Redis knows; how many jobs were let go."""
        queues = self._settings.queues
        known = [*queues, *self._reads.former_queues(queues)]
        return sum(self._prune(queue, status) for queue in known for status in self._statuses)

    def tidy(self) -> bool:
        """A bounded pass over the lists of all queues that nobody claims from; True when there is
        more to do."""
        queues = self._settings.queues
        more = [self._tidy(q) for q in (*queues, *self._reads.former_queues(queues))]
        return any(more)

    def _tidy(self, queue: str) -> bool:
        with suppress(WrongKeyType):  # the queue stands still, which the timer has said
            return all(self._store.tidy(queue, LINGERING) for _ in range(STEPS_A_PASS))
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
            except WrongKeyType:  # the queue stands still, which the timer has said
                break
            total += gone
            if forced:
                logger.warning(
                    "queue %s: %d %s jobs let go before their time, for FINISHED_MAX_BYTES",
                    queue, forced, status.value,
                )  # fmt: skip
            if not more:
                break
        return total
