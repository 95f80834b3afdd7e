"""The parts that the API is made of: endpoints, operations, and the parameters of their queries."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest, QueryDict
from django.http.response import HttpResponseBase

from ..broker.events import Positions
from ..conf import get_settings
from ..core.placement import MAX_SHARDS
from ..exceptions import did_you_mean
from .errors import ApiError, errors_for

MAX_TEXT = 1000  # characters of a parameter
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
        """The user, and the token if one was used: for the history of pauses."""
        name: str = self.user.get_username()
        return f"{name} (API token {self.token})" if self.token else name


OperationView = Callable[[ApiRequest], HttpResponseBase]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path. ``answer`` names a schema of the OpenAPI document; ``errors`` are the
    statuses besides those that every operation may return."""

    name: str
    summary: str
    view: OperationView
    permission: str
    answer: str
    query: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()
    is_stream: bool = False
    is_enqueue: bool = False  # takes a body and an Idempotency-Key; 200 says that the job existed


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path below the mount, such as ``/{id}/retry``, with its operations by method."""

    path: str
    operations: Mapping[str, Operation]
    fixed: Mapping[str, str] = field(default_factory=dict)  # path arguments for the views

    def find(self, method: str) -> Operation | None:
        """The operation; HEAD is GET, except for streams."""
        if method == "HEAD":
            found = self.operations.get("GET")
            return None if found is None or found.is_stream else found
        return self.operations.get(method)

    @property
    def allow(self) -> str:
        """The value of the header Allow."""
        return ", ".join(m for m in ("GET", "HEAD", "POST", "DELETE") if self.find(m))


@dataclass(frozen=True, slots=True)
class Parameter(ABC):
    """One parameter of a query string."""

    name: str
    help: str
    required: bool = field(default=False, kw_only=True)

    @abstractmethod
    def read(self, text: str | None) -> Any:
        """The value of ``text``, or the default for None. Raises ApiError naming the parameter."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Its values as JSON Schema."""


@dataclass(frozen=True, slots=True)
class IntegerParameter(Parameter):
    """A whole number within a range."""

    default: int
    low: int
    high: int

    def read(self, text: str | None) -> int:
        if text is None:
            return self.default
        value = int(text) if _INTEGER.fullmatch(text) else -1
        if not self.low <= value <= self.high:
            raise ApiError(
                400, "invalid_option", f"{self.name} must be a whole number from {self.low} to "
                f"{self.high}, not {text!r}", self.name,
            )  # fmt: skip
        return value

    def schema(self) -> dict[str, Any]:
        return {
            "type": "integer", "minimum": self.low, "maximum": self.high, "default": self.default,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueueParameter(Parameter):
    """A queue of the settings."""

    def read(self, text: str | None) -> str:
        with errors_for(self.name):
            return get_settings().check_queue("default" if text is None else text)

    def schema(self) -> dict[str, Any]:
        queues = sorted(get_settings().queues)
        return {"type": "string", "enum": queues} | (
            {"default": "default"} if "default" in queues else {}
        )


@dataclass(frozen=True, slots=True)
class TextParameter(Parameter):
    """A text of limited length."""

    def read(self, text: str | None) -> str:
        if text is None and self.required:
            raise ApiError(400, "missing_parameter", f"{self.name} is missing", self.name)
        if text is not None and not 0 < len(text) <= MAX_TEXT:
            raise ApiError(
                400, "invalid_option", f"{self.name} must have 1 to {MAX_TEXT} characters, not "
                f"{len(text)}", self.name,
            )  # fmt: skip
        return text or ""

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}


@dataclass(frozen=True, slots=True)
class ChoiceParameter(Parameter):
    """One of several words, the first unless given."""

    choices: tuple[str, ...]

    def read(self, text: str | None) -> str:
        if text is None:
            return self.choices[0]
        if text not in self.choices:
            raise ApiError(
                400, "invalid_option", f"{self.name} must be one of {', '.join(self.choices)}, "
                f"not {text!r}", self.name,
            )  # fmt: skip
        return text

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.choices), "default": self.choices[0]}


@dataclass(frozen=True, slots=True)
class LastEventIdParameter(Parameter):
    """The last event that a client has received."""

    def read(self, text: str | None) -> Positions | None:
        return None if text is None else to_positions(text, self.name)

    def schema(self) -> dict[str, Any]:
        one = "[0-9]{1,20}-[0-9]{1,20}"
        return {"type": "string", "pattern": f"^{one}(,{one}){{0,{MAX_SHARDS - 1}}}$"}


def to_positions(text: str, field: str) -> Positions:
    """The positions in the streams of all shards that are the id of an event. Raises ApiError
    naming ``field``.

    An id from before SHARDS grew has no positions for the new shards. Those get its latest instant,
    so "0-0" is the beginning everywhere.
    """
    matches = [_POSITION.fullmatch(part) for part in text.split(",", MAX_SHARDS - 1)]
    found = [(int(match[1]), int(match[2])) if match else (2**63, 0) for match in matches]
    if max(map(max, found)) >= 2**63:  # the limit of a database's integers
        raise ApiError(
            400, "invalid_option", f"{field} must be the id of an event, such as "
            f"1760000000000-0, not {text!r}", field,
        )  # fmt: skip
    shards = get_settings().shards
    return (*found, *[(max(found)[0], 0)] * (shards - len(found)))[:shards]


def read_query(query: QueryDict, parameters: Sequence[Parameter]) -> Mapping[str, Any]:
    """The values of all parameters. Raises ApiError for unknown, repeated or invalid ones."""
    known = {parameter.name: parameter for parameter in parameters}
    for name, values in query.lists():
        if name not in known:
            takes = ", ".join(known) or "none"
            raise ApiError(
                400, "unknown_parameter", f"there is no parameter {name!r}"
                f"{did_you_mean(name, known)}; this path takes: {takes}", name[:100],
            )  # fmt: skip
        if len(values) > 1:
            raise ApiError(400, "invalid_option", f"{name} is given {len(values)} times", name)
    return {name: parameter.read(query.get(name)) for name, parameter in known.items()}
