"""Limits and rates hold according to the jobs' own marks, whatever dies in between.

What a mark proves: a job holds its slot from its claim until its end is reported or its dead child
is reaped. Its marks are made in between, so runs that overlap by their marks held slots at the same
time, and no tolerance is needed. A run without an end lasted at least until its child was killed. A
start counts towards a rate at the time of its claim. Its mark comes somewhat later, with a delay
that varies, so marks may be closer together than their claims. Therefore the marks only tell which
claims became starts, and the event of the claim tells when, by the clock that Redis counts with.
The child did nothing between the claim and the mark, which shows that the job started at once.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from django_redisqueue import Job

from . import alterations
from .harness import WorkerHarness
from .limit_tasks import LIMIT, RATE, WINDOW_MS, alone, limited, rated
from .processes import WorkerProcess, eventually

KILLS = 8
KEYS = ("a", "b", "c")
# In these tests no job is recovered because a lease expired, and no kill counts as poison.
SETTINGS = {
    "TASK_MODULES": ["tests.worker.limit_tasks"],
    "LEASE": 60,
    "MAX_RECOVERIES": 1000,
}


@dataclass(slots=True)
class Run:
    """One run, from its marks: times in ns, monotonic except ``wall``. An ``end`` of 0 means that
    there is none."""

    name: str
    pid: int
    start: int
    wall: int
    end: int = 0


def read_runs(path: Path) -> list[Run]:
    """All runs so far, in the order of their starts. The last line may be incomplete."""
    runs: list[Run] = []
    running: dict[int, Run] = {}
    for line in path.read_text().split("\n")[:-1] if path.exists() else ():
        what, name, *numbers = line.split(" ")
        pid, instant, wall = map(int, numbers)
        if what == "start":
            runs.append(Run(name, pid, instant, wall))
            running[pid] = runs[-1]
        else:
            running.pop(pid).end = instant
    return sorted(runs, key=lambda run: run.start)


def peak(runs: Iterable[Run]) -> int:
    """The highest number of them that ran at the same time."""
    changes = [(run.start, 1) for run in runs] + [(run.end, -1) for run in runs if run.end]
    count = most = 0
    for _, change in sorted(changes):
        count += change
        most = max(most, count)
    return most


def by_key(runs: Iterable[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.name.partition("-")[0]].append(run)
    return found


class Trial:
    """Enqueues jobs, kills children that run them, and records when."""

    def __init__(self, harness: WorkerHarness, dice: random.Random) -> None:
        self._stage = harness
        self._dice = dice
        self.path = harness.folder / "marks"
        self.jobs: dict[str, Job] = {}
        self.kills: dict[int, int] = {}  # monotonic ns by pid

    def enqueue(self, count: int) -> None:
        """Every third job has a rate and goes first; the others have a limit with one of the
        keys."""
        path = str(self.path)
        for n in range(len(self.jobs), len(self.jobs) + count):
            key = "rated" if n % 3 == 2 else self._dice.choice(KEYS)
            name = f"{key}-{n}"
            if key == "rated":
                self.jobs[name] = rated.using(priority=5).enqueue(path, name)
            else:
                self.jobs[name] = limited.enqueue(path, key, name)

    def has_reached_a_limit(self) -> bool:
        keys = by_key(read_runs(self.path))
        return any(peak(keys[key]) == LIMIT for key in KEYS if key in keys)

    def kill_holders(self) -> None:
        """Kill the children that run jobs of one key, the key with the most jobs."""
        self._kill(eventually(self._holders))

    def kill_any(self, worker: WorkerProcess) -> None:
        """Kill any one of the children, whatever it is doing."""
        alive = eventually(lambda: [pid for pid in worker.children if pid not in self.kills])
        self._kill([self._dice.choice(alive)])

    def _holders(self) -> list[int]:
        running = [run for run in read_runs(self.path) if not run.end and run.pid not in self.kills]
        return max(
            ([run.pid for run in found] for found in by_key(running).values()), key=len, default=[]
        )

    def _kill(self, pids: list[int]) -> None:
        for pid in pids:
            self.kills[pid] = time.monotonic_ns()
            os.kill(pid, signal.SIGKILL)

    def runs(self) -> list[Run]:
        """All runs; a killed run ends when its child was killed."""
        runs = read_runs(self.path)
        for run in runs:
            run.end = run.end or max(run.start, self.kills[run.pid])
        return runs


def claims_of(harness: WorkerHarness, trial: Trial) -> dict[str, list[int]]:
    """When each job was claimed, in ms by Redis's clock."""
    names = {job.id: name for name, job in trial.jobs.items()}
    found: dict[str, list[int]] = defaultdict(list)
    for event in harness.events():
        if event.data["status"] == "processing":
            found[names[event.data["jobId"]]].append(event.data["timestamp"])
    return found


def starts_of(runs: list[Run], claims: dict[str, list[int]]) -> Iterator[int]:
    """When each run with a rate was claimed, in ms. Its child has started nothing in between."""
    for run in runs:
        if run.name.startswith("rated-"):
            wall_ms = run.wall // 1_000_000
            claim = max(ms for ms in claims[run.name] if ms <= wall_ms)
            assert not [
                other
                for other in runs
                if other.pid == run.pid and claim < other.wall / 1_000_000 < run.wall / 1_000_000
            ]
            yield claim


def leftovers(harness: WorkerHarness) -> list[str]:
    """Slots, and lanes that are ready or parked."""
    words = (":slots", ":limits:waiting", ":parked", ":lane:", ":lanes:", ":shares", ":keyed")
    keys: list[str] = harness.redis.keys("*")
    return [key for key in keys if any(word in key for word in words)]


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
def test_limits_and_rates_hold_when_children_and_redis_die(harness: WorkerHarness) -> None:
    seed = int(os.environ.get("REDISQUEUE_TEST_SEED", random.randrange(10**6)))
    print(f"REDISQUEUE_TEST_SEED={seed}")  # pytest prints it if the test fails
    harness.configure(**SETTINGS)
    dice = random.Random(seed)
    trial = Trial(harness, dice)
    trial.enqueue(30)
    worker = harness.worker("--processes", "4")
    eventually(trial.has_reached_a_limit, why=harness.report)
    for n in range(KILLS):
        trial.enqueue(8)  # so that one is always running
        if n % 4 == 3:
            trial.kill_any(worker)
        else:
            trial.kill_holders()
        if n == KILLS // 2:
            harness.redis.config_set("appendfsync", "always")  # otherwise a crash may lose a claim
            harness.server.kill()
            harness.server.start()
        time.sleep(dice.uniform(0, 0.3))  # the time between two kills
    harness.until_done(len(trial.jobs))
    runs = trial.runs()
    peaks = {key: peak(found) for key, found in by_key(runs).items() if key in KEYS}
    assert max(peaks.values()) == LIMIT, peaks
    starts = sorted(starts_of(runs, claims_of(harness, trial)))
    spans = [last - first for first, last in zip(starts, starts[RATE:], strict=False)]
    assert min(spans) >= WINDOW_MS
    _all_ended_once(harness, trial, runs)


def _all_ended_once(harness: WorkerHarness, trial: Trial, runs: list[Run]) -> None:
    assert harness.count("completed_total") == len(trial.jobs)
    ends = Counter(
        event.data["jobId"] for event in harness.events() if event.data["status"] == "completed"
    )
    assert ends == Counter(job.id for job in trial.jobs.values())
    assert {run.name for run in runs} == trial.jobs.keys()
    assert harness.count("recovered_total") > 0
    assert leftovers(harness) == []


def test_a_slot_is_free_wherever_its_holder_dies(harness: WorkerHarness) -> None:
    """All jobs share one slot: if a death kept it, all of them would stop. No lease expires here,
    so the slot is free as soon as the dead child's job is recovered."""
    deaths = harness.folder / "deaths"
    deaths.mkdir()
    harness.environment["REDISQUEUE_TEST_DEATHS"] = str(deaths)
    harness.configure(**SETTINGS)
    harness.alter("deadly_steps")
    path, jobs = harness.folder / "marks", 4 * len(alterations.PLACES)
    alone.enqueue_many([(str(path), f"job{n}") for n in range(jobs)])
    harness.worker("--processes", "2")
    harness.until_done(jobs)
    assert sorted(os.listdir(deaths)) == sorted(alterations.PLACES)
    assert {run.name for run in read_runs(path)} == {f"job{n}" for n in range(jobs)}
    assert leftovers(harness) == []
