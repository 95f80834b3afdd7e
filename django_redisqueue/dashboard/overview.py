"""The overview: one page, its parts for its script, and its charts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import Error as DatabaseError
from django.http import HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.utils import timezone

from ..metrics import COUNTS, SPANS, Figures, Span, Sums, chart, figures
from ..models import Rollup
from . import pages, streaming, words
from .board import Board, SharedBoard, board, may_fail, parse_look, unreadable
from .pages import Page

PARTS = ("notices", "queues", "workers", "server")
CHARTS = 30_000  # ms

_shared = SharedBoard()  # for the thread of all streams


def overview(page: Page) -> HttpResponse:
    """The whole page, as it is without a script too."""
    span = _span(page)
    worker_page = page.number("workers", 1)
    shown = board(page.reads, worker_page, None)
    drawn = None
    try:
        with may_fail(Rollup):
            drawn = draw(figures(span, timezone.now()))
    except DatabaseError as error:
        shown.notices.append(unreadable("charts", error))
    streamed = page.url("overview_stream", workers=worker_page) if streaming.streams(page) else ""
    return page.draw(
        "overview",
        "Queues and workers",
        board=shown,
        spans=SPANS.values(),
        span=span,
        drawn=drawn,
        live={
            "url": page.url("overview_live", workers=worker_page),
            "stream": streamed,
            "charts": page.url("overview_charts", span=span.name),
            "poll": pages.POLL,
            "chartPoll": CHARTS,
        },
    )


def live(page: Page) -> JsonResponse:
    """The parts that change."""
    before = parse_look(page.request.GET.get("look", ""))
    return JsonResponse(_parts(page, board(page.reads, page.number("workers", 1), before)))


def charts(page: Page) -> JsonResponse:
    """The charts' columns, and the same as a table."""
    try:
        drawn = draw(figures(_span(page), timezone.now()))
    except DatabaseError as error:  # the page keeps the charts that it has
        return JsonResponse({"error": unreadable("charts", error).text}, status=503)
    return JsonResponse(
        {"chart": drawn.columns, "fragments": page.fragments(["figures"], drawn=drawn)}
    )


def stream(page: Page) -> HttpResponseBase:
    """The same as server-sent events."""
    worker_page, fresh = page.number("workers", 1), pages.POLL / 2000
    return streaming.stream(page, lambda: _parts(page, _shared.get(page.reads, worker_page, fresh)))


def _parts(page: Page, found: Board) -> dict[str, Any]:
    return {"fragments": page.fragments(PARTS, board=found), "look": found.look}


def _span(page: Page) -> Span:
    """The one asked for, or the first."""
    return SPANS.get(page.request.GET.get("span", ""), SPANS["1h"])


@dataclass(frozen=True, slots=True)
class Drawing:
    """The charts, in three ways: columns for the eye, rows for a table, and a sentence."""

    columns: dict[str, list[Any]]
    rows: list[dict[str, Any]]
    summary: str


def draw(found: Figures) -> Drawing:
    """Jobs a minute, whatever a point stands for, and seconds."""
    points = found.points
    columns = chart(points)
    minutes = found.span.step.total_seconds() / 60
    jobs = {
        name: [round(count / minutes, 2) for count in columns[name]]
        for name in ("enqueued", "completed", "failed")
    }
    seconds = {
        name: [None if ms is None else round(ms / 1000, 4) for ms in columns[name]]
        for name in ("wait50", "wait95", "run50", "run95")
    }
    enqueued, completed, failed = (
        words.number(sum(columns[name])) for name in ("enqueued", "completed", "failed")
    )
    return Drawing(
        {"at": columns["at"], **jobs, **seconds},
        [_figures(start, sums) for start, sums in reversed(points) if sums != Sums()],
        f"Last {found.span.label}: {enqueued} jobs enqueued, {completed} completed, "
        f"{failed} failed.",
    )


def _figures(start: datetime, sums: Sums) -> dict[str, Any]:
    counts = {name: words.number(getattr(sums, name)) for name in COUNTS}
    return {
        "at": start,
        **counts,
        "wait": [words.duration(sums.wait_ms(q)) for q in (0.5, 0.95)],
        "run": [words.duration(sums.run_ms(q)) for q in (0.5, 0.95)],
    }
