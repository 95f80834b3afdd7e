"""The monitor's loop: follows the channels of events, and reads the queues from time to time."""

from __future__ import annotations

import time

from ..broker.base import keys_at
from ..broker.connection import RedisConnection, worker_connection
from ..broker.failures import RetryBackoff
from ..conf import get_settings
from ..exceptions import RedisQueueError
from .snapshot import Observer
from .views import ChannelMessage, MonitorView, parse

IDLE = 5.0  # s between snapshots without messages: expired leases and pauses publish none
MAX_MESSAGES = 500  # received at once, at most
ROUND = 0.1  # s within which each of several channels is checked


class Monitor:
    """Shows every event of the queues, and a snapshot at most every ``interval`` seconds.

    Messages on the channels trigger the snapshots; without any, one is taken every IDLE seconds.
    """

    def __init__(self, observer: Observer, view: MonitorView, interval: float) -> None:
        self._channels = EventChannels()
        self._observer = observer
        self._view = view
        self._interval = interval
        self._backoff = RetryBackoff()
        self._shown_error = ""

    def run(self) -> None:
        """Run until a signal handler raises an exception."""
        while True:
            try:
                self._follow()
            except RedisQueueError as error:
                self._show_error(str(error))
                self._backoff.pause()
            finally:
                self._channels.close()

    def _follow(self) -> None:
        self._refresh()
        refreshed, has_news = time.monotonic(), False
        while True:
            due = refreshed + (self._interval if has_news else max(self._interval, IDLE))
            left = max(0.0, due - time.monotonic())
            messages = self._channels.receive(min(left, self._view.poll_seconds))
            has_news = self._view.handle_keys() or has_news or bool(messages)
            self._view.show_messages(
                [message for message in map(parse, messages) if self._is_wanted(message)]
            )
            if self._channels.problem is not None:
                self._show_error(str(self._channels.problem))
            now = time.monotonic()
            if now >= refreshed + self._interval and (has_news or now >= due):
                self._refresh()
                refreshed, has_news = time.monotonic(), False

    def _show_error(self, text: str) -> None:
        if text != self._shown_error:
            self._shown_error = text
            self._view.show_outage(text)

    def _refresh(self) -> None:
        self._channels.open()
        snapshot = self._observer.observe()
        self._backoff.reset()
        if self._channels.problem is None and self._shown_error:
            self._shown_error = ""
            self._view.show_recovery()
        self._view.show_snapshot(snapshot)

    def _is_wanted(self, message: ChannelMessage) -> bool:
        return message.event is None or str(message.event.get("queue")) in self._observer.queues


class EventChannels:
    """Subscriptions to all channels: one per server, and on a cluster one per shard. ``problem``:
    why one of them is not open, or None."""

    def __init__(self) -> None:
        settings = get_settings()
        connections = map(worker_connection, range(settings.shards))
        keys = [(one, keys_at(one, settings)) for one in connections]
        # Each server and channel once.
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
        """What has arrived; waits for the first message. Raises the error if no channel is left."""
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
        if message:
            found.append(message)
        message = connection.message(0) if len(found) < MAX_MESSAGES else None
    return found
