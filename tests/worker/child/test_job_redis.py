"""What a running job asks of Redis, on a connection of its own."""

from __future__ import annotations

import pytest
from redis import Redis

from django_redisqueue.conf import get_settings
from django_redisqueue.worker.child.job_redis import JobRedis
from tests.support.shards import keys_with

pytestmark = pytest.mark.usefixtures("queue_settings")


@pytest.mark.parametrize("value", ["x", "-3000", "1.5", ""])
def test_an_unreadable_count_of_delays_counts_as_none(redis: Redis, value: str) -> None:
    redis.hset(keys_with("job_1").job("job_1"), "delays", value)
    assert JobRedis("c1", get_settings()).unknown_task_delays("job_1") == 0


@pytest.mark.one_server("looks at its server's clients and commands")
def test_a_connection_that_was_cut_since_its_last_use_is_replaced(redis: Redis) -> None:
    job_redis = JobRedis("c1", get_settings())
    assert job_redis.unknown_task_delays("job_1") == 0
    redis.client_kill_filter(_type="normal", skipme=True)
    assert job_redis.unknown_task_delays("job_1") == 0
