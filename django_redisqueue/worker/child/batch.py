"""Batches: how many jobs a child claims at once, and how it returns those it does not start."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from ...broker.replies import ClaimedJob, Outcome, OutcomeKind
from ..child_state import MAX_BATCH

NEAR_BATCH = 36  # jobs; a smaller limit would cost throughput
SHARED_BATCH = 64  # jobs, divided among all children of a worker
FAR_ROUND_TRIP = 0.0005  # s; a Redis that takes longer to answer is far away


def largest_batch(ping: Callable[[], object], siblings: int) -> int:
    """How many jobs a call may claim. ``siblings``: the children of the worker.

    If Redis is far away, larger batches save round trips. If it is near, smaller batches cost
    little, and other clients wait less for the calls of all siblings, one after the other.
    """
    times = []
    for _ in range(3):
        begun = time.monotonic()
        ping()
        times.append(time.monotonic() - begun)
    return MAX_BATCH if min(times) > FAR_ROUND_TRIP else max(NEAR_BATCH, SHARED_BATCH // siblings)


class BatchSize:
    """How many jobs to claim at once, from an estimate of their run time.

    The first batch is one job. The estimate rises at once when jobs turn out slow, and falls
    slowly, by a quarter of the difference per batch: a batch too small costs a round trip, one too
    large makes jobs wait. After a batch that was not run to its end, the size restarts at the
    number of jobs that ran, and doubles from there.
    """

    def __init__(self, window_ms: int) -> None:
        self.limit = NEAR_BATCH
        self._window = window_ms / 1000
        self._estimate = self._window
        self._most = MAX_BATCH

    def jobs(self) -> int:
        """As many as will probably start within the window, at least 1."""
        if not self._window:
            return 1
        return min(self.limit, self._most, math.ceil(self._window / self._estimate))

    def learn(self, jobs: int, seconds: float, *, of: int) -> None:
        """Note that ``jobs`` ran in ``seconds``, from a batch ``of`` so many."""
        self._most = jobs if jobs < of else min(MAX_BATCH, 2 * self._most)
        mean = max(seconds / jobs, 1e-6)
        self._estimate = mean if mean > self._estimate else self._estimate * 0.75 + mean * 0.25


def release_outcome(job: ClaimedJob) -> Outcome:
    """The outcome of a job that goes back to the head of its queue."""
    return Outcome(job.id, job.lease, job.call, OutcomeKind.QUEUED)
