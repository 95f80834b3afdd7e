"""What the API answers: jobs and workflows as JSON, with the schemas for the OpenAPI document; and
errors, in one table from the package's exceptions to HTTP."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from django.http import HttpResponse, JsonResponse

from .. import exceptions as ours
from ..broker.queries import UnreadableJob
from ..broker.shards import AllShards
from ..core.clock import from_ms
from ..core.job_data import JobData
from ..core.records import ENDED_COUNTS, JOB_COUNTS, WorkflowData
from ..core.statuses import Status, WorkflowStatus
from ..health.findings import FindingId, Level
from ..mirror.changes import LOST
from ..models import WorkflowRecord

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
INSTANT: Schema = {"type": ["string", "null"], "format": "date-time"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
ANYTHING: Schema = {}
MISSING = "missing_shards"

logger = logging.getLogger("django_redisqueue.api")

MESSAGE_LENGTH = 500  # characters; a message may quote the request
RETRY_AFTER = 2  # s

# The first row whose class matches. Errors of 500 and above are logged, and answered with the
# docstring of their class: their own message may contain addresses and keys.
FAULTS: tuple[tuple[type[Exception], int, str], ...] = (
    (ours.UnknownTask, 400, "unknown_task"),
    (ours.UnknownQueue, 400, "unknown_queue"),
    (ours.InvalidTask, 400, "invalid_task"),
    (ours.InvalidName, 400, "invalid_name"),
    (ours.InvalidOption, 400, "invalid_option"),
    (ours.InvalidArguments, 400, "invalid_arguments"),
    (ours.PayloadTooLarge, 413, "payload_too_large"),
    (ours.JobNotFound, 404, "not_found"),
    (ours.UniqueConflict, 409, "unique_conflict"),
    (ours.WrongState, 409, "wrong_state"),
    (ours.JobFailed, 409, "job_failed"),
    (ours.NotCommitted, 409, "not_committed"),
    (ours.IdempotencyConflict, 422, "idempotency_conflict"),
    (ours.LeaseLost, 409, "lease_lost"),
    (ours.WorkerLost, 409, "worker_lost"),
    (ours.JobExpired, 409, "job_expired"),
    (ours.CorruptJob, 409, "corrupt_job"),
    (ours.WorkflowError, 400, "invalid_workflow"),
    (ours.WorkflowNotFound, 404, "not_found"),
    (ours.WorkflowFailed, 409, "workflow_failed"),
    (ours.GatherError, 400, "invalid_gather"),
    (ours.GatherExists, 409, "gather_exists"),
    (ours.GatherNotFound, 404, "not_found"),
    (ours.GatherFailed, 409, "gather_failed"),
    (ours.ResultGone, 404, "result_gone"),
    (ours.WaitTimeout, 504, "timeout"),
    (ours.EventTimeout, 504, "event_timeout"),
    (ours.ApprovalRejected, 409, "approval_rejected"),
    (ours.StepError, 409, "step_error"),
    (ours.RedisUnavailable, 503, "redis_unavailable"),
    (ours.RedisFull, 503, "redis_full"),
    (ours.RedisRefused, 503, "redis_refused"),
    (ours.EmbeddedServerError, 503, "redis_unavailable"),
    (ours.WrongKeyType, 500, "wrong_key_type"),
    (ours.ShardMismatch, 500, "shard_mismatch"),
    (ours.WrongRedis, 500, "wrong_redis"),
    (ours.ConfigurationError, 500, "configuration_error"),
    (ours.RedisQueueError, 500, "error"),
)


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


def an_object(
    optional: Mapping[str, Schema] = MappingProxyType({}), /, **required: Schema
) -> Schema:
    properties = {**required, **optional}
    return {"type": "object", "properties": properties, "required": list(required)}


def answer(shards: AllShards, document: Mapping[str, Any]) -> JsonResponse:
    """The document, which has the field ``missing_shards`` if it lacks what some shards have."""
    missing = [
        {"shard": shard, "error": to_api_error(error).code}
        for shard, error in sorted(shards.missing.items())
    ]
    return JsonResponse({**document, MISSING: missing} if missing else document)


def partial_object(**properties: Schema) -> Schema:
    """The schema of such an answer."""
    missing: Schema = {
        "type": "array",
        "items": an_object(shard=INTEGER, error=TEXT),
        "description": "Only if some shards did not answer: the rest is without what they have.",
    }
    return an_object({MISSING: missing}, **properties)


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


class ApiError(Exception):
    """A refusal: an HTTP status, a code for programs, and a message for people."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        field: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.field = field
        self.headers = dict(headers or {})
        if status == 503:
            self.headers.setdefault("Retry-After", str(RETRY_AFTER))

    def response(self) -> HttpResponse:
        error: dict[str, Any] = {"code": self.code, "message": _one_line(str(self))}
        if self.field:
            error["field"] = _one_line(self.field)
        return JsonResponse({"error": error}, status=self.status, headers=self.headers)


def to_api_error(error: ours.RedisQueueError, field: str = "") -> ApiError:
    """The answer to one of the package's own exceptions."""
    status, code = next((row[1], row[2]) for row in FAULTS if isinstance(error, row[0]))
    if status < 500:
        return ApiError(status, code, str(error), field)
    #: The HTTP API has answered with 500 or 503, because Redis is away, full or has a key of a
    #: wrong type. The text says which; the clients see only that it failed.
    logger.error("%s: %s", type(error).__name__, error)
    return ApiError(status, code, inspect.getdoc(type(error)) or code)


@contextmanager
def errors_for(
    field: str, kind: type[ours.RedisQueueError] = ours.RedisQueueError
) -> Iterator[None]:
    """Turn errors of the package into ApiErrors that name this field of the request."""
    try:
        yield
    except kind as error:
        raise to_api_error(error, field) from error


def _one_line(message: str) -> str:
    """One line of limited length that UTF-8 can encode."""
    line = " ".join(message.encode("utf-8", "backslashreplace").decode().split())
    return line if len(line) <= MESSAGE_LENGTH else line[: MESSAGE_LENGTH - 1] + "…"
