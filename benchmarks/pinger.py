"""A client that only sends PING, to see how long others make it wait: see ``pinging``."""

from __future__ import annotations

import json
import signal
import sys
import time
from types import FrameType

from redis import Redis

from .measure import percentile

PAUSE = 0.0005  # s


def main(socket: str) -> None:
    """Ping until SIGTERM, then print one line of JSON in ms."""
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    connection = Redis(unix_socket_path=socket).connection_pool.get_connection()
    waits: list[float] = []
    print("ready", flush=True)
    while not stopping:
        begun = time.perf_counter()
        connection.send_command("PING")
        connection.read_response()
        waits.append((time.perf_counter() - begun) * 1000)
        time.sleep(PAUSE)
    found = {"p50": percentile(waits, 0.5), "p99": percentile(waits, 0.99)}
    print(json.dumps({"count": len(waits), **found, "max": max(waits)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
