"""How long somebody waits for a job."""

from __future__ import annotations

import time

from .clock import Duration, to_ms
from .exceptions import WaitTimeout


class Patience:
    """How long somebody waits for a job: ``timeout`` seconds or a timedelta, None for ever."""

    def __init__(self, timeout: Duration | None, job_id: str) -> None:
        self._seconds = None if timeout is None else to_ms(timeout, "timeout") / 1000
        self._deadline = time.monotonic() + (self._seconds or 0)
        self._job_id = job_id

    def left(self, at_most: float) -> float:
        """Seconds to wait now. Raises WaitTimeout when there are none."""
        if self._seconds is None:
            return at_most
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise WaitTimeout(f"job {self._job_id} was not finished after {self._seconds:g} s")
        return min(left, at_most)
