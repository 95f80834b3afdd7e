"""What the supervisor's other thread tells it, and what a child asks beside its loop."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from django_redisqueue.conf import get_settings
from django_redisqueue.worker.asides import Asides
from django_redisqueue.worker.attendant import Attendant
from django_redisqueue.worker.beacon import Beacon

pytestmark = pytest.mark.usefixtures("queue_settings")


def test_a_lost_lease_is_told_with_its_number() -> None:
    """The job may run again in a child of the same worker, under the lease behind it."""
    heard: list[Any] = []
    attendant = Attendant(
        get_settings(), ("default",), Beacon(None),
        lambda: ["c1"], lambda: [("job_1", "c1", 7)],
        lambda lost, flagged: heard.append((list(lost), list(flagged))), lambda: {},
    )  # fmt: skip
    assert attendant.beat()
    assert heard == [([("job_1", 7)], [])]


@pytest.mark.parametrize("value", ["x", "-3000", "1.5", ""])
def test_a_count_of_delays_that_a_hand_has_spoilt_begins_anew(redis: Redis, value: str) -> None:
    redis.hset("job_queue:{0}:job:job_1", "delays", value)
    assert Asides("c1", get_settings()).delays("job_1") == 0


def test_a_link_that_was_cut_since_its_last_use_harms_no_child(redis: Redis) -> None:
    asides = Asides("c1", get_settings())
    assert asides.delays("job_1") == 0
    redis.client_kill_filter(_type="normal", skipme=True)
    assert asides.delays("job_1") == 0
