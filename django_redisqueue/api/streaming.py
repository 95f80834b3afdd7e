"""Events as server-sent events: a stream that stays open, or one poll per response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable

from asgiref.sync import sync_to_async

from ..broker.entries import EventFeed, Position, Positions, format_position
from ..broker.shards import AllShards
from ..conf import get_settings
from ..core.clock import real_ms
from ..exceptions import RedisQueueError
from .hub import (
    PAGE,
    RETRY_AFTER,
    EventPage,
    Subscriber,
    TooManyStreams,
    close_connections,
    hub,
    next_page,
    stream_limiter,
)

RETRY_MS = 2_000  # after which a client asks again when its response has ended
KEEP_ALIVE = 15.0  # s between comments, which keep proxies from closing an idle stream
LIFETIME = 600.0  # s; the client then reconnects, and its token and permission are checked again
GAP = '{"message":"some events in between are no longer available; read the jobs again"}'


def to_frames(positions: list[Position], shard: int, page: EventPage) -> bytes:
    """The events of a page of this shard as text. Moves the client's position in it past them.

    The id of each event is the position after it. An event named ``gap`` says that the client has
    missed some. Line breaks in JSON can only be whitespace.
    """
    ids = [format_position(position) for position in positions]
    frames = []
    for number, (position, text) in enumerate(page.events):
        positions[shard] = position
        ids[shard] = format_position(position)
        event_id = f"id: {','.join(ids)}"
        if page.gap and number == 0:
            frames.append(f"event: gap\n{event_id}\ndata: {GAP}\n\n")
        if text:
            frames.append(f"{event_id}\ndata: {text.translate(_NO_LINES)}\n\n")
    return "".join(frames).encode("utf-8", "backslashreplace")


_NO_LINES = {10: " ", 13: " "}


def _start(positions: Positions, retry_ms: int) -> bytes:
    event_id = ",".join(map(format_position, positions))
    # An id alone is not an event, but clients remember it.
    return f"retry: {retry_ms}\nid: {event_id}\n\n".encode()


def _without(shards: Iterable[int]) -> bytes:
    """A comment for each shard that does not answer."""
    return "".join(f": shard {shard} does not answer\n\n" for shard in shards).encode()


def ends_of_streams() -> Positions:
    """The position of a new client: the ends of all streams.

    In a shard that does not answer, it is the current time by our clock. Raises RedisUnavailable if
    no shard answers.
    """
    found = AllShards().read(lambda one: EventFeed(one).ends.read())
    now: Position = (real_ms(), 0)
    ends = {shard: last for shard, (_, last) in found.by_shard.items()}
    return tuple(ends.get(shard, now) for shard in range(get_settings().shards))


def poll(after: Positions | None) -> bytes:
    """The events after ``after`` in one response that ends, so no client holds a thread."""
    if after is None:
        return _start(ends_of_streams(), RETRY_MS)
    shards, positions = AllShards(), list(after)
    ends = shards.read(lambda one: EventFeed(one).ends.read()).by_shard
    pages = shards.each(
        lambda one: next_page(EventFeed(one), after[one.shard], ends[one.shard])
    ).by_shard
    more = any(len(page.events) >= PAGE for page in pages.values())
    frames = [to_frames(positions, shard, page) for shard, page in pages.items()]
    return b"".join([_start(after, 0 if more else RETRY_MS), *frames, _without(shards.missing)])


async def stream(user_id: object, after: Positions) -> AsyncIterator[bytes]:
    """Events after ``after`` as they happen, until the client leaves or LIFETIME is over."""
    task = asyncio.current_task()
    assert task is not None, "the generator runs in a task"
    try:
        slot = stream_limiter.acquire(user_id)
    except TooManyStreams:  # other requests took the last slots since the view checked
        yield _start(after, RETRY_AFTER * 1000)
        return
    subscriber = Subscriber(slot, task.get_loop(), task)
    try:
        hub.subscribe(subscriber)
        await sync_to_async(close_connections)()
        subscriber.sending = time.monotonic()
        yield _start(after, RETRY_MS)
        subscriber.sending = None
        async for chunk in _events(subscriber, after):
            subscriber.sending = time.monotonic()
            yield chunk
            subscriber.sending = None
    except RedisQueueError as error:
        yield f": {type(error).__name__}; try again later\n\n".encode()
    finally:
        hub.unsubscribe(subscriber)


async def _events(subscriber: Subscriber, after: Positions) -> AsyncIterator[bytes]:
    end = time.monotonic() + LIFETIME
    positions = list(after)
    while time.monotonic() < end:
        subscriber.updated.clear()
        has_moved = False
        for shard in range(len(after)):
            page = await _next(shard, positions[shard])
            if chunk := to_frames(positions, shard, page):
                yield chunk
            has_moved = has_moved or bool(page.events)
        if has_moved:
            continue
        try:
            async with asyncio.timeout(KEEP_ALIVE):
                await subscriber.updated.wait()
        except TimeoutError:
            away = [shard for shard, reader in hub.readers.items() if reader.is_away]
            yield _without(away) or b": still here\n\n"


async def _next(shard: int, after: Position) -> EventPage:
    """The next events of a shard: from the ring, or older ones for a new or slow client. An empty
    page while the shard does not answer."""
    reader = hub.readers.get(shard)
    ring = reader.rings.get(shard) if reader else None
    if reader is None or ring is None:
        return EventPage([])
    new = ring.after(after)
    if new is not None:
        return EventPage(new)
    if reader.is_away:
        return EventPage([])
    try:
        page = await sync_to_async(reader.page)(shard, after)
    except RedisQueueError:
        if len(hub.readers) == 1:
            raise
        return EventPage([])
    # If there are no events in between, continue at the start of the ring.
    return page if page.events else EventPage([(max(after, ring.floor), "")])
