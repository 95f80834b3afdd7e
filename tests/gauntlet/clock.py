"""Clocks that jump: a preloaded library, built here, stands between a process and the system's
clock. The main program and the marks in the ledger keep the true time."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from tests.support.cluster import ClusterNode
from tests.support.servers import RedisServer

SOURCE = Path(__file__).with_name("moved_clock.c")
TOLERANCE = 0.05  # s between asking Redis for the time and reading the clock here


def missing() -> str:
    """Why no clock can jump here, or "" if one can."""
    if sys.platform != "linux":
        return "only on Linux can a library be preloaded that moves the clock"
    return "" if shutil.which("cc") else "there is no C compiler (cc), which builds what moves it"


@cache
def _compiled() -> bytes:
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", file.name, str(SOURCE)], check=True)
        return Path(file.name).read_bytes()


class MovedClock:
    """The clock of processes that start with its ``environment``. It is ``ahead`` of the true time
    by that many seconds."""

    def __init__(self, folder: Path) -> None:
        self.ahead = 0.0
        self._library, self._offset = folder / "moved_clock.so", folder / "offset"
        self._offset.write_bytes(bytes(8))
        self._library.write_bytes(_compiled())

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "MOVED_CLOCK": str(self._offset)}

    def jump(self, ahead: float) -> None:
        """Set the offset from the true time at once, rounded to whole ms."""
        self.ahead = round(ahead, 3)
        with self._offset.open("r+b") as file, mmap.mmap(file.fileno(), 8) as mapped:
            mapped[:] = struct.pack("=q", round(self.ahead * 1000) * 1_000_000)

    def moves(self, pid: int) -> bool:
        """Whether a process uses this clock."""
        try:
            return str(self._library) in Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            return False


class MovedClockServer(RedisServer):
    """A server whose clock stays moved when it restarts."""

    _clock: MovedClock | None = None

    @property
    def clock(self) -> MovedClock:
        self._clock = self._clock or MovedClock(self.folder)
        return self._clock

    def launch(self, *command: str, **who: Any) -> None:
        super().launch(*command, env={**os.environ, **self.clock.environment}, **who)

    def shows(self) -> bool:
        """Whether Redis answers, soon enough, with the time that it should show."""
        try:
            with Redis.from_url(self.url) as client:
                seconds, microseconds = client.time()
        except RedisError:
            return False
        return abs(seconds + microseconds / 1e6 - time.time() - self.clock.ahead) < TOLERANCE


class MovedClockNode(MovedClockServer, ClusterNode):
    """A cluster node with a movable clock."""
