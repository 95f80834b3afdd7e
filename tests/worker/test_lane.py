"""The async lane by itself, on a seat without a child."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from django_redisqueue.conf import load
from django_redisqueue.exceptions import RedisUnavailable
from django_redisqueue.store.replies import Claimed, Outcome, Verdict
from django_redisqueue.worker.asides import LatestProgress
from django_redisqueue.worker.executor import Call
from django_redisqueue.worker.lane import REPORTED_TOGETHER, AsyncLane
from django_redisqueue.worker.outcomes import LOG_BYTES
from django_redisqueue.worker.seat import Seat
from tests.app import tasks

from . import tasks as worker_tasks

PATIENCE = 10


@pytest.fixture
def sent() -> SimpleQueue[list[Outcome]]:
    return SimpleQueue()


@pytest.fixture
def seat() -> Seat:
    return Seat(0, 3)


@pytest.fixture
def lane(seat: Seat, sent: SimpleQueue[list[Outcome]]) -> Iterator[AsyncLane]:
    def send(outcomes: list[Outcome]) -> list[bool]:
        sent.put(outcomes)
        return [True] * len(outcomes)

    made = AsyncLane(load({}), seat, 2, 1, lambda job, text: True, send)
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


class SlowSend:
    """A report that takes its time: until the test lets it be accepted."""

    def __init__(self) -> None:
        self.under_way: SimpleQueue[list[Outcome]] = SimpleQueue()
        self._go_on: SimpleQueue[None] = SimpleQueue()
        self._is_open = False
        self.unwritten: set[str] = set()

    def __call__(self, outcomes: list[Outcome]) -> list[bool]:
        self.under_way.put(outcomes)
        if not self._is_open:
            self._go_on.get(timeout=PATIENCE)
        return [outcome.id not in self.unwritten for outcome in outcomes]

    def accept(self) -> None:
        self._go_on.put(None)

    def open(self) -> None:
        self._is_open = True
        self.accept()


@pytest.fixture
def slow() -> SlowSend:
    return SlowSend()


@pytest.fixture
def slow_lane(seat: Seat, slow: SlowSend) -> Iterator[AsyncLane]:
    made = AsyncLane(load({}), seat, 2, 1, lambda job, text: True, slow)
    yield made
    slow.open()
    made.close()


def land(lane: AsyncLane, seat: Seat, job_id: str) -> None:
    """The job runs to its end here."""
    start(lane, seat, job_id, 0)
    lane.wait(lambda: (job_id, 1) not in lane._flights, PATIENCE)


def logged(seat: Seat) -> list[str]:
    return [outcome.id for outcome in seat.outcomes()]


def test_what_can_not_be_written_stays_in_the_log_and_is_sent_again(
    slow_lane: AsyncLane, seat: Seat, slow: SlowSend
) -> None:
    slow.unwritten = {"job_1"}
    land(slow_lane, seat, "job_1")
    slow.under_way.get(timeout=PATIENCE)
    land(slow_lane, seat, "job_2")
    slow.accept()
    sent = [outcome.id for outcome in slow.under_way.get(timeout=PATIENCE)]
    assert sorted(sent) == ["job_1", "job_2"]
    slow.accept()
    assert [outcome.id for outcome in slow.under_way.get(timeout=PATIENCE)] == ["job_1"]
    assert (logged(seat), slow_lane.in_flight, slow_lane.unwritten) == (["job_1"], 0, 1)
    slow.unwritten.clear()
    slow.accept()
    slow_lane.wait(lambda: not slow_lane.unwritten, PATIENCE)
    assert (logged(seat), slow_lane.in_flight, len(slow_lane.free_slots)) == ([], 0, 2)


def test_the_log_holds_exactly_what_is_not_yet_accepted(
    slow_lane: AsyncLane, seat: Seat, slow: SlowSend
) -> None:
    """Also while there is always something unreported, which is when the log must not grow."""
    log = seat.lane_log
    land(slow_lane, seat, "job_0")
    whole = log.room
    report = slow.under_way.get(timeout=PATIENCE)
    for round_ in range(1, 200):
        new = [f"job_{round_}_{n}" for n in range(round_ % 3 + 1)]
        for job_id in new:
            land(slow_lane, seat, job_id)
        assert logged(seat) == [outcome.id for outcome in report] + new
        slow.accept()
        report = slow.under_way.get(timeout=PATIENCE)  # the last is accepted by now
        assert [outcome.id for outcome in report] == new
        assert logged(seat) == new
        assert log.room > whole - 1000
    slow.open()
    slow_lane.wait(lambda: not slow_lane.in_flight, PATIENCE)
    assert log.is_empty


def test_outcomes_that_wait_for_several_reports_stay_logged_until_their_own(
    slow_lane: AsyncLane, seat: Seat, slow: SlowSend
) -> None:
    land(slow_lane, seat, "job_first")
    slow.under_way.get(timeout=PATIENCE)
    rest = [f"job_{n}" for n in range(REPORTED_TOGETHER + 3)]
    for job_id in rest:
        land(slow_lane, seat, job_id)
    slow.accept()
    assert len(slow.under_way.get(timeout=PATIENCE)) == REPORTED_TOGETHER
    assert logged(seat) == rest
    slow.accept()
    slow.under_way.get(timeout=PATIENCE)
    assert logged(seat) == rest[REPORTED_TOGETHER:]


def test_no_place_comes_free_while_the_log_has_no_room_for_what_would_end_there(
    slow_lane: AsyncLane, seat: Seat, slow: SlowSend
) -> None:
    log = seat.lane_log
    log.record(Outcome("job_large", 1, 1, Verdict.COMPLETED, "x" * (LOG_BYTES // 2)))
    land(slow_lane, seat, "job_first")
    assert len(slow_lane.free_slots) == 1
    slow.accept()
    slow_lane.wait(lambda: len(slow_lane.free_slots) == 2, PATIENCE)
    assert (len(slow_lane.free_slots), log.is_empty) == (2, True)


class Wire:
    """What is sent to Redis: progress, which takes its time, and outcomes."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.is_ours = True
        self.failures = 0
        self.is_broken = False

    def progress(self, job: Claimed, text: str) -> bool:
        self.begun.set()
        assert self.go_on.wait(PATIENCE)
        if self.is_broken:
            raise ValueError("no error of ours")
        if self.failures:
            self.failures -= 1
            raise RedisUnavailable("away")
        self.sent.append(f"{job.id} {json.loads(text)['done']}")
        return self.is_ours

    def outcomes(self, outcomes: list[Outcome]) -> list[bool]:
        self.sent += [f"{outcome.id} {outcome.verdict}" for outcome in outcomes]
        return [True] * len(outcomes)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def wired(seat: Seat, wire: Wire) -> Iterator[AsyncLane]:
    made = AsyncLane(load({}), seat, 2, 1, wire.progress, wire.outcomes)
    yield made
    wire.go_on.set()
    made.close()


def start_progress(lane: AsyncLane, seat: Seat, job_id: str, *args: Any) -> None:
    name = worker_tasks.async_progress.name
    job = Claimed(job_id, "default", name, "[[],{}]", 1, 0, 0, "", 1)
    seat.offer([job])
    token = seat.take()
    assert token is not None
    lane.start(Call(job, worker_tasks.async_progress, list(args), {}, 0, 1), token)


def test_progress_does_not_hold_up_the_loop(wired: AsyncLane, seat: Seat, wire: Wire) -> None:
    start_progress(wired, seat, "job_slow", 3, 60)
    assert wire.begun.wait(PATIENCE)
    land(wired, seat, "job_other")
    wired.interrupt("cancel", "job_slow", 1)
    wired.wait(lambda: ("job_slow", 1) not in wired._flights, PATIENCE)
    assert wired.free_slots
    assert not wire.go_on.is_set()
    assert not seat.running()


def test_the_last_progress_goes_before_the_outcome_and_none_after(
    wired: AsyncLane, seat: Seat, wire: Wire
) -> None:
    """Those in between, which came while another was sent, may be left out."""
    start_progress(wired, seat, "job_1", 1000)
    wired.wait(lambda: not wired._flights, PATIENCE)
    wire.go_on.set()
    wired.wait(lambda: not wired.in_flight, PATIENCE)
    assert wire.sent[-2:] == ["job_1 1000", "job_1 completed"]
    rounds = [int(line.split()[1]) for line in wire.sent[:-1]]
    assert rounds == sorted(set(rounds))


@pytest.mark.parametrize("failures", [1, 2])
def test_progress_that_redis_did_not_take_is_sent_when_it_is_back(
    wired: AsyncLane, seat: Seat, wire: Wire, failures: int
) -> None:
    wire.failures = failures
    wire.go_on.set()
    start_progress(wired, seat, "job_1", 5)
    wired.wait(lambda: not wired.in_flight, PATIENCE)
    assert wire.sent[-2:] == ["job_1 5", "job_1 completed"]


def test_a_lost_lease_is_told_by_the_next_progress(
    wired: AsyncLane, seat: Seat, wire: Wire
) -> None:
    wire.is_ours = False
    wire.go_on.set()
    start_progress(wired, seat, "job_1", 10_000, 0.01)
    wired.wait(lambda: not wired.in_flight, PATIENCE)
    assert wire.sent[-1] == f"job_1 {Verdict.QUEUED}"


def test_a_thread_that_a_job_has_left_behind_gives_no_progress() -> None:
    sent: list[str] = []

    def send(text: str) -> bool:
        sent.append(text)
        return True

    woken: list[LatestProgress] = []
    progress = LatestProgress(send, woken.append)
    assert progress.give("1")
    progress.end()
    assert not progress.give("2")
    woken[0].send()
    assert sent == []
    progress.send_last()
    assert sent == ["1"]


def test_a_note_that_no_redis_could_take_fails_its_job_and_no_thread_of_the_lane(
    wired: AsyncLane, seat: Seat, wire: Wire
) -> None:
    wire.go_on.set()
    start_progress(wired, seat, "job_1", 1, 0, "\ud800")
    wired.wait(lambda: not wired.in_flight, PATIENCE)
    start_progress(wired, seat, "job_2", 1)
    wired.wait(lambda: not wired.in_flight, PATIENCE)
    assert wire.sent == ["job_1 failed", "job_2 1", "job_2 completed"]


def test_trouble_with_progress_does_not_keep_an_outcome_back(
    wired: AsyncLane, seat: Seat, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "is_broken", True)
    wire.go_on.set()
    for job_id in ("job_1", "job_2"):
        start_progress(wired, seat, job_id, 1)
        wired.wait(lambda: not wired.in_flight, PATIENCE)
    assert wire.sent == ["job_1 completed", "job_2 completed"]
