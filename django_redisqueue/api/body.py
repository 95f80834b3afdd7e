"""The body of POST /jobs: read with a size limit, checked and described field by field."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.http.request import UnreadablePostError
from django.utils.crypto import salted_hmac
from django.utils.dateparse import parse_datetime

from ..client.options import MAX_PRIORITY, MIN_PRIORITY, check_priority, check_run_after
from ..client.registry import lookup, task_names
from ..conf import get_settings
from ..core.clock import MAX_DURATION
from ..core.codec import check as check_json
from ..core.ids import TAG_PATTERN
from ..core.tags import MAX_TAGS, MAX_VALUE, check_tags
from ..exceptions import InvalidOption, did_you_mean
from .errors import ApiError, errors_for

IDEMPOTENCY_KEY = "Idempotency-Key"
MAX_IDEMPOTENCY_KEY = 255  # characters
ENVELOPE = 16_384  # bytes that a body may have besides the arguments


def check_content_type(request: HttpRequest) -> None:
    """Raise ApiError 415 for a body that is not JSON, so that no form of another site can send one.

    The type of an empty body is ignored: ``runserver`` sets text/plain, ``curl -d ''`` a form's.
    """
    given = request.content_type or ""
    has_body = _length(request) > 0 or "Transfer-Encoding" in request.headers
    if has_body and given and given != "application/json":
        raise ApiError(
            415, "unsupported_media_type", f"send the body as application/json, not {given!r}"
        )


def read_body(request: HttpRequest) -> tuple[dict[str, Any], str]:
    """The checked fields of the new job, and a fingerprint of the body. Raises ApiError: 400 naming
    the field, 413, 415."""
    if request.content_type != "application/json":
        raise ApiError(415, "unsupported_media_type", "send a body of application/json")
    raw = _parse(_bytes(request))
    if not isinstance(raw, dict):
        raise ApiError(400, "invalid_json", "the body must be a JSON object")
    for name in raw:
        if name not in FIELDS:
            raise ApiError(
                400, "unknown_field", f"a job has no field {name!r}{did_you_mean(name, FIELDS)}; "
                f"it takes: {', '.join(FIELDS)}", name[:100],
            )  # fmt: skip
    checked = {}
    for name, made_of in FIELDS.items():
        if name in raw:
            with errors_for(name):
                checked[name] = made_of.check(raw[name])
        elif made_of.required:
            raise ApiError(400, "missing_field", f"{name} is missing", name)
    return checked, _fingerprint(raw)


def _fingerprint(raw: object) -> str:
    """The same for equal bodies, in whatever order. Keyed, because arguments may be redacted."""
    text = json.dumps(raw, sort_keys=True)
    return salted_hmac("django_redisqueue.body", text, algorithm="sha256").hexdigest()[:32]


def read_idempotency_key(request: HttpRequest) -> str:
    """The header ``Idempotency-Key``, or ''. Raises ApiError 400 unless it is printable ASCII of at
    most 255 characters."""
    text = request.headers.get(IDEMPOTENCY_KEY)
    if text is None:
        return ""
    if not (0 < len(text) <= MAX_IDEMPOTENCY_KEY and text.isascii() and text.isprintable()):
        raise ApiError(
            400, "invalid_option", f"{IDEMPOTENCY_KEY} must be 1 to {MAX_IDEMPOTENCY_KEY} "
            "printable ASCII characters", IDEMPOTENCY_KEY,
        )  # fmt: skip
    return text


def limit() -> int:
    """The largest body, in bytes."""
    return get_settings().max_payload_bytes + ENVELOPE


def _bytes(request: HttpRequest) -> bytes:
    most = limit()
    try:
        data = b"" if _length(request) > most else request.read(most + 1)
    except UnreadablePostError:
        raise ApiError(400, "invalid_json", "the body ended before its length") from None
    if _length(request) > most or len(data) > most:
        raise ApiError(413, "payload_too_large", f"a body has at most {most} bytes")
    return data


def _length(request: HttpRequest) -> int:
    text = request.META.get("CONTENT_LENGTH") or "0"
    return int(text) if text.isdecimal() else 0  # WSGIRequest treats an invalid one as 0


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise ApiError(400, "invalid_json", "the body is nested too deeply") from None
    except ValueError as error:  # not UTF-8, not JSON, or a number of too many digits
        raise ApiError(400, "invalid_json", f"the body is not JSON: {error}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def check_task(value: object) -> Any:
    """The task, if the API may enqueue it. The error does not reveal whether it exists."""
    task = lookup(value) if isinstance(value, str) else None
    if task is None or not task.options.api:
        raise ApiError(
            400, "unknown_task", f"{value!r} is not a task that may be enqueued here; a task opts "
            "in with @task(api=True)", "task",
        )  # fmt: skip
    return task


def open_tasks() -> list[str]:
    """The names of the tasks that have opted in."""
    return [name for name in task_names() if lookup(name).options.api]


def _check_args(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ApiError(400, "invalid_arguments", "args must be a JSON array", "args")
    for at, item in enumerate(value):
        _check_value(item, f"args[{at}]")
    return value


def _check_kwargs(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_arguments", "kwargs must be a JSON object", "kwargs")
    for name, item in value.items():
        _check_value(name, "kwargs")
        _check_value(item, f"kwargs.{name}"[:100])
    return value


def _check_value(value: object, where: str) -> None:
    with errors_for(where):
        check_json(value, where)


def _check_run_after(value: object) -> object:
    """Seconds from now, or an instant in ISO 8601 with its offset; within a hundred years."""
    found = _instant(value) if isinstance(value, str) else value
    check_run_after(found)
    return found


def _instant(text: str) -> datetime:
    try:
        found = parse_datetime(text)
    except ValueError:  # well formed, but for example 31 February
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidOption(
            "run_after must be seconds from now, or an instant with its offset such as "
            f"2026-01-31T12:00:00Z, not {text!r}"
        )
    return found


@dataclass(frozen=True, slots=True)
class BodyField:
    """One field of a body."""

    check: Callable[[Any], Any]
    schema: Callable[[], dict[str, Any]]
    help: str
    required: bool = field(default=False)


FIELDS: Mapping[str, BodyField] = {
    "task": BodyField(
        check_task, lambda: {"type": "string"}, "The name of a task with api=True.", required=True
    ),
    "args": BodyField(
        _check_args, lambda: {"type": "array", "items": {}, "default": []},
        "Its positional arguments.",
    ),
    "kwargs": BodyField(
        _check_kwargs, lambda: {"type": "object", "additionalProperties": {}, "default": {}},
        "Its keyword arguments.",
    ),
    "queue": BodyField(
        lambda value: get_settings().check_queue(value),
        lambda: {"type": "string", "enum": sorted(get_settings().queues)},
        "A queue of the settings instead of the task's own.",
    ),
    "priority": BodyField(
        check_priority,
        lambda: {"type": "integer", "minimum": MIN_PRIORITY, "maximum": MAX_PRIORITY},
        "Larger first.",
    ),
    "run_after": BodyField(
        _check_run_after,
        lambda: {
            "oneOf": [
                {"type": "number", "minimum": 0, "maximum": MAX_DURATION},
                {"type": "string", "format": "date-time"},
            ]
        },
        "Seconds from now, or an instant with its offset.",
    ),
    "tags": BodyField(
        check_tags,
        lambda: {
            "type": "object", "maxProperties": MAX_TAGS,
            "propertyNames": {"pattern": TAG_PATTERN},
            "additionalProperties": {"type": "string", "minLength": 1, "maxLength": MAX_VALUE},
        },
        "Words to find the job by: printable characters.",
    ),
}  # fmt: skip
