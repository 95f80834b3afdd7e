"""Listens on the control channel for cancelled jobs and orders.

Messages are only hints: every heartbeat asks Redis for the same information.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from ...broker.base import keys_at
from ...broker.connection import BLOCK_SECONDS, RedisConnection, blocking_connection
from ...broker.failures import RetryBackoff
from ...broker.redis_url import shards_by_server
from ...conf import Settings
from ...exceptions import RedisQueueError, RedisUnavailable

logger = logging.getLogger("django_redisqueue")

SILENCE = 60.0  # s without a message before checking that the server still responds


class ControlListener:
    """Listens on the control channels of all shards, with one thread per server."""

    def __init__(
        self,
        settings: Settings,
        worker: str,
        on_cancel: Callable[[str, str], None],
        on_order: Callable[[str], None],
    ) -> None:
        """``on_cancel(child, job_id)``, ``on_order("<ms> <order>")``."""
        self._worker = worker
        self._on_cancel = on_cancel
        self._on_order = on_order
        self._shards = shards_by_server()
        self._settings = settings

    def start(self) -> None:
        """Listen until the process ends."""
        for shards in self._shards:
            threading.Thread(target=self._run, args=[shards], name="control", daemon=True).start()

    def _run(self, shards: Sequence[int]) -> None:
        backoff = RetryBackoff()
        while True:
            connection = blocking_connection(shards[0])
            try:
                channels = [
                    keys_at(connection.at(shard), self._settings).control for shard in shards
                ]
                connection.subscribe(*channels)
                backoff.reset()
                self._listen(connection)
            except RedisQueueError as error:
                #: The worker has lost its subscription, and subscribes again. No action is needed.
                logger.debug("control channel: %s", error)
                connection.close()
                backoff.pause()

    def _listen(self, connection: RedisConnection) -> NoReturn:
        """Listen until the subscription is lost, which raises RedisQueueError. If the network has
        forgotten it, there is no error, so after a silence the server must answer."""
        while True:
            message = connection.message(SILENCE)
            if message is None:
                connection.probe()
                message = connection.message(BLOCK_SECONDS)
            if message is None:
                raise RedisUnavailable("the subscription is dead")
            if message:
                self._obey(message)

    def _obey(self, message: str) -> None:
        match message.split(" "):
            case ["cancel", child, job_id, _]:
                self._on_cancel(child, job_id)
            case ["order", worker, at_ms, order]:
                if worker == self._worker:
                    self._on_order(f"{at_ms} {order}")
            case _:
                #: The worker ignored a message from a newer version or another program. No action
                #: is needed.
                logger.debug("control channel: not understood: %r", message)
