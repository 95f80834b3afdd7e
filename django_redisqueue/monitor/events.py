"""Messages of the channel ``job_status`` as lines of text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.codec import loads
from ..core.text import sanitize

EXTRAS = ("reason", "recoveries", "dueMs")
NARROW = 100  # columns, below which a line has the job first and of a task its last name
FAILURES = ("failed", "retrying")


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """A message of the channel. ``event`` is None when the text is not a JSON object."""

    text: str
    event: Mapping[str, Any] | None

    @property
    def status(self) -> str:
        return str((self.event or {}).get("status", ""))

    @property
    def is_failure(self) -> bool:
        """Whether an attempt has failed, or a job in the end."""
        return self.status in FAILURES


def parse(text: str) -> ChannelMessage:
    try:
        event = loads(text)
    except ValueError:
        event = None
    return ChannelMessage(text, event if type(event) is dict else None)


def line(message: ChannelMessage, columns: int = NARROW) -> str:
    """The event in one line, without control characters. What matters most comes first if there are
    few columns."""
    event = message.event
    if event is None:
        return f"unreadable message on the channel: {sanitize(message.text)}"
    worker = str(event.get("workerId") or "").partition(".")[0]
    queue, task, job = (sanitize(event.get(name, "?")) for name in ("queue", "task", "jobId"))
    is_narrow = columns < NARROW
    parts = [
        _clock(event.get("timestamp")),
        sanitize(event.get("status", "?")).ljust(10),
        *([job, task.rpartition(".")[2], queue] if is_narrow else [queue, task, job]),
        *([f"attempt {sanitize(event['attempt'])}"] if event.get("attempt") else []),
        *([f"by {sanitize(worker)}"] if worker else []),
        *_progress(event.get("progress")),
        *(f"{name} {sanitize(event[name])}" for name in EXTRAS if name in event),
    ]
    return (" " if is_narrow else "  ").join(parts)


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
