"""What the mirror keeps of every workflow: its latest state, and its history."""

from __future__ import annotations

from django.db import models

from ..states import WorkflowStatus, WorkflowStep

STATUSES = [(status.value, status.value) for status in WorkflowStatus]
STEPS = [(step.value, step.value) for step in WorkflowStep]


class WorkflowRecord(models.Model):
    """The latest state of one workflow, as the mirror last saw it. Written by the mirror alone.

    The counts are those of its last event: of its end, and for good those of its clean-up. Live
    ones are in Redis (``get_workflow(id).data``). Its jobs are the JobRecords ``<id>.<number>``.
    """

    id = models.CharField(primary_key=True, max_length=64)
    name = models.CharField(max_length=200, default="", blank=True)
    status = models.CharField(max_length=10, choices=STATUSES)
    is_paused = models.BooleanField(default=False)
    reason = models.CharField(max_length=16, default="", blank=True)  # "lost": Redis lost it
    generation = models.PositiveIntegerField(default=0)  # how often a retry has taken it up again
    total = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    made_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    cleaned_at = models.DateTimeField(null=True, blank=True)  # when Redis let it go
    # The order of what is known of it: the epoch, then the place in the stream of what told it.
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
    """One transition of one workflow with its counts by then, append-only. ``entry_ms`` and
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
