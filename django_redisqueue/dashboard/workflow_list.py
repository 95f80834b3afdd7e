"""The list of workflows: their records, newest first, with live counts from Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpResponse

from ..broker.connection import RedisConnection
from ..broker.reads import Read
from ..broker.workflows import WorkflowQueries
from ..conf import get_settings
from ..core.statuses import WorkflowStatus
from ..core.workflow_data import WorkflowData
from ..exceptions import CorruptJob, InvalidOption, RedisQueueError
from ..models import WorkflowRecord
from .filters import text_of
from .pages import Page
from .records_page import PageKey, after_key, cut_page, parse_key
from .shards import ids_by_shard
from .workflow_detail import WorkflowDetail, prefer_redis

SIZE = 50  # workflows per page


def workflow_list(page: Page) -> HttpResponse:
    """The whole page, or with ``live`` in the query only the rows."""
    is_live = "live" in page.request.GET
    wanted, rows, following = WorkflowQuery(), list[WorkflowDetail](), None
    try:
        wanted = parse_workflow_query(page.request.GET)
        records, following = search_workflows(wanted)
        rows = _details(page, records)
    except InvalidOption as error:
        page.add_message(messages.ERROR, str(error))
    if is_live:
        return page.render_parts(["flows"], rows=rows)
    query = wanted.query()
    after = wanted.after.text() if wanted.after else ""
    following_text = following.text() if following else ""
    return page.render(
        "workflows",
        "Workflows",
        rows=rows,
        fields=query,
        statuses=[status.value for status in WorkflowStatus],
        is_mirrored=get_settings().mirror,
        first_url=page.url("workflows", **query) if after else "",
        next_url=page.url("workflows", **query, after=following_text) if following else "",
        live=page.live_options("workflows", **query, after=after),
    )


@dataclass(frozen=True, slots=True)
class WorkflowQuery:
    """Which workflows."""

    status: str = ""
    name: str = ""
    after: PageKey | None = None

    def query(self) -> dict[str, str]:
        found = {"status": self.status, "name": self.name}
        return {name: value for name, value in found.items() if value}


def parse_workflow_query(query: Mapping[str, Any]) -> WorkflowQuery:
    """Raises InvalidOption for an invalid status or place."""
    status = str(query.get("status", ""))
    if status and status not in set(WorkflowStatus):
        raise InvalidOption(f"{status!r} is not a status; use one of {', '.join(WorkflowStatus)}")
    return WorkflowQuery(status, text_of(query, "name"), parse_key(str(query.get("after", ""))))


def search_workflows(wanted: WorkflowQuery) -> tuple[Sequence[WorkflowRecord], PageKey | None]:
    """A page, and the key of the next. At most five queries, each answered by an index."""
    if wanted.name and not wanted.status:
        # The index has the records of a name in order for each status: merge a page of each.
        found = [
            record
            for status in WorkflowStatus
            for record in _in_order(wanted, status=status.value, name=wanted.name)
        ]
        rows = sorted(found, key=attrgetter("made_at", "id"), reverse=True)
    else:
        rows = list(_in_order(wanted, **wanted.query()))
    return cut_page(rows, "made_at", SIZE)


def _in_order(wanted: WorkflowQuery, **exactly: str) -> QuerySet[WorkflowRecord]:
    found = WorkflowRecord.objects.filter(**exactly).order_by("-made_at", "-id")
    if wanted.after:
        found = after_key(found, "made_at", wanted.after)
    return found[: SIZE + 1]


def _details(page: Page, records: Sequence[WorkflowRecord]) -> list[WorkflowDetail]:
    """Read those that Redis still has from Redis, in one round trip a server."""
    parts = ids_by_shard(record.id for record in records if record.cleaned_at is None)

    def read(connection: RedisConnection) -> Read[dict[str, WorkflowData | CorruptJob | None]]:
        ids = parts[connection.shard]
        found = yield from WorkflowQueries(connection).workflows.read(ids)
        return dict(zip(ids, found, strict=True))

    live: dict[str, WorkflowData | RedisQueueError | None] = {}
    if parts:
        for found in page.ask(read, parts).values():
            live |= found
    for shard, error in page.missing.items():
        live |= dict.fromkeys(parts.get(shard, ()), error)
    return [prefer_redis(live.get(record.id), record) for record in records]
