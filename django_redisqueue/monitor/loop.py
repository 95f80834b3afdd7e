"""The loop of a monitor: follow the channels of events, and read the queues now and then."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..broker.retry import RetryBackoff
from ..exceptions import RedisQueueError
from .events import ChannelMessage, EventChannels, parse
from .snapshot import Observer
from .views import MonitorView

IDLE = 5.0  # s between snapshots without messages: lapsed leases and pauses publish none


class Monitor:
    """Shows every event of the queues, and a snapshot at most every ``interval`` seconds.

    Messages on the channels trigger the snapshots; without any, one is taken every IDLE seconds.
    """

    def __init__(
        self,
        queues: Sequence[str],
        observer: Observer,
        view: MonitorView,
        interval: float,
    ) -> None:
        self._channels = EventChannels()
        self._queues = frozenset(queues)
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
            messages = self._channels.receive(min(left, self._view.patience))
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
        """Show an error unless it is the one that is shown already."""
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
        return message.event is None or str(message.event.get("queue")) in self._queues
