"""The jobs of one status of one queue, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.contrib import messages
from django.http import Http404, HttpResponse

from ..conf import get_settings
from ..exceptions import InvalidName, InvalidOption, RedisQueueError, UnknownQueue
from ..jobdata import JobData
from ..registry import task_names
from ..states import Status
from ..store.overview import QueueOverview
from ..store.reads import Broken, Reads
from . import words
from .filters import EVERYTHING, JobFilter, parse_filter
from .pages import Page
from .rows import Row, row_of
from .verbs import verbs_for

SIZE = 50  # jobs a page
SCANNED = 1000  # jobs that one answer looks at for those that match
CHUNK = 250


@dataclass(frozen=True, slots=True)
class Found:
    """``following``: where the list goes on, None at its end; ``seen``: how many were looked at."""

    rows: Sequence[Row]
    seen: int = 0
    following: int | None = None


def look(reads: Reads, queue: str, status: Status, which: JobFilter, start: int) -> Found:
    """A page from ``start`` on: three round trips, or at most nine where a filter has to look."""
    if not which:
        ids = reads.ids(queue, status, start, start + SIZE)  # one more tells whether it goes on
        rows = [row_of(job) for job in reads.outlines(ids[:SIZE])]
        return Found(rows, len(rows), start + SIZE if len(ids) > SIZE else None)
    rows, at = [], start
    for job in _scan(reads, queue, status, start):
        if job is None:
            return Found(rows, at - start)
        at += 1
        if isinstance(job, JobData) and which.matches(job):
            rows.append(row_of(job))
            if len(rows) == SIZE:
                break
    return Found(rows, at - start, at)


def _scan(
    reads: Reads, queue: str, status: Status, start: int
) -> Iterator[JobData | Broken | None]:
    """The jobs from ``start`` on, at most SCANNED; None at the end of the list."""
    for first in range(start, start + SCANNED, CHUNK):
        ids = reads.ids(queue, status, first, first + CHUNK - 1)
        yield from reads.outlines(ids)
        if len(ids) < CHUNK:
            yield None


def names(queue: str, status: str) -> tuple[str, Status]:
    """A queue and a status from an address. Raises Http404."""
    try:
        return get_settings().check_queue(queue), Status(status)
    except (InvalidName, UnknownQueue, ValueError) as error:
        raise Http404(str(error)) from None


def queue_page(page: Page, queue: str, status: str) -> HttpResponse:
    """The page; with ``live`` in the query only what changes: the counts."""
    name, which_status = names(queue, status)
    query = page.request.GET
    found, overview, which = Found([]), None, EVERYTHING
    start = page.number("start", 0)
    try:
        (overview,) = page.reads.overview([name])
        which = parse_filter(query)
        if "live" not in query:
            found = look(page.reads, name, which_status, which, start)
    except (RedisQueueError, InvalidOption) as error:
        page.tell(messages.ERROR, str(error))
    shared = {
        "queue": name,
        "status": which_status.value,
        "overview": overview,
        "tabs": _tabs(overview) if overview else [],
    }
    if "live" in query:
        return page.answer(["tabs"], **shared)
    here = {"start": start or "", **which.query()}
    return page.draw(
        "queue",
        f"Queue {name}",
        **shared,
        found=found,
        which=which,
        time_label="Ended" if which_status.is_final else "Enqueued",
        caption=f"{which_status.value.capitalize()} jobs of the queue {name}",
        fields=which.query(),
        tasks=task_names(),
        verbs=[verb for verb in verbs_for(which_status) if page.may(verb.permission)],
        may_pause=page.may("pause_queue"),
        place=_place(found, start, which),
        first_url=page.url("queue", name, status, **which.query()) if start else "",
        next_url=_next(page, found, name, status, which),
        here=page.url("queue", name, status, **here),
        live=page.live("queue", name, status),
    )


def _next(page: Page, found: Found, queue: str, status: str, which: JobFilter) -> str:
    if found.following is None:
        return ""
    return page.url("queue", queue, status, start=found.following, **which.query())


def _place(found: Found, start: int, which: JobFilter) -> str:
    """What part of the list this is, in words."""
    last = words.number(start + found.seen)
    if which:
        return (
            f"{words.of_jobs(len(found.rows))} of the {words.number(found.seen)} looked at "
            f"(places {words.number(start + 1)} to {last})"
            if found.seen
            else "No jobs were looked at."
        )
    return f"{words.number(start + 1)} to {last}" if found.seen else ""


def _tabs(overview: QueueOverview) -> list[tuple[str, str]]:
    """Each status with its count; one that a queue's own keys do not hold is left out."""
    return [
        (status.value, words.number(overview.counts[status.value]))
        for status in Status
        if status.value in overview.counts
    ]
