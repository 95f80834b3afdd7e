"""The loop of a monitor: follow the channel of events, and read the queues now and then."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..broker.connection import RedisConnection, worker_connection
from ..broker.keys import Keys
from ..broker.retry import RetryBackoff
from ..exceptions import RedisQueueError
from .events import ChannelMessage, parse
from .snapshot import Observer
from .views import MonitorView

IDLE = 5.0  # s between snapshots without messages: lapsed leases and pauses publish none
MAX_MESSAGES = 500  # that are passed to the view at once


class Monitor:
    """Shows every event of the queues, and a snapshot at most every ``interval`` seconds.

    Messages on the channel trigger the snapshots; without any, one is taken every IDLE seconds.
    """

    def __init__(
        self,
        keys: Keys,
        queues: Sequence[str],
        observer: Observer,
        view: MonitorView,
        interval: float,
    ) -> None:
        self._channel = keys.status_channel
        self._queues = frozenset(queues)
        self._observer = observer
        self._view = view
        self._interval = interval
        self._backoff = RetryBackoff()
        self._shown_error = ""

    def run(self) -> None:
        """Run until a signal handler raises an exception."""
        while True:
            subscription = worker_connection()
            try:
                self._follow(subscription)
            except RedisQueueError as error:
                self._show_error(str(error))
                self._backoff.pause()
            finally:
                subscription.close()

    def _follow(self, subscription: RedisConnection) -> None:
        subscription.subscribe(self._channel)
        self._refresh()
        refreshed, has_news = time.monotonic(), False
        while True:
            due = refreshed + (self._interval if has_news else max(self._interval, IDLE))
            messages = _receive(subscription, max(0.0, due - time.monotonic()))
            has_news = has_news or bool(messages)
            self._view.show_messages(
                [message for message in map(parse, messages) if self._is_wanted(message)]
            )
            now = time.monotonic()
            if now >= refreshed + self._interval and (has_news or now >= due):
                self._refresh()
                refreshed, has_news = time.monotonic(), False

    def _show_error(self, text: str) -> None:
        """Show an error unless it is the one that is shown already."""
        if text != self._shown_error:
            self._shown_error = text
            self._view.show_outage(text)

    def _refresh(self) -> None:
        snapshot = self._observer.observe()
        if self._backoff.failures:
            self._backoff.reset()
            self._shown_error = ""
            self._view.show_recovery()
        self._view.show_snapshot(snapshot)

    def _is_wanted(self, message: ChannelMessage) -> bool:
        return message.event is None or str(message.event.get("queue")) in self._queues


def _receive(subscription: RedisConnection, timeout: float) -> list[str]:
    """The messages that have arrived, waiting for the first."""
    found: list[str] = []
    message = subscription.message(timeout)
    while message is not None:
        found.append(message)
        message = subscription.message(0) if len(found) < MAX_MESSAGES else None
    return found
