"""The report that a worker sends with every heartbeat, as JSON in Redis; and orders to workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from .codec import dumps
from .parsing import int_or_none, object_or_none, text_or_none

MAX_TEXT = 255  # characters of a name
MAX_LISTED = 1000  # queues or children


class WorkerOrder(StrEnum):
    """An order to a worker."""

    QUIET = "quiet"  # finish the running jobs, take no more
    RESUME = "resume"  # take jobs again
    STOP = "stop"  # end, as after SIGTERM


class WorkerState(StrEnum):
    """What a worker does."""

    RUNNING = "running"
    QUIET = "quiet"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The report of a worker. ``children``: resident bytes (0 if unknown) by the last part of the
    child's id."""

    host: str
    version: str
    started_ms: int  # by the clock of its machine
    state: str
    queues: tuple[str, ...]
    processes: int  # that run jobs
    threads: int  # of each, for sync jobs
    children: Mapping[str, int] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """How many sync jobs it can run at a time."""
        return self.processes * self.threads

    @property
    def memory(self) -> int:
        """Resident bytes of its children. Pages that they share count in each."""
        return sum(self.children.values())

    def text(self) -> str:
        return dumps(asdict(self))


def worker_of(child: str) -> str:
    """The id of the worker of a child (worker/identity.py)."""
    return child.rpartition(".")[0] or child


def parse_report(text: str | None) -> WorkerReport | None:
    """The inverse of ``WorkerReport.text``; None for what no worker has written."""
    raw = object_or_none(text)
    if raw is None:
        return None
    try:
        return WorkerReport(
            _text(raw["host"]), _text(raw["version"]), _number(raw["started_ms"]),
            WorkerState(raw["state"]).value, tuple(map(_text, list(raw["queues"])[:MAX_LISTED])),
            _number(raw["processes"]), _number(raw["threads"]),
            {name: _number(size) for name, size in list(raw["children"].items())[:MAX_LISTED]},
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _text(value: Any) -> str:
    found = text_or_none(value, MAX_TEXT)
    if found is None:
        raise ValueError("not a text")
    return found


def _number(value: Any) -> int:
    found = int_or_none(value, 0, 2**53)
    if found is None:
        raise ValueError("not a number")
    return found
