"""One reader of the events a process, for all its open streams: a thread that starts with the first
stream and ends with the last. What it reads lies in a ring that the streams look into, so a slow
client costs no memory."""

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

from ..connection import blocking_link, worker_link
from ..exceptions import RedisQueueError
from ..link import Link
from ..store.events import Position
from ..store.feed import Feed, Line
from ..streams import Place, places
from ..worker.reconnect import until_answered
from .history import Page, next_page

logger = logging.getLogger("django_redisqueue.api")

Answer = TypeVar("Answer")
RING, RING_BYTES = 2_000, 8_000_000  # events, and their size
BATCH = 1_000  # events a read, about
BLOCK = 1.0  # s a read waits: so soon the thread ends behind its last stream
PAUSE = 0.05  # s between reads, so that a flood of events does not wake the streams for each
STUCK = 30.0  # s that a client may take to accept what it is sent


@dataclass(frozen=True, slots=True)
class Ring:
    """The last events, at one moment; complete behind ``floor``."""

    floor: Position
    events: Sequence[Line] = ()

    @property
    def last(self) -> Position:
        return self.events[-1][0] if self.events else self.floor

    def behind(self, position: Position) -> Sequence[Line] | None:
        """The events behind ``position``, or None when the ring does not reach back to it."""
        if position < self.floor:
            return None
        return self.events[bisect_right(self.events, position, key=itemgetter(0)) :]

    def grown(self, new: Sequence[Line]) -> Ring:
        """The ring with new events, and without the oldest when they are too many."""
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
    """One open stream. ``task`` is what sends it; ``sending`` is since when its client has been
    taking what it was sent last."""

    place: Place
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[Any]
    news: asyncio.Event = field(default_factory=asyncio.Event)
    sending: float | None = None

    def end(self) -> None:
        """Cut the client off, wherever its stream stands."""
        hub.leave(self)
        self.tell(self.task.cancel)

    def tell(self, act: Callable[[], object]) -> None:
        """Call ``act`` in the stream's own loop."""
        try:
            self.loop.call_soon_threadsafe(act)
        except RuntimeError:
            hub.leave(self)  # its loop has ended, and with it the stream


class Hub:
    """The shared reader; there is one, ``hub``."""

    def __init__(self) -> None:
        self.ring: Ring | None = None  # None until the reader has found the end of the stream
        self._lock = threading.Lock()
        self._subscribers: set[Subscriber] = set()
        self.reader: threading.Thread | None = None
        self._pages: tuple[threading.Lock, Link] | None = None

    def join(self, subscriber: Subscriber) -> None:
        """Let a stream in."""
        with self._lock:
            self._subscribers.add(subscriber)
            if self.reader is None:
                self.ring, self._pages = None, (threading.Lock(), worker_link())
                self.reader = threading.Thread(
                    target=self._run, name="redisqueue-events", daemon=True
                )
                self.reader.start()

    def leave(self, subscriber: Subscriber) -> None:
        """Forget a stream that has ended."""
        with self._lock:
            self._subscribers.discard(subscriber)
        places.free(subscriber.place)

    def page(self, after: Position) -> Page:
        """What a stream has missed. All streams share one connection for it. Raises
        RedisQueueError."""
        assert self._pages is not None, "only for those who have joined"
        lock, link = self._pages
        with lock:
            link.drop_if_cut()
            return next_page(Feed(link), after)

    @property
    def streams(self) -> int:
        """How many are open."""
        return len(self._subscribers)

    # -- the reader's thread

    def _run(self) -> None:
        while True:
            link = blocking_link()
            try:
                self._read(Feed(link))
            except RedisQueueError:
                pass  # it was logged, and the last stream has not waited for Redis to come back
            except Exception:
                logger.exception("events: the reader failed; its streams are ended")
                for subscriber in self._all():
                    subscriber.end()
            finally:
                link.close()
            with self._lock:
                if not self._subscribers:
                    self.reader = None
                    return

    def _read(self, feed: Feed) -> None:
        """Follow the stream until nobody is left."""
        ring = Ring(self._ask(feed.ends)[1])
        self._spread(ring)
        while self._subscribers:
            new, more = self._ask(partial(feed.wait, ring.last, BATCH, BLOCK))
            self._cut_stuck()
            for at in range(0, len(new), BATCH):  # mostly once, and never more than the ring holds
                ring = ring.grown(new[at : at + BATCH])
                self._spread(ring)
                if not more or at + BATCH < len(new):
                    time.sleep(PAUSE)

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        return until_answered(
            lambda _: question(), who="events", give_up=lambda: not self._subscribers
        )

    def _spread(self, ring: Ring) -> None:
        self.ring = ring
        for subscriber in self._all():
            subscriber.tell(subscriber.news.set)

    def _cut_stuck(self) -> None:
        """End the streams whose client takes nothing any more: each holds a place of few."""
        latest = time.monotonic() - STUCK
        for subscriber in self._all():
            if subscriber.sending is not None and subscriber.sending < latest:
                logger.warning("events: a client has taken nothing for %g s; cut off", STUCK)
                subscriber.end()

    def _all(self) -> list[Subscriber]:
        with self._lock:
            return list(self._subscribers)


hub = Hub()
