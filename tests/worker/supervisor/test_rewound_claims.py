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
from tests.worker.processes import eventually
from tests.worker.stage import Stage


@pytest.fixture
def stage(
    fresh_server: Callable[..., RedisServer], tmp_path: Path, settings: Any
) -> Iterator[Stage]:
    """A stage whose Redis keeps only what it had at the last ``save``."""
    with ExitStack() as stack:
        yield Stage(fresh_server(appendonly=False), tmp_path, settings, stack)


def go_back(stage: Stage, *, quiet: bool = False) -> None:
    """Return to the last ``save``.

    ``quiet``: wait until no report is in progress, because it would be sent again to the Redis that
    has forgotten the claim.
    """
    for _ in range(2 * quiet):  # between two heartbeats the supervisor writes its reports
        before = leases(stage)
        eventually(lambda before=before: not before & leases(stage), why=stage.report)
    stage.server.kill()
    stage.server.start()


def leases(stage: Stage) -> set[tuple[str, float]]:
    """(child, when its lease expires)."""
    return set(stage.redis.zrange(keys_of().workers, 0, -1, withscores=True))


def test_a_finish_that_redis_has_forgotten(stage: Stage) -> None:
    stage.worker("--processes", "1").wait_until_up(2)
    job = tasks.run_then_sleep.enqueue(stage.book, "slow", 1.2)
    eventually(lambda: stage.runs()["slow"])
    stage.redis.save()
    stage.ended(job)
    go_back(stage, quiet=True)
    job.refresh()
    assert job.status == "processing"
    stage.ended(job)
    assert (job.status, job.recoveries, stage.runs()["slow"]) == ("completed", 0, 2)
    eventually(lambda: stage.redis.keys("*child:*:processing") == [])


def test_a_finish_that_redis_has_forgotten_in_repeated_outages(stage: Stage) -> None:
    """Each outage follows the one before within less than a lease, and delays nothing."""
    stage.configure(LEASE=3, HEARTBEAT=0.3)
    stage.worker("--processes", "1").wait_until_up(2)
    job = tasks.run_then_sleep.enqueue(stage.book, "slow", 0.5)
    eventually(lambda: stage.runs()["slow"])
    stage.redis.save()
    stage.ended(job)

    def runs_again() -> bool:
        go_back(stage, quiet=True)
        return stage.runs()["slow"] == 2

    eventually(runs_again, 20, why=stage.report)


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
def test_finishes_of_async_jobs_that_redis_has_forgotten(stage: Stage) -> None:
    stage.worker("--processes", "1").wait_until_up(2)
    jobs = [tasks.async_run.enqueue(stage.book, f"short{n}", 1.0) for n in range(3)]
    long = tasks.async_run.enqueue(stage.book, "long", 8)
    eventually(lambda: len(stage.runs()) == 4)
    stage.redis.save()
    for job in jobs:
        stage.ended(job)
    go_back(stage, quiet=True)
    for job in jobs:
        stage.ended(job, 6)
        assert job.status == "completed"
    stage.ended(long)
    assert stage.runs() == {"short0": 2, "short1": 2, "short2": 2, "long": 1}


def test_a_claim_that_redis_has_forgotten(stage: Stage) -> None:
    """The child that runs the job gets it a second time, with the same lease."""
    stage.configure(LEASE=120, HEARTBEAT=30)  # no heartbeat before the child claims it again
    worker = stage.worker("--processes", "1").wait_until_up(2)
    queue, gate = JobQueue(), stage.gate()
    queue.pause()
    job = tasks.async_run_until_gate_opens.enqueue(stage.book, "long", gate)
    stage.redis.save()
    queue.resume()
    eventually(lambda: stage.runs()["long"], why=stage.report)
    go_back(stage)
    queue.resume()
    said = f"job {job.id} was claimed again while it runs here"
    eventually(lambda: said in worker.output, why=stage.report)
    stage.open_gate(gate)
    stage.ended(job)
    assert (job.status, stage.runs()["long"]) == ("completed", 1)
    assert stage.redis.keys("*child:*:processing") == []
    worker.term()
    assert worker.wait() == 0
