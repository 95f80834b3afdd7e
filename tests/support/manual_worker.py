"""A worker operated by the test: it claims and finishes single jobs, so that the test decides how
each ends."""

from __future__ import annotations

import os
import time
from typing import Any

from django_redisqueue import task
from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.replies import ClaimedJob, FinishCode, Outcome
from django_redisqueue.conf import get_settings
from django_redisqueue.core.ids import shard_of_id
from django_redisqueue.core.job_data import encode_error

from .shards import shard_of


@task(queue_name="low", priority=-5)
def low(x: Any = None) -> Any:
    """A task for a queue that is missing from the settings of most tests."""
    return x


class ManualWorker:
    """One child without a process. ``store`` and ``connection`` belong to the shard of its first
    queue, or to ``home``; it claims there first, then in the other shards."""

    def __init__(self, *queues: str, home: int | None = None) -> None:
        queues = queues or ("default",)
        home = shard_of(queues[0]) if home is None else home
        self.connection = worker_connection(home)
        self.store = Commands(self.connection)
        others = (shard for shard in range(get_settings().shards) if shard != home)
        self.stores = [self.store, *(Commands(self.connection.at(shard)) for shard in others)]
        self.claim_request = ClaimRequest(f"test_{os.getpid()}_{time.monotonic_ns()}", queues)
        self.calls = 0
        self._claimed_in: dict[str, Commands] = {}

    def store_of(self, some_id: str) -> Commands:
        """The store of the shard that has this job, whatever its queue is."""
        shard = shard_of_id(some_id)
        return next(store for store in self.stores if store.connection.shard == shard)

    def claim(self, jobs: int = 1) -> list[ClaimedJob]:
        self.calls += 1
        found: list[ClaimedJob] = []
        for store in self.stores:
            claimed = store.claim(self.claim_request, self.calls, jobs - len(found)).jobs
            self._claimed_in.update((job.id, store) for job in claimed)
            found += claimed
            if len(found) == jobs:
                break
        return found

    def claim_one(self) -> ClaimedJob:
        (job,) = self.claim()
        return job

    def settle(self, job: ClaimedJob, kind: str, body: str = "", detail: str = "") -> None:
        self.calls += 1
        outcome = Outcome(job.id, job.lease, job.call, kind, body, detail)
        store = self._claimed_in.get(job.id, self.store)
        (settled,), _ = store.finish(self.claim_request, self.calls, [outcome], 0)
        assert settled in (FinishCode.ACCEPTED, FinishCode.ACCEPTED_AS_CANCELLED)

    def complete_one(self, result: str = "null") -> str:
        """Claim the next job and report ``result`` (JSON); returns the job's id."""
        job = self.claim_one()
        self.settle(job, "completed", result)
        return job.id

    def fail_one(self, message: str = "boom") -> str:
        """Claim the next job and report a ValueError; returns the job's id."""
        job = self.claim_one()
        self.settle(job, "failed", encode_error("ValueError", message, "Traceback ...", 9999))
        return job.id

    def advance(self) -> bool:
        """Do one step of what scripts have deferred, in some shard. False: nothing was deferred."""
        return any(store.advance() for store in self.stores)

    def close(self) -> None:
        self.connection.close_all()
