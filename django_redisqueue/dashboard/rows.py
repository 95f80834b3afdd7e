"""A job as a row of a table, whether it comes from Redis or from the mirror."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..clock import from_ms
from ..jobdata import JobData
from ..models import JobRecord
from ..states import Status
from ..store.reads import Broken
from .filters import instant_of
from .words import call, duration, shorten, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``problem`` says why the rest is not known; ``detail`` is what matters in this status."""

    id: str
    task: str = ""
    queue: str = ""
    status: str = ""
    arguments: str = ""
    detail: str = ""
    at: datetime | None = None
    lasted: str = ""
    attempts: int = 0
    problem: str = ""


def row_of(job: JobData | Broken) -> Row:
    """From Redis."""
    if isinstance(job, Broken):
        return Row(id=job.id, problem=job.problem)
    ran = job.finished_ms - job.started_ms if job.finished_ms and job.started_ms else None
    return Row(
        id=job.id,
        task=job.task,
        queue=job.queue,
        status=job.status.value,
        arguments=shorten(call(job.args, job.kwargs)),
        detail=shorten(_detail(job)),
        at=from_ms(instant_of(job)),
        lasted=duration(ran) if ran is not None else "",
        attempts=job.attempts,
    )


def _detail(job: JobData) -> str:
    if job.status is Status.PROCESSING and job.progress:
        return f"{job.progress.done:g} of {job.progress.total:g} {job.progress.note}"
    if job.status in (Status.SCHEDULED, Status.RETRYING) and job.due_ms:
        due = f"due {shown(from_ms(job.due_ms))}"
        return f"{due}, {job.error}" if job.error else due
    return str(job.error) if job.error else ""


def row_of_record(record: JobRecord) -> Row:
    """From the mirror."""
    ran = None
    if record.finished_at and record.started_at:
        ran = (record.finished_at - record.started_at).total_seconds() * 1000
    try:
        arguments = call(record.args, record.kwargs) if record.payload else ""
        error = record.job_error
        problem = ""
    except (ValueError, TypeError) as unreadable:
        arguments, error, problem = "", None, f"its record can not be read: {unreadable}"
    return Row(
        id=record.id,
        task=record.task,
        queue=record.queue,
        status=record.status,
        arguments=shorten(arguments),
        detail=shorten(str(error) if error else record.reason),
        at=record.enqueued_at,
        lasted=duration(ran) if ran is not None else "",
        attempts=record.attempts,
        problem=problem,
    )
