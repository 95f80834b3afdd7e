"""Other queues, each in an environment of its own: enqueue and drain of no-op jobs, in turn.

An adapter in ``benchmarks/peers`` has ``enqueue`` and the command of its ``WORKER``. The first and
the last job note the time, so that start-up does not count.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..environment import Environment
from ..measure import ratios
from ..options import Options
from ..processes import ROOT, running
from ..project import tasks
from ..report import Row, of_rounds
from . import drain, enqueue

ADAPTERS = ROOT / "benchmarks" / "peers"
CACHE = ROOT / ".peers"
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "huey": ("huey", "redis", "hiredis"),
    "rq": ("rq", "hiredis"),
    "celery": ("celery[redis]", "hiredis"),
    "dramatiq": ("dramatiq[redis]", "hiredis"),
}


def run(environment: Environment, options: Options) -> Iterator[Row]:
    jobs = options.jobs_or(20_000)
    enqueued: dict[str, list[float]] = {name: [] for name in ("ours", *PACKAGES)}
    drained: dict[str, list[float]] = {name: [] for name in ("ours", *PACKAGES)}
    for name in PACKAGES:
        prepare(name)
    for _ in range(options.rounds_or(3)):
        environment.empty()
        enqueued["ours"].append(enqueue.rate(tasks.noop.enqueue, jobs // 10))
        drained["ours"].append(drain.worker(environment, jobs, 1))
        for name in PACKAGES:
            rates = measure(environment, name, jobs // 10)
            enqueued[name].append(rates[0])
            drained[name].append(rates[1])
    for what, rates_by_name in (("enqueue", enqueued), ("drain, one process", drained)):
        for name, rates_of in rates_by_name.items():
            yield of_rounds(f"{what}: {name}", rates_of, "jobs/s")
        for name in PACKAGES:
            ours = ratios(rates_by_name["ours"], rates_by_name[name])
            yield of_rounds(f"{what}: ours / {name}", ours, at_least=1)


def prepare(name: str) -> None:
    """Make the environment of a peer unless it is complete."""
    folder = CACHE / name
    if (folder / ".ready").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGES[name]]
    subprocess.run(install, check=True)
    (folder / ".ready").touch()


def measure(environment: Environment, name: str, jobs: int) -> tuple[float, float]:
    """Jobs a second that one process enqueues, and that one worker drains."""
    environment.empty()
    times = environment.folder / f"{name}.times"
    times.unlink(missing_ok=True)
    programs = CACHE / name / "bin"
    environ = {
        "PEER_URL": environment.server.url, "PEER_TIMES": str(times), "PYTHONPATH": str(ADAPTERS),
    }  # fmt: skip
    python = [str(programs / "python")]
    fill = [*python, str(ADAPTERS / "fill.py"), f"{name}_peer", str(jobs)]
    done = subprocess.run(
        fill, env={**os.environ, **environ}, check=True, capture_output=True, text=True
    )
    show = f"import {name}_peer; print(*{name}_peer.WORKER)"
    shown = subprocess.run(
        [*python, "-c", show], env={**os.environ, **environ}, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    program, *arguments = shown.stdout.split()
    command = [*python, str(programs / program), *arguments]
    with running(command, environment.folder / f"{name}.log", environ) as process:
        process.until(lambda: len(lines(times)) == 2, f"the jobs of {name}")
    first, last = lines(times)
    return float(done.stdout.splitlines()[-1]), (jobs - 1) / (last - first)


def lines(times: Path) -> list[float]:
    return sorted(map(float, times.read_text().split())) if times.exists() else []
