"""The shape of the API: what the views offer, and the OpenAPI document says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from .params import Parameter


@dataclass(frozen=True, slots=True)
class Call:
    """One request that may be answered: by whom, for what path, with its checked query."""

    request: HttpRequest
    user: Any
    path: Mapping[str, str]
    query: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path. ``answer`` names a schema of the document; ``errors`` are those it
    may answer with besides what every operation may."""

    name: str
    summary: str
    view: Callable[[Call], HttpResponseBase]
    permission: str
    status: int = 200
    answer: str
    query: tuple[Parameter, ...] = ()
    body: bool = False
    errors: tuple[int, ...] = ()
    is_stream: bool = False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path below the mount, such as ``/{id}/retry``, with its operations by method."""

    path: str
    operations: Mapping[str, Operation]
    fixed: Mapping[str, str] = field(default_factory=dict)  # what the path means to its views

    def find(self, method: str) -> Operation | None:
        """The operation; HEAD is GET, except for streams."""
        if method == "HEAD":
            found = self.operations.get("GET")
            return None if found is None or found.is_stream else found
        return self.operations.get(method)

    @property
    def allow(self) -> str:
        """What the header Allow says."""
        return ", ".join(m for m in ("GET", "HEAD", "POST", "DELETE") if self.find(m))
