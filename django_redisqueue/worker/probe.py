"""Is a worker alive? Reads its heartbeat file, for container and systemd health checks.

``python -m django_redisqueue.worker.probe FILE [--max-age SECONDS]`` starts no Django and asks no
Redis. Exit code 0: alive. 1: no heartbeat (dead or stuck). 2: alive, but cut off from Redis.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from enum import IntEnum
from pathlib import Path


class Health(IntEnum):
    """The probe's exit codes."""

    ALIVE = 0
    DEAD = 1
    CUT_OFF = 2


def look(path: Path, max_age: float) -> tuple[Health, str]:
    """What a heartbeat file says; ``max_age`` in seconds."""
    try:
        beat = json.loads(path.read_text())
        now, beaten, answered = time.time(), float(beat["beat"]), float(beat["redis"])
    except FileNotFoundError:
        return Health.DEAD, f"no heartbeat file {path}: no worker has started, or it has stopped"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Health.DEAD, f"{path} is not a heartbeat file: {error}"
    if now - beaten > max_age:
        return Health.DEAD, f"no heartbeat for {now - beaten:.0f} s (pid {beat['pid']})"
    if now - answered > max_age:
        return Health.CUT_OFF, f"alive, but Redis has not answered for {now - answered:.0f} s"
    return Health.ALIVE, f"alive (pid {beat['pid']}, last heartbeat {now - beaten:.1f} s ago)"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description="Tells from its heartbeat file if a worker is alive."
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--max-age", type=float, default=30.0, help="seconds (default: 30)")
    options = parser.parse_args()
    health, words = look(options.file, options.max_age)
    print(words)
    return int(health)


if __name__ == "__main__":
    sys.exit(main())
