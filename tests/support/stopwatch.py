"""Measures time, without the time in which the machine was too busy."""

from __future__ import annotations

import re
import time
from pathlib import Path

BUSY = 30.0  # s more that a wait may take while processes wait for cores; then it hangs
PRESSURES = [Path("/proc/pressure/cpu"), Path("/proc/pressure/io")]


class Stopwatch:
    """For assertions that something is fast, which must not fail because other processes use the
    cores.

    Linux counts the time in which any process waited for a core, or for the disk. Elsewhere
    ``seconds`` is simply ``elapsed``.
    """

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._stalled = _stalled()

    @property
    def elapsed(self) -> float:
        """Seconds since it was created."""
        return time.monotonic() - self._begun

    @property
    def seconds(self) -> float:
        """Seconds since it was created, without those in which a process had to wait."""
        return self.elapsed - self.stalled

    @property
    def stalled(self) -> float:
        """Seconds since it was created in which a process had to wait."""
        return _stalled() - self._stalled

    def is_over(self, limit: float) -> bool:
        """Whether that many ``seconds`` have passed, or that many and BUSY more of elapsed time."""
        return self.elapsed > limit and (self.seconds > limit or self.elapsed > limit + BUSY)


def _stalled() -> float:
    return sum(map(_read, PRESSURES))


def _read(path: Path) -> float:
    try:
        found = re.search(r"some .*total=(\d+)", path.read_text())
    except OSError:  # another system, or a kernel that does not count it
        return 0.0
    return int(found[1]) / 1e6 if found else 0.0
