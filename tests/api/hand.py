"""A worker by hand: claims and settles single jobs, so that a test decides what becomes of each."""

from __future__ import annotations

import os
import time
from typing import Any

from django_redisqueue import task
from django_redisqueue.connection import worker_link
from django_redisqueue.jobdata import encode_error
from django_redisqueue.store.replies import Claimed, Outcome, Settled
from django_redisqueue.store.transitions import Seeker, Transitions


@task(queue_name="low", priority=-5)
def low(x: Any = None) -> Any:
    """A task for a queue that the settings of most tests do not have."""
    return x


class Hand:
    """One child without a process."""

    def __init__(self, *queues: str) -> None:
        self.link = worker_link()
        self.store = Transitions(self.link)
        self.seeker = Seeker(f"hand_{os.getpid()}_{time.monotonic_ns()}", queues or ("default",))
        self.calls = 0

    def claim(self, jobs: int = 1) -> list[Claimed]:
        self.calls += 1
        return self.store.claim(self.seeker, self.calls, jobs).jobs

    def claim_one(self) -> Claimed:
        (job,) = self.claim()
        return job

    def settle(self, job: Claimed, verdict: str, body: str = "", detail: str = "") -> None:
        self.calls += 1
        outcome = Outcome(job.id, job.lease, job.call, verdict, body, detail)
        (settled,), _ = self.store.finish(self.seeker, self.calls, [outcome], 0)
        assert settled in (Settled.ACCEPTED, Settled.ACCEPTED_AS_CANCELLED)

    def complete_one(self, result: str = "null") -> str:
        """Claim the next job and report ``result`` (JSON); its id."""
        job = self.claim_one()
        self.settle(job, "completed", result)
        return job.id

    def fail_one(self, message: str = "boom") -> str:
        """Claim the next job and report a ValueError; its id."""
        job = self.claim_one()
        self.settle(job, "failed", encode_error("ValueError", message, "Traceback ...", 9999))
        return job.id

    def close(self) -> None:
        self.link.close()
