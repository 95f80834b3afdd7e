"""The overview: the page and its live parts."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse, JsonResponse
from django.http.response import HttpResponseBase

from ..broker.connection import producer_connection
from ..client.registry import task_names
from ..health.summary import policy_lines
from . import pages, streaming
from .charts import chart_context, chart_options, parse_choice
from .overview_data import OverviewData, SharedOverview, parse_sample, read_overview
from .pages import Page

PARTS = ("notices", "queues", "policies", "workers", "server")

_shared = SharedOverview()  # used by the thread of all streams only


def overview(page: Page) -> HttpResponse:
    """The whole page; it is complete without JavaScript."""
    data = read_overview(producer_connection(), None)
    page.update_health(data.health)
    data.policies = _policies(page)
    choice = parse_choice(page)
    return page.render(
        "overview",
        "Queues and jobs",
        overview=data,
        notices=data.notices,
        **chart_context(page, ["overview"], choice, data.notices),
        chart_queues=sorted(data.health.facts.settings.queues),
        chart_tasks=task_names(),
        live={
            "url": page.url("overview_live"),
            "stream": page.url("overview_stream") if streaming.can_stream(page) else "",
            "poll": pages.POLL,
            **chart_options(page, choice),
        },
    )


def live(page: Page) -> JsonResponse:
    """The parts that change, for the script that polls."""
    before = parse_sample(page.request.GET.get("look", ""))
    return JsonResponse(_parts(page, read_overview(producer_connection(), before)))


def stream(page: Page) -> HttpResponseBase:
    """The parts that change, as server-sent events."""
    return streaming.stream(
        page, lambda: _parts(page, _shared.get(producer_connection(), pages.POLL / 2000))
    )


def _parts(page: Page, data: OverviewData) -> dict[str, Any]:
    page.update_health(data.health)
    data.policies = _policies(page)
    return {**page.live_parts(PARTS, overview=data, notices=data.notices), "look": data.sample}


def _policies(page: Page) -> list[tuple[str, str, str]]:
    """(what, in which state, the URL of its page)"""
    return [
        (label, text, page.url(label.lower().replace(" ", "_")))
        for label, text in policy_lines(page.health.facts)
    ]
