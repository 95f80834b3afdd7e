"""Finds the committed events that Django's receivers are to hear of, behind a cursor of their own.

Each is told of in one transaction with the cursor (``telling``). What nobody hears of moves it by
one statement a page. Nobody connected: no event is read, and the cursor is moved now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from django.db import router
from django.db.models import QuerySet

from ..models import JobRecord
from .telling import Teller, Told
from .themes import JOBS, Theme
from .writer import SHARD, Cursor

PAGE = 500  # events a query
RECORDS = 20  # of jobs a query
SPAN = 10_000  # ids a query looks at, of which a listener may want few
SKIP = 1.0  # s between two moves of the cursor while nobody listens
BUDGET = 0.2  # s a pass, so that slow receivers delay signals and not the mirror
RECEIVERS = 300.0  # s that the receivers of one event may take before the watchdog steps in

KeepAlive = Callable[[float], None]  # promises the watchdog the next call within so many seconds


class Signaller:
    """One pass a call; runs outside any transaction, in the bridge's process."""

    def __init__(
        self,
        theme: Theme = JOBS,
        shard: int = SHARD,
        *,
        keep_alive: KeepAlive = lambda seconds: None,
    ) -> None:
        self._theme = theme
        self._alias = router.db_for_write(JobRecord)
        self._told = Told(theme, self._alias, shard)
        self._tell = Teller(theme, self._alias, self._told)
        self._keep_alive = keep_alive
        self._skip_at = 0.0

    def __call__(self, cursor: Cursor) -> bool:
        """As a follower of the bridge: what is committed stands in the database."""
        return self.run_once()

    def run_once(self, budget: float | None = None) -> bool:
        """Tell of committed events for ``budget`` s (0.2) at most; True when there are more.

        Raises django.db.Error; then it is to be called again, and nothing is left out.
        """
        theme = self._theme
        heard = [
            status for status, signal in theme.signals.items() if signal.has_listeners(theme.record)
        ]
        if not heard:
            self._skip()
            return False
        end = time.monotonic() + (BUDGET if budget is None else budget)
        while True:
            more = self._page(heard, end)
            if not more or time.monotonic() >= end:
                return more

    def _page(self, heard: Sequence[str], end: float) -> bool:
        """Tell of one page, until ``end``; True when more are there."""
        first, last, latest = self._range()
        if first > latest:
            return False
        events = self._events.filter(id__gte=first, id__lte=last, status__in=heard)
        page = list(events.order_by("id")[:PAGE])
        at = 0
        for event, record in self._with_records(page):
            self._tell(event, record)
            at = event.id
            if time.monotonic() >= end:
                return bool(event.id < latest)
        seen = page[-1].id if len(page) == PAGE else last
        if at < seen:
            self._told.advance(seen)
        return seen < latest

    def _range(self) -> tuple[int, int, int]:
        """The first id to look at and the last, and the latest committed."""
        done = self._told.read()
        latest = self._latest()
        first = done + 1
        if latest - done > SPAN:  # perhaps because retention has taken what was in between
            later = self._events.filter(id__gt=done).order_by("id")
            first = later.values_list("id", flat=True).first() or latest
        return first, min(latest, first + SPAN - 1), latest

    def _latest(self) -> int:
        return self._events.order_by("-id").values_list("id", flat=True).first() or 0

    def _with_records(self, page: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """The events to tell of, each with its record; few records at a time, for a result may be
        large."""
        records = self._theme.record._base_manager.using(self._alias)
        key = attrgetter(self._theme.key)
        told = [event for event in page if self._theme.is_told(event)]
        there = set(
            records.filter(pk__in={key(event) for event in told}).values_list("pk", flat=True)
        )
        wanted = [event for event in told if key(event) in there]
        for at in range(0, len(wanted), RECORDS):
            some = wanted[at : at + RECORDS]
            found = records.in_bulk({key(event) for event in some})
            yield from ((event, found[key(event)]) for event in some if key(event) in found)

    def _skip(self) -> None:
        """Everything so far counts as told: who connects later hears of what comes later."""
        now = time.monotonic()
        if now < self._skip_at:
            return
        self._skip_at = now + SKIP
        self._told.advance(self._latest())

    @property
    def _events(self) -> QuerySet[Any]:
        return self._theme.event._base_manager.using(self._alias)
