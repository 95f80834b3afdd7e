"""Events as server-sent events: a stream that stays open, or one poll per response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from asgiref.sync import sync_to_async

from ..broker.connection import producer_connection
from ..broker.events import Position, format_position
from ..broker.feed import EventFeed, EventLine
from ..exceptions import RedisQueueError
from .history import PAGE, EventPage, next_page
from .hub import Subscriber, hub
from .stream_limits import RETRY_AFTER, TooManyStreams, close_connections, stream_limiter

RETRY_MS = 2_000  # after which a client asks again when its response has ended
KEEP_ALIVE = 15.0  # s between comments, which keep proxies from closing an idle stream
LIFETIME = 600.0  # s; the client then reconnects, and its token and permission are checked again
GAP = '{"message":"some events in between are known no more; read the jobs again"}'


def frame(events: Sequence[EventLine]) -> bytes:
    """Events with their positions as ids. Line breaks in JSON can only be white space."""
    return "".join(
        f"id: {format_position(position)}\ndata: {text.translate(_NO_LINES)}\n\n"
        for position, text in events
        if text
    ).encode("utf-8", "backslashreplace")


def frame_page(page: EventPage) -> bytes:
    """A page of events. An event named ``gap`` tells a client that it has missed some."""
    gap = (
        f"event: gap\nid: {format_position(page.events[0][0])}\ndata: {GAP}\n\n" if page.gap else ""
    )
    return gap.encode() + frame(page.events)


_NO_LINES = {10: " ", 13: " "}


def _start(position: Position, retry_ms: int) -> bytes:
    # An id alone is not an event, but the client remembers it.
    return f"retry: {retry_ms}\nid: {format_position(position)}\n\n".encode()


def end_of_stream() -> Position:
    """Where a client starts that names no position. Raises RedisUnavailable."""
    return EventFeed(producer_connection()).ends()[1]


def poll(after: Position | None) -> bytes:
    """The events after ``after`` in one response that ends, so no client holds a thread."""
    if after is None:
        return _start(end_of_stream(), RETRY_MS)
    page = next_page(EventFeed(producer_connection()), after)
    more = len(page.events) >= PAGE
    return _start(after, 0 if more else RETRY_MS) + frame_page(page)


async def stream(user_id: object, after: Position) -> AsyncIterator[bytes]:
    """Events after ``after`` as they come, until the client leaves or LIFETIME is over."""
    task = asyncio.current_task()
    assert task is not None, "a generator runs in a task"
    try:
        slot = stream_limiter.acquire(user_id)
    except TooManyStreams:  # other requests took the last slots since the view checked
        yield _start(after, RETRY_AFTER * 1000)
        return
    subscriber = Subscriber(slot, task.get_loop(), task)
    hub.subscribe(subscriber)
    try:
        await sync_to_async(close_connections)()
        subscriber.sending = time.monotonic()
        yield _start(after, RETRY_MS)
        subscriber.sending = None
        async for chunk in _events(subscriber, after):
            subscriber.sending = time.monotonic()
            yield chunk
            subscriber.sending = None
    except RedisQueueError as error:
        yield f": {type(error).__name__}; come back later\n\n".encode()
    finally:
        hub.unsubscribe(subscriber)


async def _events(subscriber: Subscriber, position: Position) -> AsyncIterator[bytes]:
    end = time.monotonic() + LIFETIME
    live = False
    while time.monotonic() < end:
        subscriber.updated.clear()
        ring = hub.ring
        new = ring.after(position) if ring else None
        if new is None and live:
            yield b": too slow, events have passed by; come back for them\n\n"
            return
        if new is None:
            page = await sync_to_async(_page)(position)
            if page.events:
                position = page.events[-1][0]
                yield frame_page(page)
                continue
            if ring:  # nothing is known between here and the start of the ring
                position = max(position, ring.floor)
                continue
        else:
            live = True
            if new:
                position = new[-1][0]
                yield frame(new)
                continue
        if not await _news(subscriber):
            yield b": still here\n\n"


async def _news(subscriber: Subscriber) -> bool:
    """Wait for events; False when it is time for a keep-alive comment instead."""
    try:
        async with asyncio.timeout(KEEP_ALIVE):
            await subscriber.updated.wait()
    except TimeoutError:
        return False
    return True


def _page(after: Position) -> EventPage:
    try:
        return hub.page(after)
    finally:
        close_connections()
