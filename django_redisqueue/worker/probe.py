"""Is a worker alive? Reads its heartbeat file, for container and systemd health checks.

``python -m django_redisqueue.worker.probe FILE [--max-age SECONDS]`` starts no Django and asks no
Redis. Exit code 0: alive. 1: no heartbeat (dead or stuck). 2: alive, but cut off from Redis. 64:
wrong usage, so nothing was looked at.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from enum import IntEnum
from math import inf
from pathlib import Path
from typing import NoReturn


class Health(IntEnum):
    """The probe's exit codes."""

    ALIVE = 0
    DEAD = 1
    CUT_OFF = 2
    MISUSED = 64  # EX_USAGE of sysexits.h


def look(path: Path, max_age: float) -> tuple[Health, str]:
    """What a heartbeat file says; ``max_age`` in seconds."""
    try:
        beat = json.loads(path.read_text())
        now, pid = time.time(), beat["pid"]
        silent, cut_off = now - float(beat["beat"]), now - float(beat["redis"])
    except FileNotFoundError:
        return Health.DEAD, f"no heartbeat file {path}: no worker has started, or it has stopped"
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        return Health.DEAD, f"{path} is not a heartbeat file: {type(error).__name__}: {error}"
    if not silent <= max_age:  # nor is NaN
        return Health.DEAD, f"no heartbeat for {silent:.0f} s (pid {pid})"
    if not cut_off <= max_age:
        return Health.CUT_OFF, f"alive, but Redis has not answered for {cut_off:.0f} s"
    return Health.ALIVE, f"alive (pid {pid}, last heartbeat {silent:.1f} s ago)"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit by a code of its own: argparse's is 2, which would be an answer."""
        self.print_usage(sys.stderr)
        self.exit(Health.MISUSED, f"{self.prog}: error: {message}\n")


def _seconds(text: str) -> float:
    """More than 0 and not endless: else every worker were dead, or alive for ever."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < inf:
        raise argparse.ArgumentTypeError(f"must be seconds, more than 0, not {text!r}")
    return value


def main() -> int:
    """The command."""
    parser = _Parser(
        prog="python -m django_redisqueue.worker.probe",
        description="Tells from its heartbeat file if a worker is alive.",
    )
    parser.add_argument("file", type=Path, help="what runworker has as --heartbeat-file")
    parser.add_argument("--max-age", type=_seconds, default=30.0, help="seconds (default: 30)")
    options = parser.parse_args()
    health, words = look(options.file, options.max_age)
    print(words)
    return int(health)


if __name__ == "__main__":
    sys.exit(main())
