"""An event of the channel ``job_status``, as a monitor shows it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..codec import loads
from ..texts import harmless

EXTRAS = ("reason", "recoveries", "dueMs")


@dataclass(frozen=True, slots=True)
class Heard:
    """A message of the channel. ``event`` is None when it is no event of ours."""

    text: str
    event: Mapping[str, Any] | None

    @property
    def status(self) -> str:
        return str((self.event or {}).get("status", ""))


def parse(text: str) -> Heard:
    try:
        event = loads(text)
    except ValueError:
        event = None
    return Heard(text, event if type(event) is dict else None)


def line(heard: Heard) -> str:
    """The event in one line without control characters."""
    event = heard.event
    if event is None:
        return f"unreadable message on the channel: {harmless(heard.text)}"
    worker = str(event.get("workerId") or "").partition(".")[0]
    parts = [
        _clock(event.get("timestamp")),
        harmless(event.get("status", "?")).ljust(10),
        harmless(event.get("queue", "?")),
        harmless(event.get("task", "?")),
        harmless(event.get("jobId", "?")),
        *([f"attempt {harmless(event['attempt'])}"] if event.get("attempt") else []),
        *([f"by {harmless(worker)}"] if worker else []),
        *_progress(event.get("progress")),
        *(f"{name} {harmless(event[name])}" for name in EXTRAS if name in event),
    ]
    return "  ".join(parts)


def _progress(progress: object) -> list[str]:
    if not isinstance(progress, dict):
        return []
    done, total = harmless(progress.get("done", "?")), harmless(progress.get("total", "?"))
    return [f"{done}/{total} {harmless(progress.get('note', ''))}".rstrip()]


def _clock(ms: object) -> str:
    """The local time of day."""
    if not isinstance(ms, int | float) or not 0 <= ms < 2**48:
        return "--:--:--"
    return time.strftime("%H:%M:%S", time.localtime(ms / 1000))
