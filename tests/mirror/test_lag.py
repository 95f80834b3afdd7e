"""The lag: how many events are unread and how old, in one query and one round trip."""

from __future__ import annotations

import pytest
from pytest_django import DjangoAssertNumQueries

from django_redisqueue.conf import get_settings
from django_redisqueue.mirror.assembly import make_bridge
from django_redisqueue.mirror.lag import mirror_lag
from django_redisqueue.models import MirrorState

from .scene import Scene


@pytest.fixture
def whole(scene: Scene) -> Scene:
    scene.bridge.close()
    scene.lab.store.now_ms = None
    scene.bridge = make_bridge(get_settings(), page=100)
    return scene


def test_before_the_first_event_and_before_the_first_bridge(whole: Scene) -> None:
    lag = mirror_lag(whole.lab.link)
    assert (lag.events, lag.seconds, lag.problem, lag.updated_at) == (0, 0.0, "", None)
    whole.live(10)
    lag = mirror_lag(whole.lab.link)
    assert (lag.events, lag.gaps) == (30, 0)
    assert 0 <= lag.seconds < 10


def test_it_is_exact_while_the_mirror_is_behind(whole: Scene) -> None:
    whole.live(10)
    whole.mirror()
    lag = mirror_lag(whole.lab.link)
    assert (lag.events, lag.seconds) == (0, 0.0)
    assert lag.updated_at is not None
    whole.live(100, "k")
    assert mirror_lag(whole.lab.link).events == 300
    whole.bridge.run_once()
    assert mirror_lag(whole.lab.link).events == 200
    whole.mirror()
    assert mirror_lag(whole.lab.link).events == 0


def test_the_age_is_that_of_the_oldest_unread(whole: Scene) -> None:
    seconds, _ = whole.lab.redis.time()
    for ms in (seconds * 1000 - 60_000, seconds * 1000 - 20_000):
        whole.lab.redis.xadd(whole.lab.keys.events, {":alike": "{}", "x": ""}, id=f"{ms}-0")
    assert 59 <= mirror_lag(whole.lab.link).seconds <= 70
    MirrorState.objects.create(shard=0, position=f"{seconds * 1000 - 60_000}-0")
    lag = mirror_lag(whole.lab.link)
    assert 19 <= lag.seconds <= 30
    assert lag.events is None  # nobody has counted


def test_a_problem_is_shown(whole: Scene) -> None:
    MirrorState.objects.create(shard=0, problem="it stands", gaps=2, epoch=3, unreconciled=True)
    lag = mirror_lag(whole.lab.link)
    assert (lag.problem, lag.gaps, lag.epoch, lag.unreconciled) == ("it stands", 2, 3, True)


def test_one_query(whole: Scene, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    whole.live(3)
    with django_assert_num_queries(1):
        mirror_lag(whole.lab.link)
