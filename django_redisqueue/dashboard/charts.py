"""Charts of throughput and durations: of all jobs, of a queue, of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.http import JsonResponse
from django.utils import timezone

from ..core import formatting
from ..core.parsing import storable
from ..metrics.histograms import Sums
from ..metrics.rollups import SPANS, Figures, chart, figures
from ..models import Rollup
from .pages import Page

CHARTED = ("enqueued", "completed", "failed", "retried")
DURATIONS = ("wait50", "wait95", "run50", "run95")
CHART_POLL = 30_000  # ms between two updates of the charts
MAX_NAME = 255


def parse_choice(page: Page, **fixed: str) -> dict[str, str]:
    """What the charts show: the valid parameters of the URL, and those that the page fixes."""
    query = page.request.GET
    span, scale = query.get("span", ""), query.get("scale", "")
    return {
        "span": span if span in SPANS else "1h",
        "queue": storable(query.get("queue", ""))[:MAX_NAME],
        "task": storable(query.get("task", ""))[:MAX_NAME],
        "scale": scale if scale == "log" else "",  # '' is linear
        **fixed,
    }


def read_charts(choice: Mapping[str, str]) -> dict[str, Any]:
    """Raises DatabaseError."""
    span = SPANS[choice["span"]]
    return make_charts(figures(span, timezone.now(), choice["queue"], choice["task"]))


def chart_context(
    page: Page, where: Sequence[str], choice: Mapping[str, str], **query: str
) -> dict[str, Any]:
    """The context of _charts.html on the page ``where`` (its name and arguments). When the database
    does not answer, a notice replaces the charts."""

    def link(**change: str) -> str:
        return page.url(*where, **{**choice, **query, **change})

    charts: dict[str, Any] = {}
    with page.querying(Rollup, "charts"):
        charts = read_charts(choice)
    return {
        "charts": charts,
        "choice": choice,
        "spans": [(span, link(span=span.name)) for span in SPANS.values()],
        "scales": [("", "Linear", link(scale="")), ("log", "Logarithmic", link(scale="log"))],
    }


def chart_options(page: Page, choice: Mapping[str, str]) -> dict[str, Any]:
    return {
        "charts": page.url("overview_charts", **choice),
        "chartPoll": CHART_POLL,
        "scale": choice["scale"],
        "zone": getattr(timezone.get_current_timezone(), "key", None),  # None: the browser's
    }


def charts(page: Page) -> JsonResponse:
    """The columns of the charts, and the same figures as a table."""
    with page.querying(Rollup, "charts"):
        found = read_charts(parse_choice(page))
    if page.notices:  # the page keeps its current charts
        return JsonResponse({"error": page.notices[0].text}, status=503)
    fragments = page.fragments(["figures"], charts=found)
    return JsonResponse(
        {"chart": found["columns"], "label": found["label"], "fragments": fragments}
    )


def make_charts(found: Figures) -> dict[str, Any]:
    """The figures as columns for the charts, as rows of a table, and in a sentence.

    In the columns, counts are jobs per minute, whatever a point's length, and durations seconds.
    """
    points = found.points
    columns = chart(points)
    jobs = {
        name: [
            round(count / minutes, 2) if minutes else None
            for count, minutes in zip(columns[name], found.minutes, strict=True)
        ]
        for name in CHARTED
    }
    seconds = {
        name: [None if ms is None else round(ms / 1000, 4) for ms in columns[name]]
        for name in DURATIONS
    }
    enqueued, completed, failed, retried = (
        formatting.number(sum(columns[name])) for name in CHARTED
    )
    return {
        "columns": {"at": columns["at"], **jobs, **seconds},
        "rows": [(start, sums) for start, sums in reversed(points) if sums != Sums()],
        "label": f"Chart of jobs per minute. Last {found.span.label}: {enqueued} jobs enqueued, "
        f"{completed} completed, {failed} failed, {retried} attempts retried.",
    }
