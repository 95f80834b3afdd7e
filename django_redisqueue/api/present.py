"""How a job looks to a client: each field with its meaning, in one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from ..clock import from_ms
from ..jobdata import JobData
from ..states import Status
from ..store.reads import Broken

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
INSTANT: Schema = {"type": ["string", "null"], "format": "date-time"}
ANYTHING: Schema = {}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a job; a page of jobs leaves out those that may be large."""

    get: Callable[[JobData], Any]
    schema: Schema
    in_pages: bool = True


def instant(found: datetime | None) -> str | None:
    """As ISO 8601, to the millisecond."""
    if found is None:
        return None
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _instant(value_ms: int | None) -> str | None:
    return instant(from_ms(value_ms))


def _error(job: JobData) -> dict[str, Any] | None:
    return None if job.error is None else asdict(job.error)


def _short_error(job: JobData) -> dict[str, Any] | None:
    error = _error(job)
    return None if error is None else {key: error[key] for key in ("type", "message", "reason")}


def an_object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _or_null(schema: Schema) -> Schema:
    return {"oneOf": [schema, {"type": "null"}]}


FIELDS: Mapping[str, Field] = {
    "id": Field(lambda job: job.id, TEXT),
    "task": Field(lambda job: job.task, TEXT),
    "queue": Field(lambda job: job.queue, TEXT),
    "status": Field(lambda job: job.status.value, {"type": "string", "enum": list(Status)}),
    "args": Field(lambda job: list(job.args), {"type": "array", "items": ANYTHING}),
    "kwargs": Field(
        lambda job: dict(job.kwargs), {"type": "object", "additionalProperties": ANYTHING}
    ),
    "tags": Field(lambda job: dict(job.tags), {"type": "object", "additionalProperties": TEXT}),
    "priority": Field(lambda job: job.priority, WHOLE),
    "attempts": Field(lambda job: job.attempts, {**WHOLE, "description": "Tries that were spent."}),
    "recoveries": Field(
        lambda job: job.recoveries, {**WHOLE, "description": "Claims that were lost with a worker."}
    ),
    "requeues": Field(lambda job: job.generation, WHOLE),
    "progress": Field(
        lambda job: None if job.progress is None else asdict(job.progress),
        _or_null(an_object(done={"type": "number"}, total={"type": "number"}, note=TEXT)),
    ),
    "cancel_requested": Field(lambda job: job.cancel_ms is not None, {"type": "boolean"}),
    "enqueued_at": Field(lambda job: _instant(job.enqueued_ms), INSTANT),
    "due_at": Field(
        lambda job: _instant(job.due_ms),
        {**INSTANT, "description": "When a scheduled or retrying job runs."},
    ),
    "started_at": Field(lambda job: _instant(job.started_ms), INSTANT),
    "finished_at": Field(lambda job: _instant(job.finished_ms), INSTANT),
    "error": Field(
        _error,
        _or_null(an_object(type=TEXT, message=TEXT, traceback=TEXT, reason=TEXT)),
        in_pages=False,
    ),
    "result": Field(lambda job: job.result, ANYTHING, in_pages=False),
}
PAGE_FIELDS: Mapping[str, Field] = {
    **{name: field for name, field in FIELDS.items() if field.in_pages},
    "error": Field(_short_error, _or_null(an_object(type=TEXT, message=TEXT, reason=TEXT))),
}
UNREADABLE: Mapping[str, Schema] = {
    "id": TEXT,
    "problem": {"type": "string", "description": "Why this job cannot be shown."},
}


def show(job: JobData | Broken) -> dict[str, Any]:
    """A job with everything."""
    return _shown(job, FIELDS)


def show_in_page(job: JobData | Broken) -> dict[str, Any]:
    """A job without what may be large."""
    return _shown(job, PAGE_FIELDS)


def _shown(job: JobData | Broken, fields: Mapping[str, Field]) -> dict[str, Any]:
    """What cannot be read, or not be written as JSON, becomes a row that says so."""
    if isinstance(job, Broken):
        return {"id": job.id, "problem": job.problem}
    try:
        row = {name: field.get(job) for name, field in fields.items()}
        json.dumps([[row]], allow_nan=False)  # as deep as it will stand in an answer
    except (ValueError, OverflowError, RecursionError, TypeError) as error:
        return {"id": job.id, "problem": f"it cannot be written as JSON: {error}"}
    return row


def schemas() -> dict[str, Schema]:
    """The shapes of a job, for the OpenAPI document."""
    return {
        "Job": an_object(**{name: field.schema for name, field in FIELDS.items()}),
        "JobInPage": an_object(**{name: field.schema for name, field in PAGE_FIELDS.items()}),
        "UnreadableJob": an_object(**UNREADABLE),
    }
