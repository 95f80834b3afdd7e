"""What the mirror remembers of jobs and workflows that Redis has let go."""

from __future__ import annotations

from datetime import datetime

from django.db import router
from django.db.models import QuerySet, Value
from django.db.models.functions import StrIndex

from ..clock import ms_of
from ..codec import dumps
from ..conf import get_settings
from ..exceptions import CorruptJob
from ..jobdata import JobData, decode_job, decode_tags
from ..lookup import JobQuery
from ..models import JobRecord, WorkflowRecord
from ..models.presence import is_present
from ..states import Status
from ..tags import OPTION, flat

PAGES = 10  # of a lookup, should the database have found more than was meant


def find(job_id: str) -> JobData | None:
    """The job as its record has it; None without a mirror, or without a record.

    Raises CorruptJob when the record cannot be read.
    """
    alias = router.db_for_read(JobRecord)
    if not get_settings().mirror or not is_present(JobRecord, alias):
        return None
    record = JobRecord.objects.using(alias).filter(pk=job_id).first()
    return None if record is None else _as_data(record)


def find_flow(flow_id: str) -> WorkflowRecord | None:
    """The workflow's record; None without a mirror, or without one."""
    alias = router.db_for_read(WorkflowRecord)
    if not get_settings().mirror or not is_present(WorkflowRecord, alias):
        return None
    return WorkflowRecord.objects.using(alias).filter(pk=flow_id).first()


def matching(query: JobQuery) -> list[JobData] | None:
    """The newest jobs whose records match; None without a mirror.

    Tags and workflows have no index in the database: a query by them alone reads records, newest
    first, until it has found enough.
    """
    alias = router.db_for_read(JobRecord)
    if not get_settings().mirror or not is_present(JobRecord, alias):
        return None
    records, found = _records(query, alias), list[JobData]()
    for start in range(0, PAGES * query.limit, query.limit):
        page = list(records[start : start + query.limit])
        jobs = map(_readable, page)
        # Some databases take "A" for "a"; a record that cannot be read matches nothing.
        found += [job for job in jobs if job is not None and query.matches(job)]
        if len(page) < query.limit or len(found) >= query.limit:
            break
    return found[: query.limit]


def _records(query: JobQuery, alias: str) -> QuerySet[JobRecord]:
    records = JobRecord.objects.using(alias)
    if query.task:
        records = records.filter(task=query.task)
    if query.queue:
        records = records.filter(queue=query.queue)
    if query.statuses:
        records = records.filter(status__in=sorted(query.statuses))
    if query.workflow:
        records = records.filter(pk__startswith=f"{query.workflow}.")
    for at, (name, text) in enumerate(query.tags.items()):
        pair = Value(dumps({name: text})[1:-1])  # as it stands in the record's JSON
        records = records.alias(**{f"at{at}": StrIndex("tags", pair)}).filter(**{f"at{at}__gt": 0})
    return records.order_by("-enqueued_at", "-pk")


def _readable(record: JobRecord) -> JobData | None:
    try:
        return _as_data(record)
    except CorruptJob:
        return None  # its own page says what is wrong with it


def _as_data(record: JobRecord) -> JobData:
    # A record counts the attempt that succeeded, too; a job those that were spent.
    spent = record.attempts - (record.status == Status.COMPLETED)
    raw = {
        "task": record.task,
        "queue": record.queue,
        "status": record.status,
        "payload": record.payload or "[[],{}]",
        "result": record.result,
        "error": record.error,
        "reason": record.reason,
        "progress": record.progress,
        "child": record.worker,
        "priority": str(record.priority),
        "attempts": str(max(0, spent)),
        "generation": str(record.requeues),
        "seq": str(record.seq),
        "enqueued_ms": _ms(record.enqueued_at),
        "due_ms": _ms(record.due_at),
        "started_ms": _ms(record.started_at),
        "finished_ms": _ms(record.finished_at),
    }
    if record.tags:
        try:
            raw["options"] = dumps({OPTION: flat(decode_tags(record.tags))})
        except ValueError as error:
            raise CorruptJob(f"the tags of job {record.id} cannot be read: {error}") from None
    return decode_job(record.id, {name: text for name, text in raw.items() if text})


def _ms(moment: datetime | None) -> str:
    return "" if moment is None else str(ms_of(moment))
