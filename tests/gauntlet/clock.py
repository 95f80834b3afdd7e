"""A Redis server whose clock jumps: a library that is built here stands between it and the
system's. All other processes, and so the ledger, have the true time."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from tests.support.servers import RedisServer, program

SOURCE = Path(__file__).with_name("moved_clock.c")
TOLERANCE = 0.05  # s between asking Redis for the time and looking at the clock here


def missing() -> str:
    """Why no clock can jump here; "" if it can."""
    if sys.platform != "linux":
        return "only on Linux can a library be preloaded that moves the clock"
    return "" if shutil.which("cc") else "there is no C compiler (cc), which builds what moves it"


class MovedClockServer(RedisServer):
    """Its clock is ``ahead`` by so many seconds, also when it starts again."""

    ahead = 0.0

    def start(self) -> None:
        library, offset = self.folder / "moved_clock.so", self.folder / "offset"
        if not library.exists():
            offset.write_bytes(bytes(8))
            subprocess.run(
                ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE)], check=True
            )
        moved = {"LD_PRELOAD": str(library), "MOVED_CLOCK": str(offset)}
        self.launch(program(), *self._arguments(), env={**os.environ, **moved})

    def jump(self, ahead: float) -> None:
        """Move the clock at once."""
        with (self.folder / "offset").open("r+b") as file, mmap.mmap(file.fileno(), 8) as mapped:
            mapped[:] = struct.pack("=q", round(ahead * 1e9))
        self.ahead = ahead

    def shows(self) -> bool:
        """Whether Redis answers, soon enough, with the time that it should have."""
        try:
            with Redis.from_url(self.url) as client:
                seconds, microseconds = client.time()
        except RedisError:
            return False
        return abs(seconds + microseconds / 1e6 - time.time() - self.ahead) < TOLERANCE
