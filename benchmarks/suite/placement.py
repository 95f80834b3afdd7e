"""The same drain with processes pinned to cores: Redis on its own core, or on that of its clients.

A reply that wakes a process on another core takes three times as long as on the same core, and the
kernel decides which it is. Single calls pay for that in full, batches hardly at all. The worker's
maintenance and the watcher share the core of the process that drains.
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
    """Pin Redis to one core, and this process and all that it starts to another or the same one."""
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
