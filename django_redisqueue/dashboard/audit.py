"""Who did what, in the admin's own log."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model

from ..models import JobRecord, WorkflowRecord
from .pages import Page


def log_jobs(page: Page, job_ids: Sequence[str], what: str) -> None:
    """An entry for each of these jobs; the job's history shows it."""
    LogEntry.objects.bulk_create(_entry(page, job_id, job_id, what) for job_id in job_ids)


def log_queue(page: Page, queue: str, what: str) -> None:
    """An entry for a whole queue, or all jobs of a list."""
    _entry(page, None, f"queue {queue}", what).save()


def log_workflow(page: Page, flow_id: str, what: str) -> None:
    """An entry for a whole workflow; its history shows it."""
    _entry(page, flow_id, f"workflow {flow_id}", what, WorkflowRecord).save()


def _entry(
    page: Page, object_id: str | None, shown: str, what: str, model: type[Model] = JobRecord
) -> LogEntry:
    return LogEntry(
        user_id=page.user_id,
        content_type=ContentType.objects.get_for_model(model),
        object_id=object_id,
        object_repr=shown[:200],
        action_flag=CHANGE,
        change_message=what,
    )
