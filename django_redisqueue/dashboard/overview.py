"""The overview: the page, its live parts, and its charts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import Error as DatabaseError
from django.http import HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.utils import timezone

from ..broker.connection import producer_connection
from ..broker.queries import Queries
from ..core import formatting
from ..health.facts import savepoint
from ..health.findings import unreadable
from ..health.summary import policy_lines
from ..metrics.rollups import COUNTS, SPANS, Figures, Span, Sums, chart, figures
from ..models import Rollup
from . import pages, streaming
from .overview_data import (
    OverviewData,
    SharedOverview,
    parse_sample,
    read_overview,
)
from .pages import Page

PARTS = ("notices", "queues", "policies", "workers", "server")
CHART_POLL = 30_000  # ms between two updates of the charts

_shared = SharedOverview()  # used by the thread of all streams only


def overview(page: Page) -> HttpResponse:
    """The whole page; it is complete without JavaScript."""
    span = _span(page)
    worker_page = page.int_param("workers", 1)
    data = read_overview(Queries(producer_connection()), worker_page, None)
    page.update_health(data.health)
    data.policies = _policies(page)
    charts = None
    try:
        with savepoint(Rollup):
            charts = make_charts(figures(span, timezone.now()))
    except DatabaseError as error:
        data.notices.append(unreadable("charts", error))
    stream_url = page.url("overview_stream", workers=worker_page)
    return page.render(
        "overview",
        "Queues and jobs",
        overview=data,
        spans=SPANS.values(),
        span=span,
        charts=charts,
        live={
            "url": page.url("overview_live", workers=worker_page),
            "stream": stream_url if streaming.can_stream(page) else "",
            "charts": page.url("overview_charts", span=span.name),
            "poll": pages.POLL,
            "chartPoll": CHART_POLL,
        },
    )


def live(page: Page) -> JsonResponse:
    """The parts that change, for the script that polls."""
    before = parse_sample(page.request.GET.get("look", ""))
    return JsonResponse(
        _parts(
            page,
            read_overview(Queries(producer_connection()), page.int_param("workers", 1), before),
        )
    )


def stream(page: Page) -> HttpResponseBase:
    """The parts that change, as server-sent events."""
    worker_page, max_age = page.int_param("workers", 1), pages.POLL / 2000
    return streaming.stream(
        page,
        lambda: _parts(page, _shared.get(Queries(producer_connection()), worker_page, max_age)),
    )


def _parts(page: Page, data: OverviewData) -> dict[str, Any]:
    page.update_health(data.health)
    data.policies = _policies(page)
    return {**page.live_parts(PARTS, overview=data), "look": data.sample}


def _policies(page: Page) -> list[tuple[str, str, str]]:
    """(what, in which state, the URL of its page)"""
    return [
        (label, text, page.url(label.lower().replace(" ", "_")))
        for label, text in policy_lines(page.health.facts)
    ]


def charts(page: Page) -> JsonResponse:
    """The columns of the charts, and the same figures as a table."""
    try:
        found = make_charts(figures(_span(page), timezone.now()))
    except DatabaseError as error:  # the page keeps the charts that it has
        return JsonResponse({"error": unreadable("charts", error).text}, status=503)
    return JsonResponse(
        {"chart": found.columns, "fragments": page.fragments(["figures"], charts=found)}
    )


def _span(page: Page) -> Span:
    return SPANS.get(page.request.GET.get("span", ""), SPANS["1h"])


@dataclass(frozen=True, slots=True)
class Charts:
    """The figures in three forms: columns for the charts, rows for a table, and a sentence."""

    columns: dict[str, list[Any]]
    rows: list[dict[str, Any]]
    summary: str


def make_charts(found: Figures) -> Charts:
    """Counts become jobs per minute, whatever a point's length; durations become seconds."""
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
        formatting.number(sum(columns[name])) for name in ("enqueued", "completed", "failed")
    )
    return Charts(
        {"at": columns["at"], **jobs, **seconds},
        [_row(start, sums) for start, sums in reversed(points) if sums != Sums()],
        f"Last {found.span.label}: {enqueued} jobs enqueued, {completed} completed, "
        f"{failed} failed.",
    )


def _row(start: datetime, sums: Sums) -> dict[str, Any]:
    return {
        "at": start,
        **{name: formatting.number(getattr(sums, name)) for name in COUNTS},
        "wait": [formatting.duration(sums.wait_ms(quantile)) for quantile in (0.5, 0.95)],
        "run": [formatting.duration(sums.run_ms(quantile)) for quantile in (0.5, 0.95)],
    }
