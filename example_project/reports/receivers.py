"""What follows when a report's job has failed for good: by an error, a timeout or a crash."""

from __future__ import annotations

from typing import Any

from django.dispatch import receiver

from django_redisqueue.models import JobEvent, JobRecord
from django_redisqueue.signals import job_failed

from .downloads import fail
from .tasks import merge_report, report_in_turn


@receiver(job_failed)
def tell_of_a_failed_job(record: JobRecord, event: JobEvent, **kwargs: Any) -> None:
    """The mirror sends this once, in a transaction. ``fail`` leaves a ready report alone."""
    if record.task in (merge_report.name, report_in_turn.name):
        fail(record.kwargs["record_id"], f"Its job has failed: {record.job_error}")
