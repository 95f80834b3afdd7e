"""The heartbeat file: what a probe reads to tell a live worker from a dead or cut-off one."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class Beacon:
    """Writes ``{"pid", "beat", "redis"}`` after every heartbeat; instants are seconds since the
    epoch.

    ``beat``: when the supervisor last tried. ``redis``: when Redis last answered it. The file is
    replaced in one step, so that a reader never sees half of it.
    """

    def __init__(self, path: str | None) -> None:
        self._path = Path(path) if path else None
        self._answered = 0.0

    def beat(self, answered: bool) -> None:
        """Note a heartbeat, and whether Redis answered."""
        if self._path is None:
            return
        now = time.time()
        if answered:
            self._answered = now
        text = json.dumps({"pid": os.getpid(), "beat": now, "redis": self._answered})
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        draft.write_text(text)
        draft.replace(self._path)

    def remove(self) -> None:
        """The worker has stopped in order."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
