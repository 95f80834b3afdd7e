"""Waiting for the wake tokens of several shards at once."""

from __future__ import annotations

import select
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from ..exceptions import RedisQueueError
from .commands import Commands
from .connection import BLOCK_SECONDS, RedisConnection
from .redis_url import RedisUrl

SHORTEST = 0.05  # s
TICK = 0.2  # s after its timeout by which a server has ended a pop


class WakeWait:
    """Blocks until a queue of some shard has a wake token. ``stores`` has the commands of every
    shard. For the shards of one server this is one command."""

    def __init__(self, stores: Sequence[Commands]) -> None:
        self._stores = stores
        self._connections: dict[RedisUrl, _WakeConnection] = {}
        for store in stores:
            url, shard = store.connection.redis_url, store.connection.shard
            if url not in self._connections:
                self._connections[url] = _WakeConnection(url, BLOCK_SECONDS + 3.0, 2.0, shard)

    def wait(self, queues: Sequence[tuple[int, str]], timeout: float) -> list[int]:
        """Block until one of the queues, (shard, name), has a token, or for ``timeout`` seconds.
        Returns the shards whose tokens were taken: on one server at most one, that of the first
        queue with a token.

        None are returned when Redis is away: the claim that follows meets the same error and logs
        it.
        """
        shards = {self._stores[shard].keys.queue(name).wake: shard for shard, name in queues}
        keys: dict[RedisUrl, list[str]] = {}
        for key, shard in shards.items():
            keys.setdefault(self._stores[shard].connection.redis_url, []).append(key)
        timeout = max(timeout, SHORTEST)
        if len(keys) > 1:
            found = self._pop_on_servers(keys, timeout)
        else:
            found = self._pop(*keys.popitem(), timeout)
        return [shards[key] for key in found]

    def _pop(self, url: RedisUrl, keys: Sequence[str], timeout: float) -> list[str]:
        try:
            found = self._connections[url].pop(keys, timeout)
        except RedisQueueError:
            return []
        return [found] if found else []

    def _pop_on_servers(self, keys: Mapping[RedisUrl, Sequence[str]], timeout: float) -> list[str]:
        """Wait on all servers, then take back what was asked of the others: a token that came while
        this child works would wake nobody.

        Closing the connection takes it back. CLIENT UNBLOCK would, too, but a server whose writes
        are paused, as in a failover, crashes from it (https://github.com/redis/redis/pull/14164).
        """
        timeout = min(timeout, BLOCK_SECONDS)
        waiting: dict[int, _WakeConnection] = {}
        for url, names in keys.items():
            with suppress(RedisQueueError):
                waiting[self._connections[url].begin_pop(names, timeout)] = self._connections[url]
        found: list[str] = []
        end = time.monotonic() + timeout + TICK
        while waiting and not found:
            ready, _, _ = select.select(list(waiting), [], [], max(0.0, end - time.monotonic()))
            if not ready:
                break
            for number in ready:
                with suppress(RedisQueueError):
                    found += waiting.pop(number).end_pop()
        for connection in waiting.values():
            connection.close()
        return found

    def close(self) -> None:
        """Close the connections, also while they wait."""
        for connection in self._connections.values():
            connection.close()


class _WakeConnection(RedisConnection):
    """A connection that sends a blocking pop and reads its reply later."""

    def begin_pop(self, keys: Sequence[str], timeout: float) -> int:
        """Send a blocking pop. Returns the number of the socket that gets the reply."""
        with self._guard as connection:
            connection.send_command("BLPOP", *keys, f"{timeout:.3f}")
            return cast(Any, connection)._sock.fileno()  # type: ignore[no-any-return]

    def end_pop(self) -> list[str]:
        """The key whose token the pop has taken, if it has."""
        with self._guard as connection:
            reply = connection.read_response()
            return reply[:1] if reply else []
