"""A walk over many rows by an exactly_once task, while its worker is killed again and again.

``REDISQUEUE_WALK=1000000,100`` walks over so many rows with so many kills; the figures are printed.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
from django.db.models import Max, Min, Sum

from django_redisqueue import Job
from django_redisqueue.models import Receipt, StepReceipt
from tests.app.models import Counter
from tests.support.shards import keys_with
from tests.support.stream import written
from tests.worker.harness import WorkerHarness
from tests.worker.processes import eventually

from . import walk_tasks
from .conftest import MODULES, OutboxHarness

ROWS, KILLS = map(int, os.environ.get("REDISQUEUE_WALK", "3000,5").split(","))
MODULES_OF_WALKS = [*MODULES, "tests.outbox.walk_tasks"]
PATIENCE = max(30.0, ROWS / 200)  # s


def create_rows(count: int) -> None:
    for first in range(0, count, 10_000):
        last = min(first + 10_000, count)
        Counter.objects.bulk_create(Counter(name=f"n{n}") for n in range(first, last))


class Killer:
    """Kills the child that runs the job, each time the job has made progress."""

    def __init__(self, harness: WorkerHarness, job: Job) -> None:
        self._stage = harness
        self._job = job
        self._killed = 0  # pid
        self.done = 0

    def kill(self) -> None:
        eventually(self._has_moved_on, PATIENCE, every=0.005, why=self._stage.report)
        assert not self._job.status.is_final, f"over at {self.done}"
        self._killed = self._pid()
        os.kill(self._killed, signal.SIGKILL)

    def _pid(self) -> int:
        """The pid of the job's last run."""
        return int((self._stage.ledger / "pid").read_text() or 0)

    def _has_moved_on(self) -> bool:
        self._job.refresh()
        if self._job.status.is_final:
            return True
        progress = self._job.progress
        if progress is None or progress.done <= self.done or self._pid() in (0, self._killed):
            return False
        self.done = int(progress.done)
        return True


def progress_of(harness: WorkerHarness, job: Job) -> list[int]:
    """Every progress that the job has reported, in order."""
    told = (event.data for event in written(harness.redis, keys_with(job.id).events))
    return [one["progress"]["done"] for one in told if one["jobId"] == job.id and "progress" in one]


def test_each_row_once_and_progress_never_goes_back(outbox_harness: OutboxHarness) -> None:
    harness = outbox_harness.harness
    harness.configure(TASK_MODULES=MODULES_OF_WALKS, LEASE=30)
    create_rows(ROWS)
    begun = time.monotonic()
    chunk, rows_a_kill = max(1, ROWS // (10 * KILLS)), ROWS // (KILLS + 1)
    walk = walk_tasks.bump_all.using(timeout=0)
    job = walk.enqueue(harness.book, chunk, rows_a_kill, KILLS)
    harness.worker("--processes", "1")
    killer = Killer(harness, job)
    for _ in range(KILLS):
        killer.kill()
    harness.ended(job, PATIENCE)
    seconds = time.monotonic() - begun
    print(f"{ROWS} rows, {job.recoveries} of {KILLS} kills recovered, {seconds:.1f} s")
    assert (job.status, job.result, job.attempts) == ("completed", None, 0)
    assert job.recoveries == KILLS
    found = Counter.objects.aggregate(Min("value"), Max("value"), Sum("value"))
    assert found == {"value__min": 1, "value__max": 1, "value__sum": ROWS}
    done = progress_of(harness, job)
    assert done == sorted(done)
    assert done[-1] == ROWS
    assert (Receipt.objects.count(), StepReceipt.objects.count()) == (1, 0)


@pytest.mark.parametrize("outbox_harness", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("name", "threads"),
    [
        ("wait_at_each", "1"),
        ("wait_at_each", "2"),
        ("wait_at_each_plainly", "1"),
        ("wait_at_each_async", "1"),
    ],
)
def test_a_deploy_ends_the_item_and_not_the_job(
    outbox_harness: OutboxHarness, name: str, threads: str
) -> None:
    harness = outbox_harness.harness
    harness.configure(TASK_MODULES=MODULES_OF_WALKS, LEASE=30)
    create_rows(4)
    job = getattr(walk_tasks, name).enqueue(harness.book)
    for n in range(2):
        worker = harness.worker("--processes", "1", "--threads", threads)
        eventually(lambda n=n: harness.runs()[f"n{n}"], why=harness.report)
        worker.term()
        assert worker.wait() == 0
        job.refresh()
        assert (job.status, job.attempts, job.recoveries) == ("queued", 0, 0), harness.report()
        # Outside the main thread, the last progress may come after the outcome, and is then left
        # out.
        if threads == "1" and name != "wait_at_each_async":
            assert job.progress is not None
            assert (job.progress.done, job.progress.total) == (n + 1, 4)
    for n in range(4):
        (harness.ledger / f"go{n}").touch()
    harness.worker("--processes", "1")
    harness.ended(job)
    assert (job.status, job.attempts, job.recoveries) == ("completed", 0, 0)
    assert set(Counter.objects.values_list("value", flat=True)) == {1}
    assert {name: n for name, n in harness.runs().items() if name.startswith("n")} == {
        f"n{n}": 1 for n in range(4)
    }


@pytest.mark.parametrize("outbox_harness", ["sqlite"], indirect=True)
@pytest.mark.parametrize("name", ["wait_at_each", "wait_at_each_async"])
def test_a_cancel_ends_it_after_the_item_whose_rows_commit(
    outbox_harness: OutboxHarness, name: str
) -> None:
    harness = outbox_harness.harness
    harness.configure(TASK_MODULES=MODULES_OF_WALKS, LEASE=30)
    create_rows(3)
    job = getattr(walk_tasks, name).enqueue(harness.book)
    harness.worker("--processes", "1")
    eventually(lambda: harness.runs()["n0"], why=harness.report)
    job.cancel()
    harness.ended(job)
    assert job.status == "cancelled"
    assert list(Counter.objects.order_by("pk").values_list("value", flat=True)) == [1, 0, 0]
