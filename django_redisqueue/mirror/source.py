"""Is this the Redis that the mirror mirrors, and has it still what the mirror has read?

The mirror gives the data in Redis an id of its own and keeps it: a Redis without it was emptied, or
is another one. Then the mirror stands still and says so, for what follows from that (every
unfinished job is lost) is for a human to say: ``reapqueue --accept-redis``.

In the right Redis the cursor's own entry must be in the stream, for trimming keeps it. If it is
not, Redis has lost it: either the stream was trimmed past it (a gap), or the whole data went back
in time (a failover to an older copy), and the last entry that both have in common is where to go
on. The epoch rises, so that whatever comes now wins over what is known; a reconcile is due.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Any

from django.db.models import F, QuerySet

from ..conf import Settings
from ..exceptions import WrongRedis
from ..link import Link
from ..models import MirrorState
from ..store.census import Census
from ..store.events import START, Events, Position, show
from .history import History
from .writer import SHARD, Cursor, Writer

logger = logging.getLogger("django_redisqueue")

SAY_AGAIN = 300.0  # s between two lines in the log about the same problem


class Source:
    """Answers the bridge before it reads on."""

    def __init__(self, link: Link, settings: Settings) -> None:
        self._address = link.target.address
        self._events = Events(link, settings)
        self._census = Census(link, settings)
        self._writer = Writer(self._events)
        self.alias = self._writer.alias
        self._history = History(self.alias)
        self._said_at: float | None = None  # while it stands still

    def check(self, cursor: Cursor) -> Cursor:
        """Where to read on. Raises WrongRedis to stand still."""
        mine, theirs = self._known(), self._census.incarnation()
        if not mine:
            return self._adopt(cursor)
        if mine != theirs:
            self._stand_still(theirs)
        self._said_at = None
        self._states.exclude(problem="").update(problem="")
        if cursor.position == START or self._holds(cursor.position):
            return cursor
        return self._recover(cursor)

    def accept(self) -> bool:
        """Take this Redis for the right one from now on; False when it is already."""
        cursor, incarnation = self._writer.cursor(), self._census.name()
        if self._known() == incarnation:
            return False
        position = cursor.position
        if position == START or not self._holds(position):
            position = self._common_point(position)
        return self._begin_anew(cursor, position, incarnation=incarnation, problem="")

    # -- the right one?

    def _known(self) -> str:
        """The id of the data that is mirrored, '' when none is yet."""
        return self._states.values_list("incarnation", flat=True).first() or ""

    def _adopt(self, cursor: Cursor) -> Cursor:
        """A mirror that has mirrored nothing yet takes what it finds, and what is already there,
        for some of its events may be gone."""
        self._states.filter(incarnation="").update(
            incarnation=self._census.name(), unreconciled=True
        )
        return cursor

    def _stand_still(self, theirs: str) -> None:
        found = "has another installation's data" if theirs else "was emptied, or is a new one"
        problem = (
            f"the Redis at {self._address} {found}, and not the one that the mirror knows; the "
            "mirror stands still. If it is the right one, run reapqueue --accept-redis: unfinished "
            "jobs that it does not know are then recorded as failed (lost)"
        )
        now = time.monotonic()
        if self._said_at is None:
            self._states.update(problem=problem)
            self._said_at = now  # whoever is told now logs it now
        elif now - self._said_at >= SAY_AGAIN:
            logger.error("mirror: %s", problem)
            self._said_at = now
        raise WrongRedis(problem)

    # -- has it what was read?

    def _holds(self, position: Position) -> bool:
        """True when the stream has this entry, and it says what was read there."""
        found = self._events.at(position)
        if found is None:
            return False
        # Somebody else's entry has no row, and retention lets old ones go.
        return self._history.tells(found) or not self._history.has(position)

    def _recover(self, cursor: Cursor) -> Cursor:
        read, first = cursor.position, self._events.first()
        position, gap = START, {}
        if first is None or first > read:
            gap = self._gap(read, first)
        else:
            position = self._common_point(read)
            logger.error(
                "mirror: Redis went back in time: it does not have what was read behind %s, up to "
                "%s; records are reconciled with it", show(position), show(read),
            )  # fmt: skip
        self._begin_anew(cursor, position, **gap)
        return self._writer.cursor()

    def _gap(self, read: Position, first: Position | None) -> dict[str, Any]:
        logger.error(
            "mirror: a gap: events behind %s were trimmed before they were read (EVENTS_CAP); it "
            "goes on with %s, and records are reconciled with Redis",
            show(read), show(first) if first else "what comes",
        )  # fmt: skip
        return {"gaps": F("gaps") + 1, "gap_at": datetime.now(UTC)}

    def _begin_anew(self, cursor: Cursor, position: Position, **fields: Any) -> bool:
        """The epoch rises and a reconcile is due, unless another bridge has been faster."""
        here = self._states.filter(position=show(cursor.position), epoch=cursor.epoch)
        changed = here.update(
            position=show(position), epoch=cursor.epoch + 1, unreconciled=True, **fields
        )
        return changed == 1

    def _common_point(self, missing: Position) -> Position:
        """The last event up to ``missing`` that was read and is still in the stream, or START.

        Found by halving the time in between: what was lost is lost from some entry on.
        """
        first = self._events.first()
        if first is None or first > missing:
            return START
        low, high = first[0] - 1, missing[0]
        while high - low > 1:
            middle = (low + high) // 2
            position = self._history.last(middle)
            if position < first or self._holds(position):
                low = middle
            else:
                high = middle
        for number in self._history.numbers(high):
            if (high, number) <= missing and self._holds((high, number)):
                return high, number
        position = self._history.last(low)
        return position if position >= first else START

    @property
    def _states(self) -> QuerySet[MirrorState]:
        return MirrorState.objects.using(self.alias).filter(shard=SHARD)
