"""The tables of the mirror: records and history of jobs and workflows, groups of errors, its state,
and rollups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import models
from django.db.models import Q

from ..core.codec import decode_payload, loads
from ..core.job_data import JobError, Progress, decode_error, decode_progress
from ..core.statuses import Status, WorkflowStatus, WorkflowTransition

STATUSES = [(status.value, status.value) for status in Status]
WORKFLOW_STATUSES = [(status.value, status.value) for status in WorkflowStatus]
STEPS = [(step.value, step.value) for step in WorkflowTransition]


class JobRecord(models.Model):
    """The latest state of one job. Only the mirror writes it.

    ``payload``, ``result``, ``error`` and ``progress`` are JSON text as in Redis: a JSON column
    would decode every row, and PostgreSQL's would refuse an escaped NUL. Redacted arguments are
    stored redacted.
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
    # NULL without an error, so that a partial index leaves such records out
    error_group = models.CharField(max_length=32, null=True, blank=True)  # noqa: DJ001
    reason = models.CharField(max_length=16, default="", blank=True)  # a JobReason
    progress = models.TextField(default="", blank=True)
    tags = models.TextField(default="", blank=True)  # a JSON object of texts, sorted by name
    # NULL without one, as with error groups
    correlation_id = models.CharField(max_length=128, null=True, blank=True)  # noqa: DJ001
    worker = models.CharField(max_length=128, default="", blank=True)  # the child's id
    attempts = models.PositiveIntegerField(default=0)  # the number of the last one
    requeues = models.PositiveIntegerField(default=0)
    enqueued_at = models.DateTimeField()
    queued_at = models.DateTimeField(null=True, blank=True)  # when it last entered its queue
    due_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    # A record only accepts a higher (epoch, seq). The epoch rises when Redis has lost data.
    epoch = models.PositiveIntegerField(default=0)
    seq = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name = "job record"
        indexes = [
            models.Index(fields=["enqueued_at"], name="drq_record_enqueued"),
            models.Index(fields=["status", "enqueued_at"], name="drq_record_status"),
            models.Index(fields=["queue", "status", "enqueued_at"], name="drq_record_queue"),
            models.Index(fields=["task", "enqueued_at"], name="drq_record_task"),
            models.Index(fields=["task", "status", "enqueued_at"], name="drq_record_task_status"),
            models.Index(
                fields=["error_group", "status", "enqueued_at"],
                name="drq_record_error",
                condition=Q(error_group__isnull=False),
            ),
            models.Index(
                fields=["correlation_id", "enqueued_at"],
                name="drq_record_correlation",
                condition=Q(correlation_id__isnull=False),
            ),
        ]
        permissions = [
            ("retry_job", "Can retry jobs"),
            ("cancel_job", "Can cancel jobs"),
            ("pause_queue", "Can pause and resume queues"),
            ("clear_queue", "Can clear lists and delete jobs"),
            ("enqueue_job", "Can enqueue jobs"),
            ("control_worker", "Can quiet, resume and stop workers"),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments. Raises ValueError if the payload cannot be read."""
        return tuple(decode_payload(self.payload)[0])

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """The keyword arguments. Raises ValueError if the payload cannot be read."""
        return decode_payload(self.payload)[1]

    @property
    def result_value(self) -> Any:
        """The task's return value, or None before it has completed. Raises ValueError if it cannot
        be read."""
        return loads(self.result) if self.result else None

    @property
    def job_error(self) -> JobError | None:
        """Why the last attempt failed, if one did."""
        return decode_error(self.error, self.reason) if self.error else None

    @property
    def job_progress(self) -> Progress | None:
        """The last progress report, if there was one."""
        return decode_progress(self.progress) if self.progress else None


class Dashboard(JobRecord):
    """The entry "Queues and jobs" in the admin's list of apps: it has no table and no permissions
    of its own, and its list is the dashboard."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = "queues and jobs"
        verbose_name_plural = "queues and jobs"


class JobEvent(models.Model):
    """One transition of one job; append-only. ``entry_ms`` and ``entry_no`` are its place in the
    stream, by which events are sorted and readers resume."""

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


class WorkflowRecord(models.Model):
    """The latest state of one workflow. Only the mirror writes it.

    The counts are those of its last event; Redis has the live ones (``get_workflow(id).data``). Its
    jobs are the JobRecords ``<id>.<number>``.
    """

    id = models.CharField(primary_key=True, max_length=64)
    name = models.CharField(max_length=200, default="", blank=True)
    status = models.CharField(max_length=10, choices=WORKFLOW_STATUSES)
    is_paused = models.BooleanField(default=False)
    reason = models.CharField(max_length=16, default="", blank=True)  # "lost": Redis lost it
    generation = models.PositiveIntegerField(default=0)  # how often a retry has resumed it
    total = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    made_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    cleaned_at = models.DateTimeField(null=True, blank=True)  # when Redis deleted it
    # A record only accepts a later event: the epoch, then the place in the stream.
    epoch = models.PositiveIntegerField(default=0)
    entry_ms = models.PositiveBigIntegerField(default=0)
    entry_no = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name = "workflow record"
        indexes = [
            models.Index(fields=["made_at"], name="drq_flow_made"),
            models.Index(fields=["status", "made_at"], name="drq_flow_status"),
            models.Index(fields=["name", "status", "made_at"], name="drq_flow_name"),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.id})" if self.name else self.id


class WorkflowEvent(models.Model):
    """One transition of one workflow with its counts at that time; append-only. ``entry_ms`` and
    ``entry_no`` are its place in the stream."""

    id = models.BigAutoField(primary_key=True)
    workflow_id = models.CharField(max_length=64)  # no foreign key: events outlive their record
    status = models.CharField(max_length=10, choices=STEPS)
    reason = models.CharField(max_length=16, default="", blank=True)  # "lost", "reconciled"
    generation = models.PositiveIntegerField(default=0)
    total = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    epoch = models.PositiveIntegerField(default=0)
    at = models.DateTimeField()
    entry_ms = models.PositiveBigIntegerField()
    entry_no = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name = "workflow event"
        indexes = [
            models.Index(fields=["workflow_id", "id"], name="drq_flowevent_flow"),
            models.Index(fields=["entry_ms", "entry_no"], name="drq_flowevent_entry"),
        ]

    def __str__(self) -> str:
        return f"{self.workflow_id} {self.status} {self.generation}"


class MirrorState(models.Model):
    """One row per shard. ``position`` is the place of the last mirrored event. It moves in the
    transaction that writes the rows, by compare-and-set, so that only one of two bridges wins."""

    shard = models.PositiveSmallIntegerField(primary_key=True)
    position = models.CharField(max_length=48, default="0-0")
    # The ids of the last JobEvent and WorkflowEvent whose signals were sent.
    signalled = models.PositiveBigIntegerField(default=0)
    flows_signalled = models.PositiveBigIntegerField(default=0)
    epoch = models.PositiveIntegerField(default=0)
    incarnation = models.CharField(max_length=64, default="", blank=True)  # of the Redis it mirrors
    gaps = models.PositiveIntegerField(default=0)
    gap_at = models.DateTimeField(null=True, blank=True)
    # Events without a row (unreadable, or refused by the database), and those whose row is
    # incomplete.
    left_out = models.PositiveBigIntegerField(default=0)
    incomplete = models.PositiveBigIntegerField(default=0)
    fault = models.TextField(default="", blank=True)  # the last one's place and problem
    fault_at = models.DateTimeField(null=True, blank=True)
    # Rows may differ from Redis (after a gap, or once another Redis is accepted): a reconcile is
    # due.
    unreconciled = models.BooleanField(default=False)
    problem = models.TextField(default="", blank=True)  # why the mirror has stopped, or ''
    updated_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "mirror state"

    def __str__(self) -> str:
        return f"shard {self.shard} at {self.position}"


class Rollup(models.Model):
    """The jobs of one task and queue in one minute (or more, once compacted). ``wait`` and ``run``
    are histograms as in ``metrics.histograms``."""

    id = models.BigAutoField(primary_key=True)
    minute = models.DateTimeField()
    queue = models.CharField(max_length=64)
    task = models.CharField(max_length=255)
    enqueued = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    retried = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    wait = models.TextField(default="", blank=True)  # from queued to processing
    run = models.TextField(default="", blank=True)  # from processing to the end

    class Meta:
        verbose_name = "rollup"
        constraints = [
            models.UniqueConstraint(fields=["minute", "queue", "task"], name="drq_rollup_unique")
        ]

    def __str__(self) -> str:
        return f"{self.minute:%F %H:%M} {self.queue} {self.task}"


class ErrorGroup(models.Model):
    """Failures and retried attempts of one task with the same exception, message and frame. Only
    the mirror writes it, except for ``silenced_*``.

    ``JobRecord.error_group`` is the group of a job's last error. If there are too many groups, each
    task has one more, without an exception.
    """

    id = models.CharField(primary_key=True, max_length=32)  # the fingerprint
    task = models.CharField(max_length=255)
    exception = models.CharField(max_length=200, default="", blank=True)
    message = models.CharField(max_length=300, default="", blank=True)  # normalized
    frame = models.CharField(max_length=300, default="", blank=True)
    queues = models.TextField(default="", blank=True)  # names, each between spaces
    count = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)  # of these; the others were retried
    first_seen = models.DateTimeField()
    last_seen = models.DateTimeField()
    job_id = models.CharField(max_length=80, default="", blank=True)  # of the last one
    silenced_at = models.DateTimeField(null=True, blank=True)
    silenced_by = models.CharField(max_length=255, default="", blank=True)
    hours = models.TextField(default="", blank=True)  # counts, as histograms.add_hours writes them
    error = models.TextField(default="", blank=True)  # the last one, as in JobRecord

    class Meta:
        verbose_name = "error group"
        indexes = [
            models.Index(fields=["last_seen"], name="drq_error_seen"),
            models.Index(fields=["count"], name="drq_error_count"),
        ]

    def __str__(self) -> str:
        return f"{self.task}: {self.exception or 'other errors'}"

    @property
    def retried(self) -> int:
        return self.count - self.failed

    @property
    def queue_names(self) -> list[str]:
        return self.queues.split()

    @property
    def last_error(self) -> JobError | None:
        """The last error with its traceback. Raises ValueError or TypeError."""
        return decode_error(self.error) if self.error else None
