"""Sentinel: the master dies, its replica is promoted, and everybody goes on with the copy."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from django_redisqueue import Job
from django_redisqueue.exceptions import RedisQueueError
from tests.app import tasks
from tests.servers import RedisServer, program

from .processes import eventually
from .stage import Stage

SENTINEL = """\
port {port}
bind 127.0.0.1
sentinel monitor jobs {host} {master} 1
sentinel down-after-milliseconds jobs 300
sentinel failover-timeout jobs 2000
"""


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
def sentinel(tmp_path: Path, master: RedisServer, replica: RedisServer) -> Iterator[str]:
    """The address of a sentinel that knows of the master and its replica."""
    host, _, port = master.address.rpartition(":")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        own = probe.getsockname()[1]
    text = SENTINEL.format(port=own, host=host, master=port)
    (tmp_path / "sentinel.conf").write_text(text)
    process = subprocess.Popen(
        [program(), "sentinel.conf", "--sentinel"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        with Redis(port=own) as asker:
            eventually(lambda: _replicas(asker) == 1)
        yield f"127.0.0.1:{own}"
    finally:
        process.kill()
        process.wait()


def _replicas(asker: Redis) -> int:
    try:
        return len(asker.sentinel_slaves("jobs"))
    except RedisError:
        return -1


@pytest.fixture
def stage(master: RedisServer, tmp_path: Path, settings: Any, sentinel: str) -> Iterator[Stage]:
    url = f"redis+sentinel://127.0.0.1:1,{sentinel}/jobs/0"  # the first is down
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
