"""Tasks with limits and rates that record each start and end in a file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django_redisqueue import Limit, Rate, task

LIMIT = 2
RATE, WINDOW_MS, BURST = 6, 500, 3


@contextmanager
def marked(path: str, name: str) -> Iterator[None]:
    """Each mark is one line, appended in one write, so a kill never leaves half of it."""
    file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    try:
        for what in ("start", "end"):
            told = f"{what} {name} {os.getpid()} {time.monotonic_ns()} {time.time_ns()}\n"
            os.write(file, told.encode())
            if what == "start":
                yield
    finally:
        os.close(file)


@task(concurrency=Limit(LIMIT, key="key"))
def limited(path: str, key: str, name: str) -> None:
    with marked(path, name):
        time.sleep(0.1)


@task(rate=Rate(RATE, f"{WINDOW_MS}ms", burst=BURST))
def rated(path: str, name: str) -> None:
    with marked(path, name):
        time.sleep(0.02)


@task(concurrency=Limit(1))
def alone(path: str, name: str) -> None:
    with marked(path, name):
        pass
