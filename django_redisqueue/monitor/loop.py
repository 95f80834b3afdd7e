"""Follows the channel and looks at the queues, for as long as it takes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..connection import worker_link
from ..exceptions import RedisQueueError
from ..keys import Keys
from ..link import Link
from ..worker.reconnect import pause
from .events import Heard, parse
from .snapshot import Observer
from .views import View

IDLE = 5.0  # s between two looks when nothing is heard: leases and pauses make no events
AT_ONCE = 500  # messages taken before the view is told


class Monitor:
    """Shows ``view`` every event of the queues, and a new look at most every ``interval`` seconds.

    A message on the channel is what makes it look; without any it looks every IDLE seconds.
    """

    def __init__(
        self, keys: Keys, queues: Sequence[str], observer: Observer, view: View, interval: float
    ) -> None:
        self._channel = keys.status_channel
        self._queues = frozenset(queues)
        self._observer = observer
        self._view = view
        self._interval = interval
        self._failures = 0
        self._said = ""

    def run(self) -> None:
        """For ever; an exception raised by a signal handler ends it."""
        while True:
            feed = worker_link()
            try:
                self._follow(feed)
            except RedisQueueError as error:
                self._say(str(error))
                pause(self._failures)
                self._failures += 1
            finally:
                feed.close()

    def _follow(self, feed: Link) -> None:
        feed.subscribe(self._channel)
        self._look()
        looked, heard = time.monotonic(), False
        while True:
            due = looked + (self._interval if heard else max(self._interval, IDLE))
            messages = _messages(feed, max(0.0, due - time.monotonic()))
            heard = heard or bool(messages)
            self._view.tell([event for event in map(parse, messages) if self._is_wanted(event)])
            if time.monotonic() >= looked + self._interval and (heard or time.monotonic() >= due):
                self._look()
                looked, heard = time.monotonic(), False

    def _say(self, words: str) -> None:
        """What is wrong, once until it is something else."""
        if words != self._said:
            self._said = words
            self._view.trouble(words)

    def _look(self) -> None:
        snapshot = self._observer.look()
        if self._failures:
            self._failures, self._said = 0, ""
            self._view.back()
        self._view.show(snapshot)

    def _is_wanted(self, heard: Heard) -> bool:
        return heard.event is None or str(heard.event.get("queue")) in self._queues


def _messages(feed: Link, timeout: float) -> list[str]:
    """What has come, waiting for the first."""
    found: list[str] = []
    message = feed.message(timeout)
    while message is not None:
        found.append(message)
        message = feed.message(0) if len(found) < AT_ONCE else None
    return found
