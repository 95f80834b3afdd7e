"""The bridge: from the event stream into the database, page by page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from ..conf import Settings
from ..connection import Link, worker_link
from ..store.events import PAGE, Events
from .writer import Cursor, Overtaken, Writer

logger = logging.getLogger("django_redisqueue")


class Source(Protocol):
    """Knows whether this is the Redis that the mirror is a mirror of."""

    def check(self, cursor: Cursor) -> Cursor:
        """Asked on every new connection to Redis or to the database, and when the cursor's own
        entry is no longer in the stream. Where to read on; raises to stand still."""


Follower = Callable[[Cursor], None]  # called after a commit, and once after every check


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
        self._page = page
        self._cursor: Cursor | None = None

    def forget(self) -> None:
        """After an error: look at both ends again before going on."""
        self._cursor = None
        self.link.close()

    def run_once(self) -> int:
        """Apply the next page of events; how many entries that were, 0 at the end of the stream.

        Raises RedisQueueError or django.db.Error; then nothing was applied: call ``forget`` and
        try again.
        """
        if self._cursor is None:
            self._begin()
        cursor = self._cursor
        assert cursor is not None
        page, last = self.events.read(cursor.position, self._page)
        if last == cursor.position:
            return 0
        try:
            self._cursor = self.writer.write(page, cursor, last)
        except Overtaken:
            self._cursor = None
            return 1
        self._follow()
        return len(page)

    def _begin(self) -> None:
        cursor = self.writer.cursor()
        self._cursor = self._source.check(cursor) if self._source else cursor
        self._follow()

    def _follow(self) -> None:
        assert self._cursor is not None
        for follower in self._followers:
            follower(self._cursor)
