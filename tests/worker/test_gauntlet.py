"""Random faults while jobs keep coming; afterwards every promise is checked at rest.

The faults are only the input. What is asked: nothing lost, nothing accepted twice, nothing failed
that cannot fail, nothing left in flight, the workers' list true, and that it all works again.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from django_redisqueue import Job
from django_redisqueue.exceptions import RedisQueueError
from tests.support.proxy import Proxy

from . import tasks
from .processes import WorkerProcess, eventually
from .stage import Stage

SECONDS = 15.0
SETTINGS: dict[str, Any] = {
    "LEASE": 1.2,
    "HEARTBEAT": 0.3,
    "MAX_RECOVERIES": 1000,  # a random kill must not count as poison: nothing here may fail
    "RESEND_WINDOW": 60,
}


class Feeder:
    """Enqueues jobs of all kinds, each with its own name, until told to stop."""

    def __init__(self, stage: Stage, dice: random.Random) -> None:
        self._stage = stage
        self._dice = dice
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._feed)
        self.accepted: dict[str, Job] = {}
        self.refused = 0

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _feed(self) -> None:
        book, n = self._stage.book, 0
        kinds: list[Callable[[str], Job]] = [
            *[lambda name: tasks.run.enqueue(book, name)] * 12,
            lambda name: tasks.run_then_sleep.enqueue(book, name, 0.05),
            lambda name: tasks.async_run.enqueue(book, name, 0.05),
            lambda name: tasks.async_run.enqueue(book, name, 0.0),
            lambda name: tasks.run.using(run_after=0.3).enqueue(book, name),
            lambda name: tasks.run.using(priority=5).enqueue(book, name),
            lambda name: tasks.retried_once.enqueue(book, name),
        ]
        while not self._stop.wait(0.003):
            n += 1
            name = f"job{n}"
            try:
                self.accepted[name] = self._dice.choice(kinds)(name)
            except RedisQueueError:
                self.refused += 1


class Faults:
    """One method per fault; each counts how often it struck."""

    def __init__(self, stage: Stage, proxy: Proxy, dice: random.Random) -> None:
        self._stage = stage
        self._proxy = proxy
        self._dice = dice
        self._named = 0
        self.fell: Counter[str] = Counter()
        self.workers = [self._start() for _ in range(2)]

    def _start(self) -> WorkerProcess:
        self._named += 1
        return self._stage.worker(
            "--processes", "2", "--grace", "2", "--name", f"w{self._named}",
            address=self._proxy.address,
        )  # fmt: skip

    def child_killed(self) -> None:
        children = [pid for worker in self.workers for pid in worker.children]
        if children:
            os.kill(self._dice.choice(children), signal.SIGKILL)
            self.fell["child_killed"] += 1

    def supervisor_killed(self) -> None:
        at = self._dice.randrange(2)
        self.workers[at].kill()
        self.workers[at] = self._start()
        self.fell["supervisor_killed"] += 1

    def supervisor_restarted(self) -> None:
        at = self._dice.randrange(2)
        self.workers[at].term()
        self.workers[at].wait()
        self.workers[at] = self._start()
        self.fell["supervisor_restarted"] += 1

    def worker_frozen(self) -> None:
        worker = self._dice.choice(self.workers)
        worker.stop()
        time.sleep(1.6)  # the length of the fault: past its leases
        worker.cont()
        self.fell["worker_frozen"] += 1

    def redis_killed(self) -> None:
        self._stage.server.kill()
        time.sleep(self._dice.uniform(0, 0.6))  # the length of the fault
        self._stage.server.start()
        self.fell["redis_killed"] += 1

    def replies_dropped(self) -> None:
        before = self._proxy.dropped
        self._proxy.drop_replies(5, matching=b"EVALSHA")
        eventually(lambda: self._proxy.dropped > before, 5)
        self.fell["replies_dropped"] += 1

    def connections_cut(self) -> None:
        self._proxy.cut()
        self.fell["connections_cut"] += 1

    def all(self) -> list[Callable[[], None]]:
        return [
            self.child_killed, self.supervisor_killed, self.supervisor_restarted,
            self.worker_frozen, self.redis_killed, self.replies_dropped, self.connections_cut,
        ]  # fmt: skip


@pytest.mark.slow
def test_the_gauntlet(stage: Stage, fresh_proxy: Callable[..., Proxy]) -> None:
    seed = int(os.environ.get("REDISQUEUE_TEST_SEED", random.randrange(10**6)))
    print(f"REDISQUEUE_TEST_SEED={seed}")  # pytest prints it if the test fails
    stage.configure(**SETTINGS)
    dice = random.Random(seed)
    faults = Faults(stage, fresh_proxy(stage.server.address), dice)
    with Feeder(stage, random.Random(seed)) as feeder:
        eventually(lambda: len(stage.runs()) > 50, 20, why=stage.report)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            # Each once per round, in a new order every time, so that none is left out.
            for fault in dice.sample(faults.all(), 7):
                fault()
                time.sleep(dice.uniform(0.05, 0.4))  # the time between two faults
    missed = [fault.__name__ for fault in faults.all() if not faults.fell[fault.__name__]]
    assert not missed, f"these faults never fell: {missed}"
    _ask_every_promise(stage, faults, feeder)


def _ask_every_promise(stage: Stage, faults: Faults, feeder: Feeder) -> None:
    assert len(feeder.accepted) > 1000

    def is_at_rest() -> bool:
        stats = stage.stats()
        return not any(stats[name] for name in ("queued", "processing", "scheduled", "retrying"))

    eventually(is_at_rest, 40, every=0.1, why=stage.report)
    jobs = list(feeder.accepted.values())
    assert stage.statuses(jobs) == {"completed": len(jobs)}, "not all that were accepted completed"
    runs = stage.runs()
    assert [name for name in feeder.accepted if not runs[name]] == [], "completed, but never ran"
    # Accepted once each, and counted once.
    completed = stage.redis.zrange("job_queue:{0}:q:default:completed", 0, -1)
    assert stage.count("completed_total") == len(completed)
    # The only others are jobs whose producers got no reply.
    assert 0 <= len(completed) - len(jobs) <= feeder.refused
    assert stage.stats()["failed"] == 0
    # The machinery was at work, and only exceptions cost attempts.
    assert stage.count("recovered_total") > 0
    assert stage.count("released_total") > 0
    _ask_for_leftovers(stage, faults)
    tasks.run.enqueue_many([(stage.book, f"after{n}") for n in range(500)])
    eventually(lambda: stage.stats()["completed"] == len(completed) + 500, 5, why=stage.report)


def _ask_for_leftovers(stage: Stage, faults: Faults) -> None:
    """No child holds a job, and the list of workers names exactly those that live."""
    eventually(lambda: stage.redis.keys("*child:*:processing") == [], 5, why=stage.report)
    alive = {f".{worker.pid}." for worker in faults.workers}

    def is_true() -> bool:
        listed = stage.redis.zrange("job_queue:{0}:workers", 0, -1)
        return len(listed) == 6 and all(any(pid in child for pid in alive) for child in listed)

    eventually(is_true, 10, why=lambda: stage.redis.zrange("job_queue:{0}:workers", 0, -1))
    assert all(worker.process.poll() is None for worker in faults.workers), stage.report()
