"""Tells Django's receivers what the committed events say, with a cursor of its own.

At least once: the cursor moves after the receivers have run, so a bridge that dies in between (or
between the commit and the signals) tells of the same events again. Nobody connected: nothing is
read, and the cursor is moved by one statement now and then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import router
from django.db.models import F, Model, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.dispatch import Signal

from ..codec import loads
from ..models import JobEvent, JobRecord, MirrorState, WorkflowEvent, WorkflowRecord
from ..signals import JOB_SIGNALS, WORKFLOW_SIGNALS
from .writer import Cursor

logger = logging.getLogger("django_redisqueue")

PAGE = 500  # events a query, and told of before the cursor is moved
SPAN = 10_000  # ids a query looks at, of which a listener may want few
SKIP = 1.0  # s between two moves of the cursor while nobody listens
BUDGET = 0.2  # s a pass, so that slow receivers delay signals and not the mirror


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """What is told of: the events in ``event``, which name their ``record`` by ``key``. ``cursor``
    is the field of MirrorState that says how far."""

    word: str
    record: type[Model]
    event: type[Model]
    key: str
    cursor: str
    signals: Mapping[str, Signal]
    is_told: Callable[[Any], bool] = lambda event: True


def _is_transition(event: JobEvent) -> bool:
    """False for a mere report of progress."""
    return '"progress"' not in event.detail or "progress" not in loads(event.detail)


JOBS = Theme(
    word="job", record=JobRecord, event=JobEvent, key="job_id", cursor="signalled",
    signals={status.value: signal for status, signal in JOB_SIGNALS.items()},
    is_told=_is_transition,
)  # fmt: skip
WORKFLOWS = Theme(
    word="workflow", record=WorkflowRecord, event=WorkflowEvent, key="workflow_id",
    cursor="flows_signalled",
    signals={step.value: signal for step, signal in WORKFLOW_SIGNALS.items()},
)  # fmt: skip


class Signaller:
    """One pass a call; runs outside any transaction, in the bridge's process."""

    def __init__(self, theme: Theme = JOBS, shard: int = 0) -> None:
        self._theme = theme
        self._shard = shard
        self._skip_at = 0.0

    def __call__(self, cursor: Cursor) -> bool:
        """As a follower of the bridge: what is committed stands in the database."""
        return self.run_once()

    def run_once(self, budget: float = BUDGET) -> bool:
        """Tell of committed events for up to ``budget`` s; True when there are more."""
        theme = self._theme
        heard = [
            status for status, signal in theme.signals.items() if signal.has_listeners(theme.record)
        ]
        if not heard:
            self._skip()
            return False
        end = time.monotonic() + budget
        while True:
            told, more = self._page(heard, end)
            if told:
                self._move(told)
            if not more or time.monotonic() >= end:
                return more

    def _page(self, heard: Sequence[str], end: float) -> tuple[int, bool]:
        """Tell of one page, until ``end``: (the id up to which it is told, whether more are
        there)."""
        first, last, latest = self._range()
        if first > latest:
            return 0, False
        events = self._events.filter(id__gte=first, id__lte=last, status__in=heard)
        page = list(events.order_by("id")[:PAGE])
        records = self._records(page)
        for event in page:
            record = records.get(getattr(event, self._theme.key))
            if record is not None and self._theme.is_told(event):
                _tell(self._theme, event, record)
                if time.monotonic() >= end:
                    return event.id, event.id < latest
        told = page[-1].id if len(page) == PAGE else last
        return told, told < latest

    def _range(self) -> tuple[int, int, int]:
        """The first id to look at and the last, and the latest committed."""
        state = self._states.filter(shard=self._shard).values_list(self._theme.cursor, flat=True)
        done = state.first() or 0
        ids = self._events.values_list("id", flat=True)
        latest = ids.order_by("-id").first() or 0
        first = done + 1
        if latest - done > SPAN:  # perhaps because retention has taken what was in between
            first = ids.filter(id__gt=done).order_by("id").first() or latest
        return first, min(latest, first + SPAN - 1), latest

    def _records(self, page: Sequence[Any]) -> dict[str, Any]:
        records = self._theme.record._base_manager.using(self._alias)
        return records.in_bulk({getattr(event, self._theme.key) for event in page})

    def _move(self, told: int) -> None:
        """Forward only: another bridge may have been faster."""
        cursor = self._theme.cursor
        behind = self._states.filter(shard=self._shard, **{f"{cursor}__lt": told})
        behind.update(**{cursor: told})

    def _skip(self) -> None:
        """Everything so far counts as told: who connects later hears of what comes later."""
        now = time.monotonic()
        if now < self._skip_at:
            return
        self._skip_at = now + SKIP
        latest = Subquery(self._events.order_by("-id").values("id")[:1])
        cursor = self._theme.cursor
        self._states.filter(shard=self._shard).update(**{cursor: Coalesce(latest, F(cursor))})

    @property
    def _alias(self) -> str:
        return router.db_for_write(JobRecord)

    @property
    def _events(self) -> QuerySet[Any]:
        return self._theme.event._base_manager.using(self._alias)

    @property
    def _states(self) -> QuerySet[MirrorState]:
        return MirrorState.objects.using(self._alias)


def _tell(theme: Theme, event: Any, record: Model) -> None:
    signal = theme.signals[event.status]
    for receiver, answer in signal.send_robust(theme.record, record=record, event=event):
        if isinstance(answer, Exception):
            logger.error(
                "%s %s: the receiver %s of %s_%s raised %r",
                theme.word, record.pk, getattr(receiver, "__qualname__", receiver), theme.word,
                event.status, answer, exc_info=answer,
            )  # fmt: skip
