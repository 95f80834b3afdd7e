"""A job as a row of a table, whether it comes from Redis or from the mirror."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ..clock import from_ms
from ..jobdata import Bodies, JobData, read_bodies
from ..models import JobRecord
from ..states import Status
from ..store.reads import Broken
from ..texts import printable
from .filters import instant_of
from .words import call, duration, shorten, shown, unreadable_as


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


def bodies_of(record: JobRecord, *names: str) -> Bodies:
    """What can be read of these texts of a record; an empty one is not there."""
    texts = {name: getattr(record, name) for name in (*names, "reason")}
    return read_bodies({name: text for name, text in texts.items() if text})


def problem_of(bodies: Bodies) -> str:
    return f"its record cannot be read: {bodies.problem}" if bodies.unreadable else ""


def row_of(job: JobData | Broken) -> Row:
    """From Redis."""
    if isinstance(job, Broken):
        row = Row(id=printable(job.id)) if job.known is None else _row(job.known)
        return replace(row, problem=job.problem)
    return _row(job)


def _row(job: JobData) -> Row:
    ran = job.finished_ms - job.started_ms if job.finished_ms and job.started_ms else None
    return Row(
        id=job.id,
        task=job.task,
        queue=job.queue,
        status=job.status.value,
        arguments=_arguments(job.args, job.kwargs, job.unreadable),
        detail=shorten(_detail(job)),
        at=from_ms(instant_of(job)),
        lasted=duration(ran) if ran is not None else "",
        attempts=job.attempts,
    )


def _arguments(
    args: Sequence[Any], kwargs: Mapping[str, Any], unreadable: Mapping[str, str]
) -> str:
    return shorten(unreadable_as(unreadable, "payload") or call(args, kwargs))


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
    bodies = bodies_of(record, "payload", "error")
    args, kwargs = bodies.fields.get("args", ()), bodies.fields.get("kwargs", {})
    error = bodies.fields["error"]
    return Row(
        id=record.id,
        task=record.task,
        queue=record.queue,
        status=record.status,
        arguments=_arguments(args, kwargs, bodies.unreadable),
        detail=shorten(str(error) if error else record.reason),
        at=record.enqueued_at,
        lasted=duration(ran) if ran is not None else "",
        attempts=record.attempts,
        problem=problem_of(bodies),
    )
