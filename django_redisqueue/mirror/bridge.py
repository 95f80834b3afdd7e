"""The bridge: from the event stream into the database, page by page.

What follows a commit (signals, the cursor in Redis, trimming) plugs in as followers; whether this
is the Redis that the mirror knows is for a ``Source`` to say.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from django.db import Error, connections

from ..conf import Settings
from ..connection import worker_link
from ..link import Link
from ..store.events import PAGE, EntryLost, Events, Fault, Page, Position, show
from .health import CONTENT_ERRORS, Blame, blame
from .writer import Cursor, Overtaken, TooLarge, Writer

logger = logging.getLogger("django_redisqueue")

FOLLOW = 25.0  # s after which followers are called although nothing has happened

REFUSALS = 2  # of one event alone until it is left out
DOUBTS = 3  # the same when the error does not say whether the event is to blame


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
        self._page = self._size = page  # events; fewer after a page that was refused
        self._alone: tuple[Position, int] | None = None  # an event, and how often it was refused
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
        if self._cursor.position != page.last:
            page = page.until(self._cursor.position)
            self.is_at_the_end = False
        self.applied += page.seen
        self._follow()
        return True

    def _write(self, page: Page, cursor: Cursor) -> Cursor:
        """Write a page, or the first part of it when that is all that a transaction can take."""
        if self._size < self._page:
            page = page.first(self._size)
        try:
            cursor = self.writer.write(page.events, cursor, page.last, page.flows, page.faults)
        except TooLarge as error:
            self._size = error.fits
            return self._write(page.until(page.events[error.fits - 1].position), cursor)
        except (*CONTENT_ERRORS, Error) as error:
            return self._after_refusal(page, cursor, error)
        self._size, self._alone = min(self._page, self._size * 2), None
        return cursor

    def _after_refusal(self, page: Page, cursor: Cursor, error: Exception) -> Cursor:
        """The next page is half as large, until an event is alone that the database refuses again
        and again. That one is left out. While the database is at fault, nothing is."""
        count = len(page.events) + len(page.flows)
        self._size = max(1, count // 2)
        cause = blame(error, self.writer.alias)
        if count != 1 or cause is Blame.DATABASE:
            if cause is Blame.CONTENT and count:
                return cursor
            raise error
        refused = self._alone[1] + 1 if self._alone and self._alone[0] == page.last else 1
        if cause is Blame.DOUBTFUL and not self.writer.is_writable(cursor):
            raise error
        self._alone = page.last, refused
        if refused < (REFUSALS if cause is Blame.CONTENT else DOUBTS):
            if cause is Blame.CONTENT:
                return cursor
            raise error
        place = show(page.last)
        logger.error("event %s cannot be mirrored and is left out: %r", place, error)
        fault = Fault(page.last, f"the database refuses it: {error!r}", is_left_out=True)
        return self.writer.write([], cursor, page.last, faults=[*page.faults, fault])

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
