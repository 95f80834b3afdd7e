"""Batches: how many jobs to claim at once, and what goes back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from ..store.replies import Claimed, Outcome, Verdict

MAX_BATCH = 100
NEAR_BATCH, SHARED = 36, 64  # the least that pays, and of all children of a worker together
FAR = 0.0005  # s there and back, from which on Redis is far


def largest_batch(ping: Callable[[], object], siblings: int) -> int:
    """How many jobs a call may bring. A far Redis costs time that a larger batch spreads; to a near
    one a smaller batch costs little, and the other clients of a busy Redis wait that much less:
    for the calls of all ``siblings``, the children of the worker, one behind the other."""
    times = []
    for _ in range(3):
        begun = time.monotonic()
        ping()
        times.append(time.monotonic() - begun)
    return MAX_BATCH if min(times) > FAR else max(NEAR_BATCH, SHARED // siblings)


class BatchSize:
    """An estimate of the run time of the jobs to come, from those that ran.

    It begins with one job, rises at once when jobs turn out slow and falls slowly, by a quarter of
    the difference a batch: a batch too small costs a round trip, one too large makes jobs wait.
    After a batch of which jobs went back (there was no place for them), batches begin anew with as
    many as have run, and double.
    """

    def __init__(self, window_ms: int) -> None:
        self.limit = NEAR_BATCH
        self._window = window_ms / 1000
        self._estimate = self._window
        self._most = MAX_BATCH

    def jobs(self) -> int:
        """1 to the limit: as many as will likely start within the window."""
        if not self._window:
            return 1
        return min(self.limit, self._most, math.ceil(self._window / self._estimate))

    def learn(self, jobs: int, seconds: float, *, of: int) -> None:
        """``jobs`` have run in ``seconds``, ``of`` so many in their batch."""
        self._most = jobs if jobs < of else min(MAX_BATCH, 2 * self._most)
        mean = max(seconds / jobs, 1e-6)
        self._estimate = mean if mean > self._estimate else self._estimate * 0.75 + mean * 0.25


def handed_back(job: Claimed) -> Outcome:
    """The outcome of a job that goes back to the head of its queue."""
    return Outcome(job.id, job.lease, job.call, Verdict.QUEUED)
