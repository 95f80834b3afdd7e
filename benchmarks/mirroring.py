"""Processes of the benchmark ``bridge``: one mirrors until nothing is left, one only writes rows.

SIGTERM stops the writer, which then prints how long its commits took, in ms.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from types import FrameType

import django
from django.db import connection, transaction

from .measure import percentile

PAUSE = 0.005  # s between two commits of the writer


def mirror() -> None:
    from django_redisqueue.conf import get_settings
    from django_redisqueue.mirror.bridge import make_bridge

    bridge = make_bridge(get_settings())
    bridge.writer.cursor()
    begun = time.perf_counter()
    while bridge.run_once():
        pass
    print(json.dumps({"rate": bridge.applied / (time.perf_counter() - begun)}))


def write() -> None:
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    took = []
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE somebody_elses (n integer)")
        print("ready", flush=True)
        while not stopping:
            begun = time.perf_counter()
            with transaction.atomic():
                cursor.execute("INSERT INTO somebody_elses VALUES (1)")
            took.append((time.perf_counter() - begun) * 1000)
            time.sleep(PAUSE)
    print(json.dumps({"p50": percentile(took, 0.5), "p99": percentile(took, 0.99)}))


if __name__ == "__main__":
    django.setup()
    write() if "--write" in sys.argv else mirror()
