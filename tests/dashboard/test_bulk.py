"""Actions on a whole list: which jobs they apply to, and that repeating one is harmless."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_redisqueue import Job, JobQueue, Workflow, get_job
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.queries import Queries
from django_redisqueue.core.statuses import Status
from django_redisqueue.dashboard import bulk
from django_redisqueue.dashboard.bulk import (
    CANCEL,
    DELETE,
    RETRY,
    BulkAction,
    OnProgress,
    Verb,
    enqueue_bulk,
)
from django_redisqueue.dashboard.filters import JobListFilter
from tests.app import tasks
from tests.support.manual_worker import ManualWorker
from tests.worker.processes import eventually

pytestmark = pytest.mark.django_db


Run = Callable[[Job], tuple[Any, list[tuple[float, float, str]]]]


def on(*_: int) -> bool:
    """Continue."""
    return True


def acted(action: BulkAction, on_progress: OnProgress) -> int:
    """Perform an action; returns on how many jobs it acted."""
    return sum(bulk.perform(action, on_progress).complete())


def now(manual_worker: ManualWorker) -> int:
    """A time that has passed, so that whatever follows is later."""
    queries = Queries(manual_worker.connection)
    found = queries.now_ms()
    eventually(lambda: queries.now_ms() > found)
    return found


def fail(manual_worker: ManualWorker, *arguments: Any) -> list[str]:
    tasks.noop.enqueue_many([(argument,) for argument in arguments])
    return [manual_worker.fail_one() for _ in arguments]


def stats() -> dict[str, int]:
    return {name: count for name, count in JobQueue().get_stats().items() if count}


def test_jobs_that_cannot_be_retried_are_not_counted_and_stay(manual_worker: ManualWorker) -> None:
    with Workflow() as workflow:
        stays = workflow.add(tasks.noop)
    workflow.cancel()
    alone = tasks.noop.enqueue()
    alone.cancel()
    action = BulkAction(RETRY, "default", Status.CANCELLED, now(manual_worker))
    assert acted(action, on) == 1
    assert alone.status == "queued"
    assert stays.status == "cancelled"


def test_an_action_performed_twice_leaves_new_failures_alone(manual_worker: ManualWorker) -> None:
    fail(manual_worker, *range(120))
    action = BulkAction(RETRY, "default", Status.FAILED, now(manual_worker))
    assert acted(action, on) == 120
    again = [manual_worker.fail_one() for _ in range(70)]
    assert acted(action, on) == 0
    assert stats() == {"failed": 70, "queued": 50}
    assert get_job(again[0]).status == "failed"


@pytest.mark.parametrize("verb", [CANCEL, RETRY, DELETE])
def test_jobs_that_arrive_later_stay_while_the_others_are_processed(
    manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch, verb: Verb
) -> None:
    """Workers claim the jobs, or another action deletes them, between two calls of the action."""
    status = Status.QUEUED if verb is CANCEL else Status.FAILED

    def make(argument: str) -> list[str]:
        if verb is CANCEL:
            return [tasks.noop.enqueue(argument).id for _ in range(3)]
        return fail(manual_worker, *[argument] * 3)

    old = make("old")
    before_ms = now(manual_worker)
    make("late")
    name = "requeue_oldest" if verb is RETRY else "clear"
    take = getattr(Commands, name)

    def take_later(*args: Any) -> Any:
        if verb is CANCEL:
            manual_worker.claim(2)
        else:
            manual_worker.store.delete(old[:2])
        return take(*args)

    monkeypatch.setattr(Commands, name, take_later)
    assert acted(BulkAction(verb, "default", status, before_ms), on) == 1
    assert JobQueue().get_stats()[status.value] == 3


@pytest.mark.parametrize("which", [JobListFilter(text="odd"), JobListFilter(task=tasks.noop.name)])
def test_a_filtered_action_performed_twice(
    manual_worker: ManualWorker, which: JobListFilter
) -> None:
    fail(manual_worker, *["odd", "even"] * 60)
    action = BulkAction(RETRY, "default", Status.FAILED, now(manual_worker), which)
    meant = 60 if which.text else 120
    assert acted(action, on) == meant
    assert acted(action, on) == 0
    assert stats() == {"queued": meant, "failed": 120 - meant} if meant < 120 else {"queued": 120}
    manual_worker.fail_one()
    assert acted(action, on) == 0


def test_a_cancel_is_noticed_between_two_steps(manual_worker: ManualWorker) -> None:
    fail(manual_worker, *range(120))
    seen: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> bool:
        seen.append((done, total))
        return len(seen) < 2

    assert acted(BulkAction(DELETE, "default", Status.FAILED, now(manual_worker)), tell) == 50
    assert seen == [(0, 120), (50, 120)]
    assert stats() == {"failed": 70}


@pytest.mark.parametrize(
    ("verb", "which"),
    [(RETRY, JobListFilter()), (RETRY, JobListFilter(text="1")), (CANCEL, JobListFilter())],
)
def test_the_progress_ends_at_the_total(
    manual_worker: ManualWorker, verb: Verb, which: JobListFilter
) -> None:
    if verb is RETRY:
        fail(manual_worker, *range(130))
    else:
        tasks.noop.enqueue_many([(n,) for n in range(130)])
    before_ms = now(manual_worker)
    fail(manual_worker, "late")
    tasks.noop.enqueue("late")
    seen: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> bool:
        seen.append((done, total))
        return True

    status = Status.FAILED if verb is RETRY else Status.QUEUED
    acted(BulkAction(verb, "default", status, before_ms, which), tell)
    assert seen[0] == (0, 131)
    assert seen == sorted(seen)
    assert seen[-1] == (131, 131)


def test_running_jobs_are_asked_to_stop_except_the_one_that_asks(
    manual_worker: ManualWorker,
) -> None:
    tasks.noop.enqueue_many([(n,) for n in range(3)])
    running = [job.id for job in manual_worker.claim(3)]
    action = BulkAction(
        CANCEL, "default", Status.PROCESSING, now(manual_worker), JobListFilter(), running[0]
    )
    assert acted(action, on) == 2
    flagged = [get_job(job_id).data.cancel_ms is not None for job_id in running]
    assert flagged == [False, True, True]


def test_scheduled_jobs_that_arrive_later_but_are_due_sooner_do_not_hide_the_others(
    manual_worker: ManualWorker,
) -> None:
    for seconds in (600, 700):
        tasks.noop.using(run_after=seconds).enqueue(seconds)
    before_ms = now(manual_worker)
    late = tasks.noop.using(run_after=60).enqueue("late")
    assert acted(BulkAction(CANCEL, "default", Status.SCHEDULED, before_ms), on) == 2
    assert stats() == {"cancelled": 2, "scheduled": 1}
    assert late.status == "scheduled"


def test_an_unreadable_job_is_deleted_with_all_but_not_by_a_filter(
    manual_worker: ManualWorker,
) -> None:
    first, *_ = fail(manual_worker, "a", "b")
    manual_worker.connection.call("HSET", manual_worker.store.keys.job(first), "payload", "{")
    before_ms = now(manual_worker)
    by_text = BulkAction(DELETE, "default", Status.FAILED, before_ms, JobListFilter(text='"a"'))
    assert acted(by_text, on) == 0
    assert acted(BulkAction(DELETE, "default", Status.FAILED, before_ms), on) == 2
    assert stats() == {}


def test_a_job_performs_an_action_and_reports_progress(
    manual_worker: ManualWorker, run: Run
) -> None:
    fail(manual_worker, *range(60))
    action = BulkAction(
        RETRY, "default", Status.FAILED, now(manual_worker), JobListFilter(text="1")
    )
    job = enqueue_bulk(action)
    result, told = run(job)
    assert result == {"jobs": 15}  # 1, 10-19, 21, 31, 41, 51
    assert told[0] == (0, 60, "retry of failed jobs")
    assert stats()["queued"] == 15


@pytest.fixture
def run(manual_worker: ManualWorker) -> Run:
    """Claim one of the package's own jobs and run it here, as a worker would."""

    def do(job: Job) -> tuple[Any, list[tuple[float, float, str]]]:
        assert manual_worker.claim_one().id == job.id
        told: list[tuple[float, float, str]] = []

        class Context:
            cancelled = False

            def __init__(self) -> None:
                self.job = job

            def progress(self, *args: Any) -> None:
                told.append(args)

        return bulk.bulk.call(Context(), *job.args), told

    return do


def test_the_pages_of_the_snapshot_overlap(
    manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that leave the list between two pages move the rest up: none may be skipped."""
    monkeypatch.setattr(bulk, "PAGE", 50)
    monkeypatch.setattr(bulk, "OVERLAP", 10)
    ids = fail(manual_worker, *range(180))[::-1]
    asked: list[int] = []
    page = Queries.ids

    def shrinking(queries: Queries, queue: str, status: Status, start: int, stop: int) -> list[str]:
        asked.append(start)
        found: list[str] = page.__get__(queries, Queries)(queue, status, start, stop)
        manual_worker.store.delete(found[:8])  # before the next page is read
        return found

    monkeypatch.setattr(Queries, "ids", shrinking)
    action = BulkAction(RETRY, "default", Status.FAILED, now(manual_worker), JobListFilter(text=""))
    assert set(bulk._snapshot(action, Queries(manual_worker.connection))) == set(ids)
    assert asked[:3] == [0, 40, 90]
