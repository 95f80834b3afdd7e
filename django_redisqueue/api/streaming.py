"""The events as server-sent events: a stream that stays open, or one poll an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from asgiref.sync import sync_to_async

from ..connection import producer_link
from ..exceptions import RedisQueueError
from ..store.events import Position, show
from ..store.feed import Feed, Line
from ..streams import RETRY_AFTER, TooManyStreams, close_connections, places
from .history import PAGE, Page, next_page
from .hub import Subscriber, hub

RETRY_MS = 2_000  # how soon a client asks again when its answer has ended
KEEP_ALIVE = 15.0  # s; a comment in between, so that a proxy or a dead client is noticed
LIFETIME = 600.0  # s; then the client comes back, and its token and permission are looked at again
GAP = '{"message":"some events in between are known no more; read the jobs again"}'


def frame(events: Sequence[Line]) -> bytes:
    """Events with their places as ids. (JSON has line ends only where a space is as good.)"""
    return "".join(
        f"id: {show(position)}\ndata: {text.translate(_NO_LINES)}\n\n"
        for position, text in events
        if text
    ).encode("utf-8", "backslashreplace")


def frame_page(page: Page) -> bytes:
    """A page of events; a reader that has missed some is told so by an event named ``gap``."""
    gap = f"event: gap\nid: {show(page.events[0][0])}\ndata: {GAP}\n\n" if page.gap else ""
    return gap.encode() + frame(page.events)


_NO_LINES = {10: " ", 13: " "}


def _start(position: Position, retry_ms: int) -> bytes:
    # An id by itself is no event, but the client remembers it.
    return f"retry: {retry_ms}\nid: {show(position)}\n\n".encode()


def end_of_stream() -> Position:
    """Where a reader begins that names no place. Raises RedisUnavailable."""
    return Feed(producer_link()).ends()[1]


def poll(after: Position | None) -> bytes:
    """What comes behind ``after``, in one answer that ends: no worker is held by a reader."""
    if after is None:
        return _start(end_of_stream(), RETRY_MS)
    page = next_page(Feed(producer_link()), after)
    more = len(page.events) >= PAGE
    return _start(after, 0 if more else RETRY_MS) + frame_page(page)


async def stream(user_id: object, after: Position) -> AsyncIterator[bytes]:
    """Events behind ``after`` as they come, until the client goes or LIFETIME is over."""
    task = asyncio.current_task()
    assert task is not None, "a generator runs in a task"
    try:
        place = places.take(user_id)
    except TooManyStreams:  # others were faster between the view's look and now
        yield _start(after, RETRY_AFTER * 1000)
        return
    subscriber = Subscriber(place, task.get_loop(), task)
    hub.join(subscriber)
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
        hub.leave(subscriber)


async def _events(subscriber: Subscriber, position: Position) -> AsyncIterator[bytes]:
    end = time.monotonic() + LIFETIME
    live = False
    while time.monotonic() < end:
        subscriber.news.clear()
        ring = hub.ring
        new = ring.behind(position) if ring else None
        if new is None and live:
            yield b": too slow, events have passed by; come back for them\n\n"
            return
        if new is None:
            page = await sync_to_async(_page)(position)
            if page.events:
                position = page.events[-1][0]
                yield frame_page(page)
                continue
            if ring:  # what lies between here and where the ring begins is known no more
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
    """Wait for events; False when it was time for a sign of life instead."""
    try:
        async with asyncio.timeout(KEEP_ALIVE):
            await subscriber.news.wait()
    except TimeoutError:
        return False
    return True


def _page(after: Position) -> Page:
    try:
        return hub.page(after)
    finally:
        close_connections()
