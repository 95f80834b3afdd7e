"""The pages of a queue's jobs in one status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import merge
from typing import Any

from django.db import Error as DatabaseError
from django.http import Http404, HttpResponse

from ..broker.base import Read
from ..broker.connection import RedisConnection
from ..broker.overview import QueueOverview
from ..broker.policies import LimitQueries, PauseChange
from ..broker.queries import Queries, UnreadableJob
from ..client.registry import task_names
from ..conf import get_settings
from ..core import formatting
from ..core.job_data import JobData
from ..core.statuses import Status
from ..exceptions import InvalidName, UnknownQueue
from ..health.facts import savepoint
from ..models import JobRecord
from .bulk import verbs_for
from .charts import chart_context, chart_options, parse_choice
from .filters import EVERYTHING, JobListFilter, given, parse_filter
from .job_detail import JobRow, JobRowPage, choices_of, row_of, row_of_record
from .pages import Page
from .records_page import RecordQuery, search

SIZE = 50  # jobs per page
SCANNED = 1000  # jobs that one request searches for a filter
CHUNK = 250


@dataclass(frozen=True, slots=True)
class ListPlace:
    """Where a page begins in the list of each shard. In a URL: ``50``, or ``20.0.13.17``."""

    places: tuple[int, ...]

    @property
    def text(self) -> str:
        return ".".join(map(str, self.places))

    def behind(self, shards: Iterable[int]) -> ListPlace:
        """The place after some entries, given by their shards."""
        passed = Counter(shards)
        return ListPlace(tuple(at + passed[shard] for shard, at in enumerate(self.places)))


def parse_place(text: str) -> ListPlace:
    """The inverse of ``ListPlace.text``; the beginning for anything else."""
    parts, shards = text.split("."), get_settings().shards
    if len(parts) != shards or not all(part.isdecimal() and len(part) < 9 for part in parts):
        return ListPlace((0,) * shards)
    return ListPlace(tuple(map(int, parts)))


def queue_page(page: Page, queue: str, status: str) -> HttpResponse:
    name, which_status = check_list(queue, status)
    found, which, start = JobRowPage(), EVERYTHING, parse_place(page.request.GET.get("start", ""))
    with page.showing_invalid():
        which = parse_filter(page.request.GET)
        found = list_jobs(page, name, which_status, which, start)
        if not found.seen and any(start.places):  # the list has become shorter
            start = parse_place("")
            found = list_jobs(page, name, which_status, which, start)
    if page.is_redis_away:
        found = _recorded_jobs(name, which_status, which)
    choice = parse_choice(page, queue=name, task="")
    fields, shown = which.query(), given(span=choice["span"], scale=choice["scale"])
    here, query, is_first = ("queue", name, status), {**fields, **shown}, not any(start.places)
    kept = {**query, **given(start="" if is_first else start.text)}
    parts = _parts(page, name, which_status, found) | {
        "which": which,
        "place": found.place(sum(start.places), is_filtered=bool(which)),
        "first_url": "" if is_first else page.url(*here, **query),
        "next_url": found.following and page.url(*here, start=found.following, **query),
        "kept": kept,
        "may_pause": page.has_perm("pause_queue"),
    }
    if page.wants_parts:
        return page.render_parts(["tabs", "queuepause", "queuefacts", "queuejobs"], **parts)
    live = page.live_options(*here, **kept)
    return page.render(
        "queue",
        f"Queue {name}",
        **parts,
        **chart_context(page, [*here], choice, queue="", **fields),
        chart_fields=shown,
        fields=fields,
        tasks=task_names(),
        exports=page.export_links("export_queue", name, status, **fields),
        choices=choices_of(found.rows),
        pauses=[] if which else _pauses(page, name),  # a search takes enough round trips
        live={**live, **chart_options(page, choice)},
    )


def _parts(page: Page, queue: str, status: Status, found: JobRowPage) -> dict[str, Any]:
    """The context of the parts that change."""
    shard = page.health.facts.shard
    overview = next(each for each in shard.queues if each.name == queue) if shard else None
    return {
        "queue": queue,
        "status": status.value,
        "overview": overview,
        "tabs": _tabs(overview),
        "found": found,
        "time_label": "Ended" if status.is_final and overview else "Enqueued",
        "caption": f"{status.value.capitalize()} jobs of the queue {queue}",
        "verbs": [] if overview is None else page.allowed(verbs_for(status)),
    }


def _pauses(page: Page, queue: str) -> Sequence[PauseChange]:
    """The newest pauses and resumptions by all users, from the first shard that answers."""
    shard = next((one for one in range(get_settings().shards) if one not in page.missing), None)
    if shard is None:
        return []
    answers = page.ask(lambda one: LimitQueries(one).pause_history.read(queue), [shard])
    return answers.get(shard, [])


def _recorded_jobs(queue: str, status: Status, which: JobListFilter) -> JobRowPage:
    """The newest records of such jobs, for when Redis is unavailable."""
    records: Sequence[JobRecord] = ()
    if get_settings().mirror:
        with suppress(DatabaseError), savepoint(JobRecord):  # the health strip shows the error
            records = search(RecordQuery(which, status.value, queue)).rows
    return JobRowPage(list(map(row_of_record, records)))


def check_list(queue: str, status: str) -> tuple[str, Status]:
    """The queue and status in a URL. Raises Http404."""
    try:
        return get_settings().check_queue(queue), Status(status)
    except (InvalidName, UnknownQueue, ValueError) as error:
        raise Http404(str(error)) from None


def list_jobs(
    page: Page, queue: str, status: Status, which: JobListFilter, start: ListPlace
) -> JobRowPage:
    """A page from ``start``: three round trips, or at most nine with a filter."""
    scanned, chunk = (SCANNED, CHUNK) if which else (SIZE, SIZE)
    rows, passed, has_more = list[JobRow](), list[int](), True  # passed: the shards of the entries
    while has_more and len(passed) < scanned and len(rows) < SIZE:
        entries, has_more = _entries(page, queue, status, start.behind(passed), chunk)
        jobs = page.ask_for(entries, lambda one, ids: Queries(one).outlines.read(ids))
        for at, (job_id, shard) in enumerate(entries, 1):
            passed.append(shard)
            job = jobs.get(job_id)  # None if its shard has stopped answering
            if job and _is_listed(job, status) and which.matches(job):
                rows.append(row_of(job))
                if len(rows) == SIZE:
                    has_more = has_more or at < len(entries)
                    break
    return JobRowPage(rows, len(passed), start.behind(passed).text if has_more else "")


def _entries(
    page: Page, queue: str, status: Status, start: ListPlace, count: int
) -> tuple[list[tuple[str, int]], bool]:
    """Up to ``count`` ids with their shards, in the order of all shards; and whether there are
    more. A shard reads no more than that from its own list, however far down the page is."""

    def read(connection: RedisConnection) -> Read[list[tuple[float, str, int]]]:
        first = start.places[connection.shard]
        ranked = yield from Queries(connection).ranked.read(queue, status, first, first + count)
        return [(rank, job_id, connection.shard) for rank, job_id in ranked]

    merged = [(job_id, shard) for _, job_id, shard in merge(*page.ask(read).values())]
    return merged[:count], len(merged) > count


def _is_listed(job: JobData | UnreadableJob, status: Status) -> bool:
    """False for a cancelled job whose id is still in a queue's list (cancel_job.lua)."""
    return isinstance(job, UnreadableJob) or status.is_final or not job.status.is_final


def _tabs(overview: QueueOverview | None) -> list[tuple[str, str]]:
    """Each status with its count, which is unknown without Redis."""
    if overview is None:
        return [(status.value, formatting.NOTHING) for status in Status]
    return [(status.value, formatting.number(overview.counts[status])) for status in Status]
