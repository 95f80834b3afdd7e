"""One heartbeat: what it tells the supervisor, and what it recovers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from redis import Redis

from django_redisqueue import JobQueue
from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.conf import get_settings
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.worker_data import WorkerOrder
from django_redisqueue.worker.supervisor.heartbeat import HeartbeatCallbacks, HeartbeatThread
from django_redisqueue.worker.supervisor.shard_roles import ShardRoles
from tests.support.shards import keys_of, shard_of

pytestmark = pytest.mark.usefixtures("queue_settings")


def _heartbeat(
    running: Sequence[tuple[str, str, int]] = (),
    notify: Any = None,
    is_stopping: bool = False,
    on_order: Any = None,
    shard: int | None = None,
) -> HeartbeatThread:
    callbacks = HeartbeatCallbacks(
        lambda: ["c1"], lambda: list(running), lambda: is_stopping, notify, lambda: {},
        lambda *_: None, "w.m.1.2", lambda: "{}", on_order,
        ShardRoles([], get_settings(), {}),
    )  # fmt: skip
    shard = shard_of() if shard is None else shard
    return HeartbeatThread(get_settings(), ("default",), callbacks, shard)


def test_a_lost_lease_is_reported_with_its_number() -> None:
    """The job may run again in a child of the same worker, under the next lease."""
    heard: list[Any] = []
    job_id = new_job_id(shard_of())
    heartbeat = _heartbeat(
        [(job_id, "c1", 7)], lambda lost, flagged: heard.append((list(lost), list(flagged)))
    )
    assert heartbeat.beat()
    assert heard == [([(job_id, 7)], [])]


def test_queues_are_announced_until_the_worker_stops(redis: Redis) -> None:
    key = keys_of().serving
    assert _heartbeat(is_stopping=True).beat()
    assert redis.zcard(key) == 0
    assert _heartbeat().beat()
    assert redis.zrange(key, 0, -1) == [b"default"]


def test_every_heartbeat_brings_the_last_order(redis: Redis) -> None:
    heard: list[str] = []
    heartbeat = _heartbeat(on_order=heard.append, shard=0)  # which has the orders
    store = Commands(worker_connection(0))
    assert not store.order_worker("w.m.1.2", WorkerOrder.QUIET, 5), "it has not said anything yet"
    heartbeat.beat()
    assert store.order_worker("w.m.1.2", WorkerOrder.QUIET, 5)
    assert heartbeat.beat()
    assert heartbeat.beat()
    assert heard == ["5 quiet"] * 2


def test_one_heartbeat_recovers_a_whole_machine(redis: Redis) -> None:
    """However many children it had, none waits for a heartbeat of its own."""
    keys = keys_of()
    store = Commands(worker_connection(shard_of()))
    children = [f"gone{n}" for n in range(66)]
    store.heartbeat(["c1"])
    redis.hincrby(keys.meta, "steady_ms", -2 * get_settings().lease_ms)  # no outage lately
    store.enqueue([NewJob(child, "default", "app.task", "[[],{}]") for child in children])
    for child in children:
        store.claim(ClaimRequest(child, ("default",)), 1, 1)
    redis.zadd(keys.workers, dict.fromkeys(children, 1))  # all of them lapsed long ago
    assert _heartbeat().beat()
    assert [name.decode() for name in redis.zrange(keys.workers, 0, -1)] == ["c1"]
    assert JobQueue("default").get_stats()["processing"] == 0
    assert JobQueue("default").get_stats()["queued"] == len(children)
