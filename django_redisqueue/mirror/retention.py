"""Deletes old rows, one bounded step at a time, in short transactions.

A step reads the next 1,000 rows in the order of an indexed time and deletes the old ones in one
statement. Only the position of the walk is kept between steps, so a walk can stop at any point.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import DatabaseError, connections, models, router
from django.db.models import Q
from django.utils import timezone

from ..conf import Settings
from ..core.clock import ms_of
from ..metrics.rollups import compact
from ..models import (
    Approval,
    ErrorGroup,
    JobEvent,
    JobRecord,
    Receipt,
    Rollup,
    StepReceipt,
    WorkflowEvent,
    WorkflowRecord,
)
from ..models.tables import has_table, rows_after
from .writer import Cursor

logger = logging.getLogger("django_redisqueue")

ROWS_PER_STEP = 1000
# While a job in Redis is unfinished, it may be delivered again; its receipt must outlive that.
MIN_RECEIPT_AGE = timedelta(days=7)
KeepReceipts = Callable[[Collection[str]], Collection[str]]  # those that still need theirs
CLEANUP_INTERVAL = 60.0  # s between two rounds
PAUSE_FACTOR = 4  # times the length of a step, until the next one of the same round


class Cleanup:
    """A commit hook of the bridge: a step of retention or of compacting rollups, when due."""

    def __init__(self, settings: Settings) -> None:
        self._retention = Retention(settings, mirror_rules)
        self._failures = _Failures()
        self._more = False
        self._due = time.monotonic() + CLEANUP_INTERVAL  # a start does not wait for it

    def __call__(self, cursor: Cursor) -> bool:
        """Take a step if it is time; True while there is more to do."""
        begun = time.monotonic()
        if begun >= self._due:
            self._more = self._retention.run_once() or self._compact()
            ended = time.monotonic()
            pause = PAUSE_FACTOR * (ended - begun) if self._more else CLEANUP_INTERVAL
            self._due = ended + pause
        return self._more

    def _compact(self) -> bool:
        merged = 0
        with self._failures.logged(Rollup, router.db_for_write(Rollup)):
            merged = compact(datetime.now(UTC))
        return merged > 0


class Retention:
    """Applies rules in rounds. With AUDIT_RETENTION 0 nothing is deleted."""

    def __init__(self, settings: Settings, rules: Callable[[], list[RetentionRule]]) -> None:
        self._age = timedelta(milliseconds=settings.audit_retention_ms)
        self._rules = rules
        self._failures = _Failures()
        self._left: deque[RetentionRule] = deque()  # of this round

    def run_once(self, now: datetime | None = None) -> bool:
        """Step through the tables until one has more to delete; True if one has."""
        if not self._age:
            return False
        now = now or timezone.now()  # naive without USE_TZ, like a receipt's created_at
        if not self._left:
            self._left.extend(self._rules())
        while self._left:
            rule, has_more = self._left.popleft(), False
            with self._failures.logged(rule.model, rule.alias):  # retried in the next round
                has_more = has_table(rule.model, rule.alias) and rule.step(now, self._age)
            if has_more:
                self._left.append(rule)
                return True
        return False


class _Failures:
    """Logs why a table cannot be cleaned up: once, until it can be, or there is another cause."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}

    @contextmanager
    def logged(self, model: type[models.Model], alias: str) -> Iterator[None]:
        """Log an error of the database in the block, which ends there."""
        table, problem = model._meta.db_table, ""
        try:
            yield
        except DatabaseError as error:
            problem = str(error).partition("\n")[0]  # PostgreSQL adds the statement, or a row
            if problem != self._known.get((table, alias)):
                #: Old rows could not be deleted or compacted. They stay until this works. Look at
                #: the database.
                logger.error("retention: %s on %s: %s; trying again", table, alias, problem)
        self._known[table, alias] = problem


@dataclass(slots=True)
class RetentionRule:
    """Walks one table by ``key``, an indexed time, and deletes rows older than a limit.

    If ``age_column`` is given, it determines the age, and the key only bounds the walk: a row that
    began after the limit cannot have ended before it. Rows of the jobs that ``keep`` returns stay.
    """

    model: type[models.Model]
    key: str
    alias: str
    age_column: str = ""
    min_age: timedelta = timedelta(0)
    in_ms: bool = False  # the key is a number of ms
    keep: KeepReceipts | None = None
    _after: tuple[Any, Any] | None = field(default=None, init=False)

    def step(self, now: datetime, age: timedelta) -> bool:
        """Delete up to ROWS_PER_STEP rows; True if there may be more."""
        oldest = now - max(age, self.min_age)
        limit = ms_of(oldest) if self.in_ms else oldest
        rows = self.model._default_manager.using(self.alias)
        walk = rows.filter(self._following(), **{f"{self.key}__lt": limit}).order_by(*self._order())
        columns = (self.key, "pk", *(("job_id",) if self.keep else ()))
        page = list(walk.values_list(*columns)[:ROWS_PER_STEP])
        if page:
            kept = self.keep({row[2] for row in page}) if self.keep else ()
            ids = [row[1] for row in page if not kept or row[2] not in kept]
            old = rows.filter(pk__in=ids, **{f"{self.age_column or self.key}__lt": limit})
            old.only("pk").delete()  # a receiver for every deletion makes Django read the rows
        self._after = page[-1][:2] if len(page) == ROWS_PER_STEP else None
        return self._after is not None

    def _leaves_rows(self) -> bool:
        return bool(self.age_column or self.keep)

    def _order(self) -> tuple[str, ...]:
        """A walk that deletes every row needs no order of equal times. MySQL would sort all old
        rows for it, unless an index has the primary key right behind the time."""
        return (self.key, "pk") if self._leaves_rows() else (self.key,)

    def _following(self) -> Q:
        if self._after is None:
            return Q()
        at, pk = self._after
        return (
            rows_after(self.key, at, pk) if self._leaves_rows() else Q(**{f"{self.key}__gte": at})
        )


def mirror_rules() -> list[RetentionRule]:
    """Records of finished jobs and workflows, events, rollups, and error groups."""
    alias = router.db_for_write(JobRecord)
    return [
        RetentionRule(JobRecord, "enqueued_at", alias, age_column="finished_at"),
        RetentionRule(JobEvent, "entry_ms", alias, in_ms=True),
        RetentionRule(WorkflowRecord, "made_at", alias, age_column="ended_at"),
        RetentionRule(WorkflowEvent, "entry_ms", alias, in_ms=True),
        RetentionRule(Rollup, "minute", alias),
        RetentionRule(ErrorGroup, "last_seen", alias),
        RetentionRule(Approval, "asked_at", router.db_for_write(Approval), age_column="decided_at"),
    ]


def receipt_rules(keep: KeepReceipts = lambda jobs: ()) -> list[RetentionRule]:
    """Receipts of jobs and of steps on every alias, except for the jobs that ``keep`` returns."""
    return [
        RetentionRule(model, column, alias, min_age=MIN_RECEIPT_AGE, keep=keep)
        for model, column in ((Receipt, "created_at"), (StepReceipt, "updated_at"))
        for alias in connections
    ]
