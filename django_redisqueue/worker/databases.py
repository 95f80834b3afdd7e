"""Database connections around jobs: checked before, closed as needed after, on all aliases."""

from __future__ import annotations

import threading
from typing import Any

from django.db import connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created


class Databases:
    """The connections that this child's main thread has opened; most jobs find none to look at."""

    def __init__(self) -> None:
        self.opened: list[BaseDatabaseWrapper] = []  #: without one there is nothing to do
        self._thread = threading.get_ident()
        connection_created.connect(self._remember)

    def _remember(self, connection: BaseDatabaseWrapper, **_: Any) -> None:
        # The signal comes in every thread; a connection may be touched in its own only.
        if threading.get_ident() == self._thread and connection not in self.opened:
            self.opened.append(connection)

    def before(self) -> None:
        """Close what the server has closed since the last job, so that the job does not meet it."""
        for connection in self.opened:
            if connection.connection is not None and not connection.is_usable():
                connection.close()

    def after(self) -> None:
        """Close what is broken, too old, or was left inside a transaction."""
        reset_queries()
        for connection in self.opened:
            if connection.in_atomic_block:
                # An interrupt came between two lines of atomic(). Only outside of a block does
                # close() forget the connection, so that the next use opens another.
                connection.in_atomic_block = False
                connection.close()
            connection.close_if_unusable_or_obsolete()
        self.opened = [c for c in self.opened if c.connection is not None]


def close_all() -> None:
    """Close every connection of this thread: before a fork, and when a thread ends."""
    connections.close_all()
