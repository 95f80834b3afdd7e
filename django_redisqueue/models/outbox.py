"""Rows that commit together with the application's own work."""

from __future__ import annotations

from django.db import models


class OutboxJob(models.Model):
    """A job or workflow on its way to Redis, stored in the transaction that enqueued it (the
    transactional outbox pattern): see ``outbox.rows``."""

    id = models.CharField(primary_key=True, max_length=80)
    queue = models.CharField(max_length=64)
    task = models.CharField(max_length=255)
    payload = models.TextField()
    options = models.TextField(default="", blank=True)
    priority = models.SmallIntegerField(default=0)
    due_ms = models.BigIntegerField(null=True, blank=True)  # a time, never a delay
    audit = models.CharField(max_length=8, default="", blank=True)
    after = models.TextField(default="", blank=True)  # parents, as in NewJob
    # Columns that version 0.1.0 does not have get a default in the database, because its processes
    # still insert rows after ``migrate`` has run.
    unique = models.TextField(default="", db_default="", blank=True)  # as in NewJob
    lane = models.TextField(default="", db_default="", blank=True)  # as in NewJob
    created_at = models.DateTimeField(auto_now_add=True)
    # If several transactions were open, each of these aliases gets a row. The job is sent once all
    # of them have one, because then all have committed.
    aliases = models.CharField(max_length=255, default="", blank=True)
    relayed_at = models.DateTimeField(null=True, blank=True)  # when the relay saw it in Redis
    resent = models.BooleanField(default=False, db_default=False)  # the relay sends or has sent it
    problem = models.TextField(default="", blank=True)  # why Redis refuses it permanently, or ''

    class Meta:
        verbose_name = "outbox job"
        verbose_name_plural = "outbox"
        indexes = [models.Index(fields=["relayed_at", "created_at"], name="drq_outbox_relayed")]

    def __str__(self) -> str:
        return self.id


class Receipt(models.Model):
    """Proof that a job of an ``exactly_once`` task has done its work. It commits with that work; a
    job that is delivered again returns its result."""

    job_id = models.CharField(primary_key=True, max_length=80)
    result = models.TextField(default="", blank=True)  # JSON
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        verbose_name = "receipt"

    def __str__(self) -> str:
        return self.job_id


class StepReceipt(models.Model):
    """Proof that a step of a job has done its database work, or the cursor up to which it has done
    it. It commits with that work."""

    id = models.BigAutoField(primary_key=True)
    job_id = models.CharField(max_length=80)
    name = models.CharField(max_length=110)  # "<kind>:<name>"
    body = models.TextField(default="", blank=True)  # the result, or the cursor, as JSON
    version = models.BigIntegerField(default=1)  # of a cursor
    updated_at = models.DateTimeField(auto_now=True, db_index=True)

    class Meta:
        verbose_name = "receipt of a step"
        verbose_name_plural = "receipts of steps"
        constraints = [models.UniqueConstraint(fields=["job_id", "name"], name="drq_step_of_a_job")]

    def __str__(self) -> str:
        return f"{self.job_id} {self.name}"
