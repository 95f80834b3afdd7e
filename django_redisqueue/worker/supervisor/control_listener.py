"""Listens for cancelled jobs on the control channel. A hint only: every heartbeat asks again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ...broker.connection import BLOCK_SECONDS, RedisConnection, blocking_connection
from ...broker.keys import Keys
from ...broker.retry import RetryBackoff
from ...conf import Settings
from ...exceptions import RedisQueueError

logger = logging.getLogger("django_redisqueue")

OnCancel = Callable[[str, str], None]  # child, job id


class ControlListener:
    """A thread that listens on the control channel, and survives outages."""

    def __init__(self, settings: Settings, on_cancel: OnCancel) -> None:
        self._channel = Keys(settings.prefix).control
        self._on_cancel = on_cancel

    def start(self) -> None:
        """Listen until the process ends."""
        threading.Thread(target=self._run, name="control", daemon=True).start()

    def _run(self) -> None:
        backoff = RetryBackoff()
        while True:
            connection = blocking_connection()
            try:
                connection.subscribe(self._channel)
                backoff.reset()
                self._listen(connection)
            except RedisQueueError as error:
                logger.debug("control channel: %s", error)
                connection.close()
                backoff.pause()

    def _listen(self, connection: RedisConnection) -> None:
        while True:
            message = connection.message(BLOCK_SECONDS)
            if message is not None:
                match message.split(" "):
                    case ["cancel", child, job_id, _]:
                        self._on_cancel(child, job_id)
                    case _:  # from a newer version, or from somebody else
                        logger.debug("control channel: not understood: %r", message)
