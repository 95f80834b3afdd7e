"""The pages of tasks: the list with figures, and that of one with its charts and failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from django.http import Http404, HttpResponse
from django.utils import timezone

from ..client.options import TaskOptions
from ..client.registry import lookup, task_names
from ..conf import get_settings
from ..core import formatting
from ..core.statuses import Status
from ..metrics.histograms import Sums
from ..metrics.rollups import SPANS, Figures, task_figures, task_totals
from ..models import JobRecord, Rollup
from . import pages
from .charts import MAX_NAME, chart_context, chart_options, parse_choice
from .filters import JobListFilter
from .job_detail import JobRow, read_record, row_of
from .pages import Page
from .records_page import RecordQuery, search

SIZES = {"1h": 25, "24h": 15, "7d": 10}  # tasks per page: longer spans have more rows per task
POLLS = 5  # the list is read on every fifth poll: it is the most expensive page
FAILURES = 10  # shown of a task
SORTS = ("name", "enqueued", "completed", "failed", "retried")
WIDTH, HEIGHT = 120, 24  # of a trend
ALWAYS_SHOWN = {"queue_name", "priority", "timeout_ms", "max_attempts"}


def tasks_page(page: Page) -> HttpResponse:
    query = _query(page)
    if page.wants_parts:
        return page.render_parts(["tasklist"], **_list(page, query))
    place = {**query, "page": page.request.GET.get("page", "")}
    return page.render(
        "tasks",
        "Tasks",
        **_list(page, query),
        live={**page.live_options("tasks", **place), "poll": POLLS * pages.POLL},
    )


def _query(page: Page) -> dict[str, str]:
    """Which tasks in which order: the valid parameters of the URL."""
    given = page.request.GET
    sort = given.get("sort", "")
    return {
        "span": parse_choice(page)["span"],
        "q": given.get("q", "").strip()[:MAX_NAME],
        "sort": sort if sort in SORTS else "name",
    }


def _list(page: Page, query: Mapping[str, str]) -> dict[str, Any]:
    """Two queries: the sums of all tasks, and the rows of those on the page."""
    now, span = timezone.now(), SPANS[query["span"]]
    found: dict[str, Figures] = {}
    paged: dict[str, Any] = {"shown": []}
    with page.querying(Rollup, "figures of tasks"):
        totals = task_totals(span, now)
        names = _ordered(totals, query["q"].lower(), query["sort"])
        paged = page.paginate(names, SIZES[span.name], "tasks", query)
        found = task_figures(span, now, [name for name in paged["shown"] if name in totals])

    def link(**change: str) -> str:
        return page.url("tasks", **{**query, **change})

    return {
        **paged,
        "rows": [_row(name, found.get(name)) for name in paged["shown"]],
        "query": query, "span": span, "mirror": get_settings().mirror,
        "spans": [(one, link(span=one.name)) for one in SPANS.values()],
        "sorts": [(sort, link(sort=sort)) for sort in SORTS],
    }  # fmt: skip


def _ordered(totals: Mapping[str, Sums], text: str, sort: str) -> list[str]:
    """The names of registered tasks and of those with figures."""
    names = sorted(name for name in {*task_names(), *totals} if text in name.lower())
    if sort != "name":
        nothing = Sums()
        names.sort(key=lambda name: getattr(totals.get(name, nothing), sort), reverse=True)
    return names


def _row(name: str, found: Figures | None) -> dict[str, Any]:
    sums, trend = Sums(), ""
    if found is not None:
        sums = found.total
        trend = line(
            [
                None if minutes is None else count / minutes
                for count, minutes in zip(found.ended, found.minutes, strict=True)
            ]
        )
    counts = [(what, formatting.number(getattr(sums, what))) for what in SORTS[1:]]
    return {"name": name, "sums": sums, "counts": counts, "trend": trend}


def line(values: Sequence[float | None]) -> str:
    """The points of a line from left to right, for SVG; '' if there is nothing to see."""
    top = max((value for value in values if value), default=0)
    if not top:
        return ""
    step = WIDTH / max(1, len(values) - 1)
    return " ".join(
        f"{at * step:.1f},{HEIGHT - 1 - value / top * (HEIGHT - 2):.1f}"
        for at, value in enumerate(values)
        if value is not None
    )


# One task


def task_page(page: Page) -> HttpResponse:
    """The charts of a task, its latest failures and its options. ``name`` is in the query, because
    it may contain any character."""
    name = page.request.GET.get("name", "")[:MAX_NAME]
    if not name:
        raise Http404("the parameter name is missing")
    context: dict[str, Any] = {
        "task": name, "failures": _failures(page, name),
        "mirror": get_settings().mirror,
        "records_url": page.url("jobrecord_changelist", task=name),
        "failed_url": page.url("jobrecord_changelist", task=name, status=Status.FAILED.value),
    }  # fmt: skip
    if page.wants_parts:
        return page.render_parts(["taskfailures"], **context)
    choice = parse_choice(page, queue="", task=name)
    return page.render(
        "task",
        f"Task {name}",
        **context,
        **chart_context(page, ["task"], choice, name=name, task=""),
        options=_options(name),
        live={
            **page.live_options("task", name=name),
            "poll": POLLS * pages.POLL,
            **chart_options(page, choice),
        },
    )


def _failures(page: Page, name: str) -> list[JobRow]:
    """The newest records of failed jobs that one search finds."""
    records: Sequence[JobRecord] = ()
    if get_settings().mirror:
        with page.querying(JobRecord, "failures"):
            query = RecordQuery(JobListFilter(task=name), Status.FAILED.value)
            records = search(query).rows[:FAILURES]
    return [row_of(read_record(record), record.finished_at) for record in records]


def _options(name: str) -> list[tuple[str, str]] | None:
    """The options in ALWAYS_SHOWN, and those without their defaults; None for an unknown task."""
    task = lookup(name)
    if task is None:
        return None
    return [
        (field.name.removesuffix("_ms"), _shown(field.name, getattr(task.options, field.name)))
        for field in fields(TaskOptions)
        if field.name in ALWAYS_SHOWN or getattr(task.options, field.name) != field.default
    ]


def _shown(name: str, value: object) -> str:
    if value is None:
        return "as in the settings"
    if name.endswith("_ms"):
        return formatting.duration(cast(int, value)) if value else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(_shown("", each) for each in value)
    return value.__name__ if isinstance(value, type) else formatting.shorten(str(value))
