"""A producer that calls every verb in turn. Before each call it records in the ledger what it is
about to request, and afterwards the answer."""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from django.db import Error, connections, transaction

from django_redisqueue import Gather, Job, JobQueue, Workflow, send_event
from django_redisqueue.exceptions import (
    JobNotFound,
    RedisFull,
    RedisQueueError,
    RedisRefused,
    RedisUnavailable,
)
from tests.app.tasks import bump

from . import tasks
from .ledger import write

PAUSE = 0.02  # s between two calls
BACKLOG = 400  # with more unfinished jobs than this it waits: the test is about faults, not load
KEYS = ("a", "b", "c")
DELAY = 0.4  # s
FAR = 3600.0  # s: the delay of a job that is cancelled
GATHER_TTL = 120.0  # s: longer than any outage of the plan
AWAY = (RedisUnavailable, RedisRefused, RedisFull)

KINDS = (
    "plain", "slow", "in_a_loop", "many", "delayed", "priority", "retried", "failing", "cancelled",
    "limited", "keyed", "rated", "unique", "newest", "after", "workflow", "gather", "outbox",
    "rolled_back", "exactly_once", "steps", "chunk",
)  # fmt: skip

Answer = dict[str, Any]


class Feed:
    """Each of KINDS is a method that takes the name of the call, and returns the ids of its jobs
    and whatever else the verdict needs."""

    def __init__(self, number: int, seed: int) -> None:
        self._prefix = f"p{number}-{os.getpid()}"
        self._dice = random.Random(f"{seed}-{self._prefix}")
        self._count = 0
        self._events: deque[str] = deque()  # calls that wait for an event of this producer
        self.stopping = False

    def run(self) -> None:
        """Run until SIGTERM."""
        for kind in self._kinds():
            if self.stopping:
                break
            self._call(kind)
            time.sleep(PAUSE)

    def _kinds(self) -> Iterator[str]:
        """Yields every kind once per round, in random order. Between rounds it lets workers catch
        up, and sends the events that jobs wait for."""
        while True:
            yield from self._dice.sample(KINDS, len(KINDS))
            while self._events and not self.stopping and send_its_event(self._events[0]):
                self._events.popleft()
            self._let_catch_up()

    def _call(self, kind: str) -> None:
        self._count += 1
        call = f"{self._prefix}-{self._count}"
        write("call", call=call, kind=kind)
        try:
            answer: Answer = getattr(self, kind)(call)
        except (RedisQueueError, Error) as error:
            write("refused", call=call, error=f"{type(error).__name__}: {error}"[:300])
            if isinstance(error, Error):
                connections.close_all()
        else:
            write("accepted", call=call, **answer)

    def _let_catch_up(self) -> None:
        while not self.stopping:
            try:
                stats = JobQueue("default").get_stats()
            except RedisQueueError:
                return
            if sum(stats[name] for name in ("queued", "processing", "retrying")) < BACKLOG:
                return
            time.sleep(0.2)

    # -- the kinds of calls

    def plain(self, call: str) -> Answer:
        return ids(tasks.plain.enqueue(call))

    def slow(self, call: str) -> Answer:
        return ids(tasks.plain.enqueue(call, self._dice.uniform(0.05, 0.4)))

    def in_a_loop(self, call: str) -> Answer:
        return ids(tasks.in_a_loop.enqueue(call))

    def many(self, call: str) -> Answer:
        return ids(*tasks.plain.enqueue_many([(call,)] * 10))

    def delayed(self, call: str) -> Answer:
        return ids(tasks.plain.using(run_after=DELAY).enqueue(call))

    def priority(self, call: str) -> Answer:
        return ids(tasks.plain.using(priority=self._dice.choice((-5, 5, 9))).enqueue(call))

    def retried(self, call: str) -> Answer:
        return ids(tasks.retried.enqueue(call))

    def failing(self, call: str) -> Answer:
        return ids(tasks.failing.enqueue(call))

    def cancelled(self, call: str) -> Answer:
        job = tasks.plain.using(run_after=FAR).enqueue(call)
        while True:  # otherwise it would delay the end of the run
            try:
                job.cancel()
            except AWAY:
                time.sleep(0.1)
            except JobNotFound:  # the verdict will report it
                break
            else:
                break
        return ids(job)

    def limited(self, call: str) -> Answer:
        return ids(tasks.limited.enqueue(call))

    def keyed(self, call: str) -> Answer:
        return ids(tasks.keyed.enqueue(call, self._dice.choice(KEYS)))

    def rated(self, call: str) -> Answer:
        return ids(tasks.rated.enqueue(call))

    def unique(self, call: str) -> Answer:
        job = tasks.unique.enqueue(call, self._dice.choice(KEYS))
        return {**ids(job), "duplicate": job.is_duplicate}

    def newest(self, call: str) -> Answer:
        key, number = f"{self._prefix}-{self._dice.choice(KEYS)}", self._count
        job = tasks.newest.enqueue(call, key, number)
        return {**ids(job), "duplicate": job.is_duplicate, "key": key, "number": number}

    def after(self, call: str) -> Answer:
        parent = tasks.part.enqueue(call, "parent")
        child = tasks.part.using(after=parent).enqueue(call, "child")
        return ids(parent, child)

    def workflow(self, call: str) -> Answer:
        part = tasks.part
        with Workflow(call, on_complete=tasks.ended.s(call), ttl=5) as flow:
            top = flow.add(part, call, "top")
            sides = [flow.add(part, call, name, after=top) for name in ("left", "right")]
            flow.add(part, call, "end", after=sides)
        return {**ids(*flow.jobs()), "workflow": flow.id}

    def gather(self, call: str) -> Answer:
        gather = Gather.start(
            call, topic=tasks.TOPIC, payload={"call": call}, ttl=GATHER_TTL, polls=100,
            poll_delay=60, then=tasks.merged, on_failure=tasks.late,
        )  # fmt: skip
        return {"jobs": [], "gather": gather.id}

    def outbox(self, call: str) -> Answer:

        with transaction.atomic():
            bump(call)
            job = tasks.plain.using(outbox=True).enqueue(call)
        return ids(job)

    def rolled_back(self, call: str) -> Answer:

        with transaction.atomic():
            bump(call)
            tasks.plain.using(outbox=True).enqueue(call)
            tasks.plain.using(outbox=False).enqueue(call)
            transaction.set_rollback(True)
        return {"jobs": []}

    def exactly_once(self, call: str) -> Answer:
        return ids(tasks.counted.enqueue(call))

    def steps(self, call: str) -> Answer:
        job = tasks.long_work.enqueue(call)
        self._events.append(call)
        return ids(job)

    def chunk(self, call: str) -> Answer:
        return ids(*(tasks.in_chunks.enqueue(call) for _ in range(3)))


def ids(*jobs: Job) -> Answer:
    return {"jobs": [job.id for job in jobs]}


def send_its_event(call: str) -> bool:
    """Send the event that the job of this call waits for; False while Redis is down."""
    try:
        send_event(f"gauntlet:{call}", {"call": call})
    except RedisQueueError:
        return False
    return True
