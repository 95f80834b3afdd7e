"""Open event streams: their limits, pages of past events from Redis or the mirror, and one reader
per process and server that follows new events for all streams."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import Any, TypeVar

from django.db import connections
from django.db.models import Q

from ..broker.connection import blocking_connection, worker_connection
from ..broker.entries import (
    START,
    Ends,
    EventFeed,
    EventLine,
    Position,
    format_position,
    wait_for_lines,
)
from ..broker.failures import retry_until_answered
from ..broker.redis_url import shards_by_server
from ..conf import get_settings
from ..core.clock import ms_of
from ..core.codec import dumps, loads
from ..exceptions import RedisQueueError
from ..models import JobEvent, MirrorState
from ..models.tables import rows_of_shard
from .responses import ApiError

logger = logging.getLogger("django_redisqueue.api")

Answer = TypeVar("Answer")
STREAMS = 100  # open at once in one process
STREAMS_A_USER = 10
RETRY_AFTER = 30  # s after which a refused client may try again
# GZipMiddleware compresses each part of an asynchronous response on its own, of which browsers and
# other clients decode only the first. It leaves a response alone that names an encoding.
UNCOMPRESSED = {"Content-Encoding": "identity"}
STREAM_HEADERS = {"X-Accel-Buffering": "no", **UNCOMPRESSED}  # nginx must not buffer

PAGE = 500  # past events
RING, RING_BYTES = 2_000, 8_000_000  # events, and their total size
BATCH = 1_000  # events per read, approximately
BLOCK = 1.0  # s that a read waits; the thread ends this soon after its last stream
PAUSE = 0.05  # s between reads, so that a flood of events does not wake the streams for each
STALL_TIMEOUT = 30.0  # s that a client may take to accept what was sent


class TooManyStreams(ApiError):
    def __init__(self, status: int, text: str) -> None:
        headers = {"Retry-After": str(RETRY_AFTER)}
        super().__init__(status, "too_many_streams", text, headers=headers)


class StreamLimiter:
    """Counts the open streams of this process. The only one is ``stream_limiter``."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users: dict[object, object] = {}  # by slot

    def check(self, user_id: object) -> None:
        """Raise TooManyStreams when this user may not open another stream."""
        with self._lock:
            users = list(self._users.values())
        if users.count(user_id) >= STREAMS_A_USER:
            raise TooManyStreams(
                429, f"your user already has {STREAMS_A_USER} open streams; close one"
            )
        if len(users) >= STREAMS:
            raise TooManyStreams(
                503, f"this server process already has {STREAMS} open streams; try again later"
            )

    def acquire(self, user_id: object) -> object:
        """Open a stream, and return its slot. Raises TooManyStreams."""
        with self._lock:
            self.check(user_id)
            slot = object()
            self._users[slot] = user_id
            return slot

    def release(self, slot: object) -> None:
        """Close a stream. Releasing a slot twice does nothing."""
        with self._lock:
            self._users.pop(slot, None)

    @property
    def open_streams(self) -> int:
        return len(self._users)


stream_limiter = StreamLimiter()


def close_connections() -> None:
    """Close this thread's database connections: a stream lives long and queries rarely."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


@dataclass(frozen=True, slots=True)
class EventPage:
    """The next events, and whether earlier ones are missing."""

    events: Sequence[EventLine]
    gap: bool = False


def next_page(feed: EventFeed, after: Position, ends: Ends | None = None) -> EventPage:
    """The events after ``after``, oldest first; empty when there are no more yet.

    Takes two round trips to Redis, one if the ends of the stream are known, and up to three queries
    for a position before the stream.
    """
    first, last = ends or feed.ends()
    if after == last != START:
        return EventPage([])
    if first != START and after > last:  # Redis has lost data, or the client made up the position
        return EventPage([(last, "")], gap=True)
    if after >= first != START:
        return EventPage(feed.page(after, PAGE))
    rows = _mirrored(feed.connection.shard, after, first)
    gap = after != START and not _reaches_back_to(after) and (bool(rows) or first != START)
    return EventPage(rows or feed.page(after, PAGE), gap)


def _mirrored(shard: int, after: Position, before: Position) -> list[EventLine]:
    if before == START and not _has_been_mirrored(shard):
        return []  # otherwise each poll would search the rows of all shards for its own
    rows = rows_of_shard(JobEvent._default_manager.all(), shard, "job_id")
    rows = rows.filter(entry_ms__gte=after[0])
    rows = rows.exclude(entry_ms=after[0], entry_no__lte=after[1])
    if before != START:
        rows = rows.filter(
            Q(entry_ms__lt=before[0]) | Q(entry_ms=before[0], entry_no__lt=before[1])
        )
    return [
        ((row.entry_ms, row.entry_no), _as_emitted(row))
        for row in rows.order_by("entry_ms", "entry_no")[:PAGE]
    ]


def _has_been_mirrored(shard: int) -> bool:
    """Whether the mirror has ever read an event of the shard."""
    states = MirrorState._default_manager.filter(shard=shard)
    return states.exclude(position=format_position(START)).exists()


def _reaches_back_to(position: Position) -> bool:
    """Whether the mirror still has rows this old. All shards' rows count: retention goes by age."""
    ms, number = position
    known = Q(entry_ms__lt=ms) | Q(entry_ms=ms, entry_no__lte=number)
    return JobEvent._default_manager.filter(known).exists()


def _as_emitted(row: JobEvent) -> str:
    """The event as emit.lua writes it."""
    event: dict[str, Any] = {
        "jobId": row.job_id, "status": row.status, "queue": row.queue, "task": row.task,
        "workerId": row.worker, "attempt": row.attempt, "seq": row.seq,
        "timestamp": ms_of(row.at),
    }  # fmt: skip
    try:
        detail = dict(loads(row.detail)) if row.detail else {}
    except (ValueError, TypeError) as error:
        detail = {"unreadable": f"its detail cannot be read: {error}"}
    return dumps(event | detail)


@dataclass(frozen=True, slots=True)
class Ring:
    """The latest events at one moment, complete after ``floor``."""

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
        sizes = accumulate(len(text) for _, text in reversed(events[-RING:]))
        fit = sum(size <= RING_BYTES for size in sizes)  # of the newest
        gone = len(events) - fit
        return Ring(events[gone - 1][0] if gone else self.floor, events[gone:])


@dataclass(eq=False, slots=True)
class Subscriber:
    """One open stream. ``task`` sends it; ``sending`` is when it began to send the latest chunk."""

    slot: object
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[Any]
    updated: asyncio.Event = field(default_factory=asyncio.Event)
    sending: float | None = None

    def disconnect(self) -> None:
        hub.unsubscribe(self)
        self.call_in_loop(self.task.cancel)

    def call_in_loop(self, act: Callable[[], object]) -> None:
        try:
            self.loop.call_soon_threadsafe(act)
        except RuntimeError:
            hub.unsubscribe(self)  # the loop has ended, and the stream with it


class Hub:
    """The open streams of this process, and their readers. The only one is ``hub``."""

    def __init__(self) -> None:
        self.readers: dict[int, Reader] = {}  # by shard; one reader has all shards of a server
        self._lock = threading.Lock()
        self._subscribers: set[Subscriber] = set()

    def subscribe(self, subscriber: Subscriber) -> None:
        """Add a stream; start the readers with the first."""
        with self._lock:
            self._subscribers.add(subscriber)
            for shards in shards_by_server():
                if shards[0] not in self.readers:
                    reader = Reader(shards)
                    reader.start()  # raises if the process may have no more threads
                    self.readers.update(dict.fromkeys(shards, reader))

    def unsubscribe(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers.discard(subscriber)
        stream_limiter.release(subscriber.slot)

    def dismiss(self, reader: Reader) -> bool:
        """Forget a reader if no stream is open; returns whether it was forgotten."""
        with self._lock:
            if not self._subscribers:
                for shard in reader.shards:
                    del self.readers[shard]
            return not self._subscribers

    def subscribers(self) -> list[Subscriber]:
        with self._lock:
            return list(self._subscribers)

    @property
    def streams(self) -> int:
        return len(self._subscribers)


class Reader:
    """Follows the events of the shards of one server, in a thread, while streams are open.

    ``rings`` is empty until the reader has found the ends of the streams. ``is_away``: the server
    does not answer, so do not read pages.
    """

    def __init__(self, shards: Sequence[int]) -> None:
        self.shards = shards
        self.rings: Mapping[int, Ring] = {}
        self.is_away = False
        self._paging = threading.Lock()
        self._connection = worker_connection(shards[0])  # for pages

    def start(self) -> None:
        threading.Thread(target=self._run, name="redisqueue-events", daemon=True).start()

    def page(self, shard: int, after: Position) -> EventPage:
        """Events from before the ring, over one connection that all streams share. Raises
        RedisQueueError."""
        try:
            with self._paging:
                connection = self._connection.at(shard)
                connection.drop_if_cut()
                return next_page(EventFeed(connection), after)
        finally:
            close_connections()

    def _run(self) -> None:
        while True:
            connection = blocking_connection(self.shards[0])
            try:
                self._read([EventFeed(connection.at(shard)) for shard in self.shards])
            except RedisQueueError:
                pass  # the error was logged, and the last stream ended before Redis answered again
            except Exception:
                #: The HTTP API ended its streams of events because of an unexpected error. Clients
                #: reconnect and miss nothing. Report the traceback if the error recurs.
                logger.exception("events: the reader failed; its streams end")
                for subscriber in hub.subscribers():
                    subscriber.disconnect()
            finally:
                connection.close()
            if hub.dismiss(self):
                return

    def _read(self, feeds: Sequence[EventFeed]) -> None:
        """Follow the streams of events until the last subscriber has left."""
        rings = [Ring(self._retry(feed.ends)[1]) for feed in feeds]
        self._publish(rings)
        while hub.streams:
            last = [ring.last for ring in rings]
            new, more = self._retry(partial(wait_for_lines, feeds, last, BATCH, BLOCK))
            self._disconnect_stalled()
            # Usually once, and never more than a ring holds
            for at in range(0, max(map(len, new)), BATCH):
                parts = [lines[at : at + BATCH] for lines in new]
                rings = [
                    ring.extended(part) if part else ring
                    for ring, part in zip(rings, parts, strict=True)
                ]
                self._publish(rings)
                if not more or any(len(lines) > at + BATCH for lines in new):
                    time.sleep(PAUSE)

    def _retry(self, question: Callable[[], Answer]) -> Answer:
        def ask(resent: bool) -> Answer:
            self.is_away = resent
            answer = question()
            if resent:
                self.is_away = False
                self._wake()
            return answer

        is_only = len(self.shards) == get_settings().shards
        who = "events" if is_only else f"events of shard {', '.join(map(str, self.shards))}"
        return retry_until_answered(ask, who=who, give_up=lambda _: not hub.streams)

    def _publish(self, rings: Sequence[Ring]) -> None:
        self.rings = dict(zip(self.shards, rings, strict=True))
        self._wake()

    def _wake(self) -> None:
        for subscriber in hub.subscribers():
            subscriber.call_in_loop(subscriber.updated.set)

    def _disconnect_stalled(self) -> None:
        """End the streams whose clients no longer accept anything: each holds one of few slots."""
        latest = time.monotonic() - STALL_TIMEOUT
        for subscriber in hub.subscribers():
            if subscriber.sending is not None and subscriber.sending < latest:
                #: A client of a stream stopped reading, so it was disconnected to free its slot.
                #: Once it reconnects, it continues where it was. If this repeats, look at the
                #: client or at the proxy in front of it.
                logger.warning(
                    "events: disconnected a client that accepted nothing for %g s", STALL_TIMEOUT
                )
                subscriber.disconnect()


hub = Hub()
