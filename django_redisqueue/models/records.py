"""What the mirror keeps of every job: its latest state, and its history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import models

from ..codec import decode_payload, loads
from ..jobdata import JobError, Progress, decode_error, decode_progress
from ..states import Status

STATUSES = [(status.value, status.value) for status in Status]


class JobRecord(models.Model):
    """The latest state of one job, as the mirror last saw it. Written by the mirror alone.

    ``payload``, ``result``, ``error`` and ``progress`` are JSON text just as Redis holds it: a JSON
    column would cost a decoding a row, and PostgreSQL's refuses an escaped NUL. Arguments of tasks
    that redact them are stored redacted.
    """

    id = models.CharField(primary_key=True, max_length=80)
    task = models.CharField(max_length=255)
    queue = models.CharField(max_length=64)
    status = models.CharField(max_length=10, choices=STATUSES)
    priority = models.SmallIntegerField(default=0)
    payload = models.TextField(default="", blank=True)
    result = models.TextField(default="", blank=True)
    error = models.TextField(default="", blank=True)
    error_type = models.CharField(max_length=200, default="", blank=True)
    reason = models.CharField(max_length=16, default="", blank=True)  # a JobReason
    progress = models.TextField(default="", blank=True)
    tags = models.TextField(default="", blank=True)  # a JSON object of texts, names in order
    worker = models.CharField(max_length=128, default="", blank=True)  # the child's id
    attempts = models.PositiveIntegerField(default=0)  # the number of the last one
    requeues = models.PositiveIntegerField(default=0)
    enqueued_at = models.DateTimeField()
    queued_at = models.DateTimeField(null=True, blank=True)  # when it last came into its queue
    due_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    # The order of what is known of a job: a newer pair wins. The epoch rises when Redis lost data.
    epoch = models.PositiveIntegerField(default=0)
    seq = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name = "job record"
        indexes = [
            models.Index(fields=["enqueued_at"], name="drq_record_enqueued"),
            models.Index(fields=["status", "enqueued_at"], name="drq_record_status"),
            models.Index(fields=["queue", "status", "enqueued_at"], name="drq_record_queue"),
            models.Index(fields=["task", "enqueued_at"], name="drq_record_task"),
        ]
        permissions = [
            ("retry_job", "Can retry jobs"),
            ("cancel_job", "Can cancel jobs"),
            ("pause_queue", "Can pause and resume queues"),
            ("clear_queue", "Can clear lists and delete jobs"),
            ("enqueue_job", "Can enqueue jobs"),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments. Raises ValueError when the payload cannot be read."""
        return tuple(decode_payload(self.payload)[0])

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """The keyword arguments. Raises ValueError when the payload cannot be read."""
        return decode_payload(self.payload)[1]

    @property
    def result_value(self) -> Any:
        """What the task returned; None unless it has completed. Raises ValueError when it cannot
        be read."""
        return loads(self.result) if self.result else None

    @property
    def job_error(self) -> JobError | None:
        """Why the last attempt failed, if one did."""
        return decode_error(self.error, self.reason) if self.error else None

    @property
    def job_progress(self) -> Progress | None:
        """How far the job is or was."""
        return decode_progress(self.progress) if self.progress else None


class JobEvent(models.Model):
    """One transition of one job, append-only. ``entry_ms`` and ``entry_no`` are its place in
    the stream: events sort by them, and a reader resumes behind them."""

    id = models.BigAutoField(primary_key=True)
    job_id = models.CharField(max_length=80)  # no foreign key: events outlive a deleted record
    status = models.CharField(max_length=10)
    queue = models.CharField(max_length=64)
    task = models.CharField(max_length=255)
    worker = models.CharField(max_length=128, default="", blank=True)
    attempt = models.PositiveIntegerField(default=0)
    epoch = models.PositiveIntegerField(default=0)
    seq = models.PositiveBigIntegerField(default=0)
    at = models.DateTimeField()
    detail = models.TextField(default="", blank=True)  # JSON: error, reason, dueMs, progress
    entry_ms = models.PositiveBigIntegerField()
    entry_no = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name = "job event"
        indexes = [
            models.Index(fields=["job_id", "id"], name="drq_event_job"),
            models.Index(fields=["entry_ms", "entry_no"], name="drq_event_entry"),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} {self.status} {self.seq}"
