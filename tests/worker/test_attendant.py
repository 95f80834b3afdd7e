"""What the supervisor's other thread tells it, and what a child asks beside its loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from redis import Redis

from django_redisqueue import JobQueue
from django_redisqueue.conf import get_settings
from django_redisqueue.connection import worker_link
from django_redisqueue.jobdata import NewJob
from django_redisqueue.keys import Keys
from django_redisqueue.store.transitions import Seeker, Transitions
from django_redisqueue.worker.asides import Asides
from django_redisqueue.worker.attendant import Attendant
from django_redisqueue.worker.beacon import Beacon

pytestmark = pytest.mark.usefixtures("queue_settings")


def _attendant(running: Sequence[tuple[str, str, int]] = (), notify: Any = None) -> Attendant:
    return Attendant(
        get_settings(), ("default",), Beacon(None),
        lambda: ["c1"], lambda: list(running), notify, lambda: {},
    )  # fmt: skip


def test_a_lost_lease_is_told_with_its_number() -> None:
    """The job may run again in a child of the same worker, under the lease behind it."""
    heard: list[Any] = []
    attendant = _attendant(
        [("job_1", "c1", 7)], lambda lost, flagged: heard.append((list(lost), list(flagged)))
    )
    assert attendant.beat()
    assert heard == [([("job_1", 7)], [])]


def test_one_heartbeat_recovers_a_whole_machine(redis: Redis) -> None:
    """However many children it had: each would else wait for a heartbeat of its own (law 3)."""
    keys = Keys(get_settings().prefix)
    store = Transitions(worker_link())
    children = [f"gone{n}" for n in range(66)]
    store.heartbeat(["c1"])
    redis.hincrby(keys.meta, "steady_ms", -2 * get_settings().lease_ms)  # no outage lately
    store.enqueue([NewJob(child, "default", "app.task", "[[],{}]") for child in children])
    for child in children:
        store.claim(Seeker(child, ("default",)), 1, 1)
    redis.zadd(keys.workers, dict.fromkeys(children, 1))  # all of them lapsed long ago
    assert _attendant().beat()
    assert [name.decode() for name in redis.zrange(keys.workers, 0, -1)] == ["c1"]
    assert JobQueue("default").get_stats()["processing"] == 0
    assert JobQueue("default").get_stats()["queued"] == len(children)


@pytest.mark.parametrize("value", ["x", "-3000", "1.5", ""])
def test_a_count_of_delays_that_a_hand_has_spoilt_begins_anew(redis: Redis, value: str) -> None:
    redis.hset("job_queue:{0}:job:job_1", "delays", value)
    assert Asides("c1", get_settings()).delays("job_1") == 0


def test_a_link_that_was_cut_since_its_last_use_harms_no_child(redis: Redis) -> None:
    asides = Asides("c1", get_settings())
    assert asides.delays("job_1") == 0
    redis.client_kill_filter(_type="normal", skipme=True)
    assert asides.delays("job_1") == 0
