"""The same drain with processes pinned to cores: Redis apart from its clients, or beside them.

A reply that wakes a process on another core takes three times as long as on the same core, and the
kernel decides which it is. One call at a time pays for that in full, batches hardly. The worker's
maintenance and the watcher share the core of whoever drains.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..environment import Environment, Options
from ..measure import interleaved, ratios
from ..report import Row, of_rounds
from .drain import bare, huey, worker


def run(environment: Environment, options: Options) -> Iterator[Row]:
    jobs = options.jobs_or(50_000)
    cores = sorted(os.sched_getaffinity(0))[:2]
    for name, ours in (("apart", cores[-1]), ("on one core", cores[0])):
        with pinned(environment.server.pid, cores[0], ours):
            rates = interleaved(
                options.rounds_or(3),
                one=lambda: worker(environment, jobs, 1),
                huey=lambda: huey(environment, jobs // 5),
                bare=lambda: bare(environment, jobs),
            )
        yield of_rounds(f"{name}: one child", rates["one"], "jobs/s")
        yield of_rounds(f"{name}: Huey", rates["huey"], "jobs/s")
        yield of_rounds(f"{name}: bare BRPOP loop", rates["bare"], "pops/s")
        yield of_rounds(f"{name}: one child / Huey", ratios(rates["one"], rates["huey"]))


@contextmanager
def pinned(server: int, theirs: int, ours: int) -> Iterator[None]:
    """Redis on one core; this process and all that it starts on another or the same."""
    before = os.sched_getaffinity(0)
    pin(server, {theirs})
    os.sched_setaffinity(0, {ours})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        pin(server, before)


def pin(pid: int, cores: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)
