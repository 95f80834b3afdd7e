"""The report's background jobs."""

from __future__ import annotations

from django.db import transaction

from django_redisqueue import task

from .downloads import deliver
from .join import join
from .models import FileDownloadRecord
from .queries import query_accounts, query_funds, query_users


@task(max_attempts=3)
def report_in_turn(record_id: str) -> int:
    """The report by one job, which asks one source after the other; how many rows it has."""
    record = FileDownloadRecord.objects.get(pk=record_id)
    return deliver(record, join(query_users(), query_funds(), query_accounts()))


def request_report() -> FileDownloadRecord:
    """Ask for a report: its record and its jobs are there together, or neither.

    Raises RedisQueueError.
    """
    with transaction.atomic():
        record = FileDownloadRecord.objects.create()
        report_in_turn.enqueue(str(record.pk))
    return record
