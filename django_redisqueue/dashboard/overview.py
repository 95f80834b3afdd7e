"""The overview: one page, its parts for its script, and its charts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db import close_old_connections
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone

from ..metrics import COUNTS, SPANS, Figures, Span, Sums, chart, figures
from . import pages, words
from .board import board, parse_look
from .pages import Page

PARTS = ("notices", "queues", "workers", "server")
CHARTS = 30_000  # ms
STREAM = 300.0  # s that one stream lasts; the browser then asks for another, with its login


def overview(page: Page) -> HttpResponse:
    """The whole page, as it is without a script too."""
    span = _span(page)
    drawn = draw(figures(span, timezone.now()))
    worker_page = _number(page, "workers")
    streams = isinstance(page.request, ASGIRequest)
    return page.draw(
        "overview",
        "Queues and workers",
        board=board(page.reads, worker_page, None),
        spans=SPANS.values(),
        span=span,
        drawn=drawn,
        live={
            "url": page.url("overview_live", workers=worker_page),
            "stream": page.url("overview_stream", workers=worker_page) if streams else "",
            "charts": page.url("overview_charts", span=span.name),
            "poll": pages.POLL,
            "chartPoll": CHARTS,
        },
    )


def live(page: Page) -> JsonResponse:
    """The parts that change."""
    return JsonResponse(_parts(page, page.request.GET.get("look", "")))


def charts(page: Page) -> JsonResponse:
    """The charts' columns, and the same as a table."""
    drawn = draw(figures(_span(page), timezone.now()))
    return JsonResponse(
        {"chart": drawn.columns, "fragments": page.fragments(["figures"], drawn=drawn)}
    )


def stream(page: Page) -> HttpResponseBase:
    """Server-sent events, where a waiting answer costs no thread: under ASGI."""
    if not isinstance(page.request, ASGIRequest):
        return JsonResponse(
            {"error": "events are served under ASGI only; ask for live/"}, status=501
        )
    answer = StreamingHttpResponse(_events(page), content_type="text/event-stream")
    answer["Cache-Control"] = "no-store"
    answer["X-Accel-Buffering"] = "no"  # else nginx collects it
    return answer


async def _events(page: Page) -> AsyncIterator[str]:
    end = time.monotonic() + STREAM
    look = ""
    while time.monotonic() < end:
        parts = await sync_to_async(_parts_in_thread, thread_sensitive=False)(page, look)
        look = look or parts["look"]
        yield f"data: {json.dumps(parts)}\n\n"
        await asyncio.sleep(pages.POLL / 1000)


def _parts_in_thread(page: Page, look: str) -> dict[str, Any]:
    """No request ends in this thread, so nobody else closes what has become old."""
    close_old_connections()
    try:
        return _parts(page, look)
    finally:
        close_old_connections()


def _parts(page: Page, look: str) -> dict[str, Any]:
    found = board(page.reads, _number(page, "workers"), parse_look(look))
    return {"fragments": page.fragments(PARTS, board=found), "look": found.look}


def _span(page: Page) -> Span:
    """The one asked for, or the first."""
    return SPANS.get(page.request.GET.get("span", ""), SPANS["1h"])


def _number(page: Page, name: str) -> int:
    text = page.request.GET.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 6 else 1


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
