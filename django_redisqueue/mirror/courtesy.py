"""Leaving SQLite to others: it has one writer at a time.

The bridge holds the write lock at most a fifth of the time while anybody else writes, which SQLite
tells by ``PRAGMA data_version``: it changes with every commit of another connection. As long as
nobody does, it goes on at full speed.
"""

from __future__ import annotations

import time

from django.db import connections

SHARE = 4  # times the length of a transaction before the next may begin
REMEMBER = 5.0  # s from another's last commit


class Courtesy:
    """``wait`` before a transaction, ``held`` after it. Other databases need none."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._is_needed = connections[alias].vendor == "sqlite"
        self._version: int | None = None
        self._others_until = 0.0
        self._next = 0.0

    def wait(self) -> None:
        """Until it is our turn again, by a few dozen ms."""
        if not self._is_needed:
            return
        if self._others_write():
            time.sleep(max(0.0, self._next - time.monotonic()))

    def held(self, seconds: float) -> None:
        """A transaction has just ended that held the lock for so long."""
        self._next = time.monotonic() + SHARE * seconds

    def _others_write(self) -> bool:
        with connections[self._alias].cursor() as cursor:
            cursor.execute("PRAGMA data_version")
            version = cursor.fetchone()[0]
        now = time.monotonic()
        if self._version is not None and version != self._version:
            self._others_until = now + REMEMBER
        self._version = version
        return now < self._others_until
