"""Leaves room for other writers on SQLite, which allows one writer at a time.

While another connection writes, the bridge holds the write lock at most a fifth of the time.
``PRAGMA data_version`` changes with every commit of another connection; while it stays the same,
the bridge runs at full speed.
"""

from __future__ import annotations

import time

from django.db import connections

PAUSE_FACTOR = 4  # times the length of the last transaction
OTHERS_ACTIVE = 5.0  # s for which one commit of another connection counts


class SqliteThrottle:
    """Call ``wait`` before a transaction and ``record`` after it. Other databases never wait."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._is_sqlite = connections[alias].vendor == "sqlite"
        self._version: int | None = None
        self._others_until = 0.0
        self._next_at = 0.0

    def wait(self) -> None:
        if self._is_sqlite and self._others_write():
            time.sleep(max(0.0, self._next_at - time.monotonic()))

    def record(self, seconds: float) -> None:
        """Note that a transaction has just held the lock for so long."""
        self._next_at = time.monotonic() + PAUSE_FACTOR * seconds

    def _others_write(self) -> bool:
        with connections[self._alias].cursor() as cursor:
            cursor.execute("PRAGMA data_version")
            version = cursor.fetchone()[0]
        now = time.monotonic()
        if self._version is not None and version != self._version:
            self._others_until = now + OTHERS_ACTIVE
        self._version = version
        return now < self._others_until
