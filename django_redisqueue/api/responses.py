"""The API's answers: jobs and workflows as JSON, with the schemas for the OpenAPI document; and
errors, in one table that maps the package's exceptions to HTTP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

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
BOOLEAN: Schema = {"type": "boolean"}
INSTANT: Schema = {"type": ["string", "null"], "format": "date-time"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
ANYTHING: Schema = {}
MISSING = "missing_shards"

logger = logging.getLogger("django_redisqueue.api")

MESSAGE_LENGTH = 500  # characters; a message may quote the request
RETRY_AFTER = 2  # s

SEE_LOG = "the site's log has the details"


class Fault(NamedTuple):
    """How the API answers an exception. ``message``: for 500 and above, instead of the exception's
    own, which is logged and may contain addresses and keys."""

    kind: type[Exception]
    status: int
    code: str
    message: str = ""


# The first row whose class matches.
FAULTS = (
    Fault(ours.UnknownTask, 400, "unknown_task"),
    Fault(ours.UnknownQueue, 400, "unknown_queue"),
    Fault(ours.InvalidTask, 400, "invalid_task"),
    Fault(ours.InvalidName, 400, "invalid_name"),
    Fault(ours.InvalidOption, 400, "invalid_option"),
    Fault(ours.InvalidArguments, 400, "invalid_arguments"),
    Fault(ours.PayloadTooLarge, 413, "payload_too_large"),
    Fault(ours.JobNotFound, 404, "not_found"),
    Fault(ours.UniqueConflict, 409, "unique_conflict"),
    Fault(ours.WrongState, 409, "wrong_state"),
    Fault(ours.JobFailed, 409, "job_failed"),
    Fault(ours.NotCommitted, 409, "not_committed"),
    Fault(ours.IdempotencyConflict, 422, "idempotency_conflict"),
    Fault(ours.LeaseLost, 409, "lease_lost"),
    Fault(ours.WorkerLost, 409, "worker_lost"),
    Fault(ours.JobExpired, 409, "job_expired"),
    Fault(ours.CorruptJob, 409, "corrupt_job"),
    Fault(ours.WorkflowError, 400, "invalid_workflow"),
    Fault(ours.WorkflowNotFound, 404, "not_found"),
    Fault(ours.WorkflowFailed, 409, "workflow_failed"),
    Fault(ours.GatherError, 400, "invalid_gather"),
    Fault(ours.GatherExists, 409, "gather_exists"),
    Fault(ours.GatherNotFound, 404, "not_found"),
    Fault(ours.GatherFailed, 409, "gather_failed"),
    Fault(ours.ResultGone, 404, "result_gone"),
    Fault(
        ours.WaitTimeout, 504, "timeout",
        "the job, workflow or gather did not end in time; ask again later",
    ),
    Fault(
        ours.EventTimeout, 504, "event_timeout",
        "the event that the job waits for was not sent in time",
    ),
    Fault(ours.ApprovalRejected, 409, "approval_rejected"),
    Fault(ours.StepError, 409, "step_error"),
    Fault(
        ours.NotReplicated, 503, "redis_unavailable",
        "too few replicas of Redis confirmed the request, so a failover may lose it; to enqueue "
        "the job again, send the same Idempotency-Key, or the job may run twice",
    ),
    Fault(
        ours.RedisUnavailable, 503, "redis_unavailable",
        "Redis does not answer, and the request may or may not have taken effect; try again, and "
        "to enqueue a job only once, send the same Idempotency-Key",
    ),
    Fault(
        ours.RedisFull, 503, "redis_full",
        "Redis is full and accepts no new jobs; try again later",
    ),
    Fault(
        ours.RedisCannotSave, 503, "redis_refused",
        "Redis cannot save to disk and accepts no changes; try again later",
    ),
    Fault(ours.RedisRefused, 503, "redis_refused", f"Redis refused the request; {SEE_LOG}"),
    Fault(
        ours.EmbeddedServerError, 503, "redis_unavailable",
        f"the embedded Redis server could not be started; {SEE_LOG}",
    ),
    Fault(
        ours.WrongKeyType, 500, "wrong_key_type",
        f"another program has changed the data of the queue in Redis; {SEE_LOG}",
    ),
    Fault(
        ours.ShardMismatch, 500, "shard_mismatch",
        f"the data in Redis was written with another number of shards; {SEE_LOG}",
    ),
    Fault(
        ours.WrongRedis, 500, "wrong_redis",
        f"Redis was emptied, or is not the one that the mirror reflects; {SEE_LOG}",
    ),
    Fault(
        ours.ConfigurationError, 500, "configuration_error",
        f"the settings of the site are wrong; {SEE_LOG}",
    ),
    Fault(ours.RedisQueueError, 500, "error", f"the request failed; {SEE_LOG}"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an answer: the attribute of the same name, unless ``get`` reads the value."""

    schema: Schema
    help: str = ""
    get: Callable[[Any], Any] | None = None


Fields = Mapping[str, Field]


def to_json(fields: Fields, found: object) -> dict[str, Any]:
    return {
        name: field.get(found) if field.get else getattr(found, name)
        for name, field in fields.items()
    }


def schema_of(fields: Fields) -> Schema:
    return an_object(
        **{
            name: {**field.schema, "description": field.help} if field.help else field.schema
            for name, field in fields.items()
        }
    )


def instant(found: datetime | None) -> str | None:
    """As ISO 8601, to the millisecond."""
    if found is None:
        return None
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant_ms(value_ms: int | None) -> str | None:
    return instant(from_ms(value_ms))


def ms_field(attribute: str, help: str = "") -> Field:
    """An instant that the attribute has in milliseconds since the epoch."""
    return Field(INSTANT, help, lambda found: instant_ms(getattr(found, attribute)))


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def one_of(texts: Iterable[str]) -> Schema:
    return {"type": "string", "enum": list(texts)}


def an_object(
    optional: Mapping[str, Schema] = MappingProxyType({}), /, **required: Schema
) -> Schema:
    properties = {**required, **optional}
    return {"type": "object", "properties": properties, "required": list(required)}


def answer(shards: AllShards, document: Mapping[str, Any]) -> JsonResponse:
    """The document, with the field ``missing_shards`` if some shards did not answer."""
    missing = [
        {"shard": shard, "error": to_api_error(error).code}
        for shard, error in sorted(shards.missing.items())
    ]
    return JsonResponse({**document, MISSING: missing} if missing else document)


def partial_object(**properties: Schema) -> Schema:
    """The schema of an answer that may lack some shards."""
    missing: Schema = {
        **list_of(an_object(shard=INTEGER, error=TEXT)),
        "description": "Only if some shards did not answer: what they have is left out.",
    }
    return an_object({MISSING: missing}, **properties)


def _or_null(schema: Schema) -> Schema:
    return {"oneOf": [schema, {"type": "null"}]}


def _error(job: JobData) -> dict[str, Any] | None:
    return None if job.error is None else asdict(job.error)


def _short_error(job: JobData) -> dict[str, Any] | None:
    error = _error(job)
    return error and {key: error[key] for key in ("type", "message", "reason")}


JOB: Fields = {
    "id": Field(TEXT),
    "task": Field(TEXT),
    "queue": Field(TEXT),
    "status": Field(one_of(Status)),
    "args": Field(list_of(ANYTHING)),
    "kwargs": Field({"type": "object", "additionalProperties": ANYTHING}),
    "tags": Field({"type": "object", "additionalProperties": TEXT}),
    "priority": Field(INTEGER),
    "attempts": Field(INTEGER, "Attempts spent; for a poison job, its starts."),
    "recoveries": Field(INTEGER, "Claims that were lost because a worker died."),
    "requeues": Field(INTEGER, get=lambda job: job.generation),
    "progress": Field(
        _or_null(an_object(done={"type": "number"}, total={"type": "number"}, note=TEXT)),
        get=lambda job: job.progress and asdict(job.progress),
    ),
    "cancel_requested": Field(BOOLEAN, get=lambda job: job.cancel_ms is not None),
    "enqueued_at": ms_field("enqueued_ms"),
    "due_at": ms_field("due_ms", "When a scheduled or retrying job is due."),
    "waits_for": Field(
        TEXT_OR_NULL, "The event of a parked job; empty if it sleeps, null if not parked."
    ),
    "parked_at": Field(
        INSTANT, get=lambda job: None if job.waits_for is None else instant_ms(job.parked_ms)
    ),
    "started_at": ms_field("started_ms"),
    "finished_at": ms_field("finished_ms"),
    "error": Field(
        _or_null(an_object(type=TEXT, message=TEXT, traceback=TEXT, reason=TEXT)), get=_error
    ),
    "result": Field(ANYTHING),
}
# Pages leave out what may be large: results and tracebacks.
JOB_IN_PAGE: Fields = {
    **{name: field for name, field in JOB.items() if name != "result"},
    "error": Field(_or_null(an_object(type=TEXT, message=TEXT, reason=TEXT)), get=_short_error),
}
WHY = Field(TEXT_OR_NULL, "One sentence; null for a job that is running or has ended.")


def job_json(job: JobData | UnreadableJob, fields: Fields = JOB) -> dict[str, Any]:
    """The job, or an object that says why it cannot be read."""
    if isinstance(job, UnreadableJob):
        return {"id": job.id, "problem": job.problem}
    return to_json(fields, job)


def job_schemas() -> dict[str, Schema]:
    return {
        "Job": schema_of(JOB),
        "JobInPage": schema_of(JOB_IN_PAGE),
        "JobInDetail": schema_of({**JOB, "why_not_running": WHY}),
        "UnreadableJob": schema_of(
            {"id": Field(TEXT), "problem": Field(TEXT, "Why this job cannot be shown.")}
        ),
    }


def health_schema() -> Schema:
    finding = an_object(
        id=one_of(FindingId),
        level=one_of(Level),
        message=TEXT,
        remedy=TEXT,
        queue={**TEXT_OR_NULL, "description": "Null if it does not concern a single queue."},
    )
    return an_object(
        status={
            **one_of(["ok", Level.WARNING, Level.ERROR]),
            "description": "The worst level of the findings, except info.",
        },
        findings=list_of(finding),
    )


INTEGER_OR_NULL: Schema = {
    "type": ["integer", "null"],
    "description": "Null if only the mirror has the workflow.",
}


def _workflow_instant(workflow: WorkflowData | WorkflowRecord, name: str) -> str | None:
    if isinstance(workflow, WorkflowData):
        return instant_ms(getattr(workflow, f"{name}_ms"))
    return instant(getattr(workflow, f"{name}_at"))


# The fields of a workflow from Redis, or of its record if only the mirror has it.
WORKFLOW: Fields = {
    "id": Field(TEXT),
    "name": Field(TEXT),
    "status": Field(one_of(WorkflowStatus)),
    "paused": Field(BOOLEAN, get=lambda workflow: workflow.is_paused),
    "lost": Field(
        BOOLEAN, "Whether Redis lost it before it ended.",
        lambda workflow: getattr(workflow, "reason", "") == LOST,
    ),
    "generation": Field(INTEGER, "How often a retry has resumed it."),
    "total": Field(INTEGER),
    "counts": Field(
        an_object(
            **{name: INTEGER if name in ENDED_COUNTS else INTEGER_OR_NULL for name in JOB_COUNTS}
        ),
        get=lambda workflow: {name: getattr(workflow, name, None) for name in JOB_COUNTS},
    ),
    "made_at": Field(INSTANT, get=lambda workflow: _workflow_instant(workflow, "made")),
    "ended_at": Field(INSTANT, get=lambda workflow: _workflow_instant(workflow, "ended")),
    "cleaned_at": Field(
        INSTANT, "When Redis pruned it.",
        lambda workflow: instant(getattr(workflow, "cleaned_at", None)),
    ),
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
    fault = next(fault for fault in FAULTS if isinstance(error, fault.kind))
    if fault.status < 500:
        return ApiError(fault.status, fault.code, str(error), field)
    #: The HTTP API answered with 500 or 503, because Redis is unavailable or full, or has a key of
    #: the wrong type. The text says which; clients see only that the request failed.
    logger.error("%s: %s", type(error).__name__, error)
    return ApiError(fault.status, fault.code, fault.message)


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
