"""Events as a monitor follows them: the channels of all shards as one, and their messages as lines
of text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..broker.base import keys_at
from ..broker.connection import RedisConnection, worker_connection
from ..conf import get_settings
from ..core.codec import loads
from ..core.text import sanitize
from ..exceptions import RedisQueueError

MAX_MESSAGES = 500  # that are received at once
ROUND = 0.1  # s in which each of several channels is looked at
EXTRAS = ("reason", "recoveries", "dueMs")
NARROW = 100  # columns, below which a line has the job first and of a task its last name
FAILURES = ("failed", "retrying")


class EventChannels:
    """Subscriptions to all channels: one a server, and on a cluster one a shard.

    ``problem``: why one of them is not open, or None.
    """

    def __init__(self) -> None:
        settings = get_settings()
        connections = map(worker_connection, range(settings.shards))
        keys = [(one, keys_at(one, settings)) for one in connections]
        # By server and channel, each once
        places = {(one.redis_url, key.status_channel): one for one, key in keys}
        self._channels = {one: channel for (_, channel), one in places.items()}
        self._open: list[RedisConnection] = []
        self.problem: RedisQueueError | None = None

    def open(self) -> None:
        """Subscribe to each channel that is not open. Raises the problem if none can be."""
        self.problem = None
        for connection, channel in self._channels.items():
            if connection not in self._open:
                try:
                    connection.subscribe(channel)
                    self._open.append(connection)
                except RedisQueueError as error:
                    self._close(connection)
                    self.problem = error
        if self.problem is not None and not self._open:
            raise self.problem

    def receive(self, timeout: float) -> list[str]:
        """The messages that have arrived, waiting for the first. Raises the error if no channel is
        open any more."""
        end = time.monotonic() + timeout
        found: list[str] = []
        while True:
            several = len(self._open) > 1
            for connection in list(self._open):
                left = min(end - time.monotonic(), ROUND / len(self._open) if several else timeout)
                try:
                    found += _messages(connection, 0 if found else max(0.0, left))
                except RedisQueueError as error:
                    self.problem = error
                    self._close(connection)
                    if not self._open:
                        raise
            if found or time.monotonic() >= end:
                return found

    def close(self) -> None:
        """Close all."""
        for connection in self._channels:
            self._close(connection)

    def _close(self, connection: RedisConnection) -> None:
        connection.close()
        if connection in self._open:
            self._open.remove(connection)


def _messages(connection: RedisConnection, timeout: float) -> list[str]:
    found: list[str] = []
    message = connection.message(timeout)
    while message is not None:
        found.append(message)
        message = connection.message(0) if len(found) < MAX_MESSAGES else None
    return found


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
