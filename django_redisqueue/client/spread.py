"""Enqueues jobs in their shard. Those of a queue with SPREAD go elsewhere while its server cannot
be reached."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from ..broker.commands import Commands, batches
from ..broker.connection import PRODUCER_TIMEOUT, producer_connection, retry_once
from ..broker.redis_url import RedisUrl
from ..broker.wire import HANGS
from ..conf import get_settings
from ..core.ids import new_job_id
from ..core.job_data import NewJob
from ..exceptions import RedisUnavailable


class _ThreadCommands(threading.local):
    """The commands that enqueue, of one thread, by shard."""

    def __init__(self) -> None:
        self.by_shard: dict[int, Commands] = {}


_thread = _ThreadCommands()


def _commands_to_enqueue(shard: int) -> Commands:
    """Commands on this thread's producer connection, made once for each connection."""
    connection = producer_connection(shard)
    commands = _thread.by_shard.get(shard)
    if commands is None or commands.connection is not connection:
        commands = _thread.by_shard[shard] = Commands(connection)
    return commands


def _enqueue(shard: int, jobs: Sequence[NewJob]) -> None:
    commands = _commands_to_enqueue(shard)
    if len(jobs) > 1:
        retry_once(lambda: commands.enqueue_all(batches(jobs)))
    elif jobs[0].is_plain and commands.wait is None:
        retry_once(commands.enqueue_plain, jobs[0])
    else:
        retry_once(commands.enqueue, jobs)


_hang_until: dict[RedisUrl, float] = {}  # servers that have not accepted a connection (monotonic)


def enqueue_movable(shard: int, jobs: Sequence[NewJob]) -> None:
    """Enqueue jobs in their shard. If its server cannot be reached, or hung a moment ago, jobs of a
    queue with SPREAD get new ids and go elsewhere, unless their ids were given out. A job that may
    have been sent is never sent again under another id."""
    began = time.monotonic()
    if _hang_until and _hangs(shard) and _are_movable(jobs):
        shard = next((other for other in other_shards(shard) if not _hangs(other)), shard)
        _give_ids(jobs, shard)
    try:
        _enqueue(shard, jobs)
        return
    except RedisUnavailable as error:
        if not (error.unsent and _are_movable(jobs)):
            raise
        home, problem = producer_connection(shard).redis_url, error
    if time.monotonic() - began > PRODUCER_TIMEOUT / 2:
        _hang_until[home] = time.monotonic() + HANGS
    away = {home}
    for other in other_shards(shard):
        redis_url = producer_connection(other).redis_url
        if redis_url in away:
            continue
        _give_ids(jobs, other)
        try:
            _enqueue(other, jobs)
            return
        except RedisUnavailable as again:
            if not again.unsent or time.monotonic() - began > PRODUCER_TIMEOUT:
                raise
            away.add(redis_url)
    raise problem


def _are_movable(jobs: Sequence[NewJob]) -> bool:
    return all(job.is_spread and not job.is_known and not job.stored for job in jobs)


def _give_ids(jobs: Sequence[NewJob], shard: int) -> None:
    for job in jobs:
        job.id = new_job_id(shard)


def _hangs(shard: int) -> bool:
    return time.monotonic() < _hang_until.get(producer_connection(shard).redis_url, 0.0)


def other_shards(shard: int) -> list[int]:
    """The other shards, the next one first."""
    shards = get_settings().shards
    return [(shard + n) % shards for n in range(1, shards)]
