"""Sentinel: the master dies, or its replica is promoted as planned, and everybody follows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from django_redisqueue import Job
from django_redisqueue.exceptions import RedisQueueError
from tests.app import tasks
from tests.sentinels import Fleet, RedisSentinel
from tests.servers import RedisServer

from . import tasks as worker_tasks
from .processes import eventually
from .stage import Stage


@pytest.fixture
def master() -> Iterator[RedisServer]:
    with RedisServer(tcp=True, repl_diskless_sync_delay=0) as server:
        yield server


@pytest.fixture
def replica(master: RedisServer) -> Iterator[RedisServer]:
    host, _, port = master.address.rpartition(":")
    with RedisServer(tcp=True) as server:
        client = server.client(decode_responses=True)
        client.replicaof(host, int(port))
        eventually(lambda: client.info("replication").get("master_link_status") == "up")
        yield server


@pytest.fixture
def sentinel(master: RedisServer, replica: RedisServer) -> Iterator[RedisSentinel]:
    """It knows of the master and its replica, and has a password of its own."""
    with RedisSentinel(master.address, requirepass="s3cret") as sentinel:
        eventually(lambda: sentinel.replicas() == 1)
        yield sentinel


@pytest.fixture
def stage(
    master: RedisServer, tmp_path: Path, settings: Any, sentinel: RedisSentinel
) -> Iterator[Stage]:
    # The first is down.
    url = f"redis+sentinel://127.0.0.1:1,{sentinel.address}/jobs/0?sentinel_password=s3cret"
    with ExitStack() as stack:
        stage = Stage(master, tmp_path, settings, stack)
        stage.environment["REDISQUEUE_TEST_URL"] = url
        settings.REDISQUEUE = {"CONNECTION": {"URL": url}, **stage.settings}
        yield stage


def test_a_failover_is_followed_by_workers_and_producers(
    stage: Stage, master: RedisServer, replica: RedisServer
) -> None:
    stage.worker("--processes", "1")
    tasks.noop.enqueue(1).wait(timeout=20)
    waiting = [tasks.sleep.enqueue(0.02) for _ in range(100)]
    copy = replica.client(decode_responses=True)
    last = f"job_queue:{{0}}:job:{waiting[-1].id}"
    eventually(lambda: copy.exists(last))  # else the dying master could take enqueues with it
    master.kill()

    refusals: list[RedisQueueError] = []

    def enqueue() -> Job | None:
        try:
            return tasks.noop.enqueue(2)
        except RedisQueueError as error:
            refusals.append(error)
            return None

    later = eventually(enqueue, 20, every=0.1, why=stage.report)
    assert refusals, "the master was never away"
    assert later.wait(timeout=20) == 2
    for job in waiting:
        stage.ended(job, 20)
        assert job.status == "completed"


BOUND = 1.0  # s after the switch in which everybody has followed it


@dataclass
class Producer:
    """Enqueues one job after another, each with a name of its own, as a web process does."""

    book: str
    prefix: str
    accepted: dict[str, float] = field(default_factory=dict)  # by name: when, monotonic
    refused: list[tuple[float, RedisQueueError]] = field(default_factory=list)
    _enough: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for n in count():
            if self._enough.wait(0.005):
                return
            name = f"{self.prefix}{n}"
            try:
                worker_tasks.run_then_sleep.enqueue(self.book, name, 0.01)
            except RedisQueueError as error:
                self.refused.append((time.monotonic(), error))
            else:
                self.accepted[name] = time.monotonic()

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet:
        yield fleet


@pytest.fixture
def busy(fleet: Fleet, tmp_path: Path, settings: Any) -> Iterator[Stage]:
    """A stage on the fleet; the stage's own client is of the first master."""
    with ExitStack() as stack:
        stage = Stage(fleet.servers[0], tmp_path, settings, stack)
        stage.environment["REDISQUEUE_TEST_URL"] = fleet.url
        settings.REDISQUEUE = {"CONNECTION": {"URL": fleet.url}, **stage.settings}
        yield stage


@dataclass
class Story:
    """What was accepted while the master changed, by name and with its time."""

    accepted: dict[str, float]
    refused: list[tuple[float, RedisQueueError]]
    begun: float
    switched: float


def told(busy: Stage, fleet: Fleet, change: Callable[[], None]) -> Story:
    """Have the master changed under producers and a backlog, and go on for a while."""
    busy.worker("--processes", "2").wait_until_up(3)
    producers = [Producer(busy.book, f"{letter}_") for letter in "ab"]

    def accepted() -> int:
        return sum(len(producer.accepted) for producer in producers)

    try:
        eventually(lambda: accepted() > 200)
        former, begun = fleet.master, time.monotonic()
        change()
        eventually(lambda: fleet.master is not former, every=0.05)
        switched = time.monotonic()
        eventually(lambda: _since(producers, switched + BOUND) > 100, why=busy.report)
    finally:
        for producer in producers:
            producer.stop()
    merged = {name: at for producer in producers for name, at in producer.accepted.items()}
    return Story(merged, [one for p in producers for one in p.refused], begun, switched)


def _since(producers: list[Producer], moment: float) -> int:
    return sum(at > moment for producer in producers for at in list(producer.accepted.values()))


def test_a_planned_failover_is_followed_within_a_second(busy: Stage, fleet: Fleet) -> None:
    story = told(busy, fleet, fleet.fail_over)
    exposed = {
        name for name, at in story.accepted.items() if story.begun < at < story.switched + BOUND
    }
    safe = set(story.accepted) - exposed
    eventually(lambda: safe <= set(busy.runs()), every=0.1, why=busy.report)
    eventually(lambda: busy.stats()["queued"] + busy.stats()["processing"] == 0)
    stats, runs = busy.stats(), busy.runs()
    assert stats["completed"] == len(runs), "what has run has ended once"
    assert {name for name in safe if runs[name] != 1} == set()
    # Sentinel would have left them with the former master for ten seconds.
    pauses = sorted(story.accepted.values())
    assert max(b - a for a, b in pairwise(pauses)) < 5
    # Each process tells of it once, and not at every try.
    log = busy.report()
    assert log.count("trying again until it answers") <= 8
