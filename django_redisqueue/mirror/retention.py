"""Lets old rows of the mirror go: a bounded step at a time, in short transactions.

A step looks at the next 1,000 rows in the order of an indexed instant and deletes those that may
go, in one statement. Nothing is kept between steps but where the walk stands, so it may be stopped
at any point and goes on, or begins again, at no loss.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import DatabaseError, models, router
from django.db.models import Q
from django.utils import timezone

from ..clock import ms_of
from ..conf import Settings
from ..models import JobEvent, JobRecord, Receipt, Rollup, WorkflowEvent, WorkflowRecord
from ..models.presence import aliases_of

logger = logging.getLogger("django_redisqueue")

STEP = 1000  # rows looked at, and deleted at the most, by a step
# A job can be delivered again as long as Redis has it unfinished; its receipt must outlive that.
RECEIPTS_AT_LEAST = timedelta(days=7)


@dataclass(slots=True)
class Sweep:
    """Walks one table by ``key``, an indexed instant, and deletes what is older than a limit.

    ``old`` is the column that says so, where that is another. The key then only bounds the walk:
    what began after the limit has not ended before it.
    """

    model: type[models.Model]
    key: str
    alias: str
    old: str = ""
    at_least: timedelta = timedelta(0)
    in_ms: bool = False  # the key is a number of ms
    _after: tuple[Any, Any] | None = field(default=None, init=False)

    def step(self, now: datetime, age: timedelta) -> bool:
        """Delete up to STEP rows; True when there may be more to do at once."""
        limit = self._limit(now - max(age, self.at_least))
        rows = self.model._default_manager.using(self.alias)
        walk = rows.filter(self._behind(), **{f"{self.key}__lt": limit}).order_by(self.key, "pk")
        page = list(walk.values_list(self.key, "pk")[:STEP])
        if page:
            ids = [pk for _, pk in page]
            rows.filter(pk__in=ids, **{f"{self.old or self.key}__lt": limit}).delete()
        self._after = page[-1] if len(page) == STEP else None
        return self._after is not None

    def _limit(self, instant: datetime) -> datetime | int:
        return ms_of(instant) if self.in_ms else instant

    def _behind(self) -> Q:
        if self._after is None:
            return Q()
        key, pk = self._after
        return Q(**{f"{self.key}__gt": key}) | Q(**{self.key: key}, pk__gt=pk)


class Retention:
    """Rounds over some tables; AUDIT_RETENTION 0 keeps everything for ever."""

    def __init__(self, settings: Settings, sweeps: Callable[[], list[Sweep]]) -> None:
        self._age = timedelta(milliseconds=settings.audit_retention_ms)
        self._sweeps = sweeps
        self._left: deque[Sweep] = deque()  # of this round

    def run_once(self, now: datetime | None = None) -> bool:
        """A step of one table after the other until one has more to do; True when one has."""
        if not self._age:
            return False
        now = now or timezone.now()  # naive without USE_TZ, as created_at of a receipt is then
        if not self._left:
            self._left.extend(self._sweeps())
        while self._left:
            sweep = self._left.popleft()
            if self._step(sweep, now):
                self._left.append(sweep)
                return True
        return False

    def _step(self, sweep: Sweep, now: datetime) -> bool:
        try:
            return sweep.step(now, self._age)
        except DatabaseError as error:
            table = sweep.model._meta.db_table
            logger.error("retention: %s on %s: %s; trying again", table, sweep.alias, error)
            return False  # in the next round


def of_the_mirror() -> list[Sweep]:
    """Records of what has ended, events, and figures of the charts."""
    home = router.db_for_write(JobRecord)
    return [
        Sweep(JobRecord, "enqueued_at", home, old="finished_at"),
        Sweep(JobEvent, "entry_ms", home, in_ms=True),
        Sweep(WorkflowRecord, "made_at", home, old="ended_at"),
        Sweep(WorkflowEvent, "entry_ms", home, in_ms=True),
        Sweep(Rollup, "minute", home),
    ]


def of_receipts() -> list[Sweep]:
    """Receipts, on every alias that has them."""
    aliases = aliases_of(Receipt)
    return [Sweep(Receipt, "created_at", one, at_least=RECEIPTS_AT_LEAST) for one in aliases]
