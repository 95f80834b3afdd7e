"""Groups of errors: their list, the page of one, and the actions on its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from django.contrib import messages
from django.db.models import Q, QuerySet
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.utils import timezone

from ..client.registry import task_names
from ..conf import get_settings
from ..core import formatting
from ..core.clock import ms_of
from ..core.job_data import JobError
from ..core.statuses import Status
from ..exceptions import InvalidOption
from ..metrics.histograms import HOUR_MS, last_hours
from ..models import ErrorGroup
from . import bulk
from .actions import before_ms, perform_bulk, posted, requested_verb, writing
from .bulk import DELETE, RETRY
from .filters import given, text_of
from .job_detail import row_of_record
from .pages import Page
from .records_page import RecordPage, RecordQuery, parse_key, search

SIZE = 50  # groups per page
LAST_START = 99_950  # of a page
BAR = 4  # hours
SILENCE = "retry_job"  # the permission
FIELDS = ("task", "queue", "text", "state", "order")  # of the filter
STATES = {"": Q(silenced_at=None), "silenced": Q(silenced_at__isnull=False), "all": Q()}
ORDERS = {"": "-last_seen", "count": "-count", "first": "-first_seen"}


def _row(group: ErrorGroup) -> dict[str, Any]:
    """A group as pages show it, with how often it occurred in the last week: as a number, and as an
    SVG path of bars, each for four hours, two wide and at most 20 high."""
    hours = last_hours(group.hours, ms_of(timezone.now()) // HOUR_MS)
    bars = [sum(hours[at : at + BAR]) for at in range(0, len(hours), BAR)]
    heights = [-(-20 * count // max(bars)) if count else 0 for count in bars]
    path = "".join(f"M{2 * at} 20v-{high}h1.5v{high}z" for at, high in enumerate(heights) if high)
    return {"group": group, "week": formatting.number(sum(bars)), "sparkline": path}


def _last_error(group: ErrorGroup) -> JobError | None:
    """The last error with its traceback; None if it cannot be read."""
    try:
        return group.last_error
    except (TypeError, ValueError):
        return None


def error_list(page: Page) -> HttpResponse:
    start = min(page.int_param("start", 0), LAST_START)
    query, found = dict[str, str](), list[ErrorGroup]()
    with page.showing_invalid():
        query = {name: text_of(page.request.GET, name) for name in FIELDS}
        found = list(find_groups(query)[start : start + SIZE + 1])
    rows = list(map(_row, found[:SIZE]))
    if page.wants_parts:
        return page.render_parts(["errors"], rows=rows)
    return page.render(
        "errors",
        "Errors",
        rows=rows,
        fields=given(**query),
        tasks=task_names(),
        queues=sorted(get_settings().queues),
        is_mirrored=get_settings().mirror,
        first_url=page.url("errors", **query) if start else "",
        next_url=page.url("errors", **query, start=start + SIZE) if len(found) > SIZE else "",
        live=page.live_options("errors", **query, start=start or ""),
    )


def find_groups(query: Mapping[str, str]) -> QuerySet[ErrorGroup]:
    """The groups that match, without their errors, which are long. Raises InvalidOption."""
    state, order = query.get("state", ""), query.get("order", "")
    if state not in STATES or order not in ORDERS:
        raise InvalidOption(
            f"state must be one of {', '.join(filter(None, STATES))}, or none; order one of "
            f"{', '.join(filter(None, ORDERS))}, or none"
        )
    found = ErrorGroup.objects.defer("error").filter(STATES[state]).order_by(ORDERS[order], "pk")
    if query.get("task"):
        found = found.filter(task__icontains=query["task"])
    if query.get("queue"):
        found = found.filter(queues__contains=f" {query['queue']} ")
    if text := query.get("text"):
        found = found.filter(Q(message__icontains=text) | Q(exception__icontains=text))
    return found


def error_page(page: Page, group: str) -> HttpResponse:
    found, jobs = _group(group), RecordPage()
    with page.showing_invalid():
        jobs = search(RecordQuery(after=parse_key(page.request.GET.get("after", "")), group=group))
    return page.render(
        "error",
        found.exception or "Other errors",
        row=_row(found),
        error=_last_error(found),
        rows=list(map(row_of_record, jobs.rows)),
        verbs=page.allowed([RETRY, DELETE]),
        may_silence=page.has_perm(SILENCE),
        next_url=page.url("error", group, after=jobs.following.text()) if jobs.following else "",
    )


def _group(group: str) -> ErrorGroup:
    found = ErrorGroup.objects.filter(pk=group).first() if group.isalnum() else None
    if found is None:
        raise Http404(f"error group {group} does not exist")
    return found


@posted("error")
def act_on_error(page: Page, group: str) -> HttpResponse:
    """Retry or delete a group's failed jobs, after a confirmation; or silence the group."""
    found = _group(group)
    if page.request.POST.get("verb") in ("silence", "unsilence"):
        return _silence(page, found)
    verb = requested_verb(page, Status.FAILED)
    here = page.url("error", group)
    action = bulk.BulkAction(verb, "", Status.FAILED, 0, group=group)
    count = bulk.records_of(action).count()
    if page.request.POST.get("confirmed") != "yes":
        jobs = formatting.jobs(count)
        return page.confirm(
            "error", verb.label, f"{verb.label} {jobs}", here,
            {"verb": verb.name, "before_ms": bulk.now_ms()}, is_dangerous=verb.needs_confirmation,
            verb=verb, group=found, jobs=jobs, at_once=count <= bulk.INLINE,
        )  # fmt: skip
    action = replace(action, before_ms=before_ms(page))
    what = f"{verb.label} its failed jobs"
    return perform_bulk(page, action, count, what, here, partial(_log, page, group))


def _log(page: Page, group: str, what: str) -> None:
    page.log(f"error {group}", what, pk=group, model=ErrorGroup)


def _silence(page: Page, group: ErrorGroup) -> HttpResponse:
    page.require(SILENCE)
    is_silenced = page.request.POST["verb"] == "silence"
    at, by = (timezone.now(), page.request.user.get_username()) if is_silenced else (None, "")
    with writing(ErrorGroup):
        ErrorGroup.objects.filter(pk=group.pk).update(silenced_at=at, silenced_by=by)
    _log(page, group.pk, "Silence" if is_silenced else "Unsilence")
    text = "is silenced and no longer listed" if is_silenced else "is listed again"
    messages.success(page.request, f"The error {text}.")
    return HttpResponseRedirect(page.url("error", group.pk))
