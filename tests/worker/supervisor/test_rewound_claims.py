"""Redis returns in an earlier state: after a crash with `everysec`, a failover, or a restore.

It does not know what the workers did since then. Nothing may hang, and jobs whose outcomes were
lost run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from django_redisqueue import JobQueue
from django_redisqueue.worker import reaper
from tests.support.servers import RedisServer
from tests.support.shards import keys_of
from tests.worker import tasks
from tests.worker.harness import WorkerHarness
from tests.worker.processes import eventually


@pytest.fixture
def harness(
    fresh_server: Callable[..., RedisServer], tmp_path: Path, settings: Any
) -> Iterator[WorkerHarness]:
    """A harness whose Redis keeps only what it had at the last ``save``."""
    with ExitStack() as stack:
        yield WorkerHarness(fresh_server(appendonly=False), tmp_path, settings, stack)


def go_back(harness: WorkerHarness, *, quiet: bool = False) -> None:
    """Return to the last ``save``.

    ``quiet``: wait until no report is in progress, because it would be sent again to the Redis that
    has forgotten the claim.
    """
    for _ in range(2 * quiet):  # between two heartbeats the supervisor writes its reports
        before = leases(harness)
        eventually(lambda before=before: not before & leases(harness), why=harness.report)
    harness.server.kill()
    harness.server.start()


def leases(harness: WorkerHarness) -> set[tuple[str, float]]:
    """(child, when its lease expires)."""
    return set(harness.redis.zrange(keys_of().workers, 0, -1, withscores=True))


def test_a_finish_that_redis_has_forgotten(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1").wait_until_up(2)
    gate = harness.gate()
    job = tasks.run_until_gate_opens.enqueue(harness.book, "slow", gate)
    eventually(lambda: harness.runs()["slow"])
    harness.redis.save()
    harness.open_gate(gate)
    harness.ended(job)
    go_back(harness, quiet=True)
    job.refresh()
    assert job.status == "processing"
    harness.open_gate(gate)
    harness.ended(job)
    assert (job.status, job.recoveries, harness.runs()["slow"]) == ("completed", 0, 2)
    eventually(lambda: harness.redis.keys("*child:*:processing") == [])


def test_a_finish_that_redis_has_forgotten_in_repeated_outages(harness: WorkerHarness) -> None:
    """Each outage follows the one before within less than a lease, and delays nothing."""
    harness.configure(LEASE=3, HEARTBEAT=0.3)
    harness.worker("--processes", "1").wait_until_up(2)
    gate = harness.gate()
    job = tasks.run_until_gate_opens.enqueue(harness.book, "slow", gate)
    eventually(lambda: harness.runs()["slow"])
    harness.redis.save()
    harness.open_gate(gate)
    harness.ended(job)

    def runs_again() -> bool:
        go_back(harness, quiet=True)
        return harness.runs()["slow"] == 2

    eventually(runs_again, 20, why=harness.report)


def test_claims_by_the_fast_clock_of_a_former_master_are_compared_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By that clock, the job was claimed in the future: three times the lease after the outage."""
    lease_ms, outage_ms, clock = 2000, 1_000_000, [0.0]
    claimed_ms = outage_ms + 3 * lease_ms
    compared: list[int] = []

    def release_unknown(child: str, before_ms: int, known: list[str]) -> list[str]:
        compared.append(before_ms)
        return ["job"] if claimed_ms < before_ms else []

    commands: Any = SimpleNamespace(
        settings=SimpleNamespace(lease_ms=lease_ms), release_unknown=release_unknown
    )
    monkeypatch.setattr(reaper, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    claims = reaper.RewoundClaims(commands, lambda: {"child": set()})
    for steady_ms in (1, 500_000, outage_ms):  # two outages, a second apart
        claims.after_beat(steady_ms)
        clock[0] += 1
    begun = clock[0] - 1
    for second in range(200):
        clock[0] = begun + second
        claims.after_beat(outage_ms)
        # No claim made within the last lease is compared.
        assert all(before_ms <= outage_ms + second * 1000 - lease_ms for before_ms in compared)
    leases = [(before_ms - outage_ms) // lease_ms for before_ms in compared if before_ms > 500_000]
    assert (compared[0], leases) == (500_000, [0, 1, 3, 7, 15, 31, 63])


@pytest.mark.slow
def test_finishes_of_async_jobs_that_redis_has_forgotten(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1").wait_until_up(2)
    jobs = [tasks.async_run.enqueue(harness.book, f"short{n}", 1.0) for n in range(3)]
    long = tasks.async_run.enqueue(harness.book, "long", 8)
    eventually(lambda: len(harness.runs()) == 4)
    harness.redis.save()
    for job in jobs:
        harness.ended(job)
    go_back(harness, quiet=True)
    for job in jobs:
        harness.ended(job, 6)
        assert job.status == "completed"
    harness.ended(long)
    assert harness.runs() == {"short0": 2, "short1": 2, "short2": 2, "long": 1}


def test_a_claim_that_redis_has_forgotten(harness: WorkerHarness) -> None:
    """The child that runs the job gets it a second time, with the same lease."""
    harness.configure(LEASE=120, HEARTBEAT=30)  # no heartbeat before the child claims it again
    worker = harness.worker("--processes", "1").wait_until_up(2)
    queue, gate = JobQueue(), harness.gate()
    queue.pause()
    job = tasks.async_run_until_gate_opens.enqueue(harness.book, "long", gate)
    harness.redis.save()
    queue.resume()
    eventually(lambda: harness.runs()["long"], why=harness.report)
    go_back(harness)
    queue.resume()
    said = f"job {job.id} was claimed again while it runs here"
    eventually(lambda: said in worker.output, why=harness.report)
    harness.open_gate(gate)
    harness.ended(job)
    assert (job.status, harness.runs()["long"]) == ("completed", 1)
    assert harness.redis.keys("*child:*:processing") == []
    worker.term()
    assert worker.wait() == 0
