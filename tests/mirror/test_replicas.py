"""WAIT_REPLICAS: the mirror shows only what replicas have, so that no failover can undo it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from django_redisqueue.broker import connection
from django_redisqueue.broker.keys import Keys
from django_redisqueue.conf import get_settings
from django_redisqueue.exceptions import NotReplicated
from django_redisqueue.mirror.bridge import Bridge, make_bridge
from django_redisqueue.models import JobRecord, MirrorState
from tests.app import tasks
from tests.support.servers import RedisServer
from tests.worker.processes import eventually

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.one_server("it stops the replica of its own"),
    pytest.mark.one_shard("a bridge by hand is of one shard"),
]


@pytest.fixture
def bridge(
    pair: tuple[RedisServer, RedisServer], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bridge]:
    """A bridge of the emptied master, which has mirrored a job."""
    master, replica = pair
    master.client().flushall()
    monkeypatch.setattr(connection, "WORKER_TIMEOUT", 0.5)
    settings.REDISQUEUE = {
        "CONNECTION": {"URL": master.url}, "WAIT_REPLICAS": 1, "MIRROR": True,
    }  # fmt: skip
    bridge = make_bridge(get_settings())
    with suppress(NotReplicated):  # in time; the job is enqueued all the same
        tasks.noop.enqueue()
    mirror_once_replicated(bridge)
    yield bridge
    replica.resume()
    bridge.close()


def mirror(bridge: Bridge) -> None:
    """Apply all available events."""
    while bridge.run_once():
        pass


def mirror_once_replicated(bridge: Bridge) -> None:
    """``mirror``, as often as a busy replica needs. Raises AssertionError."""

    def mirrored() -> bool:
        try:
            mirror(bridge)
        except NotReplicated:
            bridge.close()
            return False
        return True

    eventually(mirrored)


def test_an_event_that_no_replica_has_waits(
    bridge: Bridge, pair: tuple[RedisServer, RedisServer]
) -> None:
    _, replica = pair
    assert JobRecord.objects.count() == 1
    replica.pause()
    with pytest.raises(NotReplicated):
        tasks.noop.enqueue()
    for _ in range(2):
        with pytest.raises(NotReplicated, match=r"0 of the 1 replicas .* the mirror waits"):
            mirror(bridge)
        bridge.close()
    assert JobRecord.objects.count() == 1
    replica.resume()
    mirror_once_replicated(bridge)
    assert JobRecord.objects.count() == 2


def test_a_master_without_replicas_does_not_take_events_back(
    bridge: Bridge, pair: tuple[RedisServer, RedisServer]
) -> None:
    """The master may have been replaced: the new one has what it lacks."""
    master, replica = pair
    replica.pause()
    stream, redis = Keys().events, master.client()
    redis.xdel(stream, redis.xrevrange(stream, count=1)[0][0])
    redis.delete(*redis.keys(Keys().job("*")))
    bridge.close()
    with pytest.raises(NotReplicated, match="the mirror waits"):
        mirror(bridge)
    bridge.close()
    assert MirrorState.objects.get().epoch == 0
    assert JobRecord.objects.get().status == "queued"
    replica.resume()
    mirror_once_replicated(bridge)
    assert MirrorState.objects.get().epoch == 1
    assert JobRecord.objects.get().reason == "lost"
