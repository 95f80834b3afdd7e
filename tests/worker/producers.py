"""Threads that enqueue jobs while servers change, like web processes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import count
from threading import Event, Thread
from typing import NamedTuple

from django_redisqueue import Job
from django_redisqueue.exceptions import RedisQueueError

from . import tasks as worker_tasks


class Accepted(NamedTuple):
    """A job, its name in the ledger, and when (monotonic) it was accepted."""

    job: Job
    name: str
    at: float


@dataclass
class Producer:
    """Enqueues one job after another, each with its own name, like a web process."""

    book: str
    prefix: str
    accepted: list[Accepted] = field(default_factory=list)
    refused: list[RedisQueueError] = field(default_factory=list)
    _enough: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for n in count():
            if self._enough.wait(0.008):
                return
            name = f"{self.prefix}{n}"
            try:
                job = worker_tasks.run_then_sleep.enqueue(self.book, name, 0.01)
            except RedisQueueError as error:
                self.refused.append(error)
            else:
                self.accepted.append(Accepted(job, name, time.monotonic()))

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()
