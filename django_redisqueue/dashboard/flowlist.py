"""The list of workflows: from their records, newest first, by key, with live counts from Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpResponse

from ..conf import get_settings
from ..exceptions import InvalidOption, RedisQueueError
from ..models import WorkflowRecord
from ..states import WorkflowStatus
from ..store.workflows import WorkflowReads
from .filters import text_of
from .flowsheet import FlowSheet, from_record, sheet_of
from .keyset import Key, behind, parse_key
from .pages import Page

SIZE = 50  # workflows a page


@dataclass(frozen=True, slots=True)
class WantedFlows:
    """Which workflows: of a status, of a name."""

    status: str = ""
    name: str = ""
    after: Key | None = None

    def query(self) -> dict[str, str]:
        found = {"status": self.status, "name": self.name}
        return {name: value for name, value in found.items() if value}


def parse_flows(query: Mapping[str, Any]) -> WantedFlows:
    """Raises InvalidOption for a bad status or place."""
    status = str(query.get("status", ""))
    if status and status not in set(WorkflowStatus):
        raise InvalidOption(f"{status!r} is not a status; use one of {', '.join(WorkflowStatus)}")
    return WantedFlows(status, text_of(query, "name"), parse_key(str(query.get("after", ""))))


def search_flows(wanted: WantedFlows) -> tuple[Sequence[WorkflowRecord], Key | None]:
    """A page, and where the next one begins. At most five queries, each answered by an index."""
    if wanted.name and not wanted.status:
        # The index has those of a name in order for each status: the pages of all, merged.
        found = [
            record
            for status in WorkflowStatus
            for record in _in_order(wanted, status=status.value, name=wanted.name)
        ]
        rows = sorted(found, key=attrgetter("made_at", "id"), reverse=True)
    else:
        rows = list(_in_order(wanted, **wanted.query()))
    if len(rows) <= SIZE:
        return rows, None
    last = rows[SIZE - 1]
    return rows[:SIZE], Key(last.made_at, last.id)


def _in_order(wanted: WantedFlows, **exactly: str) -> QuerySet[WorkflowRecord]:
    found = WorkflowRecord.objects.filter(**exactly).order_by("-made_at", "-id")
    if wanted.after:
        found = behind(found, "made_at", wanted.after)
    return found[: SIZE + 1]


def flow_list(page: Page) -> HttpResponse:
    """The page; with ``live`` in the query only what changes."""
    is_live = "live" in page.request.GET
    wanted, rows, following = WantedFlows(), list[FlowSheet](), None
    try:
        wanted = parse_flows(page.request.GET)
        records, following = search_flows(wanted)
        rows = _sheets(page, records, told=not is_live)
    except InvalidOption as error:
        page.tell(messages.ERROR, str(error))
    if is_live:
        return page.answer(["flows"], rows=rows)
    query = wanted.query()
    after = wanted.after.text() if wanted.after else ""
    following_text = following.text() if following else ""
    return page.draw(
        "workflows",
        "Workflows",
        rows=rows,
        fields=query,
        statuses=[status.value for status in WorkflowStatus],
        is_mirrored=get_settings().mirror,
        first_url=page.url("workflows", **query) if after else "",
        next_url=page.url("workflows", **query, after=following_text) if following else "",
        live=page.live("workflows", **query, after=after),
    )


def _sheets(page: Page, records: Sequence[WorkflowRecord], *, told: bool) -> list[FlowSheet]:
    """With what Redis knows by now of those that it has not let go. One round trip."""
    asked = [record.id for record in records if record.cleaned_at is None]
    try:
        live = dict(zip(asked, WorkflowReads(page.reads.link).workflows(asked), strict=True))
    except RedisQueueError as error:
        if told:
            page.tell(messages.ERROR, str(error))
        live = {}
    return [sheet_of(live.get(record.id), record) or from_record(record) for record in records]
