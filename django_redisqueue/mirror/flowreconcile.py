"""Reconciling workflows: the part of a reconcile that comes after the jobs.

As with jobs: what Redis has and the mirror knows otherwise from before is written as if an event
had told of it; a record that has not ended and that Redis does not know is ``lost``, if it still is
so after everything that was in the stream by then has been read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..clock import ms_of
from ..models import WorkflowRecord
from ..outbox import stored_among
from ..states import WorkflowStatus, WorkflowStep
from ..store.census import SCAN_START, Census, FlowSighting
from ..store.flowevents import FlowEvent
from .flowchanges import LOST
from .parts import report, write_in_parts
from .writer import Cursor, Writer

logger = logging.getLogger("django_redisqueue")

PAGE = 100  # records a step
UNFINISHED = [status.value for status in WorkflowStatus if not status.is_final]


class Known(NamedTuple):
    """What a record says; ``ended`` counts jobs."""

    epoch: int
    generation: int
    status: str
    is_paused: bool
    ended: int


class FlowReconciler:
    """``cursor`` tells where the bridge is by now, and in which epoch."""

    def __init__(self, census: Census, writer: Writer, cursor: Callable[[], Cursor]) -> None:
        self._census = census
        self._writer = writer
        self._cursor = cursor
        self.corrected = self.lost = 0

    def walk(self, now_ms: int, read_on: Callable[[], None]) -> Iterator[None]:
        """The steps. After ``read_on`` the next one is not taken before everything has been read
        that is in the stream by then."""
        at = SCAN_START
        while True:
            at, flows, problems = self._census.flow_page(at)
            report(problems, self._writer, self._cursor())
            self._correct([flow for flow in flows if flow.status != WorkflowStatus.BUILDING])
            yield
            if at == SCAN_START:
                break
        after = ""
        while ids := self._page(after):
            after = ids[-1]
            missing = self._missing(ids)
            if missing:
                read_on()
                yield
                self._lose(self._missing(self._unfinished(missing)), now_ms)
            yield

    def _correct(self, flows: Sequence[FlowSighting]) -> None:
        records = WorkflowRecord.objects.using(self._writer.alias).filter(
            pk__in=[flow.id for flow in flows]
        )
        known: dict[str, Known] = {
            record.id: Known(
                record.epoch, record.generation, record.status, record.is_paused,
                record.completed + record.failed + record.cancelled,
            )
            for record in records
        }  # fmt: skip
        epoch = self._cursor().epoch
        wrong = [flow for flow in flows if not _agrees(flow, known.get(flow.id), epoch)]
        self._write([self._told(flow) for flow in wrong])
        self.corrected += len(wrong)

    def _told(self, flow: FlowSighting) -> FlowEvent:
        """What its last event would have said."""
        ended_ms = flow.made_ms if flow.ended_ms is None else flow.ended_ms
        return FlowEvent(
            self._cursor().position, flow.id, WorkflowStep(flow.status), ended_ms, flow.made_ms,
            flow.name, flow.generation, flow.total, flow.completed, flow.failed, flow.cancelled,
            flow.is_paused, "reconciled",
        )  # fmt: skip

    def _page(self, after: str) -> list[str]:
        rows = WorkflowRecord.objects.using(self._writer.alias).filter(
            status__in=UNFINISHED, pk__gt=after
        )
        return list(rows.order_by("pk").values_list("pk", flat=True)[:PAGE])

    def _unfinished(self, ids: Sequence[str]) -> list[str]:
        rows = WorkflowRecord.objects.using(self._writer.alias).filter(
            pk__in=ids, status__in=UNFINISHED, cleaned_at=None
        )
        return list(rows.values_list("pk", flat=True))

    def _missing(self, ids: Sequence[str]) -> list[str]:
        known = self._census.knows_flows(ids)
        missing = [flow_id for flow_id, is_known in zip(ids, known, strict=True) if not is_known]
        stored = stored_among(missing)  # the relay sends those again
        return [flow_id for flow_id in missing if flow_id not in stored]

    def _lose(self, ids: Sequence[str], now_ms: int) -> None:
        records = WorkflowRecord.objects.using(self._writer.alias).filter(pk__in=ids)
        self._write([self._loss(record, now_ms) for record in records])
        for flow_id in ids:
            logger.error("workflow %s is lost: Redis does not know it any more", flow_id)
        self.lost += len(ids)

    def _loss(self, record: WorkflowRecord, now_ms: int) -> FlowEvent:
        return FlowEvent(
            self._cursor().position, record.id, WorkflowStep.FAILED, now_ms,
            ms_of(record.made_at), record.name, record.generation, record.total,
            record.completed, record.failed, record.cancelled, False, LOST,
        )  # fmt: skip

    def _write(self, events: Sequence[FlowEvent]) -> None:
        write_in_parts(events, self._writer, self._cursor())


def _agrees(flow: FlowSighting, known: Known | None, epoch: int) -> bool:
    """A record of this epoch follows the events; one from before has to say the same."""
    if known is None:
        return False
    counts = flow.completed + flow.failed + flow.cancelled
    ended = counts if flow.status.is_final else known.ended
    told = Known(known.epoch, flow.generation, flow.status, flow.is_paused, ended)
    return known.epoch >= epoch or known == told
