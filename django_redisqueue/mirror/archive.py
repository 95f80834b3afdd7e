"""Reads jobs and workflows from their records, after Redis has deleted them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

from django.db import router
from django.db.models import Model, QuerySet, Value
from django.db.models.functions import StrIndex

from ..conf import get_settings
from ..core.clock import ms_of
from ..core.codec import dumps
from ..core.instruments import CORRELATION
from ..core.instruments import OPTION as HEADERS
from ..core.job_data import JobData, JobQuery, decode_job, decode_tags
from ..core.statuses import Status
from ..core.tags import OPTION, flatten_tags
from ..core.text import sanitize
from ..exceptions import CorruptJob
from ..models import JobRecord, WorkflowRecord
from ..models.tables import at_newest_times, has_table, with_prefix

PAGES = 10  # at most per lookup, if the database finds more than what matches

Record = TypeVar("Record", bound=Model)


def find(job_id: str) -> JobData | None:
    """The job in its record, or None without a record or a mirror. Raises CorruptJob if the record
    cannot be read."""
    records = _records(JobRecord)
    record = None if records is None else records.filter(pk=job_id).first()
    return None if record is None else decode_record(record)


def find_workflow(workflow_id: str) -> WorkflowRecord | None:
    """The workflow's record, or None without one or without a mirror."""
    records = _records(WorkflowRecord)
    return None if records is None else records.filter(pk=workflow_id).first()


def matching(query: JobQuery) -> list[JobData] | None:
    """The newest jobs whose records match, or None without a mirror.

    Tags have no index in the database. A query by these alone reads records, newest first, until it
    has found enough.
    """
    records = _records(JobRecord)
    if records is None:
        return None
    records, found = _filtered(records, query), list[JobData]()
    parts = [records.filter(status=status) for status in sorted(query.statuses)] or [records]
    has_index = not (query.tags or query.workflow)
    for start in range(0, PAGES * query.limit, query.limit):
        page = _page(parts, start, start + query.limit, has_index)
        jobs = map(_readable, page)
        # Some databases ignore case; a corrupt record matches nothing.
        found += [job for job in jobs if job is not None and query.matches(job)]
        if len(page) < query.limit or len(found) >= query.limit:
            break
    return found[: query.limit]


def _records(model: type[Record]) -> QuerySet[Record] | None:
    # A replica, which routers do not migrate, has the tables of its primary.
    if not get_settings().mirror or not has_table(model, router.db_for_write(model)):
        return None
    return model._default_manager.using(router.db_for_read(model))


def _filtered(records: QuerySet[JobRecord], query: JobQuery) -> QuerySet[JobRecord]:
    if query.task:
        records = records.filter(task=query.task)
    if query.queue:
        records = records.filter(queue=query.queue)
    if query.workflow:
        records = with_prefix(records, f"{query.workflow}.")
    for at, (name, text) in enumerate(query.tags.items()):
        pair = Value(dumps({name: text})[1:-1])  # as in the record's JSON
        records = records.alias(**{f"at{at}": StrIndex("tags", pair)}).filter(**{f"at{at}__gt": 0})
    return records.order_by("-enqueued_at", "-pk")


def _page(
    parts: Sequence[QuerySet[JobRecord]], start: int, stop: int, has_index: bool
) -> list[JobRecord]:
    """Some of the newest records of all parts: an index has those of one status in this order, but
    for several at once a database may read all records."""
    rows = list[JobRecord]()
    for part in parts:
        rows += (at_newest_times(part, part, stop) if has_index else part)[:stop]
    return sorted(rows, key=attrgetter("enqueued_at", "pk"), reverse=True)[start:stop]


def _readable(record: JobRecord) -> JobData | None:
    try:
        return decode_record(record)
    except CorruptJob:
        return None  # the job's own page explains the problem


def decode_record(record: JobRecord) -> JobData:
    """The job in its record, without the columns that were not loaded. Raises CorruptJob; its
    ``known`` is the job without the fields that cannot be read."""
    loaded = vars(record)
    texts = {
        field: str(loaded[column])
        for field, column in _COLUMNS.items()
        if loaded.get(column) not in (None, "")
    }
    instants = {
        f"{name}_ms": str(ms_of(loaded[f"{name}_at"]))
        for name in ("enqueued", "due", "started", "finished")
        if loaded.get(f"{name}_at") is not None
    }
    # A record also counts the attempt that is running or has succeeded; a job only spent ones.
    unspent = record.status in (Status.PROCESSING, Status.COMPLETED)
    attempts = {"attempts": str(max(0, loaded.get("attempts", 0) - unspent))}
    # Records have no lease; without one, a hash's status implies how many events there were.
    raw = {"payload": "[[],{}]", "lease": "0", **texts, **instants, **attempts}
    options, problem = _options_of(loaded)
    if options:
        raw["options"] = dumps(options)
    job = decode_job(record.id, raw, "record")
    if problem:
        known = replace(job, unreadable={"tags": problem})
        raise CorruptJob(f"the record of job {record.id} cannot be read: tags: {problem}", known)
    return job


def _options_of(loaded: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The job's options as far as its record has them, and why its tags cannot be read, or ''."""
    options: dict[str, Any] = {}
    if correlation := loaded.get("correlation_id"):
        options[HEADERS] = {CORRELATION: correlation}
    if tags := loaded.get("tags"):
        try:
            options[OPTION] = flatten_tags(decode_tags(tags))
        except ValueError as error:
            return options, sanitize(error)
    return options, ""


_COLUMNS = {  # by the fields of a job's hash
    "task": "task", "queue": "queue", "status": "status", "payload": "payload", "result": "result",
    "error": "error", "reason": "reason", "progress": "progress", "child": "worker",
    "priority": "priority", "generation": "requeues", "seq": "seq",
}  # fmt: skip
