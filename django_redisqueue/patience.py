"""How long somebody waits for the end of a job, a workflow or a gather, and the waiting itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from .clock import Duration, to_ms
from .connection import blocking_link
from .exceptions import RedisUnavailable, WaitTimeout

AWAY = 5.0  # s that Redis may be away in the midst of a wait
AGAIN = 0.2  # s until it is asked again
RECHECK = 5.0  # s; a message that was lost costs a wait no more than this


class Patience:
    """``timeout`` seconds or a timedelta, None for ever; ``late`` says what had not happened when
    so many seconds are over."""

    def __init__(self, timeout: Duration | None, late: Callable[[float], str]) -> None:
        self._seconds = None if timeout is None else to_ms(timeout, "timeout") / 1000
        self._deadline = time.monotonic() + (self._seconds or 0)
        self._late = late

    def left(self, at_most: float) -> float:
        """Seconds to wait now. Raises WaitTimeout when there are none."""
        if self._seconds is None:
            return at_most
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise WaitTimeout(self._late(self._seconds))
        return min(left, at_most)


def listen_until(channel: str, has_ended: Callable[[], bool], patience: Patience) -> None:
    """Until ``has_ended``, which is asked at first and after each message on the channel. Raises
    WaitTimeout, and what ``has_ended`` raises; RedisUnavailable only when Redis is away at first,
    or for longer than a failover or a restart takes."""
    link, answered = blocking_link(), -math.inf
    try:
        while True:
            try:
                link.subscribe(channel)
                while not has_ended():
                    answered = time.monotonic()
                    link.message(patience.left(RECHECK))
                return
            except RedisUnavailable:
                if time.monotonic() - answered > RECHECK + AWAY:
                    raise
                link.close()
                time.sleep(patience.left(AGAIN))
    finally:
        link.close()
