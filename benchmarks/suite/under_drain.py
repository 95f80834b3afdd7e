"""How long another client's PING waits while workers drain the queue at full speed.

The machine itself makes a client wait when more processes want to run than it has cores, so the
same is measured alongside two processes that compute and leave Redis alone. How long Redis works on
one script is measured by Redis's own clock.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

from ..environment import Environment, Options, python
from ..measure import interleaved, until
from ..report import Row, of_rounds
from .drain import fill

BUSY = "while True: pass"
Waits = dict[str, float]


def run(environment: Environment, options: Options) -> Iterator[Row]:
    jobs = options.jobs_or(100_000)
    cases: dict[str, Callable[[], Waits]] = {
        "nothing else": lambda: idle(environment),
        "two processes that compute": lambda: computing(environment),
        "a drain by one child": lambda: draining(environment, jobs, 1),
        "a drain by two children": lambda: draining(environment, jobs, 2),
    }
    for name, waits in interleaved(options.rounds_or(3), **cases).items():
        yield of_rounds(f"beside {name}, p50", [wait["p50"] for wait in waits], "ms")
        target = {"at_most": 3.0} if "drain" in name else {}
        yield of_rounds(f"beside {name}, p99", [wait["p99"] for wait in waits], "ms", **target)
        yield of_rounds(f"beside {name}, max", [wait["max"] for wait in waits], "ms")
        if "script" in waits[0]:
            yield of_rounds("  one script of it, p99", [wait["script"] for wait in waits], "ms")


def idle(environment: Environment) -> Waits:
    with environment.pinging() as ping, environment.popping("nothing", "stop"):
        pause()
    return ping


def computing(environment: Environment) -> Waits:
    busy = [subprocess.Popen(python("-c", BUSY)) for _ in range(2)]
    try:
        with environment.pinging() as ping:
            pause()
    finally:
        for process in busy:
            process.kill()
            process.wait()
    return ping


def draining(environment: Environment, jobs: int, processes: int) -> Waits:
    """Send PINGs from when the drain is under way until it is over."""
    environment.empty()
    fill(jobs)
    with environment.worker(processes):
        until(environment.completed, "the first job")
        with environment.pinging() as ping:
            until(lambda: environment.completed() >= jobs, "all jobs", 120)
    scripts = environment.redis.info("latencystats")["latency_percentiles_usec_evalsha"]
    return {**ping, "script": scripts["p99"] / 1000}


def pause() -> None:
    subprocess.run(["sleep", "2"], check=True)
