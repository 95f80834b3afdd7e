"""Exports lists of jobs as CSV or JSON, sent while they are read."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC
from itertools import chain
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from ..api.hub import UNCOMPRESSED
from ..core.clock import from_ms
from ..core.codec import dumps
from ..core.statuses import Status
from ..core.text import printable
from ..exceptions import InvalidOption, RedisQueueError
from ..health.findings import DATABASE_AWAY, unreadable
from .filters import JobListFilter, parse_filter
from .job_detail import JobRow, attempts_begun, max_attempts_of, row_of_record
from .pages import Page
from .queue_page import check_list, list_jobs, parse_place
from .records_page import RecordQuery, parse_record_query, search

ROWS = 10_000  # jobs in a file
READS = 200  # pages of a list that are read for them
COLUMNS = (
    "id", "task", "queue", "status", "priority", "attempts", "max_attempts", "tags", "args",
    "kwargs", "enqueued_at", "started_at", "finished_at", "worker", "error_type", "error_message",
    "reason", "problem",
)  # fmt: skip
# Where a spreadsheet could find a formula: at the beginning of a cell, and after a separator of
# cells, because one whose separator is the semicolon splits the text there.
FORMULA = re.compile(r"(^|[;\t\r\n])(?=[ \xa0]*[=+@\uff1d\uff0b\uff20-]|[\t\r\n])")

Rows = Iterable[Sequence[JobRow]]


def export_queue(page: Page, queue: str, status: str) -> HttpResponseBase:
    """The jobs of a list that match, in its order."""
    name, which_status = check_list(queue, status)

    def read() -> Rows:
        page.shards.require_all()
        return _listed(page, name, which_status, parse_filter(page.request.GET))

    return _answer(page, f"{name}-{status}", read)


def export_records(page: Page) -> HttpResponseBase:
    """The records that match, newest first."""
    return _answer(page, "jobs", lambda: _recorded(parse_record_query(page.request.GET)))


def _answer(page: Page, name: str, read: Callable[[], Rows]) -> HttpResponseBase:
    """The file, or status 400 or 503 with the reason as text."""
    try:
        kind = page.request.GET.get("format", "")
        if kind not in WRITERS:
            raise InvalidOption(f"format must be one of {', '.join(WRITERS)}, not {kind!r}")
        rows = iter(read())
        rows = chain([next(rows, [])], rows)  # an error of the first is an answer
    except RedisQueueError as error:
        return _refused(400 if isinstance(error, InvalidOption) else 503, str(error))
    except DATABASE_AWAY as error:
        return _refused(503, unreadable("database", error).text)
    write, content_type = WRITERS[kind]
    text = map(printable, write(_bounded(rows)))
    headers = {
        "Content-Disposition": f'attachment; filename="{name}.{kind}"',
        "Cache-Control": "no-store",
    }
    body: Iterator[str] | AsyncIterator[str] = text
    if page.can_stream:
        body = _asynchronous(text)
        headers |= UNCOMPRESSED
    return StreamingHttpResponse(body, content_type=content_type, headers=headers)


def _refused(code: int, why: str) -> HttpResponse:
    return HttpResponse(f"{why}\n", status=code, content_type="text/plain; charset=utf-8")


async def _asynchronous(text: Iterator[str]) -> AsyncIterator[str]:
    """Django would read any other iterator completely before it sends anything."""
    read = sync_to_async(lambda: next(text, None))
    while (part := await read()) is not None:
        yield part


def _listed(page: Page, queue: str, status: Status, which: JobListFilter) -> Rows:
    start = parse_place("")
    for _ in range(READS):
        found = list_jobs(page, queue, status, which, start)
        page.shards.require_all()  # a file that lacks jobs must not look complete: it breaks off
        yield found.rows
        if not found.following:
            return
        start = parse_place(found.following)


def _recorded(wanted: RecordQuery) -> Rows:
    for _ in range(READS):
        found = search(wanted)
        yield list(map(row_of_record, found.rows))
        if found.following is None:
            return
        wanted = replace(wanted, after=found.following)


def _bounded(pages: Rows) -> Iterator[list[dict[str, Any]]]:
    left = ROWS
    for rows in pages:
        yield [_fields(row) for row in rows[:left]]
        left -= len(rows)
        if left <= 0:
            return


def _fields(row: JobRow) -> dict[str, Any]:
    """What is known about a job; arguments are redacted as on pages."""
    job = row.job
    if job is None:
        return {**dict.fromkeys(COLUMNS), "id": row.id, "problem": row.problem}
    return {
        "id": job.id, "task": job.task, "queue": job.queue, "status": job.status.value,
        "priority": job.priority, "attempts": attempts_begun(job),
        "max_attempts": max_attempts_of(job), "tags": dict(job.tags), "args": list(job.args),
        "kwargs": dict(job.kwargs), "enqueued_at": _iso(job.enqueued_ms),
        "started_at": _iso(job.started_ms), "finished_at": _iso(job.finished_ms),
        "worker": job.child,
        "error_type": job.error.type if job.error else "",
        "error_message": job.error.message if job.error else "",
        "reason": job.reason, "problem": row.problem,
    }  # fmt: skip


def _iso(ms: int | None) -> str | None:
    at = from_ms(ms)
    return at.astimezone(UTC).isoformat() if at else None


def _as_csv(pages: Iterator[list[dict[str, Any]]]) -> Iterator[str]:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for fields in pages:
        writer.writerows([_cell(one[name]) for name in COLUMNS] for one in fields)
        yield out.getvalue()
        out.seek(0)
        out.truncate()


def _cell(value: Any) -> Any:
    """A cell that no spreadsheet reads as a formula."""
    text = dumps(value) if isinstance(value, dict | list) else value
    return FORMULA.sub(r"\1'", text) if isinstance(text, str) else text


def _as_json(pages: Iterator[list[dict[str, Any]]]) -> Iterator[str]:
    separator = "[\n"
    for fields in pages:
        if fields:
            yield separator + ",\n".join(json.dumps(one, ensure_ascii=False) for one in fields)
            separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"


WRITERS: dict[str, tuple[Callable[[Iterator[list[dict[str, Any]]]], Iterator[str]], str]] = {
    "csv": (_as_csv, "text/csv; charset=utf-8"),
    "json": (_as_json, "application/json"),
}
