"""Leaders that die or run older code, and the roles of several shards in one process."""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest

from django_redisqueue.core.ids import due_ms_of, periodic_prefix
from django_redisqueue.worker.child_state import ChildState
from django_redisqueue.worker.interrupts import StoppableWaits
from django_redisqueue.worker.maintenance import leader
from django_redisqueue.worker.maintenance.leader import RoleHost, run_in_shards
from tests.app import tasks
from tests.support.shards import keys_of
from tests.worker.harness import WorkerHarness
from tests.worker.processes import PATIENCE, WorkerProcess, eventually

SECONDS = float(os.environ.get("REDISQUEUE_TEST_SOAK", "4"))
WORKERS, SCHEDULES = 3, 10
KILLS_A_WORKER = 15  # of a worker's children, before the whole worker is killed


def leader_of(harness: WorkerHarness, workers: list[WorkerProcess]) -> WorkerProcess | None:
    """The worker whose maintenance leads. A child's name ends with its supervisor's pid and its own
    number."""
    name = harness.redis.hget(keys_of().meta, "leader") or ""
    return next((one for one in workers if f".{one.pid}." in str(name)), None)


def kill_children(worker: WorkerProcess) -> None:
    for pid in worker.children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def due_times(harness: WorkerHarness, name: str) -> list[int]:
    """The due times that have jobs."""
    keys = harness.redis.scan_iter(f"{keys_of().job(periodic_prefix(name))}*", count=1000)
    return sorted(due_ms_of(key.rpartition("job:")[2]) or 0 for key in keys)


@pytest.mark.slow
def test_each_due_time_has_its_run_even_if_leaders_die(harness: WorkerHarness) -> None:
    names = [f"tick{n}" for n in range(SCHEDULES)]
    harness.configure(
        MAX_RECOVERIES=1000,  # the kills also hit running jobs
        SCHEDULES={name: {"task": tasks.noop.name, "every": "1s"} for name in names},
    )
    workers = [harness.worker("--processes", "1") for _ in range(WORKERS)]
    for worker in workers:
        worker.wait_until_up(2)
    eventually(lambda: due_times(harness, names[0]), why=harness.report)
    kills, end = 0, time.monotonic() + SECONDS
    while time.monotonic() < end:
        if (worker := leader_of(harness, workers)) is not None:
            kills += 1
            if kills % KILLS_A_WORKER:
                kill_children(worker)
            else:
                worker.end()
                workers[workers.index(worker)] = harness.worker("--processes", "1")
        time.sleep(1)
    assert kills >= 2
    last = due_times(harness, names[0])[-1] + 2000
    eventually(
        lambda: all(due_times(harness, name)[-1] >= last for name in names),
        PATIENCE + 30,  # until the dead worker's term as leader ends
        why=harness.report,
    )
    for worker in workers:
        worker.term()
    for worker in workers:
        worker.wait(60)
    jobs = 0
    for name in names:
        due = due_times(harness, name)
        assert due == list(range(due[0], due[-1] + 1000, 1000))
        jobs += len(due)
    assert int(harness.redis.hget(keys_of().schedule(names[0]), "missed") or 0) == 0
    assert harness.count("enqueued_total") == jobs
    assert harness.stats()["failed"] == harness.stats()["cancelled"] == 0, harness.report()


@pytest.mark.slow
def test_a_leader_with_older_code_fires_what_newer_code_defines(harness: WorkerHarness) -> None:
    tick = {"task": tasks.noop.name, "every": "1s"}
    old = harness.worker("--processes", "1", SCHEDULES={"removed": tick, "changed": tick})
    eventually(lambda: due_times(harness, "removed"), why=harness.report)
    new = harness.worker(
        "--processes", "1", SCHEDULES={"changed": {**tick, "every": "1h"}, "added": tick}
    )
    eventually(lambda: due_times(harness, "added"), why=harness.report)
    assert leader_of(harness, [old, new]) is old
    eventually(lambda: harness.redis.zrange(keys_of().schedules, 0, -1) == ["added", "changed"])
    assert harness.redis.hget(keys_of().schedule("changed"), "timing") == "1h"


class Role:
    """A role that does not end before ``gate`` opens."""

    def __init__(self, gate: threading.Event, ended: list[int], shard: int) -> None:
        self._gate, self._ended, self._shard = gate, ended, shard

    def run(self, is_over: Callable[[], bool]) -> None:
        assert self._gate.wait(20)
        self._ended.append(self._shard)

    def hangs(self) -> bool:
        return False


def stop_roles(gate: threading.Event, ended: list[int], **options: Any) -> None:
    waits = StoppableWaits()
    waits.stopping = True

    def make(host: RoleHost) -> Any:
        return Role(gate, ended, host.shard)

    run_in_shards(2, make, waits, **options)


def test_a_role_may_take_the_time_that_it_is_given_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, ended, alive = threading.Event(), list[int](), list[float]()

    def keep_alive(seconds: float) -> None:
        alive.append(seconds)
        if len(alive) == 2:
            gate.set()

    state = ChildState(0, 1)
    monkeypatch.setattr(state, "keep_alive", keep_alive)
    stop_roles(gate, ended, state=state, stop=math.inf)
    assert sorted(ended) == [0, 1]
    assert len(alive) >= 2  # the watchdog is kept informed meanwhile


def test_a_role_that_fails_ends_the_process_as_with_one_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the process would go on without that shard, unnoticed."""
    monkeypatch.setattr(leader, "CHECK", 0.01)
    checks = itertools.count()

    class FailingRole(Role):
        def run(self, is_over: Callable[[], bool]) -> None:
            if self._shard == 1:
                raise KeyError("lost")
            super().run(is_over)

        def hangs(self) -> bool:
            return next(checks) > 500

    gate = threading.Event()
    gate.set()
    with pytest.raises(KeyError, match="lost"):
        run_in_shards(
            2, lambda host: cast(Any, FailingRole(gate, [], host.shard)), StoppableWaits()
        )


def test_a_role_that_does_not_end_is_left_behind() -> None:
    gate, ended = threading.Event(), list[int]()
    stop_roles(gate, ended, stop=0.05)
    assert ended == []
    gate.set()
