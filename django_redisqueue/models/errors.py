"""Errors of jobs, grouped by what they have in common."""

from __future__ import annotations

from django.db import models

from ..core.job_data import JobError, decode_error


class ErrorGroup(models.Model):
    """Failures and retried attempts of one task with the same exception, message and frame. Only
    the mirror writes it, except for ``silenced_*``.

    ``JobRecord.error_group`` is the group of a job's last error. Of errors beyond a bound there is
    one group a task, without an exception.
    """

    id = models.CharField(primary_key=True, max_length=32)  # the fingerprint
    task = models.CharField(max_length=255)
    exception = models.CharField(max_length=200, default="", blank=True)
    message = models.CharField(max_length=300, default="", blank=True)  # normalized
    frame = models.CharField(max_length=300, default="", blank=True)
    queues = models.TextField(default="", blank=True)  # names, each between blanks
    count = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)  # of them; the others were retried
    first_seen = models.DateTimeField()
    last_seen = models.DateTimeField()
    job_id = models.CharField(max_length=80, default="", blank=True)  # of the last one
    silenced_at = models.DateTimeField(null=True, blank=True)
    silenced_by = models.CharField(max_length=255, default="", blank=True)
    hours = models.TextField(default="", blank=True)  # counts, as in metrics.hours
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
