"""Sentinel: the master dies or is demoted, and workers and producers follow the new one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from django_redisqueue import Job
from django_redisqueue.conf import get_settings
from django_redisqueue.core.ids import shard_of_id
from django_redisqueue.exceptions import RedisQueueError, RedisUnavailable
from tests.app import tasks
from tests.mirror.conftest import processes
from tests.mirror.mirror_processes import MirrorProcesses
from tests.support.sentinels import Fleet, RedisSentinel
from tests.support.servers import RedisServer
from tests.support.shards import keys_of

from .harness import Accepted, Producers, WorkerHarness, check_ends
from .processes import eventually

__all__ = ["processes"]


@pytest.fixture
def master() -> Iterator[RedisServer]:
    with RedisServer(tcp=True, repl_diskless_sync_delay=0) as server:
        yield server


@pytest.fixture
def replica(master: RedisServer) -> Iterator[RedisServer]:
    with RedisServer(tcp=True) as server:
        server.follow(master)
        yield server


@pytest.fixture
def sentinel(master: RedisServer, replica: RedisServer) -> Iterator[RedisSentinel]:
    """It monitors the master and its replica, and has its own password."""
    with RedisSentinel(master.address, requirepass="s3cret") as sentinel:
        eventually(lambda: sentinel.replicas() == 1)
        yield sentinel


@pytest.fixture
def harness(
    master: RedisServer, tmp_path: Path, settings: Any, sentinel: RedisSentinel
) -> Iterator[WorkerHarness]:
    # The first master is down.
    url = f"redis+sentinel://127.0.0.1:1,{sentinel.address}/jobs/0?sentinel_password=s3cret"
    with ExitStack() as stack:
        harness = WorkerHarness(master, tmp_path, settings, stack)
        harness.environment["REDISQUEUE_TEST_URL"] = url
        settings.REDISQUEUE = {"CONNECTION": {"URL": url}, **harness.settings}
        yield harness


def test_a_failover_is_followed_by_workers_and_producers(
    harness: WorkerHarness, master: RedisServer, replica: RedisServer, sentinel: RedisSentinel
) -> None:
    harness.worker("--processes", "1")
    tasks.noop.enqueue(1).wait(timeout=20)
    waiting = [tasks.sleep.enqueue(0.02) for _ in range(100)]
    copy = replica.client(decode_responses=True)
    last = keys_of().job(waiting[-1].id)
    # otherwise enqueued jobs could be lost with the dying master
    eventually(lambda: copy.exists(last))
    master.kill()
    sentinel.take_for_dead_after(300)

    refusals: list[RedisQueueError] = []

    def enqueue() -> Job | None:
        try:
            return tasks.noop.enqueue(2)
        except RedisQueueError as error:
            refusals.append(error)
            return None

    later = eventually(enqueue, 20, every=0.1, why=harness.report)
    assert refusals, "the master was never away"
    assert later.wait(timeout=20) == 2
    for job in waiting:
        harness.ended(job, 20)
        assert job.status == "completed"


BOUND = 1.0  # s after the switch within which every process has followed


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet:
        yield fleet


@dataclass
class Failover:
    """Jobs accepted while the master changed. ``switched``: when the new master was announced."""

    accepted: list[Accepted]
    refused: list[RedisQueueError]
    begun: float
    switched: float

    @property
    def stall(self) -> float:
        """The longest time in which nothing was accepted."""
        return max(b - a for a, b in pairwise(sorted(one.at for one in self.accepted)))


class Busy:
    """Producers and a worker with a backlog, on a fleet."""

    def __init__(self, harness: WorkerHarness, fleet: Fleet) -> None:
        self.harness = harness
        self.fleet = fleet

    def through(self, change: Callable[[], None]) -> Failover:
        """Change the master, and continue for a while."""
        worker = self.harness.worker("--processes", "2").wait_until_up(3)
        assert worker.fork_server.num_threads() == 1, (
            "a thread that listens to sentinels was forked"
        )
        why = self.harness.report
        with Producers(self.harness.book) as producers:
            eventually(lambda: len(producers.accepted) > 100, why=why)
            former, begun = self.fleet.master, time.monotonic()
            change()
            eventually(lambda: self.fleet.master is not former, every=0.05, why=why)
            switched = time.monotonic()
            late = switched + BOUND
            eventually(lambda: sum(one.at > late for one in producers.accepted) > 50, why=why)
        return Failover(producers.accepted, producers.refused, begun, switched)

    def ended(self, accepted: Sequence[Accepted]) -> None:
        """Wait until each of these has ended once."""
        jobs = [one.job for one in accepted]
        want = Counter(completed=len(jobs))
        eventually(lambda: self.harness.statuses(jobs) == want, 40, every=0.2, why=self.report)
        runs = self.harness.runs()
        # Reports that the new master has not received are lost: one batch per child.
        assert sum(runs[one.name] > 1 for one in accepted) <= 2 * 64, self.report()

    def report(self) -> str:
        logs = "\n".join(sentinel.log()[-4000:] for sentinel in self.fleet.sentinels)
        return f"{self.harness.report()}\n{logs}"


@pytest.fixture
def busy(fleet: Fleet, tmp_path: Path, settings: Any) -> Iterator[Busy]:
    with ExitStack() as stack:
        yield Busy(WorkerHarness(fleet, tmp_path, settings, stack), fleet)


def test_a_planned_failover_is_followed_within_a_second(busy: Busy) -> None:
    """Sentinel demotes the former master ten seconds later."""
    failover = busy.through(busy.fleet.fail_over)
    exposed = (failover.begun, failover.switched + BOUND)
    busy.ended([one for one in failover.accepted if not exposed[0] < one.at < exposed[1]])
    assert failover.stall < 5
    assert {type(error) for error in failover.refused} == {RedisUnavailable}
    # Each process logs it once per shard, not at every attempt.
    logged = busy.harness.report().count("trying again until it answers")
    assert logged <= 8 * get_settings().shards


@pytest.mark.slow
class TestMirrored:
    @pytest.fixture
    def harness(self, busy: Busy) -> WorkerHarness:
        return busy.harness

    @pytest.mark.parametrize("processes", ["sqlite"], indirect=True)
    @pytest.mark.parametrize(("how", "shards"), [("planned", 1), ("planned", 4), ("crash", 4)])
    def test_jobs_confirmed_by_a_replica_are_not_lost(
        self, busy: Busy, processes: MirrorProcesses, how: str, shards: int
    ) -> None:
        """Each job ends once, and the mirror agrees with Redis."""
        harness, fleet = busy.harness, busy.fleet
        harness.configure(WAIT_REPLICAS=1, SHARDS=shards, QUEUES={"default": {"SPREAD": True}})
        failover = busy.through(fleet.fail_over if how == "planned" else fleet.master.kill)
        busy.ended(failover.accepted)
        assert failover.refused, "the master was never away"
        assert {shard_of_id(one.job.id) for one in failover.accepted} == set(range(shards))
        processes.until_equal(keeps_lost=how == "planned")
        check_ends(harness, [one.job for one in failover.accepted])
