"""What operations answer as JSON: jobs and workflows, with the schemas for the OpenAPI document.

An answer of several shards names those that are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django.http import JsonResponse

from ..broker.queries import UnreadableJob
from ..broker.shards import AllShards
from ..core.clock import from_ms
from ..core.job_data import JobData
from ..core.records import ENDED_COUNTS, JOB_COUNTS, WorkflowData
from ..core.statuses import Status, WorkflowStatus
from ..health.findings import FindingId, Level
from ..mirror.changes import LOST
from ..models import WorkflowRecord
from .errors import to_api_error

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
INSTANT: Schema = {"type": ["string", "null"], "format": "date-time"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
ANYTHING: Schema = {}
MISSING = "missing_shards"


@dataclass(frozen=True, slots=True)
class JobField:
    get: Callable[[JobData], Any]
    schema: Schema


def instant(found: datetime | None) -> str | None:
    """As ISO 8601, to the millisecond."""
    if found is None:
        return None
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant_ms(value_ms: int | None) -> str | None:
    """``instant`` of milliseconds since the epoch."""
    return instant(from_ms(value_ms))


def _error(job: JobData) -> dict[str, Any] | None:
    return None if job.error is None else asdict(job.error)


def _short_error(job: JobData) -> dict[str, Any] | None:
    error = _error(job)
    return None if error is None else {key: error[key] for key in ("type", "message", "reason")}


def an_object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def answer(shards: AllShards, document: Mapping[str, Any]) -> JsonResponse:
    """The document, which has the field ``missing_shards`` if it lacks what some shards have."""
    missing = [
        {"shard": shard, "error": to_api_error(error).code}
        for shard, error in sorted(shards.missing.items())
    ]
    return JsonResponse({**document, MISSING: missing} if missing else document)


def partial_object(**properties: Schema) -> Schema:
    """The schema of such an answer."""
    made = an_object(**properties)
    missing: Schema = {
        "type": "array",
        "items": an_object(shard=INTEGER, error=TEXT),
        "description": "Only if some shards did not answer: the rest is without what they have.",
    }
    return {**made, "properties": {**made["properties"], MISSING: missing}}


def _or_null(schema: Schema) -> Schema:
    return {"oneOf": [schema, {"type": "null"}]}


FIELDS: Mapping[str, JobField] = {
    "id": JobField(lambda job: job.id, TEXT),
    "task": JobField(lambda job: job.task, TEXT),
    "queue": JobField(lambda job: job.queue, TEXT),
    "status": JobField(lambda job: job.status.value, {"type": "string", "enum": list(Status)}),
    "args": JobField(lambda job: list(job.args), {"type": "array", "items": ANYTHING}),
    "kwargs": JobField(
        lambda job: dict(job.kwargs), {"type": "object", "additionalProperties": ANYTHING}
    ),
    "tags": JobField(lambda job: dict(job.tags), {"type": "object", "additionalProperties": TEXT}),
    "priority": JobField(lambda job: job.priority, INTEGER),
    "attempts": JobField(
        lambda job: job.attempts,
        {**INTEGER, "description": "Tries that were spent; of a poisoned job its starts."},
    ),
    "recoveries": JobField(
        lambda job: job.recoveries,
        {**INTEGER, "description": "Claims that were lost with a worker."},
    ),
    "requeues": JobField(lambda job: job.generation, INTEGER),
    "progress": JobField(
        lambda job: None if job.progress is None else asdict(job.progress),
        _or_null(an_object(done={"type": "number"}, total={"type": "number"}, note=TEXT)),
    ),
    "cancel_requested": JobField(lambda job: job.cancel_ms is not None, {"type": "boolean"}),
    "enqueued_at": JobField(lambda job: instant_ms(job.enqueued_ms), INSTANT),
    "due_at": JobField(
        lambda job: instant_ms(job.due_ms),
        {**INSTANT, "description": "When a scheduled or retrying job runs."},
    ),
    "waits_for": JobField(
        lambda job: job.waits_for,
        {
            "type": ["string", "null"],
            "description": "The event of a parked job; empty if it sleeps, null if not parked.",
        },
    ),
    "parked_at": JobField(
        lambda job: None if job.waits_for is None else instant_ms(job.parked_ms), INSTANT
    ),
    "started_at": JobField(lambda job: instant_ms(job.started_ms), INSTANT),
    "finished_at": JobField(lambda job: instant_ms(job.finished_ms), INSTANT),
    "error": JobField(
        _error, _or_null(an_object(type=TEXT, message=TEXT, traceback=TEXT, reason=TEXT))
    ),
    "result": JobField(lambda job: job.result, ANYTHING),
}
# Pages leave out what may be large: results and tracebacks.
PAGE_FIELDS: Mapping[str, JobField] = {
    **{name: field for name, field in FIELDS.items() if name != "result"},
    "error": JobField(_short_error, _or_null(an_object(type=TEXT, message=TEXT, reason=TEXT))),
}


def job_json(
    job: JobData | UnreadableJob, fields: Mapping[str, JobField] = FIELDS
) -> dict[str, Any]:
    """The job, or an object that says why it cannot be read."""
    if isinstance(job, UnreadableJob):
        return {"id": job.id, "problem": job.problem}
    return {name: field.get(job) for name, field in fields.items()}


def job_schemas() -> dict[str, Schema]:
    return {
        "Job": an_object(**{name: field.schema for name, field in FIELDS.items()}),
        "JobInPage": an_object(**{name: field.schema for name, field in PAGE_FIELDS.items()}),
        "JobInDetail": an_object(
            **{name: field.schema for name, field in FIELDS.items()},
            why_not_running={
                "type": ["string", "null"],
                "description": "A sentence; null for a job that runs or has ended.",
            },
        ),
        "UnreadableJob": an_object(
            id=TEXT, problem={**TEXT, "description": "Why this job cannot be shown."}
        ),
    }


def health_schema() -> Schema:
    finding = an_object(
        id={**TEXT, "enum": list(FindingId)},
        level={**TEXT, "enum": list(Level)},
        message=TEXT,
        remedy=TEXT,
        queue={"type": ["string", "null"], "description": "Null if it concerns no single queue."},
    )
    return an_object(
        status={
            "type": "string",
            "enum": ["ok", Level.WARNING, Level.ERROR],
            "description": "The worst level of the findings, without those of the level info.",
        },
        findings={"type": "array", "items": finding},
    )


INTEGER_OR_NULL: Schema = {
    "type": ["integer", "null"],
    "description": "Null when only the mirror knows the workflow.",
}


def workflow_schema() -> Schema:
    return an_object(
        id=TEXT,
        name=TEXT,
        status={"type": "string", "enum": list(WorkflowStatus)},
        paused={"type": "boolean"},
        lost={"type": "boolean", "description": "Redis lost it before it had ended."},
        generation={**INTEGER, "description": "How often a retry has taken it up again."},
        total=INTEGER,
        counts=an_object(
            **{name: INTEGER if name in ENDED_COUNTS else INTEGER_OR_NULL for name in JOB_COUNTS}
        ),
        made_at=INSTANT,
        ended_at=INSTANT,
        cleaned_at={**INSTANT, "description": "When Redis let it go."},
    )


def workflow_json(workflow: WorkflowData | WorkflowRecord) -> dict[str, Any]:
    """A workflow from Redis, or from its record when only the mirror has it."""
    if isinstance(workflow, WorkflowData):
        counts = {name: getattr(workflow, name) for name in JOB_COUNTS}
        instants = [from_ms(workflow.made_ms), from_ms(workflow.ended_ms), None]
        is_lost = False
    else:
        counts = {name: getattr(workflow, name, None) for name in JOB_COUNTS}
        instants = [workflow.made_at, workflow.ended_at, workflow.cleaned_at]
        is_lost = workflow.reason == LOST
    made, ended, cleaned = map(instant, instants)
    return {
        "id": workflow.id, "name": workflow.name, "status": str(workflow.status),
        "paused": workflow.is_paused, "lost": is_lost, "generation": workflow.generation,
        "total": workflow.total, "counts": counts, "made_at": made, "ended_at": ended,
        "cleaned_at": cleaned,
    }  # fmt: skip
