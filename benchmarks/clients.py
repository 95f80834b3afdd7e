"""Small processes that run alongside a benchmark:
``python -m benchmarks.clients ping|pop|mirror|write``.

``ping`` and ``write`` run until SIGTERM, and then print how long their calls took, in ms.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

import django
from django.db import connection, transaction
from redis import Redis

from .measure import percentile, timed


def repeat(call: Callable[[], object], pause: float) -> list[float]:
    """Repeat the call until SIGTERM, pausing (s) after each; return how long each took, in ms."""
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    took: list[float] = []
    print("ready", flush=True)
    while not stopping:
        took.append(timed(call) * 1000)
        time.sleep(pause)
    return took


def show(**found: float) -> None:
    print(json.dumps(found), flush=True)


def ping(socket: str) -> None:
    """Only send PINGs, to see how long other clients make it wait."""
    client = Redis(unix_socket_path=socket).connection_pool.get_connection()

    def call() -> None:
        client.send_command("PING")
        client.read_response()

    waits = repeat(call, 0.0005)
    show(count=len(waits), p50=percentile(waits, 0.5), p99=percentile(waits, 0.99), max=max(waits))


def pop(socket: str, key: str, stop: str) -> None:
    """Call BRPOP in a bare redis-py loop, for comparison, until a stop value arrives."""
    client = Redis(unix_socket_path=socket, decode_responses=True)
    while True:
        reply = client.brpop([key], 5)
        if reply is not None and reply[1] == stop:
            return


def mirror() -> None:
    """Mirror events until none are left."""
    from django_redisqueue.conf import get_settings
    from django_redisqueue.mirror.bridge import make_bridge

    bridge = make_bridge(get_settings())
    bridge.writer.cursor()
    begun = time.perf_counter()
    while bridge.run_once():
        pass
    show(rate=bridge.applied / (time.perf_counter() - begun))


def write() -> None:
    """Commit a row every 5 ms."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE other_app (n integer)")

        def call() -> None:
            with transaction.atomic():
                cursor.execute("INSERT INTO other_app VALUES (1)")

        took = repeat(call, 0.005)
    show(p50=percentile(took, 0.5), p99=percentile(took, 0.99))


CLIENTS: dict[str, Callable[..., None]] = {
    "ping": ping,
    "pop": pop,
    "mirror": mirror,
    "write": write,
}

if __name__ == "__main__":
    if sys.argv[1] in ("mirror", "write"):
        django.setup()
    CLIENTS[sys.argv[1]](*sys.argv[2:])
