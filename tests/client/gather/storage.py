"""A storage in which processes die, once, at the step named by a file in its folder."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from django.core.files.storage import FileSystemStorage

STEPS = ("before", "within", "after")


class DeadlyStorage(FileSystemStorage):
    """Dies ``before`` a file is written, ``within`` the write, or ``after`` the file exists."""

    def _save(self, name: str, content: Any) -> str:
        self._die("before")
        if self._is_asked("within"):
            path = Path(self.path(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read()[:1000])
            self._die("within")
        saved: str = super()._save(name, content)
        self._die("after")
        return saved

    def _is_asked(self, step: str) -> bool:
        return (Path(self.location) / step).exists()

    def _die(self, step: str) -> None:
        if self._is_asked(step):
            (Path(self.location) / step).rename(Path(self.location) / f"was-{step}")
            os.kill(os.getpid(), signal.SIGKILL)
