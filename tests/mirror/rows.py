"""Rows of the mirror, created by hand."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from django_redisqueue.models import JobEvent, JobRecord, MirrorState

T0 = datetime(2024, 1, 1, tzinfo=UTC)


def record(job_id: str, status: str = "queued", **fields: Any) -> JobRecord:
    """One saved record."""
    fields = {"task": "app.task", "queue": "default", "enqueued_at": T0, **fields}
    return JobRecord.objects.create(id=job_id, status=status, **fields)


def event(job_id: str, status: str = "queued", **fields: Any) -> JobEvent:
    """One saved event, and its record unless that exists."""
    if not JobRecord.objects.filter(pk=job_id).exists():
        record(job_id, status)
    detail = fields.pop("detail", None)
    fields = {"task": "app.task", "queue": "default", "at": T0, "entry_ms": 1, **fields}
    return JobEvent.objects.create(
        job_id=job_id, status=status, detail=json.dumps(detail) if detail else "", **fields
    )


def state(**fields: Any) -> MirrorState:
    """Set some fields of the shard's state."""
    return MirrorState.objects.update_or_create(shard=0, defaults=fields)[0]
