"""exactly_once: a job's work and its receipt commit together, whatever dies in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connections

from django_redisqueue import task
from django_redisqueue.exceptions import InvalidOption, InvalidTask
from django_redisqueue.models import OutboxJob, Receipt
from django_redisqueue.outbox.receipts import run_once
from django_redisqueue.testing import capture_jobs, run_inline
from tests.app.models import Counter
from tests.app.tasks import bump
from tests.support.postgres import PostgresServer
from tests.worker.processes import eventually

from . import tasks
from .conftest import MODULES, OutboxHarness

KILLS = 100
ON_POSTGRES = pytest.mark.parametrize("outbox_harness", ["postgresql"], indirect=True)


def value(name: str) -> int:
    return Counter.objects.get(name=name).value


@pytest.mark.slow
def test_killed_after_the_commit_and_before_the_report_a_hundred_times(
    outbox_harness: OutboxHarness, deaths: Path
) -> None:
    harness = outbox_harness.harness
    harness.configure(TASK_MODULES=[*MODULES, "tests.outbox.killer"])
    jobs = tasks.count_once.enqueue_many([("n",)] * KILLS)
    harness.worker("--processes", "2")
    harness.until_done(KILLS, timeout=120)
    assert len(list(deaths.iterdir())) == KILLS
    assert value("n") == KILLS
    assert Receipt.objects.count() == KILLS
    for job in jobs:
        job.refresh()
    assert {job.recoveries for job in jobs} == {1}
    assert sorted(job.result for job in jobs) == list(range(1, KILLS + 1))


def test_enqueued_jobs_commit_with_it_or_not_at_all(outbox_harness: OutboxHarness) -> None:
    harness = outbox_harness.harness
    job = tasks.fail_once.enqueue(harness.book, "work")
    harness.worker("--processes", "1")
    harness.until_done(2)  # itself, and the job of its second run
    job.refresh()
    assert (job.attempts, job.result) == (1, 1)
    assert (value("work"), value("work-later")) == (1, 1)
    assert harness.runs()["work"] == 2
    assert OutboxJob.objects.count() <= 1  # that of the second run's job, until it is safe


def test_a_job_enqueued_by_a_job_that_is_killed_after_its_commit(
    outbox_harness: OutboxHarness, deaths: Path
) -> None:
    """Once before it sends what it enqueued, and once before it reports."""
    harness = outbox_harness.harness
    harness.configure(TASK_MODULES=[*MODULES, "tests.outbox.killer"])
    tasks.count_and_enqueue.enqueue_many([("n",)] * 10)
    harness.worker("--processes", "1")
    harness.until_done(20, timeout=30)
    assert len(list(deaths.iterdir())) == 20
    assert (value("n"), value("n-later")) == (10, 10)


@ON_POSTGRES  # because the frozen run would hold SQLite's only write lock
def test_a_stale_duplicate_runs_too_and_one_receipt_wins(outbox_harness: OutboxHarness) -> None:
    harness = outbox_harness.harness
    frozen = harness.worker("--processes", "1").wait_until_up(2)
    job = tasks.slow_once.enqueue(harness.book, "twin", 1.0)
    eventually(lambda: harness.runs()["twin"], why=harness.report)
    frozen.stop()
    harness.worker("--processes", "1")
    eventually(lambda: harness.runs()["twin"] == 2, why=harness.report)
    harness.ended(job)
    assert job.result == 2
    frozen.cont()
    eventually(lambda: "is lost" in frozen.output, why=harness.report)
    assert [counter.name for counter in Counter.objects.all()] == ["twin-2"]
    assert list(Receipt.objects.values_list("job_id", "result")) == [(job.id, "2")]
    job.refresh()
    assert job.result == 2


def test_a_timeout_rolls_back(outbox_harness: OutboxHarness) -> None:
    harness = outbox_harness.harness
    job = tasks.late_once.enqueue(harness.book, "late")
    harness.worker("--processes", "1")
    harness.ended(job)
    assert job.error is not None
    assert (job.status, job.error.reason) == ("failed", "timeout")
    assert "time.sleep(30)" in job.error.traceback
    assert "receipts.py" not in job.error.traceback  # it begins in the task
    assert not Counter.objects.exists()
    assert not Receipt.objects.exists()


def test_a_cancel_rolls_back(outbox_harness: OutboxHarness) -> None:
    harness = outbox_harness.harness
    job = tasks.slow_once.enqueue(harness.book, "c", 30)
    harness.worker("--processes", "1")
    eventually(lambda: harness.runs()["c"], why=harness.report)
    assert job.cancel()
    harness.ended(job)
    assert job.status == "cancelled", harness.report()
    assert not Counter.objects.exists()
    assert not Receipt.objects.exists()


@ON_POSTGRES  # because SQLite has no connections to lose
def test_a_connection_lost_before_the_commit_rolls_back_and_the_child_continues(
    outbox_harness: OutboxHarness,
) -> None:
    harness = outbox_harness.harness
    job = tasks.cut_off_once.enqueue("cut")
    harness.worker("--processes", "1")
    harness.ended(job)
    assert job.status == "failed"
    assert not Counter.objects.exists()
    good = tasks.count_once.enqueue("good")
    harness.ended(good)
    assert good.result == 1
    job.requeue()
    harness.ended(job)
    assert job.status == "failed"


@pytest.mark.parametrize(
    ("leaves_at", "notes"),
    [("work", []), ("commit", ["It is unknown whether the job has committed"])],
)
def test_it_is_unknown_whether_a_job_committed_only_once_it_has_tried(
    on_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, leaves_at: str, notes: list[str]
) -> None:
    database = connections["default"]
    commit = database.commit

    def leave() -> None:
        monkeypatch.setitem(database.settings_dict, "HOST", "/nonexistent")
        on_postgres.terminate(database.settings_dict["NAME"])

    def leave_and_commit() -> None:
        leave()
        commit()

    def work() -> str:
        if leaves_at == "work":
            leave()
            bump("n")
        monkeypatch.setattr(database, "commit", leave_and_commit)
        return "1"

    with pytest.raises(OperationalError) as caught:
        run_once("job_1", "default", work)
    database.close()
    found = getattr(caught.value, "__notes__", [])
    assert [note.partition(":")[0] for note in found] == notes


def test_a_hook_that_raises_after_the_commit_fails_nothing(outbox_harness: OutboxHarness) -> None:
    harness = outbox_harness.harness
    job = tasks.bad_hook_once.enqueue("hook")
    worker = harness.worker("--processes", "1")
    harness.ended(job)
    assert (job.status, job.result) == ("completed", 1)
    assert value("hook") == 1
    assert f"job {job.id} has its receipt, although this run raised:" in worker.output
    assert "ZeroDivisionError" in worker.output


def test_no_timeout_is_raised_after_the_work(outbox_harness: OutboxHarness) -> None:
    harness = outbox_harness.harness
    job = tasks.slow_hook_once.enqueue("slow hook")
    harness.worker("--processes", "1")
    harness.ended(job)
    assert (job.status, job.result) == ("completed", 1)
    assert value("slow hook") == 1


@pytest.mark.slow
@pytest.mark.parametrize("outbox_harness", ["sqlite"], indirect=True)
@pytest.mark.parametrize("options", [(), ("--threads", "2")], ids=["main", "threads"])
def test_a_job_that_is_killed_after_its_commit_has_completed(
    outbox_harness: OutboxHarness, options: tuple[str, ...]
) -> None:
    job = tasks.endless_hook_once.enqueue("hook")
    outbox_harness.harness.worker("--processes", "1", *options)
    outbox_harness.harness.until_done(1, timeout=30)
    job.refresh()
    assert (job.status, job.result, job.attempts, job.recoveries) == ("completed", 1, 0, 1)
    assert value("hook") == 1


def test_a_result_that_cannot_be_stored_rolls_back(outbox_harness: OutboxHarness) -> None:
    harness = outbox_harness.harness
    job = tasks.bad_result_once.enqueue("bad")
    harness.worker("--processes", "1")
    harness.ended(job)
    assert job.error is not None
    assert (job.status, job.error.reason) == ("failed", "result")
    assert not Counter.objects.exists()


def test_on_another_database(outbox_harness: OutboxHarness) -> None:
    harness = outbox_harness.harness
    job = tasks.count_on_other.enqueue("o")
    harness.worker("--processes", "1")
    harness.ended(job)
    assert job.result == "o"
    assert Counter.objects.using("other").count() == 1
    assert Receipt.objects.using("other").count() == 1
    assert not Receipt.objects.exists()


# -- in an application's own tests


@pytest.mark.django_db(databases=["default", "other"])
def test_in_memory_it_is_the_same(settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "unix:///nonexistent.sock"}}
    with run_inline():
        job = tasks.count_and_enqueue.enqueue("n")
        assert job.result == 1
    assert Receipt.objects.get().job_id == job.id
    with capture_jobs() as jobs:
        again = tasks.count_once.enqueue("n")
        Receipt.objects.create(job_id=again.id, result='"stored"')
        jobs.drain()
        assert again.result == "stored"
    assert value("n") == 1


# -- what is refused at decoration


async def in_async_code() -> None: ...


def plain() -> None: ...


def test_async_tasks_are_refused() -> None:
    with pytest.raises(
        InvalidTask, match=r"in_async_code has exactly_once=True, so it runs in a d"
    ):
        task(exactly_once=True)(in_async_code)


def test_an_unknown_alias() -> None:
    with pytest.raises(
        InvalidOption, match=r"using must be an alias of DATABASES \(default, other"
    ):
        task(exactly_once=True, using="orders")(plain)


def test_an_alias_without_exactly_once() -> None:
    with pytest.raises(
        InvalidOption, match=r"has using='other', which names the database of exactly_once"
    ):
        task(using="other")(plain)
