"""The async lane by itself, on a seat without a child."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from django_redisqueue.conf import load
from django_redisqueue.store.replies import Claimed, Outcome, Verdict
from django_redisqueue.worker.executor import Call
from django_redisqueue.worker.lane import AsyncLane
from django_redisqueue.worker.seat import Seat
from tests.app import tasks

PATIENCE = 10


@pytest.fixture
def sent() -> SimpleQueue[list[Outcome]]:
    return SimpleQueue()


@pytest.fixture
def seat() -> Seat:
    return Seat(0, 3)


@pytest.fixture
def lane(seat: Seat, sent: SimpleQueue[list[Outcome]]) -> Iterator[AsyncLane]:
    made = AsyncLane(load({}), seat, 2, 1, lambda job, text: True, sent.put)
    yield made
    made.close()


def start(lane: AsyncLane, seat: Seat, job_id: str, seconds: float) -> None:
    job = Claimed(job_id, "default", tasks.async_sleep.name, f"[[{seconds}],{{}}]", 1, 0, 0, "", 1)
    seat.offer([job])
    token = seat.take()
    assert token is not None
    lane.start(Call(job, tasks.async_sleep, [seconds], {}, 0, 1), token)


def test_a_cancel_that_comes_before_its_job_has_begun_on_the_loop_ends_it(
    lane: AsyncLane, seat: Seat, sent: SimpleQueue[list[Outcome]]
) -> None:
    start(lane, seat, "job_first", 0)
    sent.get(timeout=PATIENCE)
    busy, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        busy.set()
        go_on.wait(PATIENCE)

    assert lane._loop is not None
    lane._loop.call_soon_threadsafe(hold_up)
    assert busy.wait(PATIENCE)
    start(lane, seat, "job_second", 60)
    lane.interrupt("cancel", "job_second", 1)
    go_on.set()
    [outcome] = sent.get(timeout=PATIENCE)
    assert (outcome.id, outcome.verdict) == ("job_second", Verdict.CANCELLED)
    lane.wait(lambda: not lane.in_flight, PATIENCE)
    assert (len(lane.free_slots), seat.running()) == (2, [])
