"""One workflow: its counts, its graph, its history, and its jobs by status."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.http.response import HttpResponseBase

from ..exceptions import CorruptJob, InvalidName, RedisQueueError
from ..flowdata import FlowData
from ..ids import check_workflow_id
from ..models import WorkflowEvent, WorkflowRecord
from ..parsing import is_storable
from ..states import Status
from ..store.workflows import WorkflowReads
from . import streaming, words
from .flowjobs import Found, Picture, look, picture
from .flowsheet import FlowSheet, sheet_of
from .flowverbs import FLOW_VERBS, is_of_use
from .pages import Page

EVENTS = 50  # of the history: the newest
PARTS = ("flow", "flowgraph", "flowjobs")


def find(page: Page, flow_id: str, *, told: bool = True) -> FlowSheet:
    """From Redis, else from the mirror. Raises Http404."""
    data: FlowData | CorruptJob | None = None
    try:
        data = WorkflowReads(page.reads.link).workflow(check_workflow_id(flow_id))
    except InvalidName:
        pass
    except CorruptJob as error:
        data = error
    except RedisQueueError as error:
        if told:
            page.tell(messages.ERROR, str(error))
    record = WorkflowRecord.objects.filter(pk=flow_id).first() if is_storable(flow_id) else None
    sheet = sheet_of(data, record)
    if sheet is None and isinstance(data, CorruptJob):
        return FlowSheet(id=flow_id, source="Redis", status="unreadable", problem=f"{data}.")
    if sheet is None:
        raise Http404(f"no workflow {flow_id}, neither in Redis nor in the mirror")
    return sheet


def flow_page(page: Page, flow_id: str) -> HttpResponse:
    """The page; with ``live`` in the query only what changes."""
    is_live = "live" in page.request.GET
    context = _context(page, flow_id, told=not is_live)
    if is_live:
        return page.answer(PARTS, **context)
    live = page.live("workflow", flow_id, **_place(page))
    if streaming.streams(page):
        live["stream"] = page.url("workflow_stream", flow_id, **_place(page))
    name = context["sheet"].name or flow_id
    return page.draw("workflow", f"Workflow {name}", **context, live=live)


def flow_stream(page: Page, flow_id: str) -> HttpResponseBase:
    """The same as server-sent events."""
    return streaming.stream(page, partial(_parts, page, flow_id))


def _parts(page: Page, flow_id: str) -> dict[str, Any]:
    return {"fragments": page.fragments(PARTS, **_context(page, flow_id, told=False))}


def _place(page: Page) -> dict[str, str]:
    """Which of its jobs are listed: the parameters of the address that are understood."""
    status, start = page.request.GET.get("status", ""), page.number("start", 0)
    return {
        "status": status if status in set(Status) else "",
        "start": str(start) if start else "",  # which an address leaves out
    }


def _context(page: Page, flow_id: str, *, told: bool) -> dict[str, Any]:
    """A few round trips for the workflow, and three for each 500 of its jobs, at most 5,000."""
    sheet = find(page, flow_id, told=told)
    place = _place(page)
    status, start = place["status"], int(place["start"] or 0)
    drawn, jobs = Picture(why="Redis does not answer."), Found()
    try:
        drawn = picture(WorkflowReads(page.reads.link), sheet.id, sheet.total)
        jobs = look(page.reads, sheet.id, sheet.total, status, start)
    except RedisQueueError as error:
        if told:
            page.tell(messages.ERROR, str(error))
    events = list(WorkflowEvent.objects.filter(workflow_id=sheet.id).order_by("-id")[:EVENTS])
    return {
        "sheet": sheet,
        "picture": drawn,
        "jobs": jobs,
        "events": events[::-1],
        "callbacks": _callbacks(page, sheet),
        "verbs": [v for v in FLOW_VERBS.values() if is_of_use(v, sheet) and page.may(v.permission)],
        "statuses": [each.value for each in Status],
        "status": status,
        "first_url": page.url("workflow", sheet.id, status=status) if start else "",
        "next_url": _next(page, sheet, status, jobs),
        "seen": _seen(start, jobs),
    }


def _next(page: Page, sheet: FlowSheet, status: str, jobs: Found) -> str:
    if jobs.following is None:
        return ""
    return page.url("workflow", sheet.id, status=status, start=jobs.following)


def _seen(start: int, jobs: Found) -> str:
    return f"{words.number(start + 1)} to {words.number(start + jobs.seen)}" if jobs.seen else ""


def _callbacks(page: Page, sheet: FlowSheet) -> list[tuple[str, str]]:
    """(id, status) of what its end has called for, where Redis still knows."""
    ids = [f"{sheet.id}.{which}{sheet.generation}" for which in ("complete", "failure")]
    try:
        found = page.reads.statuses(ids) if sheet.is_final else []
    except RedisQueueError:  # which the page says already
        found = []
    return [(job_id, status) for job_id, status in zip(ids, found, strict=False) if status]
