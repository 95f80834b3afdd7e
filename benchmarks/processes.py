"""Starts, watches, measures and stops other processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .measure import until

ROOT = Path(__file__).resolve().parent.parent
STOP_SECONDS = 40
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """A running program, and the file to which its output goes."""

    popen: subprocess.Popen[bytes]
    log: Path

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until the condition holds. Raises RuntimeError if the process ends first."""

        def look() -> object:
            if self.popen.poll() is not None:
                raise RuntimeError(f"{what}: the process has ended\n{self.log.read_text()}")
            return condition()

        until(look, what)

    def wait(self) -> None:
        """Wait until the process ends."""
        if self.popen.wait(600):
            raise RuntimeError(f"{self.popen.args!r} failed\n{self.log.read_text()}")

    def tree(self) -> list[int]:
        """The process and all its descendants."""
        found = [self.popen.pid]
        for pid in found:
            for path in Path(f"/proc/{pid}/task").glob("*/children"):
                with suppress(OSError):  # it has ended
                    found += [int(child) for child in path.read_text().split()]
        return found


@contextmanager
def running(
    command: Sequence[str], log: Path, environ: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """Run a process; stop it by SIGTERM at the end, or kill it if that does not help."""
    with log.open("wb") as out:
        popen = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environ or {})},
            start_new_session=True,
        )  # fmt: skip
    try:
        yield Process(popen, log)
    finally:
        popen.terminate()
        try:
            popen.wait(STOP_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used, to a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def line_of(log: Path) -> dict[str, float]:
    """The last line that a process printed, parsed as JSON."""
    found: dict[str, float] = json.loads(log.read_text().splitlines()[-1])
    return found
