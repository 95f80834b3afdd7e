"""An order over a whole list: what it means, and that twice is as good as once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_redisqueue import Job, JobQueue, Workflow, get_job
from django_redisqueue.dashboard import bulk
from django_redisqueue.dashboard.bulk import Order, carry_out, give
from django_redisqueue.dashboard.filters import JobFilter
from django_redisqueue.dashboard.verbs import CANCEL, DELETE, RETRY
from django_redisqueue.states import Status
from django_redisqueue.store.reads import Reads
from tests.api.hand import Hand
from tests.app import tasks
from tests.worker.processes import eventually

pytestmark = pytest.mark.django_db


Run = Callable[[Job], tuple[Any, list[tuple[float, float, str]]]]


def on(*_: int) -> bool:
    """Go on."""
    return True


def now(hand: Hand) -> int:
    """An instant that is over, so that what comes next is later."""
    reads = Reads(hand.link)
    found = reads.now_ms()
    eventually(lambda: reads.now_ms() > found)
    return found


def fail(hand: Hand, *arguments: Any) -> list[str]:
    tasks.noop.enqueue_many([(argument,) for argument in arguments])
    return [hand.fail_one() for _ in arguments]


def stats() -> dict[str, int]:
    return {name: count for name, count in JobQueue().get_stats().items() if count}


def test_what_can_not_be_retried_is_not_counted_and_stays(hand: Hand) -> None:
    with Workflow() as flow:
        stays = flow.add(tasks.noop)
    flow.cancel()
    alone = tasks.noop.enqueue()
    alone.cancel()
    order = Order(RETRY, "default", Status.CANCELLED, now(hand))
    assert carry_out(order, on) == 1
    assert alone.status == "queued"
    assert stays.status == "cancelled"


def test_an_order_given_twice_leaves_alone_what_failed_again(hand: Hand) -> None:
    fail(hand, *range(120))
    order = Order(RETRY, "default", Status.FAILED, now(hand))
    assert carry_out(order, on) == 120
    again = [hand.fail_one() for _ in range(70)]
    assert carry_out(order, on) == 0
    assert stats() == {"failed": 70, "queued": 50}
    assert get_job(again[0]).status == "failed"


@pytest.mark.parametrize("which", [JobFilter(text="odd"), JobFilter(task=tasks.noop.name)])
def test_the_same_by_names(hand: Hand, which: JobFilter) -> None:
    fail(hand, *["odd", "even"] * 60)
    order = Order(RETRY, "default", Status.FAILED, now(hand), which)
    meant = 60 if which.text else 120
    assert carry_out(order, on) == meant
    assert carry_out(order, on) == 0
    assert stats() == {"queued": meant, "failed": 120 - meant} if meant < 120 else {"queued": 120}
    hand.fail_one()
    assert carry_out(order, on) == 0


def test_a_stop_is_heeded_between_two_steps(hand: Hand) -> None:
    fail(hand, *range(120))
    seen: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> bool:
        seen.append((done, total))
        return len(seen) < 2

    assert carry_out(Order(DELETE, "default", Status.FAILED, now(hand)), tell) == 50
    assert seen == [(0, 120), (50, 120)]
    assert stats() == {"failed": 70}


def test_running_jobs_are_asked_to_stop_but_for_the_one_that_does_it(hand: Hand) -> None:
    tasks.noop.enqueue_many([(n,) for n in range(3)])
    running = [job.id for job in hand.claim(3)]
    order = Order(CANCEL, "default", Status.PROCESSING, now(hand), JobFilter(), running[0])
    assert carry_out(order, on) == 2
    flagged = [get_job(job_id).data.cancel_ms is not None for job_id in running]
    assert flagged == [False, True, True]


def test_scheduled_jobs_that_came_later_but_are_due_sooner_do_not_hide_the_others(
    hand: Hand,
) -> None:
    for seconds in (600, 700):
        tasks.noop.using(run_after=seconds).enqueue(seconds)
    before_ms = now(hand)
    late = tasks.noop.using(run_after=60).enqueue("late")
    assert carry_out(Order(CANCEL, "default", Status.SCHEDULED, before_ms), on) == 2
    assert stats() == {"cancelled": 2, "scheduled": 1}
    assert late.status == "scheduled"


def test_what_can_not_be_read_is_deleted_with_all_and_spared_by_a_filter(
    hand: Hand,
) -> None:
    first, *_ = fail(hand, "a", "b")
    hand.link.call("HSET", hand.store.keys.job(first), "payload", "{")
    before_ms = now(hand)
    by_text = Order(DELETE, "default", Status.FAILED, before_ms, JobFilter(text="a"))
    assert carry_out(by_text, on) == 0
    assert carry_out(Order(DELETE, "default", Status.FAILED, before_ms), on) == 2
    assert stats() == {}


def test_a_job_carries_out_an_order_and_tells_how_far_it_is(hand: Hand, run: Run) -> None:
    fail(hand, *range(60))
    order = Order(RETRY, "default", Status.FAILED, now(hand), JobFilter(text="1"))
    job = give(order)
    result, told = run(job)
    assert result == {"jobs": 15}  # 1, 10-19, 21, 31, 41, 51
    assert told[0] == (0, 60, "retry of failed jobs")
    assert stats()["queued"] == 15


@pytest.fixture
def run(hand: Hand) -> Run:
    """Claim a job of the package itself and run it here, as a worker would."""

    def do(job: Job) -> tuple[Any, list[tuple[float, float, str]]]:
        assert hand.claim_one().id == job.id
        told: list[tuple[float, float, str]] = []

        class Context:
            cancelled = False

            def __init__(self) -> None:
                self.job = job

            def progress(self, *args: Any) -> None:
                told.append(args)

        return bulk.bulk.call(Context(), *job.args), told

    return do


def test_the_steps_of_the_ids_overlap(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    """What leaves the list between two pages moves the rest up: none may be passed over."""
    monkeypatch.setattr(bulk, "PAGE", 50)
    monkeypatch.setattr(bulk, "OVERLAP", 10)
    ids = fail(hand, *range(180))[::-1]
    asked: list[int] = []
    page = Reads.ids

    def shrinking(reads: Reads, queue: str, status: Status, start: int, stop: int) -> list[str]:
        asked.append(start)
        found = page(reads, queue, status, start, stop)
        hand.store.delete(found[:8])  # before the next page is read
        return found

    monkeypatch.setattr(Reads, "ids", shrinking)
    order = Order(RETRY, "default", Status.FAILED, now(hand), JobFilter(text=""))
    assert set(bulk._snapshot(order, Reads(hand.link))) == set(ids)
    assert asked[:3] == [0, 40, 90]
