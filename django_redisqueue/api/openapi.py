"""The OpenAPI document, generated from the tables that the views use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.http import JsonResponse
from django.http.response import HttpResponseBase

from ..conf import APP
from ..core.ids import JOB_ID_PATTERN, WORKFLOW_ID_PATTERN
from ..core.statuses import Status
from . import policies, requests, responses
from .requests import ApiRequest, Parameter
from .responses import (
    BOOLEAN,
    FAULTS,
    INTEGER,
    TEXT,
    WORKFLOW,
    an_object,
    list_of,
    one_of,
    partial_object,
    schema_of,
)
from .table import ENDPOINTS, Endpoint, Operation
from .views import ERROR_GROUP

NEXT_START = {"type": ["integer", "null"], "description": "The next page's start."}
ALWAYS = (400, 401, 403, 500, 503)  # errors that any operation may return
MEANINGS = {
    400: "The request is wrong; the message says where.",
    401: "The request has neither a login nor a valid token.",
    403: "The permission or the CSRF token is missing.",
    404: "The job or workflow does not exist.",
    409: "The job's or workflow's status does not allow this.",
    413: "The body or the arguments are too large.",
    415: "The body is not application/json.",
    422: "The Idempotency-Key was used before, with another body.",
    429: "Too many streams are open.",
    500: "The settings or the data in Redis are wrong.",
    503: "Redis or the database does not answer, or too many streams are open; try again.",
}
OTHER_CODES = (
    "csrf", "database_unavailable", "invalid_json", "invalid_token", "method_not_allowed",
    "missing_field", "missing_parameter", "not_authenticated", "permission_denied",
    "too_many_streams", "unknown_field", "unknown_parameter", "unsupported_media_type",
)  # fmt: skip


def document(request: ApiRequest) -> HttpResponseBase:
    """GET /jobs/openapi.json"""
    mount = request.http.path.rstrip("/").removesuffix(DOCUMENT.path)
    above, _, name = mount.rpartition("/")
    # Only users who may enqueue tasks see their names.
    tasks = requests.open_tasks() if request.user.has_perm(f"{APP}.enqueue_job") else []
    return JsonResponse(build(above or "/", f"/{name}", tasks))


_DOCUMENT = Operation("GET", "/openapi.json", "openapi", "This document.", document, "Document")
DOCUMENT = Endpoint(_DOCUMENT.path, {"GET": _DOCUMENT})


def build(server: str, mount: str, tasks: list[str]) -> dict[str, Any]:
    """The whole document for an API mounted at ``server`` + ``mount``."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "django_redisqueue", "version": "1", "description": "Background jobs."},
        "servers": [{"url": server}],
        "security": [{"token": []}, {"session": []}],
        "paths": {
            f"{mount}{endpoint.path}": {
                method.lower(): _operation(operation)
                for method, operation in endpoint.operations.items()
            }
            for endpoint in (DOCUMENT, *ENDPOINTS)
        },
        "components": {
            "schemas": _schemas(tasks),
            "responses": {str(status): _error(status) for status in MEANINGS},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {
                    "type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME,
                    "description": "Unsafe methods also need Django's CSRF header.",
                },
            },
        },
    }  # fmt: skip


def _operation(operation: Operation) -> dict[str, Any]:
    errors = {*ALWAYS, *operation.errors, *({415} if operation.method == "POST" else ())}
    if "{" in operation.path:
        errors.add(404)
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"Needs the permission {APP}.{operation.permission}.",
        "parameters": [*_path(operation.path), *map(_parameter, operation.query)],
        "responses": {
            "201" if operation.is_enqueue else "200": _success(operation),
            **{str(status): _ref("responses", str(status)) for status in sorted(errors)},
        },
    }
    if operation.is_stream:
        [like] = operation.query
        described["parameters"].append(
            {"name": "Last-Event-ID", "in": "header", "schema": like.schema()}
        )
    if operation.is_enqueue:
        described["parameters"].append(_IDEMPOTENCY_KEY)
        described["responses"]["200"] = {
            **_success(operation), "description": "The job already exists: nothing was enqueued.",
        }  # fmt: skip
        described["requestBody"] = {
            "required": True, "content": {"application/json": {"schema": _ref("schemas", "NewJob")}}
        }  # fmt: skip
    return described


def _path(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {**TEXT, "pattern": form}}
        for name, form in (("id", JOB_ID_PATTERN), ("flow", WORKFLOW_ID_PATTERN))
        if f"{{{name}}}" in path
    ]


def _parameter(one: Parameter) -> dict[str, Any]:
    return {
        "name": one.name, "in": "query", "description": one.help, "required": one.required,
        "schema": one.schema(),
    }  # fmt: skip


_IDEMPOTENCY_KEY = {
    "name": requests.IDEMPOTENCY_KEY, "in": "header",
    "description": "For a day, the same key with the same body returns the same job.",
    "schema": {"type": "string", "minLength": 1, "maxLength": requests.MAX_IDEMPOTENCY_KEY},
}  # fmt: skip


def _success(operation: Operation) -> dict[str, Any]:
    if operation.is_stream:
        kind, schema = "text/event-stream", _EVENT
    else:
        kind, schema = "application/json", _ref("schemas", operation.answer)
    return {"description": operation.summary, "content": {kind: {"schema": schema}}}


# The schema of each event, as OpenAPI 3.2 and tools for event streams expect it.
_EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "Its position; send it back as Last-Event-ID."},
        "event": one_of(["message", "gap"]),
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["id", "data"],
}


def _error(status: int) -> dict[str, Any]:
    content = {"application/json": {"schema": _ref("schemas", "Error")}}
    return {"description": MEANINGS[status], "content": content}


def _ref(kind: str, name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/{kind}/{name}"}


def _or_problem(name: str) -> dict[str, Any]:
    return {"oneOf": [_ref("schemas", name), _ref("schemas", "UnreadableJob")]}


def _schemas(tasks: list[str]) -> dict[str, Any]:
    counts = {str(status): INTEGER for status in Status}
    return {
        **responses.job_schemas(),
        "JobOrProblem": _or_problem("Job"),
        "JobInDetailOrProblem": _or_problem("JobInDetail"),
        "NewJob": _new_job(tasks),
        "Page": partial_object(
            queue=TEXT, status=TEXT, start=INTEGER, limit=INTEGER,
            next=NEXT_START, jobs=list_of(_or_problem("JobInPage")),
        ),
        "Cleared": an_object(queue=TEXT, status=TEXT, cleared=INTEGER, left=INTEGER),
        "Counts": an_object(**counts),
        "Stats": partial_object(
            total=_ref("schemas", "Counts"),
            queues={
                "type": "object",
                "additionalProperties": an_object(
                    counts=_ref("schemas", "Counts"),
                    paused=BOOLEAN,
                    oldest_seconds={"type": ["number", "null"]},
                ),
            },
        ),
        "Health": responses.health_schema(),
        **policies.page_schemas(),
        "Released": an_object(
            key=TEXT, job={**TEXT, "description": "The job that had the key; it is not changed."}
        ),
        "Changed": an_object(
            changed={**BOOLEAN, "description": "False if nothing had to be changed."}
        ),
        "Workflow": schema_of(WORKFLOW),
        "Document": {"type": "object"},
        "Errors": an_object(next=NEXT_START, errors=list_of(schema_of(ERROR_GROUP))),
        "Error": an_object(error=_error_schema()),
    }  # fmt: skip


def _error_schema() -> Mapping[str, Any]:
    codes = sorted({*OTHER_CODES, *(fault.code for fault in FAULTS)})
    field = {"type": "string", "description": "The part of the request that is wrong."}
    return an_object({"field": field}, code=one_of(codes), message=TEXT)


def _new_job(tasks: list[str]) -> dict[str, Any]:
    fields = {
        name: {**field.schema(), "description": field.help}
        for name, field in requests.FIELDS.items()
    }
    if tasks:
        fields["task"]["enum"] = tasks
    return {
        "type": "object",
        "properties": fields,
        "required": [name for name, field in requests.FIELDS.items() if field.required],
        "additionalProperties": False,
    }
