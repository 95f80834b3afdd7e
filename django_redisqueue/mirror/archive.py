"""What the mirror remembers of jobs and workflows that Redis has let go."""

from __future__ import annotations

from datetime import datetime

from django.db import router

from ..conf import get_settings
from ..jobdata import JobData, decode_job
from ..models import JobRecord, WorkflowRecord
from ..models.presence import is_present
from ..states import Status


def find(job_id: str) -> JobData | None:
    """The job as its record has it; None without a mirror, or without a record.

    Raises CorruptJob when the record can not be read.
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
    return decode_job(record.id, {name: text for name, text in raw.items() if text})


def _ms(moment: datetime | None) -> str:
    return "" if moment is None else str(round(moment.timestamp() * 1000))
