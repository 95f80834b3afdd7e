"""What health knows about the mirror: how many events are unread and how old they are, and its
problem."""

from __future__ import annotations

from django_redisqueue.broker.health import UnreadEvents
from django_redisqueue.health.facts import read_facts
from django_redisqueue.models import MirrorState

from .mirrored_shard import MirroredShard


def unread(shard: MirroredShard) -> UnreadEvents:
    found = read_facts(shard.broker.connection).shard
    assert found is not None
    return found.unread


def state(shard: MirroredShard) -> MirrorState:
    return read_facts(shard.broker.connection).mirrors[shard.broker.connection.shard]


def test_before_the_first_event_and_before_the_first_bridge(full_shard: MirroredShard) -> None:
    assert unread(full_shard) == (0, 0)
    assert (state(full_shard).problem, state(full_shard).updated_at) == ("", None)
    full_shard.run_jobs(10)
    assert unread(full_shard).events == 30
    assert state(full_shard).gaps == 0
    assert 0 <= unread(full_shard).oldest_ms < 10_000


def test_it_is_exact_while_the_mirror_is_behind(full_shard: MirroredShard) -> None:
    full_shard.run_jobs(10)
    full_shard.mirror()
    assert unread(full_shard) == (0, 0)
    assert state(full_shard).updated_at is not None
    full_shard.run_jobs(100, "k")
    assert unread(full_shard).events == 300
    full_shard.bridge.run_once()
    assert unread(full_shard).events == 200
    full_shard.mirror()
    assert unread(full_shard).events == 0


def test_the_age_is_that_of_the_oldest_unread(full_shard: MirroredShard) -> None:
    seconds, _ = full_shard.broker.redis.time()
    for ms in (seconds * 1000 - 60_000, seconds * 1000 - 20_000):
        full_shard.broker.redis.xadd(
            full_shard.broker.keys.events, {":alike": "{}", "x": ""}, id=f"{ms}-0"
        )
    assert 59_000 <= unread(full_shard).oldest_ms <= 70_000
    MirrorState.objects.create(shard=0, position=f"{seconds * 1000 - 60_000}-0")
    assert 19_000 <= unread(full_shard).oldest_ms <= 30_000
    assert unread(full_shard).events is None  # not counted yet


def test_a_problem_is_shown(full_shard: MirroredShard) -> None:
    MirrorState.objects.create(shard=0, problem="it stands", gaps=2, epoch=3, unreconciled=True)
    found = state(full_shard)
    assert (found.problem, found.gaps, found.epoch, found.unreconciled) == ("it stands", 2, 3, True)
