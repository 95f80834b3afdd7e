"""Hears orders for running jobs the moment they are given. A hint: every heartbeat asks again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..conf import Settings
from ..connection import blocking_link
from ..exceptions import RedisQueueError
from ..keys import Keys
from ..link import BLOCK, Link
from .reconnect import pause

logger = logging.getLogger("django_redisqueue")

OnCancel = Callable[[str, str], None]  # child, job id


class ControlListener:
    """A thread that listens on the control channel, for ever and across outages."""

    def __init__(self, settings: Settings, on_cancel: OnCancel) -> None:
        self._channel = Keys(settings.prefix).control
        self._on_cancel = on_cancel

    def start(self) -> None:
        """Listen until the process ends."""
        threading.Thread(target=self._run, name="control", daemon=True).start()

    def _run(self) -> None:
        tries = 0
        while True:
            link = blocking_link()
            try:
                link.subscribe(self._channel)
                tries = 0
                self._listen(link)
            except RedisQueueError as error:
                logger.debug("control channel: %s", error)
                link.close()
                pause(tries)
                tries += 1

    def _listen(self, link: Link) -> None:
        while True:
            message = link.message(BLOCK)
            if message is not None:
                match message.split(" "):
                    case ["cancel", child, job_id, _]:
                        self._on_cancel(child, job_id)
                    case _:  # of a newer version, or of somebody else
                        logger.debug("control channel: not understood: %r", message)
