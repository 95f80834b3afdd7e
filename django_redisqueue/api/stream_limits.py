"""Limits on open event streams, of the dashboard and the API together."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from django.db import connections

STREAMS = 100  # open at once in one process
STREAMS_A_USER = 10
RETRY_AFTER = 30  # s after which a refused client may try again


class TooManyStreams(Exception):
    """No further stream may be opened. ``status`` is the HTTP status of the refusal."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(eq=False, frozen=True, slots=True)
class StreamSlot:
    """One open stream."""

    user_id: object


class StreamLimiter:
    """Counts the open streams of this process. There is one, ``stream_limiter``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: set[StreamSlot] = set()

    def check(self, user_id: object) -> None:
        """Raise TooManyStreams when this user may not open another stream."""
        with self._lock:
            self._check(user_id)

    def acquire(self, user_id: object) -> StreamSlot:
        """Open a stream. Raises TooManyStreams."""
        with self._lock:
            self._check(user_id)
            slot = StreamSlot(user_id)
            self._slots.add(slot)
            return slot

    def release(self, slot: StreamSlot) -> None:
        """Close a stream. Releasing a slot twice does nothing."""
        with self._lock:
            self._slots.discard(slot)

    @property
    def open_streams(self) -> int:
        return len(self._slots)

    def _check(self, user_id: object) -> None:
        if sum(slot.user_id == user_id for slot in self._slots) >= STREAMS_A_USER:
            raise TooManyStreams(
                f"this user has {STREAMS_A_USER} streams open already; close one", 429
            )
        if len(self._slots) >= STREAMS:
            raise TooManyStreams(
                f"this process has {STREAMS} streams open already; try again later", 503
            )


stream_limiter = StreamLimiter()


def close_connections() -> None:
    """Close this thread's database connections: a stream lives long and queries rarely."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
