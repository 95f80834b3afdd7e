"""Trying again while Redis is away: for ever, with capped and jittered pauses (law 5)."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from ..exceptions import RedisQueueError, RedisUnavailable

logger = logging.getLogger("django_redisqueue")

Answer = TypeVar("Answer")
FIRST, CAP = 0.05, 2.0  # s


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
            if tries == 0 or not isinstance(error, RedisUnavailable):
                logger.error("%s: %s; trying again until it answers", who, error)
            pause(tries)
            tries += 1
        else:
            if tries:
                logger.warning("%s: Redis answers again after %d tries", who, tries)
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
