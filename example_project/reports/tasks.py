"""The report's background jobs: three that each query a source, and one that joins the results. A
receiver records when a job has failed for good."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.dispatch import receiver

from django_redisqueue import Gather, listener, task
from django_redisqueue.models import JobEvent, JobRecord
from django_redisqueue.signals import job_failed

from .downloads import deliver, fail
from .join import join
from .models import FileDownloadRecord
from .queries import (
    AccountRow,
    FundRow,
    UserRow,
    query_accounts,
    query_funds,
    query_users,
)

TOPIC = "report.requested"


@listener(TOPIC, max_attempts=3)
def users(record_id: str) -> list[UserRow]:
    return query_users()  # larger than MAX_RESULT_BYTES, so it goes through Django's storage


@listener(TOPIC, max_attempts=3)
def funds(record_id: str) -> list[FundRow]:
    return query_funds()


@listener(TOPIC, max_attempts=3)
def accounts(record_id: str) -> list[AccountRow]:
    return query_accounts()


@task(takes_context=True, max_attempts=3)
def merge_report(context: Any, record_id: str) -> int:
    """Join the listeners' results, deliver the file, and return how many rows it has.

        It is not ``exactly_once``, because that would keep a transaction open while the file is
    written, on SQLite the only one that may write. The job may run twice, and ``deliver`` makes
    sure that one run counts.
    """
    found = context.gather.results
    lines = join(
        [UserRow(*row) for row in found["users"]],
        [FundRow(*row) for row in found["funds"]],
        [AccountRow(*row) for row in found["accounts"]],
    )
    return deliver(FileDownloadRecord.objects.get(pk=record_id), lines)


@task(takes_context=True)
def mark_failed(context: Any, record_id: str) -> None:
    """Record which listeners are missing, because the gather has failed."""
    fail(record_id, "Not all sources answered.", context.gather.missing)


@task(max_attempts=3)
def report_in_turn(record_id: str) -> int:
    """Create the same report in one job that queries one source after the other, for comparison."""
    record = FileDownloadRecord.objects.get(pk=record_id)
    return deliver(record, join(query_users(), query_funds(), query_accounts()))


@receiver(job_failed)
def record_failed_job(record: JobRecord, event: JobEvent, **kwargs: Any) -> None:
    """Record that a job failed by an error, a timeout or a crash. The mirror sends this signal
    once, in a transaction; ``fail`` leaves a ready report alone."""
    if record.task in (merge_report.name, report_in_turn.name):
        fail(record.kwargs["record_id"], f"Its job failed: {record.job_error}")


def request_report() -> FileDownloadRecord:
    """Request a report. With OUTBOX, its record and its gather commit together. Raises
    RedisQueueError.
    """
    with transaction.atomic():
        record = FileDownloadRecord.objects.create()
        Gather.start(
            record.key,
            topic=TOPIC,
            payload={"record_id": str(record.pk)},
            then=merge_report,
            on_failure=mark_failed,
        )
    return record
