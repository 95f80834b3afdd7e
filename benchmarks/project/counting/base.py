"""Django's SQLite backend with a count of open connections and its peak."""

from __future__ import annotations

import threading
from typing import Any

from django.db.backends.sqlite3 import base


class Connections:
    """Open connections of this process, and their peak number."""

    def __init__(self) -> None:
        self.open = self.peak = 0
        self._lock = threading.Lock()

    def add(self, number: int) -> None:
        with self._lock:
            self.open += number
            self.peak = max(self.peak, self.open)


connections = Connections()


class DatabaseWrapper(base.DatabaseWrapper):
    """Counts the connections that it opens and closes."""

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        connections.add(1)
        return super().get_new_connection(conn_params)

    def _close(self) -> None:
        if self.connection is not None:
            connections.add(-1)
        super()._close()  # type: ignore[misc]
