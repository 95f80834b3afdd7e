"""The bridge: from the event stream into the database, page by page.

What follows a commit (signals, the cursor in Redis, trimming) plugs in as followers; whether this
is the Redis that the mirror knows is for a ``Source`` to say.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Protocol

from django.db import DataError, connections

from ..conf import Settings
from ..connection import worker_link
from ..link import Link
from ..store.events import PAGE, EntryLost, Event, Events, Page, show
from ..store.flowevents import FlowEvent
from .writer import Cursor, Overtaken, Writer

logger = logging.getLogger("django_redisqueue")

FOLLOW = 25.0  # s after which followers are called although nothing has happened

#: What a value can be refused for (too long, no Unicode, a NUL); the events around must not suffer.
REFUSED = (DataError, ValueError, OverflowError)


class Source(Protocol):
    """Knows whether this is the Redis that the mirror is a mirror of."""

    def check(self, cursor: Cursor) -> Cursor:
        """Where to read on. Asked at the start, after every error, and when the cursor's entry is
        not in the stream any more. Raises RedisQueueError to stand still: it is asked again."""


#: Called after each commit, once after every check, and now and then; True when there is more for
#: it to do.
Follower = Callable[[Cursor], bool]


class Bridge:
    """One shard's mirror. ``run_once`` applies one page; whoever drives it sees to the rest."""

    def __init__(
        self,
        settings: Settings,
        *,
        link: Link | None = None,
        source: Source | None = None,
        followers: Sequence[Follower] = (),
        page: int = PAGE,
    ) -> None:
        self.link = link or worker_link()
        self.events = Events(self.link, settings)
        self.writer = Writer(self.events)
        self._source = source
        self._followers = followers
        self._page = self._size = page
        self._cursor: Cursor | None = None
        self._follow_at = 0.0
        self.is_at_the_end = True  # nothing was behind the last page
        self.applied = 0  # events of the stream

    def close(self) -> None:
        """Let both ends go; the next ``run_once`` looks at them again. After any error, and when
        it was not the only bridge for a while."""
        self._cursor = None
        self.link.close()
        connections[self.writer.alias].close()

    def run_once(self) -> bool:
        """Apply the next page of events; False when there is nothing more to do.

        Raises RedisQueueError or django.db.Error; then nothing was applied: ``close`` and try
        again.
        """
        cursor = self._cursor or self._begin()
        try:
            page = self.events.read(cursor.position, self._size)
        except EntryLost:
            if self._source is None:
                raise
            self._cursor = None  # and the source is asked
            return True
        self.is_at_the_end = page.is_end
        if page.last == cursor.position:
            return time.monotonic() >= self._follow_at and self._follow()
        try:
            self._cursor = self._write(page, cursor)
        except Overtaken:
            self._cursor = None
            return True
        if self._cursor.position == page.last:
            self.applied += page.seen
        self._follow()
        return True

    def _write(self, page: Page, cursor: Cursor) -> Cursor:
        """Write a page. One that the database refuses is read again in smaller pieces, until the
        entry with the event in question is alone, of which that one is left out."""
        try:
            cursor = self.writer.write(page.events, cursor, page.last, page.flows)
        except REFUSED:
            if self._size > 1:
                self._size = max(1, self._size // 10)
                return cursor
            cursor = self._write_each(page, cursor)
        self._size = min(self._page, self._size * 10)
        return cursor

    def _write_each(self, page: Page, cursor: Cursor) -> Cursor:
        """Write event by event what the database does not refuse; the cursor goes with them."""
        everything: list[Event | FlowEvent] = [*page.events, *page.flows]
        for event in sorted(everything, key=attrgetter("position")):
            try:
                if isinstance(event, FlowEvent):
                    cursor = self.writer.write([], cursor, event.position, [event])
                else:
                    cursor = self.writer.write([event], cursor, event.position)
            except REFUSED as error:
                place = show(event.position)
                logger.error("event %s can not be mirrored and is left out: %r", place, error)
        return self.writer.write([], cursor, page.last)

    def _begin(self) -> Cursor:
        cursor = self.writer.cursor()
        self._cursor = self._source.check(cursor) if self._source else cursor
        self._follow()
        return self._cursor

    def _follow(self) -> bool:
        assert self._cursor is not None
        more = [follower(self._cursor) for follower in self._followers]
        self._follow_at = 0.0 if any(more) else time.monotonic() + FOLLOW
        return any(more)
