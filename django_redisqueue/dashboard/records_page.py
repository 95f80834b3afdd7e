"""The records of all jobs, newest first: paged by key instead of OFFSET, and never counted.

A filter that an index can answer in order searches all records. Other filters (text in the
arguments, a task together with a queue) search a slice of SLICE records per request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, TypeVar

from django.db.models import F, Model, Q, QuerySet, Value
from django.db.models.functions import Concat
from django.http import HttpResponse

from ..client.registry import task_names
from ..conf import get_settings
from ..core.parsing import is_storable
from ..core.statuses import Status
from ..exceptions import InvalidOption
from ..models import JobRecord
from ..models.tables import at_newest_times, last_with_prefix, to_column
from .filters import EVERYTHING, JobListFilter, given, parse_filter, status_of, text_of
from .job_detail import choices_of, row_of_record
from .pages import Page

SIZE = 50  # records or workflows per page
SLICE = 5000  # records that one request searches
ORDER = ("-enqueued_at", "-id")
COLUMNS = (
    "id", "task", "queue", "status", "payload", "error", "reason", "attempts", "enqueued_at",
    "started_at", "finished_at", "priority", "tags", "worker", "requeues", "progress",
)  # fmt: skip
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
Record = TypeVar("Record", bound=Model)
# Filters by parts of a column's text. An error's JSON also contains its traceback.
CONTAINS: dict[str, Callable[[str], Q]] = {
    "text": lambda text: Q(payload__icontains=text) | Q(error__icontains=text),
    "part": lambda text: Q(task__icontains=text),
    "tag": lambda text: Q(tags__icontains=text.replace("=", '":"', 1)),
    "worker": lambda text: Q(worker__icontains=text),
}


def record_page(page: Page) -> HttpResponse:
    """The changelist of ``JobRecordAdmin``."""
    wanted, found = RecordQuery(), RecordPage()
    with page.showing_invalid():
        wanted = parse_record_query(page.request.GET)
        found = search(wanted)
    query = wanted.query()
    following = found.following.text() if found.following else ""
    rows = list(map(row_of_record, found.rows))
    return page.render(
        "records",
        "Job records",
        rows=rows,
        choices=choices_of(rows),
        fields=query,
        statuses=[status.value for status in Status],
        queues=sorted(get_settings().queues),
        tasks=task_names(),
        exports=page.export_links("export_records", **query),
        back_to=found.back_to,
        slice=SLICE,
        first_url=page.url("jobrecord_changelist", **query) if wanted.after else "",
        next_url=page.url("jobrecord_changelist", **query, after=following) if following else "",
    )


@dataclass(frozen=True, slots=True)
class PageKey:
    """The time and id of a page's last record: the next page starts after it."""

    at: datetime
    id: str

    def text(self) -> str:
        return f"{(self.at - EPOCH) // MICROSECOND}.{self.id}"


def parse_key(text: str) -> PageKey | None:
    """The inverse of ``PageKey.text``; None for ''. Raises InvalidOption."""
    if not text:
        return None
    micros, _, job_id = text.partition(".")
    if not micros.isdecimal() or len(micros) > 17 or not job_id or not is_storable(job_id):
        raise InvalidOption(f"after: {text!r} is not a valid position; start at the first page")
    return PageKey(EPOCH + int(micros) * MICROSECOND, job_id)


def after_key(records: QuerySet[Record], instant: str, key: PageKey) -> QuerySet[Record]:
    """The records after the key, newest first by the column ``instant`` and then by id."""
    # An OR of two ranges would keep planners from using the index.
    found = records.filter(**{f"{instant}__lte": key.at})
    return found.exclude(**{instant: key.at, "id__gte": key.id})


def cut_page(rows: Sequence[Record], instant: str) -> tuple[Sequence[Record], PageKey | None]:
    """The first SIZE rows, and the key of the last one if there are more."""
    if len(rows) <= SIZE:
        return rows, None
    last = rows[SIZE - 1]
    return rows[:SIZE], PageKey(getattr(last, instant), last.pk)


def merge_pages(
    parts: Iterable[QuerySet[Record]], instant: str
) -> tuple[Sequence[Record], PageKey | None]:
    """A page from all parts, each newest first: an index has one status's rows in this order."""
    rows = [row for part in parts for row in part[: SIZE + 1]]
    return cut_page(sorted(rows, key=attrgetter(instant, "pk"), reverse=True), instant)


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """Which records to show. With ``prefix``, the other filters are ignored."""

    which: JobListFilter = EVERYTHING
    status: str = ""
    queue: str = ""
    prefix: str = ""
    after: PageKey | None = None
    group: str = ""  # jobs whose last error is in this group; without other filters
    correlation: str = ""  # the whole id

    def query(self) -> dict[str, str]:
        others = given(
            status=self.status, queue=self.queue, id=self.prefix, correlation=self.correlation
        )
        return {**self.which.query(), **others}


def parse_record_query(query: Mapping[str, Any]) -> RecordQuery:
    """Raises InvalidOption for an invalid time, status or place."""
    status = status_of(query, Status)
    return RecordQuery(
        parse_filter(query),
        status,
        text_of(query, "queue"),
        text_of(query, "id"),
        parse_key(str(query.get("after", ""))),
        correlation=text_of(query, "correlation"),
    )


@dataclass(frozen=True, slots=True)
class RecordPage:
    """With ``back_to``, the search stopped there after SLICE records; ``following`` continues."""

    rows: Sequence[JobRecord] = field(default_factory=list)
    following: PageKey | None = None
    back_to: datetime | None = None


def search(wanted: RecordQuery) -> RecordPage:
    """A page of records. At most eight queries, each of them bounded."""
    if wanted.prefix:
        return _by_id(wanted)
    indexed, rest = ({"error_group": wanted.group}, {}) if wanted.group else _split(wanted)
    if rest:
        return _slice(_newest(wanted, indexed, SLICE), rest)
    if wanted.group or (wanted.queue and not wanted.status):
        parts = (_newest(wanted, {**indexed, "status": status.value}) for status in Status)
        return RecordPage(*merge_pages(parts, "enqueued_at"))
    return _page(_newest(wanted, indexed))


def _split(wanted: RecordQuery) -> tuple[dict[str, str], dict[str, str]]:
    """The filters that an index can answer in order of time, and the others."""
    which = wanted.which
    task = which.task if which.is_exact_task else ""
    asked = given(
        queue=wanted.queue, status=wanted.status, task=task, correlation_id=wanted.correlation
    )
    indexed = set[str]()
    if "correlation_id" in asked:
        indexed = {"correlation_id"}
    elif "task" in asked:
        indexed = {"task", "status"} & asked.keys()
    elif {"queue", "status"} <= asked.keys():
        indexed = {"queue", "status"}
    elif "queue" not in asked or not (which.text or which.more() or which.task):
        indexed = set(asked)
    rest = {name: value for name, value in asked.items() if name not in indexed}
    rest |= given(text=which.text, part="" if task else which.task, **which.more())
    return {name: asked[name] for name in indexed}, rest


def _in_order(wanted: RecordQuery, indexed: Mapping[str, str]) -> QuerySet[JobRecord]:
    found = JobRecord.objects.only(*COLUMNS).filter(**indexed).order_by(*ORDER)
    if wanted.which.since:
        found = found.filter(enqueued_at__gte=to_column(wanted.which.since))
    if wanted.which.until:
        found = found.filter(enqueued_at__lte=to_column(wanted.which.until))
    if wanted.after:
        found = after_key(found, "enqueued_at", wanted.after)
    return found


def _newest(
    wanted: RecordQuery, indexed: Mapping[str, str], count: int = SIZE
) -> QuerySet[JobRecord]:
    """The first records in order, at least ``count``."""
    found = _in_order(wanted, indexed)
    if not indexed:
        return found
    matches = _in_order(replace(wanted, after=None), indexed)
    if wanted.after:
        matches = matches.filter(enqueued_at__lte=wanted.after.at)
    # Two more: for the first record of the next page, and for the last one of the previous page
    return at_newest_times(found, matches, count + 2)


def _slice(base: QuerySet[JobRecord], rest: Mapping[str, str]) -> RecordPage:
    edge = base.values_list("enqueued_at", "id")[SLICE - 1 : SLICE].first()
    found = base
    if edge:
        found = found.filter(enqueued_at__gte=edge[0])
        found = found.exclude(enqueued_at=edge[0], id__lt=edge[1])
    for name, value in rest.items():
        if name in CONTAINS:
            found = found.filter(CONTAINS[name](value))
        else:
            # An expression keeps planners from using this column's index instead of the slice.
            found = found.alias(**{f"{name}_": Concat(F(name), Value(""))})
            found = found.filter(**{f"{name}_": value})
    page = _page(found)
    if page.following or not edge:
        return page
    return RecordPage(page.rows, PageKey(*edge), edge[0])


def _by_id(wanted: RecordQuery) -> RecordPage:
    before = wanted.after.id if wanted.after else ""
    found = last_with_prefix(JobRecord.objects.only(*COLUMNS), wanted.prefix, before)
    return _page(found)


def _page(found: QuerySet[JobRecord]) -> RecordPage:
    return RecordPage(*cut_page(list(found[: SIZE + 1]), "enqueued_at"))
