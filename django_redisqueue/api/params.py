"""What a request may carry in its query: read, checked and described in one place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from django.http import QueryDict

from ..conf import did_you_mean, get_settings
from ..store.events import Position
from ..store.reads import PAGE
from .errors import ApiError, naming

_WHOLE = re.compile(r"[0-9]{1,12}")
_POSITION = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")


class Parameter(Protocol):
    """One parameter of a query."""

    @property
    def name(self) -> str: ...

    @property
    def help(self) -> str: ...

    def read(self, text: str | None) -> Any:
        """The value of ``text``, or the default for None. Raises ApiError naming the parameter."""

    def schema(self) -> dict[str, Any]:
        """What it may be, as JSON Schema."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number."""

    name: str
    help: str
    default: int
    low: int
    high: int

    def read(self, text: str | None) -> int:
        if text is None:
            return self.default
        value = int(text) if _WHOLE.fullmatch(text) else -1
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
class QueueName:
    """A queue of the settings."""

    name: str = "queue"
    help: str = "A queue of the settings."

    def read(self, text: str | None) -> str:
        with naming(self.name):
            return get_settings().check_queue("default" if text is None else text)

    def schema(self) -> dict[str, Any]:
        queues = sorted(get_settings().queues)
        return {"type": "string", "enum": queues} | (
            {"default": "default"} if "default" in queues else {}
        )


@dataclass(frozen=True, slots=True)
class LastEventId:
    """Where a reader of events was."""

    name: str = "last_event_id"
    help: str = "For a first request: go on behind this event. The header Last-Event-ID wins."

    def read(self, text: str | None) -> Position | None:
        return None if text is None else to_position(text, self.name)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^[0-9]{1,20}-[0-9]{1,20}$"}


def to_position(text: str, field: str) -> Position:
    """A place in the stream. Raises ApiError naming ``field``."""
    match = _POSITION.fullmatch(text)
    position = (int(match[1]), int(match[2])) if match else (2**63, 0)
    if max(position) >= 2**63:  # what a database's integers hold
        raise ApiError(
            400, "invalid_option", f"{field} must be the id of an event, such as "
            f"1760000000000-0, not {text!r}", field,
        )  # fmt: skip
    return position


START = Whole("start", "How many jobs to skip.", 0, 0, 10_000_000)
LIMIT = Whole("limit", "How many jobs to show.", 50, 1, PAGE)
QUEUE = QueueName()
LAST_EVENT_ID = LastEventId()


def read_query(query: QueryDict, parameters: Sequence[Parameter]) -> Mapping[str, Any]:
    """The values of all parameters. Raises ApiError for one that is unknown, repeated or wrong."""
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
