"""One reader of events per process, for all its open streams.

The reader is a thread that starts with the first stream and ends with the last. It keeps the latest
events in a ring that the streams read from, so a slow client costs no memory.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from ..broker.connection import RedisConnection, blocking_connection, worker_connection
from ..broker.events import Position
from ..broker.feed import EventFeed, EventLine
from ..broker.retry import retry_until_answered
from ..exceptions import RedisQueueError
from .history import EventPage, next_page
from .stream_limits import StreamSlot, stream_limiter

logger = logging.getLogger("django_redisqueue.api")

Answer = TypeVar("Answer")
RING, RING_BYTES = 2_000, 8_000_000  # events, and their total size
BATCH = 1_000  # events per read, approximately
BLOCK = 1.0  # s that a read waits; the thread ends this soon after its last stream
PAUSE = 0.05  # s between reads, so that a flood of events does not wake the streams for each
STALL_TIMEOUT = 30.0  # s that a client may take to accept what it is sent


@dataclass(frozen=True, slots=True)
class Ring:
    """The latest events at one moment; complete after ``floor``."""

    floor: Position
    events: Sequence[EventLine] = ()

    @property
    def last(self) -> Position:
        return self.events[-1][0] if self.events else self.floor

    def after(self, position: Position) -> Sequence[EventLine] | None:
        """The events after ``position``, or None when the ring does not reach back to it."""
        if position < self.floor:
            return None
        return self.events[bisect_right(self.events, position, key=itemgetter(0)) :]

    def extended(self, new: Sequence[EventLine]) -> Ring:
        """The ring with new events, and without the oldest ones if there are too many."""
        events = [*self.events, *new]
        room, keep = RING_BYTES, 0
        for _, text in reversed(events[-RING:]):
            room -= len(text)
            if room < 0:
                break
            keep += 1
        gone = len(events) - keep
        return Ring(events[gone - 1][0] if gone else self.floor, events[gone:])


@dataclass(eq=False, slots=True)
class Subscriber:
    """One open stream. ``task`` sends it; ``sending`` is when it began to send its latest chunk."""

    slot: StreamSlot
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[Any]
    updated: asyncio.Event = field(default_factory=asyncio.Event)
    sending: float | None = None

    def disconnect(self) -> None:
        """End the stream, whatever it is doing."""
        hub.unsubscribe(self)
        self.call_in_loop(self.task.cancel)

    def call_in_loop(self, act: Callable[[], object]) -> None:
        """Call ``act`` in the stream's own loop."""
        try:
            self.loop.call_soon_threadsafe(act)
        except RuntimeError:
            hub.unsubscribe(self)  # the loop has ended, and the stream with it


class Hub:
    """The shared reader; there is one, ``hub``."""

    def __init__(self) -> None:
        self.ring: Ring | None = None  # None until the reader has found the end of the stream
        self._lock = threading.Lock()
        self._subscribers: set[Subscriber] = set()
        self.reader: threading.Thread | None = None
        self._pages: tuple[threading.Lock, RedisConnection] | None = None

    def subscribe(self, subscriber: Subscriber) -> None:
        """Add a stream; start the reader with the first."""
        with self._lock:
            self._subscribers.add(subscriber)
            if self.reader is None:
                self.ring, self._pages = None, (threading.Lock(), worker_connection())
                self.reader = threading.Thread(
                    target=self._run, name="redisqueue-events", daemon=True
                )
                self.reader.start()

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a stream that has ended."""
        with self._lock:
            self._subscribers.discard(subscriber)
        stream_limiter.release(subscriber.slot)

    def page(self, after: Position) -> EventPage:
        """Events from before the ring, over one connection that all streams share.

        Raises RedisQueueError.
        """
        assert self._pages is not None, "only for subscribers"
        lock, connection = self._pages
        with lock:
            connection.drop_if_cut()
            return next_page(EventFeed(connection), after)

    @property
    def streams(self) -> int:
        """How many are open."""
        return len(self._subscribers)

    def _run(self) -> None:
        while True:
            connection = blocking_connection()
            try:
                self._read(EventFeed(connection))
            except RedisQueueError:
                pass  # it was logged, and the last stream ended before Redis answered again
            except Exception:
                logger.exception("events: the reader failed; its streams end")
                for subscriber in self._all():
                    subscriber.disconnect()
            finally:
                connection.close()
            with self._lock:
                if not self._subscribers:
                    self.reader = None
                    return

    def _read(self, feed: EventFeed) -> None:
        """Follow the stream of events until the last subscriber has left."""
        ring = Ring(self._retry(feed.ends)[1])
        self._publish(ring)
        while self._subscribers:
            new, more = self._retry(partial(feed.wait, ring.last, BATCH, BLOCK))
            self._disconnect_stalled()
            for at in range(0, len(new), BATCH):  # usually once, and never more than the ring holds
                ring = ring.extended(new[at : at + BATCH])
                self._publish(ring)
                if not more or at + BATCH < len(new):
                    time.sleep(PAUSE)

    def _retry(self, question: Callable[[], Answer]) -> Answer:
        return retry_until_answered(
            lambda _: question(), who="events", give_up=lambda: not self._subscribers
        )

    def _publish(self, ring: Ring) -> None:
        self.ring = ring
        for subscriber in self._all():
            subscriber.call_in_loop(subscriber.updated.set)

    def _disconnect_stalled(self) -> None:
        """End the streams whose clients accept nothing any more: each holds one of few slots."""
        latest = time.monotonic() - STALL_TIMEOUT
        for subscriber in self._all():
            if subscriber.sending is not None and subscriber.sending < latest:
                logger.warning(
                    "events: disconnected a client that accepted nothing for %g s", STALL_TIMEOUT
                )
                subscriber.disconnect()

    def _all(self) -> list[Subscriber]:
        with self._lock:
            return list(self._subscribers)


hub = Hub()
