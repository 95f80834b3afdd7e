"""The lag: how many events are unread and how old, in one query and one round trip."""

from __future__ import annotations

import pytest
from pytest_django import DjangoAssertNumQueries

from django_redisqueue.conf import get_settings
from django_redisqueue.mirror.bridge import make_bridge
from django_redisqueue.mirror.lag import mirror_lag
from django_redisqueue.models import MirrorState

from .mirrored_shard import MirroredShard


@pytest.fixture
def full_shard(shard: MirroredShard) -> MirroredShard:
    shard.bridge.close()
    shard.lab.store.now_ms = None
    shard.bridge = make_bridge(get_settings(), page=100)
    return shard


def test_before_the_first_event_and_before_the_first_bridge(full_shard: MirroredShard) -> None:
    lag = mirror_lag(full_shard.lab.connection)
    assert (lag.events, lag.seconds, lag.problem, lag.updated_at) == (0, 0.0, "", None)
    full_shard.run_jobs(10)
    lag = mirror_lag(full_shard.lab.connection)
    assert (lag.events, lag.gaps) == (30, 0)
    assert 0 <= lag.seconds < 10


def test_it_is_exact_while_the_mirror_is_behind(full_shard: MirroredShard) -> None:
    full_shard.run_jobs(10)
    full_shard.mirror()
    lag = mirror_lag(full_shard.lab.connection)
    assert (lag.events, lag.seconds) == (0, 0.0)
    assert lag.updated_at is not None
    full_shard.run_jobs(100, "k")
    assert mirror_lag(full_shard.lab.connection).events == 300
    full_shard.bridge.run_once()
    assert mirror_lag(full_shard.lab.connection).events == 200
    full_shard.mirror()
    assert mirror_lag(full_shard.lab.connection).events == 0


def test_the_age_is_that_of_the_oldest_unread(full_shard: MirroredShard) -> None:
    seconds, _ = full_shard.lab.redis.time()
    for ms in (seconds * 1000 - 60_000, seconds * 1000 - 20_000):
        full_shard.lab.redis.xadd(
            full_shard.lab.keys.events, {":alike": "{}", "x": ""}, id=f"{ms}-0"
        )
    assert 59 <= mirror_lag(full_shard.lab.connection).seconds <= 70
    MirrorState.objects.create(shard=0, position=f"{seconds * 1000 - 60_000}-0")
    lag = mirror_lag(full_shard.lab.connection)
    assert 19 <= lag.seconds <= 30
    assert lag.events is None  # nobody has counted


def test_a_problem_is_shown(full_shard: MirroredShard) -> None:
    MirrorState.objects.create(shard=0, problem="it stands", gaps=2, epoch=3, unreconciled=True)
    lag = mirror_lag(full_shard.lab.connection)
    assert (lag.problem, lag.gaps, lag.epoch, lag.unreconciled) == ("it stands", 2, 3, True)


def test_one_query(
    full_shard: MirroredShard, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    full_shard.run_jobs(3)
    with django_assert_num_queries(1):
        mirror_lag(full_shard.lab.connection)
