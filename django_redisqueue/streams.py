"""Open streams of events, of the dashboard and the API together: how many there may be in a
process, and that none of them holds a database connection while it waits."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from django.db import connections

STREAMS = 100  # open at once in one process
STREAMS_A_USER = 10
RETRY_AFTER = 30  # s after which somebody who was refused may ask again


class TooManyStreams(Exception):
    """No further stream may be opened. ``status``: of HTTP."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(eq=False, frozen=True, slots=True)
class Place:
    """One open stream."""

    user_id: object


class Places:
    """The open streams of this process; there is one, ``places``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: set[Place] = set()

    def check(self, user_id: object) -> None:
        """Raise TooManyStreams when no further stream of that user may be opened."""
        with self._lock:
            self._check(user_id)

    def take(self, user_id: object) -> Place:
        """Open a stream. Raises TooManyStreams."""
        with self._lock:
            self._check(user_id)
            place = Place(user_id)
            self._taken.add(place)
            return place

    def free(self, place: Place) -> None:
        """A stream has ended; harmless when that is known already."""
        with self._lock:
            self._taken.discard(place)

    @property
    def taken(self) -> int:
        """How many streams are open."""
        return len(self._taken)

    def _check(self, user_id: object) -> None:
        if sum(place.user_id == user_id for place in self._taken) >= STREAMS_A_USER:
            raise TooManyStreams(
                f"this user has {STREAMS_A_USER} streams open already; close one", 429
            )
        if len(self._taken) >= STREAMS:
            raise TooManyStreams(
                f"this process has {STREAMS} streams open already; try again later", 503
            )


places = Places()


def close_connections() -> None:
    """Close what this thread holds of databases: a stream lives long and asks seldom."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
