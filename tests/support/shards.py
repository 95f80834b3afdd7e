"""Helpers of tests that look into Redis directly while the suite runs with several shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections

from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.keys import Keys
from django_redisqueue.conf import get_settings
from django_redisqueue.core.ids import shard_of_id, shard_of_key
from django_redisqueue.mirror.bridge import Bridge
from django_redisqueue.mirror.writer import MirrorWriter
from django_redisqueue.outbox.relay import Relay


def shard_of(queue: str = "default") -> int:
    """The shard of a queue's plain jobs, by the current settings."""
    return shard_of_key(queue, get_settings().shards)


def keys_of(queue: str = "default") -> Keys:
    """The keys of that shard."""
    return Keys(get_settings().prefix, shard_of(queue))


def all_keys() -> list[Keys]:
    """The keys of each shard."""
    settings = get_settings()
    return [Keys(settings.prefix, shard) for shard in range(settings.shards)]


def keys_with(some_id: str) -> Keys:
    """The keys of the shard that contains this job, workflow or gather."""
    return Keys(get_settings().prefix, shard_of_id(some_id))


@contextmanager
def all_stores() -> Iterator[list[Commands]]:
    """The verbs of each shard."""
    connection = worker_connection()
    yield [Commands(connection.at(shard)) for shard in range(get_settings().shards)]
    connection.close_all()


def mirror() -> None:
    """Apply the events of all shards, as their bridges do."""
    with all_stores() as stores:
        for store in stores:
            bridge = Bridge(MirrorWriter(store.connection))
            while bridge.run_once():
                continue
            bridge.close()


def relay() -> None:
    """Run the relay once for each shard, as maintenance does."""
    with all_stores() as stores:
        for store in stores:
            for alias in connections:
                Relay(store, alias).run_once()
