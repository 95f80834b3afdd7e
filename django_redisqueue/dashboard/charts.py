"""Charts of throughput and durations: of all jobs, of a queue, of a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import JsonResponse
from django.utils import timezone

from ..core import formatting
from ..metrics.histograms import Sums
from ..metrics.rollups import SPANS, Figures, Span, chart, figures
from ..models import Rollup
from .filters import given
from .pages import Page

CHARTED = ("enqueued", "completed", "failed", "retried")
DURATIONS = ("wait50", "wait95", "run50", "run95")
CHART_POLL = 30_000  # ms between two updates of the charts
MAX_NAME = 255


@dataclass(frozen=True, slots=True)
class ChartChoice:
    """What the charts show: the parameters of the URL."""

    span: Span = SPANS["1h"]
    queue: str = ""
    task: str = ""
    scale: str = ""  # "log", or '' for linear

    def query(self, **change: str) -> dict[str, str]:
        """The parameters of a URL for this choice, or a changed one."""
        mine = {
            "span": self.span.name, "queue": self.queue, "task": self.task, "scale": self.scale
        }  # fmt: skip
        return given(**{**mine, **change})

    def read(self) -> Charts:
        """Raises DatabaseError."""
        return make_charts(figures(self.span, timezone.now(), self.queue, self.task))


def parse_choice(page: Page) -> ChartChoice:
    """The choice of a URL; what is not valid is left out."""
    query = page.request.GET
    return ChartChoice(
        SPANS.get(query.get("span", ""), SPANS["1h"]),
        query.get("queue", "")[:MAX_NAME],
        query.get("task", "")[:MAX_NAME],
        "log" if query.get("scale") == "log" else "",
    )


@dataclass(frozen=True, slots=True)
class Charts:
    """The figures in three forms: columns for the charts, rows for a table, and a sentence."""

    columns: dict[str, list[Any]]
    rows: list[tuple[datetime, Sums]]
    summary: str


def chart_context(
    page: Page, where: Sequence[str], choice: ChartChoice, **query: str
) -> dict[str, Any]:
    """The context of _charts.html on the page ``where``: its name and arguments. When the database
    does not answer, a notice replaces the charts."""

    def link(**change: str) -> str:
        return page.url(*where, **choice.query(**query, **change))

    charts: Charts | None = None
    with page.querying(Rollup, "charts"):
        charts = choice.read()
    return {
        "charts": charts,
        "choice": choice,
        "spans": [(span, link(span=span.name)) for span in SPANS.values()],
        "scales": [("", "Linear", link(scale="")), ("log", "Logarithmic", link(scale="log"))],
    }


def chart_options(page: Page, choice: ChartChoice) -> dict[str, Any]:
    return {
        "charts": page.url("overview_charts", **choice.query()),
        "chartPoll": CHART_POLL,
        "scale": choice.scale,
    }


def charts(page: Page) -> JsonResponse:
    """The columns of the charts, and the same figures as a table."""
    with page.querying(Rollup, "charts"):
        found = parse_choice(page).read()
    if page.notices:  # the page keeps the charts that it has
        return JsonResponse({"error": page.notices[0].text}, status=503)
    return JsonResponse(
        {"chart": found.columns, "fragments": page.fragments(["figures"], charts=found)}
    )


def make_charts(found: Figures) -> Charts:
    """Counts become jobs per minute, whatever a point's length; durations become seconds."""
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
    return Charts(
        {"at": columns["at"], **jobs, **seconds},
        [(start, sums) for start, sums in reversed(points) if sums != Sums()],
        f"Last {found.span.label}: {enqueued} jobs enqueued, {completed} completed, "
        f"{failed} failed, {retried} attempts retried.",
    )
