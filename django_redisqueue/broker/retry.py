"""While Redis fails: retry for ever, and log each failure once, not each retry."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ..exceptions import RedisQueueError, RedisUnavailable

logger = logging.getLogger("django_redisqueue")

Answer = TypeVar("Answer")
FIRST, CAP = 0.05, 2.0  # s


@dataclass(slots=True)
class _Outage:
    """When an outage began (monotonic), and the causes that were logged."""

    since: float
    logged: set[object] = field(default_factory=set)


_outages: dict[str, _Outage] = {}  # of this process, by the part that met them


class RetryBackoff:
    """Counts failures in a row, and pauses after each: for 0.05 s, doubling to 2 s, with jitter."""

    def __init__(self) -> None:
        self.failures = 0

    def next_pause(self) -> float:
        """Note a failure; the seconds to wait before the next try."""
        longest: float = min(CAP, FIRST * 2 ** min(self.failures, 10))
        self.failures += 1
        return longest * random.uniform(0.5, 1)

    def pause(self) -> None:
        """Note a failure and sleep before the next try."""
        time.sleep(self.next_pause())

    def reset(self) -> None:
        """Note a success."""
        self.failures = 0


def retry_until_answered(
    ask: Callable[[bool], Answer], *, who: str, give_up: Callable[[], bool] = lambda: False
) -> Answer:
    """Call ``ask(resent)`` until Redis answers; ``resent`` is True from the second call on.

    Raises the last error if ``give_up()`` is True after a failure.
    """
    backoff = RetryBackoff()
    while True:
        try:
            answer = ask(backoff.failures > 0)
        except RedisQueueError as error:
            if give_up():
                raise
            log_outage(who, error)
            backoff.pause()
        else:
            if backoff.failures:
                log_recovery(who)
            return answer


def retry_while_unavailable(ask: Callable[[], Answer]) -> Answer:
    """Call ``ask`` until Redis is available. For jobs: their timeout is the limit."""
    backoff = RetryBackoff()
    while True:
        try:
            return ask()
        except RedisUnavailable:
            backoff.pause()


def log_outage(who: str, error: RedisQueueError) -> None:
    """Log the error if it begins an outage, or is a new cause of the current one."""
    outage = _outages.setdefault(who, _Outage(time.monotonic()))
    cause = outage_cause(error)
    if cause not in outage.logged:
        outage.logged.add(cause)
        #: Redis does not answer or refuses, and the part that is named waits for it. No job is
        #: lost; bring Redis back.
        logger.error("%s: %s; trying again until it answers", who, error)


def log_recovery(who: str) -> None:
    """Log the end of the outage, if there was one."""
    outage = _outages.pop(who, None)
    if outage is not None:
        seconds = time.monotonic() - outage.since
        #: The outage is over, and its length. Do nothing.
        logger.warning("%s: Redis answers again after %.1f s", who, seconds)


def outage_cause(error: RedisQueueError) -> object:
    """What the errors of one outage have in common. Their texts differ while Redis stops, is away,
    loads its data or changes its role."""
    return RedisUnavailable if isinstance(error, RedisUnavailable) else str(error)


class BlockedQueues:
    """Logs once when a key of a wrong type blocks a queue, and once when the queue goes on.

    The caller goes on with its other queues. docs/operations.md says what to do.
    """

    def __init__(self, who: str) -> None:
        self._who = who
        self._known: dict[str, str] = {}

    @property
    def is_blocked(self) -> bool:
        """Whether any queue is."""
        return bool(self._known)

    def note(self, blocked: Mapping[str, str]) -> None:
        """Compare with the queues that are blocked now: queue -> what is wrong."""
        if not blocked and not self._known:
            return
        for queue, problem in blocked.items():
            if self._known.get(queue) != problem:
                #: Another program has written a key of this queue with a wrong type, so its jobs
                #: neither start nor fall due. Rename or delete the key that is named; nothing was
                #: changed.
                logger.error("%s: queue %s stands still: %s", self._who, queue, problem)
        for queue in self._known.keys() - blocked.keys():
            #: The keys of the queue that stood still are in order again. Do nothing.
            logger.warning("%s: queue %s goes on, its keys are in order", self._who, queue)
        self._known = dict(blocked)
