"""The heartbeat file: a supervisor writes it, health checks of containers and systemd read it.

``python -m django_redisqueue.worker.probe FILE [--max-age SECONDS]`` needs no settings or Redis.
Exit code 0: alive. 1: no heartbeat (dead or stuck). 2: alive, but cut off from Redis. 64: wrong
usage, so nothing was checked.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from contextlib import suppress
from enum import IntEnum
from math import inf
from pathlib import Path
from typing import NoReturn

logger = logging.getLogger("django_redisqueue")


class HeartbeatFile:
    """Writes ``{"pid", "beat", "redis"}`` after every heartbeat, and while the worker waits to
    start.

    ``beat`` is when the supervisor last tried, ``redis`` when Redis last answered it (0: never),
    both in seconds since the epoch. The file is replaced in one step, so a reader never sees half
    of it.
    """

    def __init__(self, path: str | None) -> None:
        self._path = Path(path) if path else None
        self._draft = Path(f"{path}.{os.getpid()}")
        self._answered = 0.0
        self._is_broken = False

    def write(self, answered: bool) -> None:
        """Record a heartbeat, and whether Redis answered.

        A failure to write (a full disk) is logged once; the probe sees that the file is old.
        """
        if self._path is None:
            return
        now = time.time()
        if answered:
            self._answered = now
        text = json.dumps({"pid": os.getpid(), "beat": now, "redis": self._answered})
        try:
            # A new file: in /tmp, another user may have left a link or a pipe of this name.
            self._draft.unlink(missing_ok=True)
            with self._draft.open("x") as draft:
                draft.write(text)
            self._draft.replace(self._path)
            self._is_broken = False
        except OSError as error:
            if not self._is_broken:
                #: The file of --heartbeat-file cannot be written, so health checks will consider
                #: the worker dead. Look at the disk and the permissions.
                logger.error("the heartbeat file %s cannot be written: %s", self._path, error)
            self._is_broken = True

    def remove(self) -> None:
        """Delete the file, because the worker has stopped. If that fails, as on a disk that has
        become read-only, the file is soon too old."""
        if self._path is not None:
            for path in (self._path, self._draft):
                with suppress(OSError):
                    path.unlink()


class Health(IntEnum):
    """The probe's exit codes."""

    ALIVE = 0
    DEAD = 1
    CUT_OFF = 2
    MISUSED = 64  # EX_USAGE of sysexits.h


def check_heartbeat(path: Path, max_age: float) -> tuple[Health, str]:
    """Judge a worker's health by its heartbeat file; ``max_age`` in seconds."""
    try:
        beat = json.loads(path.read_text())
        now, pid = time.time(), beat["pid"]
        # Also if the clock has been set back: a living worker soon writes the new time.
        silent, cut_off = abs(now - float(beat["beat"])), abs(now - float(beat["redis"]))
    except FileNotFoundError:
        return Health.DEAD, f"no heartbeat file {path}: no worker has started, or it has stopped"
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        return Health.DEAD, f"{path} is not a heartbeat file: {type(error).__name__}: {error}"
    if not silent <= max_age:  # also if it is NaN
        return Health.DEAD, f"no heartbeat for {silent:.0f} s (pid {pid})"
    if not cut_off <= max_age:
        since = f"for {cut_off:.0f} s" if beat["redis"] else "yet"
        return Health.CUT_OFF, f"alive, but Redis has not answered {since}"
    return Health.ALIVE, f"alive (pid {pid}, last heartbeat {silent:.1f} s ago)"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with 64: argparse's own exit code 2 means "cut off from Redis" here."""
        self.print_usage(sys.stderr)
        self.exit(Health.MISUSED, f"{self.prog}: error: {message}\n")


def _seconds(text: str) -> float:
    """Finite and positive; otherwise every worker would be dead, or alive forever."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < inf:
        raise argparse.ArgumentTypeError(f"must be seconds, more than 0, not {text!r}")
    return value


def main() -> int:
    parser = _Parser(
        prog="python -m django_redisqueue.worker.probe",
        description="Tells from a worker's heartbeat file whether the worker is alive.",
    )
    parser.add_argument("file", type=Path, help="the file that runworker got as --heartbeat-file")
    parser.add_argument("--max-age", type=_seconds, default=30.0, help="seconds (default: 30)")
    options = parser.parse_args()
    health, message = check_heartbeat(options.file, options.max_age)
    print(message)
    return int(health)


if __name__ == "__main__":
    sys.exit(main())
