"""The jobs of one status of one queue, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import messages
from django.db import Error as DatabaseError
from django.http import Http404, HttpResponse

from ..broker.overview import QueueOverview
from ..broker.queries import Queries, UnreadableJob
from ..client.registry import task_names
from ..conf import get_settings
from ..core import formatting
from ..core.job_data import JobData
from ..core.statuses import Status
from ..exceptions import InvalidName, InvalidOption, RedisQueueError, UnknownQueue
from ..health.facts import savepoint
from ..models import JobRecord
from .filters import EVERYTHING, JobFilter, parse_filter
from .job_detail import JobRowPage, read_record, row_of
from .pages import Page
from .records_page import RecordQuery, search
from .verbs import Verb, verbs_for

SIZE = 50  # jobs per page
SCANNED = 1000  # jobs that one request looks at for a filter
CHUNK = 250


def queue_page(page: Page, queue: str, status: str) -> HttpResponse:
    """The whole page, or with ``live`` in the query only the counts."""
    name, which_status = check_list(queue, status)
    query = page.request.GET
    found, overview, which = JobRowPage(), None, EVERYTHING
    start = page.int_param("start", 0)
    try:
        which = parse_filter(query)
        overview = _overview(page, name)
        if "live" not in query:
            found = list_jobs(page.queries, name, which_status, which, start)
    except InvalidOption as error:
        page.add_message(messages.ERROR, str(error))
    except RedisQueueError as error:
        page.report(error)
        if page.is_redis_away and "live" not in query:
            found = _recorded_jobs(name, which_status, which)
    shared: dict[str, Any] = {
        "queue": name,
        "status": which_status.value,
        "overview": overview,
        "tabs": _tabs(overview),
        "is_recorded": page.is_redis_away,
    }
    if "live" in query:
        return page.render_parts(["tabs"], **shared)
    return page.render(
        "queue",
        f"Queue {name}",
        **shared,
        found=found,
        which=which,
        time_label="Ended" if which_status.is_final and overview else "Enqueued",
        caption=f"{which_status.value.capitalize()} jobs of the queue {name}",
        fields=which.query(),
        tasks=task_names(),
        verbs=[] if overview is None else _verbs(page, which_status),
        may_pause=page.has_perm("pause_queue"),
        place=_place(found, start, which),
        first_url=page.url("queue", name, status, **which.query()) if start else "",
        next_url=_next_url(page, found, name, status, which),
        live=page.live_options("queue", name, status),
    )


def _overview(page: Page, queue: str) -> QueueOverview:
    """The queue, as the health has read it already. Raises RedisQueueError."""
    page.check_redis()
    shard = page.health.facts.shard
    assert shard is not None
    return next(each for each in shard.queues if each.name == queue)


def _verbs(page: Page, status: Status) -> list[Verb]:
    return [verb for verb in verbs_for(status) if page.has_perm(verb.permission)]


def _recorded_jobs(queue: str, status: Status, which: JobFilter) -> JobRowPage:
    """The newest records of such jobs, for a time without Redis."""
    if not get_settings().mirror:
        return JobRowPage()
    try:
        with savepoint(JobRecord):
            records = search(RecordQuery(which, status.value, queue)).rows
    except DatabaseError:  # the health strip says so
        return JobRowPage()
    return JobRowPage([row_of(read_record(record), record.enqueued_at) for record in records])


def check_list(queue: str, status: str) -> tuple[str, Status]:
    """The queue and status of a URL. Raises Http404."""
    try:
        return get_settings().check_queue(queue), Status(status)
    except (InvalidName, UnknownQueue, ValueError) as error:
        raise Http404(str(error)) from None


def list_jobs(
    queries: Queries, queue: str, status: Status, which: JobFilter, start: int
) -> JobRowPage:
    """A page from ``start`` on: three round trips, or at most nine with a filter."""
    if not which:
        ids = queries.ids(
            queue, status, start, start + SIZE
        )  # one more, to see if the list goes on
        rows = [row_of(job) for job in queries.outlines(ids[:SIZE])]
        return JobRowPage(rows, len(rows), start + SIZE if len(ids) > SIZE else None)
    rows, at = [], start
    for job in _scan(queries, queue, status, start):
        if job is None:
            return JobRowPage(rows, at - start)
        at += 1
        if isinstance(job, JobData) and which.matches(job):
            rows.append(row_of(job))
            if len(rows) == SIZE:
                break
    return JobRowPage(rows, at - start, at)


def _scan(
    queries: Queries, queue: str, status: Status, start: int
) -> Iterator[JobData | UnreadableJob | None]:
    """The jobs from ``start`` on, at most SCANNED; None at the end of the list."""
    for first in range(start, start + SCANNED, CHUNK):
        ids = queries.ids(queue, status, first, first + CHUNK - 1)
        yield from queries.outlines(ids)
        if len(ids) < CHUNK:
            yield None


def _next_url(page: Page, found: JobRowPage, queue: str, status: str, which: JobFilter) -> str:
    if found.following is None:
        return ""
    return page.url("queue", queue, status, start=found.following, **which.query())


def _place(found: JobRowPage, start: int, which: JobFilter) -> str:
    """Which part of the list the page shows, in words."""
    if not found.seen:
        return "No jobs were looked at." if which else ""
    first, last = formatting.number(start + 1), formatting.number(start + found.seen)
    if not which:
        return f"{first} to {last}"
    return (
        f"{formatting.jobs(len(found.rows))} of the {formatting.number(found.seen)} looked at "
        f"(places {first} to {last})"
    )


def _tabs(overview: QueueOverview | None) -> list[tuple[str, str]]:
    """Each status with its count, which is not known without Redis."""
    if overview is None:
        return [(status.value, formatting.NOTHING) for status in Status]
    return [
        (status.value, formatting.number(overview.counts[status.value]))
        for status in Status
        if status.value in overview.counts
    ]
