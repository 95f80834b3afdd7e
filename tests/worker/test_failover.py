"""Sentinel: the master dies, its replica is promoted, and everybody goes on with the copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from django_redisqueue import Job
from django_redisqueue.exceptions import RedisQueueError
from tests.app import tasks
from tests.sentinels import RedisSentinel
from tests.servers import RedisServer

from .processes import eventually
from .stage import Stage


@pytest.fixture
def master() -> Iterator[RedisServer]:
    with RedisServer(tcp=True) as server:
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
