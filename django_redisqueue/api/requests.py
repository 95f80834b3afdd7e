"""The contents of a request: its user, the parameters of its query, and the body of POST /jobs. All
of it is checked, field by field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest, QueryDict
from django.http.request import UnreadablePostError
from django.utils.crypto import salted_hmac
from django.utils.dateparse import parse_datetime

from ..broker.entries import Positions
from ..client.options import (
    MAX_PRIORITY,
    MIN_PRIORITY,
    check_expires,
    check_priority,
    check_run_after,
)
from ..client.registry import lookup, task_names
from ..conf import get_settings
from ..core.clock import DURATION_TEXT, MAX_DURATION, is_duration_text
from ..core.codec import check as check_json
from ..core.codec import refuse_constant
from ..core.ids import MAX_SHARDS, TAG_PATTERN
from ..core.tags import MAX_TAGS, MAX_VALUE, check_tags
from ..exceptions import InvalidArguments, InvalidOption, UnknownTask, did_you_mean
from .responses import ApiError, errors_for

MAX_TEXT = 1000  # characters of a parameter
IDEMPOTENCY_KEY = "Idempotency-Key"
MAX_IDEMPOTENCY_KEY = 255  # characters
ENVELOPE = 16_384  # bytes that a body may have in addition to the arguments
_INTEGER = re.compile(r"[0-9]{1,12}")
_POSITION = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """An authorized request, with its checked path and query."""

    http: HttpRequest
    user: Any
    path: Mapping[str, str]
    query: Mapping[str, Any]
    token: str = ""  # the name of the API token that authorizes it, '' for a session

    @property
    def caller(self) -> str:
        """The user, and the token if one was used, for the history of pauses."""
        name: str = self.user.get_username()
        return f"{name} (API token {self.token})" if self.token else name


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a query string, or a field of the body.

    ``read`` checks the value, and raises RedisQueueError. In a query the value is a string, or None
    if the parameter is missing; in the body it is any JSON. ``schema`` returns JSON Schema.
    """

    name: str
    help: str
    read: Callable[[Any], Any]
    schema: Callable[[], dict[str, Any]]
    required: bool = False


def an_integer(name: str, help: str, default: int, low: int, high: int) -> Parameter:
    def read(text: str | None) -> int:
        if text is None:
            return default
        value = int(text) if _INTEGER.fullmatch(text) else -1
        if not low <= value <= high:
            raise InvalidOption(f"{name} must be a whole number from {low} to {high}, not {text!r}")
        return value

    schema = {"type": "integer", "minimum": low, "maximum": high, "default": default}
    return Parameter(name, help, read, lambda: schema)


def a_queue(name: str, help: str) -> Parameter:
    def read(text: str | None) -> str:
        return get_settings().check_queue("default" if text is None else text)

    def schema() -> dict[str, Any]:
        queues = sorted(get_settings().queues)
        default = {"default": "default"} if "default" in queues else {}
        return {"type": "string", "enum": queues, **default}

    return Parameter(name, help, read, schema)


def a_text(name: str, help: str, *, required: bool = False) -> Parameter:
    def read(text: str | None) -> str:
        if text is not None and not 0 < len(text) <= MAX_TEXT:
            raise InvalidOption(f"{name} must have 1 to {MAX_TEXT} characters, not {len(text)}")
        return text or ""

    schema = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}
    return Parameter(name, help, read, lambda: schema, required)


def a_choice(name: str, help: str, choices: Sequence[str]) -> Parameter:
    """One of several words; by default the first."""

    def read(text: str | None) -> str:
        if text is not None and text not in choices:
            raise InvalidOption(f"{name} must be one of {', '.join(choices)}, not {text!r}")
        return text or choices[0]

    schema = {"type": "string", "enum": list(choices), "default": choices[0]}
    return Parameter(name, help, read, lambda: schema)


def an_event_id(name: str, help: str) -> Parameter:
    """The id of the last event that a client received."""
    one = "[0-9]{1,20}-[0-9]{1,20}"
    schema = {"type": "string", "pattern": f"^{one}(,{one}){{0,{MAX_SHARDS - 1}}}$"}
    return Parameter(
        name, help, lambda text: None if text is None else to_positions(text, name), lambda: schema
    )


def to_positions(text: str, name: str) -> Positions:
    """Parse an event's id, its positions in the streams of all shards. Raises InvalidOption.

    An id from before SHARDS was raised has no positions for the new shards. Those get its latest
    instant, so "0-0" is the beginning everywhere.
    """
    matches = [_POSITION.fullmatch(part) for part in text.split(",", MAX_SHARDS - 1)]
    found = [(int(match[1]), int(match[2])) if match else (2**63, 0) for match in matches]
    if max(map(max, found)) >= 2**63:  # the limit of a database's integers
        raise InvalidOption(
            f"{name} must be the id of an event, such as 1760000000000-0, not {text!r}"
        )
    shards = get_settings().shards
    return (*found, *[(max(found)[0], 0)] * (shards - len(found)))[:shards]


def read_query(query: QueryDict, parameters: Sequence[Parameter]) -> Mapping[str, Any]:
    """The values of all parameters. Raises ApiError for unknown, repeated or invalid ones."""
    known = {parameter.name: parameter for parameter in parameters}
    for name, values in query.lists():
        if name not in known:
            takes = ", ".join(known) or "none"
            raise ApiError(
                400, "unknown_parameter", f"{name!r} is not a parameter of this path"
                f"{did_you_mean(name, known)}; it accepts {takes}", name[:100],
            )  # fmt: skip
        if len(values) > 1:
            raise ApiError(400, "invalid_option", f"{name} is given {len(values)} times", name)
    found = {}
    for name, parameter in known.items():
        if parameter.required and name not in query:
            raise ApiError(400, "missing_parameter", f"{name} is missing", name)
        with errors_for(name):
            found[name] = parameter.read(query.get(name))
    return found


def check_content_type(request: HttpRequest) -> None:
    """Raise ApiError 415 for a body that is not JSON, so that no form on another site can send one.

    The type of an empty body is ignored: ``runserver`` sets text/plain, ``curl -d ''`` a form's.
    """
    given = request.content_type or ""
    has_body = _length(request) > 0 or "Transfer-Encoding" in request.headers
    if has_body and given and given != "application/json":
        raise ApiError(
            415, "unsupported_media_type", f"send the body as application/json, not {given!r}"
        )


def read_body(request: HttpRequest) -> tuple[dict[str, Any], str]:
    """The checked fields of the new job, and a fingerprint of the body. Raises ApiError 413 or 415,
    or 400 with the name of the field."""
    if request.content_type != "application/json":
        raise ApiError(415, "unsupported_media_type", "send the body as application/json")
    raw = _parse(_bytes(request))
    if not isinstance(raw, dict):
        raise ApiError(400, "invalid_json", "the body must be a JSON object")
    for name in raw:
        if name not in FIELDS:
            raise ApiError(
                400, "unknown_field", f"a job has no field {name!r}{did_you_mean(name, FIELDS)}; "
                f"it accepts {', '.join(FIELDS)}", name[:100],
            )  # fmt: skip
    checked = {}
    for name, field in FIELDS.items():
        if name in raw:
            with errors_for(name):
                checked[name] = field.read(raw[name])
        elif field.required:
            raise ApiError(400, "missing_field", f"{name} is missing", name)
    return checked, _fingerprint(raw)


def _fingerprint(raw: object) -> str:
    """Equal for equal bodies, whatever their order. Keyed, because arguments may be redacted."""
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


def _bytes(request: HttpRequest) -> bytes:
    most = get_settings().max_payload_bytes + ENVELOPE
    try:
        data = b"" if _length(request) > most else request.read(most + 1)
    except UnreadablePostError:
        raise ApiError(400, "invalid_json", "the body ended before its length") from None
    if _length(request) > most or len(data) > most:
        raise ApiError(413, "payload_too_large", f"the body may have at most {most} bytes")
    return data


def _length(request: HttpRequest) -> int:
    text = request.META.get("CONTENT_LENGTH") or "0"
    return int(text) if text.isdecimal() else 0  # WSGIRequest treats an invalid one as 0


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data.decode(), parse_constant=refuse_constant)
    except RecursionError:
        raise ApiError(400, "invalid_json", "the body is nested too deeply") from None
    except ValueError as error:  # not UTF-8, not JSON, or a number with too many digits
        raise ApiError(400, "invalid_json", f"the body is not JSON: {error}") from None


def check_task(value: object) -> Any:
    """The task, if the API may enqueue it. The error does not reveal whether the task exists."""
    task = lookup(value) if isinstance(value, str) else None
    if task is None or not task.options.api:
        raise UnknownTask(
            f"{value!r} is not a task that may be enqueued through the API; a task opts in with "
            "@task(api=True)"
        )
    return task


def open_tasks() -> list[str]:
    """The names of the tasks that have opted in."""
    return [name for name in task_names() if lookup(name).options.api]


def _check_args(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidArguments("args must be a JSON array")
    for at, item in enumerate(value):
        _check_value(item, f"args[{at}]")
    return value


def _check_kwargs(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArguments("kwargs must be a JSON object")
    for name, item in value.items():
        _check_value(name, "kwargs")
        _check_value(item, f"kwargs.{name}"[:100])
    return value


def _check_value(value: object, where: str) -> None:
    with errors_for(where):
        check_json(value, where)


def _check_when(value: object, name: str, check: Callable[[object], str]) -> object:
    """A duration from now, or an instant in ISO 8601 with an offset; within a hundred years."""
    if isinstance(value, str) and not is_duration_text(value):
        value = _instant(value, name)
    check(value)
    return value


def _when_schema(least: str) -> dict[str, Any]:
    return {
        "anyOf": [
            {"type": "number", least: 0, "maximum": MAX_DURATION},
            {"type": "string", "pattern": f"^{DURATION_TEXT}$"},
            {"type": "string", "format": "date-time"},
        ]
    }


def _instant(text: str, name: str) -> datetime:
    try:
        found = parse_datetime(text)
    except ValueError:  # well formed, but for example 31 February
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidOption(
            f"{name} must be seconds from now, a duration such as 1h30m, or an instant with an "
            f"offset such as 2026-01-31T12:00:00Z, not {text!r}"
        )
    return found


FIELDS = {field.name: field for field in (
    Parameter(
        "task", "The name of a task that has api=True.",
        check_task, lambda: {"type": "string"}, required=True,
    ),
    Parameter(
        "args", "Its positional arguments.",
        _check_args, lambda: {"type": "array", "items": {}, "default": []},
    ),
    Parameter(
        "kwargs", "Its keyword arguments.",
        _check_kwargs, lambda: {"type": "object", "additionalProperties": {}, "default": {}},
    ),
    Parameter(
        "queue", "A queue of the settings instead of the task's own.",
        lambda value: get_settings().check_queue(value),
        lambda: {"type": "string", "enum": sorted(get_settings().queues)},
    ),
    Parameter(
        "priority", "Larger first.", check_priority,
        lambda: {"type": "integer", "minimum": MIN_PRIORITY, "maximum": MAX_PRIORITY},
    ),
    Parameter(
        "run_after",
        "Seconds from now, a duration from now such as 1h30m, or an instant with an offset.",
        lambda value: _check_when(value, "run_after", check_run_after),
        lambda: _when_schema("minimum"),
    ),
    Parameter(
        "expires", "The latest start, in the form of run_after.",
        lambda value: _check_when(value, "expires", check_expires),
        lambda: _when_schema("exclusiveMinimum"),
    ),
    Parameter(
        "tags", "Strings to find the job by, of printable characters.", check_tags,
        lambda: {
            "type": "object", "maxProperties": MAX_TAGS,
            "propertyNames": {"pattern": TAG_PATTERN},
            "additionalProperties": {"type": "string", "minLength": 1, "maxLength": MAX_VALUE},
        },
    ),
)}  # fmt: skip
