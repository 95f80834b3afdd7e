"""The channels of events of all shards, as one."""

from __future__ import annotations

import time

from ..broker.base import keys_at
from ..broker.connection import RedisConnection, worker_connection
from ..conf import get_settings
from ..exceptions import RedisQueueError

MAX_MESSAGES = 500  # that are received at once
ROUND = 0.1  # s in which each of several channels is looked at


class EventChannels:
    """Subscriptions to all channels: one a server, and on a cluster one a shard.

    ``problem``: why one of them is not open, or None.
    """

    def __init__(self) -> None:
        settings = get_settings()
        connections = map(worker_connection, range(settings.shards))
        keys = [(one, keys_at(one, settings)) for one in connections]
        # By server and channel, each once
        places = {(one.redis_url, key.status_channel): one for one, key in keys}
        self._channels = {one: channel for (_, channel), one in places.items()}
        self._open: list[RedisConnection] = []
        self.problem: RedisQueueError | None = None

    def open(self) -> None:
        """Subscribe to each channel that is not open. Raises the problem if none can be."""
        self.problem = None
        for connection, channel in self._channels.items():
            if connection not in self._open:
                try:
                    connection.subscribe(channel)
                    self._open.append(connection)
                except RedisQueueError as error:
                    self._close(connection)
                    self.problem = error
        if self.problem is not None and not self._open:
            raise self.problem

    def receive(self, timeout: float) -> list[str]:
        """The messages that have arrived, waiting for the first. Raises the error if no channel is
        open any more."""
        end = time.monotonic() + timeout
        found: list[str] = []
        while True:
            several = len(self._open) > 1
            for connection in list(self._open):
                left = min(end - time.monotonic(), ROUND / len(self._open) if several else timeout)
                try:
                    found += _messages(connection, 0 if found else max(0.0, left))
                except RedisQueueError as error:
                    self.problem = error
                    self._close(connection)
                    if not self._open:
                        raise
            if found or time.monotonic() >= end:
                return found

    def close(self) -> None:
        """Close all."""
        for connection in self._channels:
            self._close(connection)

    def _close(self, connection: RedisConnection) -> None:
        connection.close()
        if connection in self._open:
            self._open.remove(connection)


def _messages(connection: RedisConnection, timeout: float) -> list[str]:
    found: list[str] = []
    message = connection.message(timeout)
    while message is not None:
        found.append(message)
        message = connection.message(0) if len(found) < MAX_MESSAGES else None
    return found
