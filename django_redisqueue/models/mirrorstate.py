"""How far the mirror has come, and the sums that feed the charts."""

from __future__ import annotations

from django.db import models


class MirrorState(models.Model):
    """One row a shard. ``position`` is the place of the last event whose rows are committed; it
    moves in the transaction that writes them, by compare-and-set, so that two bridges cannot both
    win."""

    shard = models.PositiveSmallIntegerField(primary_key=True)
    position = models.CharField(max_length=48, default="0-0")
    # The ids of the JobEvent and of the WorkflowEvent that signals were sent up to.
    signalled = models.PositiveBigIntegerField(default=0)
    flows_signalled = models.PositiveBigIntegerField(default=0)
    epoch = models.PositiveIntegerField(default=0)
    incarnation = models.CharField(max_length=64, default="", blank=True)  # of the Redis it mirrors
    gaps = models.PositiveIntegerField(default=0)
    gap_at = models.DateTimeField(null=True, blank=True)
    # Events without a row (unreadable, or refused by the database), and those with a row that lacks
    # something.
    left_out = models.PositiveBigIntegerField(default=0)
    incomplete = models.PositiveBigIntegerField(default=0)
    fault = models.TextField(default="", blank=True)  # the last of both: its place, what is wrong
    fault_at = models.DateTimeField(null=True, blank=True)
    # Rows may differ from Redis (a gap, another Redis accepted): a walk over both is due.
    unreconciled = models.BooleanField(default=False)
    problem = models.TextField(default="", blank=True)  # why it stands still, or ''
    updated_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "mirror state"

    def __str__(self) -> str:
        return f"shard {self.shard} at {self.position}"


class Rollup(models.Model):
    """What one minute brought to one queue for one task. The histograms are JSON lists of counts by
    duration; ``metrics`` has their bounds."""

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
    run = models.TextField(default="", blank=True)  # from processing to its end

    class Meta:
        verbose_name = "rollup"
        constraints = [
            models.UniqueConstraint(fields=["minute", "queue", "task"], name="drq_rollup_unique")
        ]

    def __str__(self) -> str:
        return f"{self.minute:%F %H:%M} {self.queue} {self.task}"
