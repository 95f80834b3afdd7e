"""The heartbeat file: what a probe reads to tell a live worker from a dead or cut-off one."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

logger = logging.getLogger("django_redisqueue")


class Beacon:
    """Writes ``{"pid", "beat", "redis"}`` after every heartbeat; instants are seconds since the
    epoch.

    ``beat``: when the supervisor last tried. ``redis``: when Redis last answered it. The file is
    replaced in one step, so that a reader never sees half of it.
    """

    def __init__(self, path: str | None) -> None:
        self._path = Path(path) if path else None
        self._draft = Path(f"{path}.{os.getpid()}")
        self._answered = 0.0
        self._problem = ""

    def beat(self, answered: bool) -> None:
        """Note a heartbeat, and whether Redis answered. A file that cannot be written (a full
        disk) is logged once; the probe finds it old.
        """
        if self._path is None:
            return
        now = time.time()
        if answered:
            self._answered = now
        text = json.dumps({"pid": os.getpid(), "beat": now, "redis": self._answered})
        try:
            self._draft.write_text(text)
            self._draft.replace(self._path)
        except OSError as error:
            if not self._problem:
                logger.error("the heartbeat file %s cannot be written: %s", self._path, error)
            self._problem = str(error)
        else:
            self._problem = ""

    def remove(self) -> None:
        """The worker has stopped in order."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._draft.unlink(missing_ok=True)
