"""Messages of the channel ``job_status`` as lines of text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.codec import loads
from ..core.text import sanitize

EXTRAS = ("reason", "recoveries", "dueMs")


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """A message of the channel. ``event`` is None when the text is not a JSON object."""

    text: str
    event: Mapping[str, Any] | None

    @property
    def status(self) -> str:
        return str((self.event or {}).get("status", ""))


def parse(text: str) -> ChannelMessage:
    try:
        event = loads(text)
    except ValueError:
        event = None
    return ChannelMessage(text, event if type(event) is dict else None)


def line(message: ChannelMessage) -> str:
    """The event in one line, without control characters."""
    event = message.event
    if event is None:
        return f"unreadable message on the channel: {sanitize(message.text)}"
    worker = str(event.get("workerId") or "").partition(".")[0]
    parts = [
        _clock(event.get("timestamp")),
        sanitize(event.get("status", "?")).ljust(10),
        sanitize(event.get("queue", "?")),
        sanitize(event.get("task", "?")),
        sanitize(event.get("jobId", "?")),
        *([f"attempt {sanitize(event['attempt'])}"] if event.get("attempt") else []),
        *([f"by {sanitize(worker)}"] if worker else []),
        *_progress(event.get("progress")),
        *(f"{name} {sanitize(event[name])}" for name in EXTRAS if name in event),
    ]
    return "  ".join(parts)


def _progress(progress: object) -> list[str]:
    if not isinstance(progress, dict):
        return []
    done, total = sanitize(progress.get("done", "?")), sanitize(progress.get("total", "?"))
    return [f"{done}/{total} {sanitize(progress.get('note', ''))}".rstrip()]


def _clock(ms: object) -> str:
    """The local time of day."""
    if not isinstance(ms, int | float) or not 0 <= ms < 2**48:
        return "--:--:--"
    return time.strftime("%H:%M:%S", time.localtime(ms / 1000))
