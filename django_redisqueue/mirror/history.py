"""Which events of the stream have rows: those of jobs and those of workflows together."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet

from ..models import JobEvent, WorkflowEvent
from ..store.events import START, Page, Position


class History:
    """Both tables on one alias."""

    def __init__(self, alias: str) -> None:
        self._jobs = JobEvent.objects.using(alias)
        self._flows = WorkflowEvent.objects.using(alias)

    def tells(self, page: Page) -> bool:
        """True when the row of this one event says the same; False when there is none, too."""
        ms, number = page.last
        for event in page.events:
            said = Q(job_id=event.job_id, seq=event.seq)
            return self._jobs.filter(said, entry_ms=ms, entry_no=number).exists()
        for flow in page.flows:
            said = Q(workflow_id=flow.workflow_id, status=flow.step, generation=flow.generation)
            return self._flows.filter(said, entry_ms=ms, entry_no=number).exists()
        return False

    def has(self, position: Position) -> bool:
        """True when an event of that place was read."""
        here = Q(entry_ms=position[0], entry_no=position[1])
        return self._jobs.filter(here).exists() or self._flows.filter(here).exists()

    def last(self, ms: int) -> Position:
        """The last event up to that instant that has a row; START if there is none."""
        return max(_last(self._jobs, ms), _last(self._flows, ms))

    def numbers(self, ms: int) -> list[int]:
        """The places of that instant that have a row, the last first."""
        found: set[int] = set()
        for rows in (self._jobs, self._flows):
            found.update(rows.filter(entry_ms=ms).values_list("entry_no", flat=True))
        return sorted(found, reverse=True)


def _last(records: QuerySet[Any], ms: int) -> Position:
    rows = records.filter(entry_ms__lte=ms).order_by("-entry_ms", "-entry_no")
    return rows.values_list("entry_ms", "entry_no").first() or START
