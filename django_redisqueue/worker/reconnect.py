"""Trying again while Redis is away: for ever, with capped and jittered pauses (law 5)."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ..exceptions import RedisQueueError, RedisUnavailable

logger = logging.getLogger("django_redisqueue")

Answer = TypeVar("Answer")
FIRST, CAP = 0.05, 2.0  # s


@dataclass(slots=True)
class _Outage:
    """Since when (monotonic) somebody meets errors, and what was logged of them."""

    since: float
    said: set[object] = field(default_factory=set)


_outages: dict[str, _Outage] = {}  # of this process, by who meets them


def say_away(who: str, error: RedisQueueError) -> None:
    """Log the error if it begins an outage, or is another cause of one that is under way."""
    outage = _outages.setdefault(who, _Outage(time.monotonic()))
    cause = cause_of(error)
    if cause not in outage.said:
        outage.said.add(cause)
        logger.error("%s: %s; trying again until it answers", who, error)


def say_back(who: str) -> None:
    """Log the end of the outage, if there was one."""
    outage = _outages.pop(who, None)
    if outage is not None:
        seconds = time.monotonic() - outage.since
        logger.warning("%s: Redis answers again after %.1f s", who, seconds)


def cause_of(error: RedisQueueError) -> object:
    """What two errors of one outage have in common: their words differ while Redis goes, is away,
    loads its data or changes its role."""
    return RedisUnavailable if isinstance(error, RedisUnavailable) else str(error)


def until_answered(
    ask: Callable[[bool], Answer], *, who: str, give_up: Callable[[], bool] = lambda: False
) -> Answer:
    """Call ``ask(resent)`` until Redis answers; ``resent`` is True from the second time on.

    Raises the last error when ``give_up()`` says so after a failure. Says in the log when Redis
    goes and when it is back, once each.
    """
    tries = 0
    while True:
        try:
            answer = ask(tries > 0)
        except RedisQueueError as error:
            if give_up():
                raise
            say_away(who, error)
            pause(tries)
            tries += 1
        else:
            if tries:
                say_back(who)
            return answer


def while_away(ask: Callable[[], Answer]) -> Answer:
    """What ``ask`` returns, once Redis is there. For jobs, whose timeout is the limit."""
    tries = 0
    while True:
        try:
            return ask()
        except RedisUnavailable:
            pause(tries)
            tries += 1


def pause(tries: int) -> None:
    """Wait before the next try: 0.05 s doubling to 2 s, between half and all of it."""
    time.sleep(min(CAP, FIRST * 2 ** min(tries, 10)) * random.uniform(0.5, 1))
