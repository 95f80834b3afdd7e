"""The async runner, without a child process around it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from django_redisqueue.broker.replies import ClaimedJob, Outcome, OutcomeKind
from django_redisqueue.conf import load
from django_redisqueue.exceptions import RedisUnavailable
from django_redisqueue.worker.child.async_runner import AsyncRunner
from django_redisqueue.worker.child.executor import Execution, Pipeline
from django_redisqueue.worker.child.in_flight import REPORTED_TOGETHER, InFlight
from django_redisqueue.worker.child.job_redis import LatestProgress
from django_redisqueue.worker.child.loop import Child, ChildOptions
from django_redisqueue.worker.child_state import ChildState
from django_redisqueue.worker.outcome_log import LOG_BYTES
from tests.app import tasks
from tests.worker import tasks as worker_tasks
from tests.worker.processes import eventually

PATIENCE = 10


@pytest.fixture
def sent() -> SimpleQueue[list[Outcome]]:
    return SimpleQueue()


PIPELINE = Pipeline(load({}), lambda job_id: 0, lambda job_id: None)


@pytest.fixture
def state() -> ChildState:
    return ChildState(0, 3)


def end(runner: AsyncRunner) -> None:
    """End the runner, and wait for its event loop to stop."""
    runner.close()
    loop = runner._loop
    if loop is not None:
        eventually(lambda: not loop.is_running())
        loop.close()


@pytest.fixture
def runner(state: ChildState, sent: SimpleQueue[list[Outcome]]) -> Iterator[AsyncRunner]:
    def send(outcomes: list[Outcome]) -> list[bool]:
        sent.put(outcomes)
        return [True] * len(outcomes)

    made = AsyncRunner(PIPELINE, InFlight(state, lambda job, text: True, send), 2, 1)
    yield made
    end(made)


def start(runner: AsyncRunner, state: ChildState, job_id: str, seconds: float) -> None:
    job = ClaimedJob(
        job_id, "default", tasks.async_sleep.name, f"[[{seconds}],{{}}]", 1, 0, 0, "", 1
    )
    state.offer([job])
    token = state.take()
    assert token is not None
    runner.start(Execution(job, tasks.async_sleep, [seconds], {}, 0, 1), token)


def hold_the_loop(runner: AsyncRunner) -> threading.Event:
    """Keep the event loop busy until the event is set."""
    busy, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        busy.set()
        go_on.wait(PATIENCE)

    assert runner._loop is not None
    runner._loop.call_soon_threadsafe(hold)
    assert busy.wait(PATIENCE)
    return go_on


def test_a_cancel_that_comes_before_its_job_has_begun_on_the_loop_ends_it(
    runner: AsyncRunner, state: ChildState, sent: SimpleQueue[list[Outcome]]
) -> None:
    start(runner, state, "job_first", 0)
    sent.get(timeout=PATIENCE)
    go_on = hold_the_loop(runner)
    start(runner, state, "job_second", 60)
    runner._in_flight.interrupt("cancel", "job_second", 1)
    go_on.set()
    [outcome] = sent.get(timeout=PATIENCE)
    assert (outcome.id, outcome.kind) == ("job_second", OutcomeKind.CANCELLED)
    runner._in_flight.wait(lambda: not runner._in_flight.count, PATIENCE)
    assert (len(runner.free_slots), state.running()) == (2, [])


def test_a_job_starts_no_thread(
    runner: AsyncRunner,
    state: ChildState,
    sent: SimpleQueue[list[Outcome]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start(runner, state, "job_first", 0)  # starts the threads that all jobs share
    sent.get(timeout=PATIENCE)
    started: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread.name))
    start(runner, state, "job_second", 0)
    [outcome] = sent.get(timeout=PATIENCE)
    assert (outcome.id, outcome.kind, started) == ("job_second", OutcomeKind.COMPLETED, [])


def test_jobs_that_start_together_wake_the_loop_once(
    runner: AsyncRunner,
    state: ChildState,
    sent: SimpleQueue[list[Outcome]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start(runner, state, "job_first", 0)
    sent.get(timeout=PATIENCE)
    runner._in_flight.wait(lambda: len(runner.free_slots) == 2, PATIENCE)
    go_on = hold_the_loop(runner)
    assert runner._loop is not None
    wake, woken = runner._loop.call_soon_threadsafe, list[str]()

    def count(callback: Callable[..., object], *args: Any) -> object:
        woken.append(callback.__name__)
        return wake(callback, *args)

    monkeypatch.setattr(runner._loop, "call_soon_threadsafe", count)
    start(runner, state, "job_second", 0)
    start(runner, state, "job_third", 0)
    assert woken == ["_launch"]
    go_on.set()
    runner._in_flight.wait(lambda: not runner._in_flight.count, PATIENCE)
    assert len(runner.free_slots) == 2


def test_a_child_takes_a_batch_of_async_jobs_with_one_system_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ChildOptions(queues=("default",), async_concurrency=3)
    child = Child("child", ChildState(0, options.slots), options, load({}), lambda: None, 1)
    monkeypatch.setattr(child._in_flight, "_send", lambda outcomes: [True] * len(outcomes))
    reads, read = list[int](), os.read

    def count(file: int, size: int) -> bytes:
        reads.append(len(found := read(file, size)))
        return found

    monkeypatch.setattr("django_redisqueue.worker.child_state.os.read", count)
    ids = [f"job_{n}" for n in range(3)]
    name = tasks.async_sleep.name
    child._run_batch([ClaimedJob(one, "default", name, "[[60],{}]", 1, 0, 0, "", 1) for one in ids])
    assert reads == [3 * 72]
    assert [job.id for job in child._state.running()] == ids[::-1]
    for one in ids:
        child._in_flight.interrupt("cancel", one, 1)
    child._in_flight.wait(lambda: not child._in_flight.count, PATIENCE)
    end(child._async_runner)


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
def slow_runner(state: ChildState, slow: SlowSend) -> Iterator[AsyncRunner]:
    made = AsyncRunner(PIPELINE, InFlight(state, lambda job, text: True, slow), 2, 1)
    yield made
    slow.open()
    end(made)


def run_to_end(runner: AsyncRunner, state: ChildState, job_id: str) -> None:
    """The job runs to its end here."""
    start(runner, state, job_id, 0)
    runner._in_flight.wait(lambda: (job_id, 1) not in runner._in_flight._running, PATIENCE)


def logged(state: ChildState) -> list[str]:
    return [outcome.id for outcome in state.outcomes()]


def test_what_can_not_be_written_stays_in_the_log_and_is_sent_again(
    slow_runner: AsyncRunner, state: ChildState, slow: SlowSend
) -> None:
    slow.unwritten = {"job_1"}
    run_to_end(slow_runner, state, "job_1")
    slow.under_way.get(timeout=PATIENCE)
    run_to_end(slow_runner, state, "job_2")
    slow.accept()
    sent = [outcome.id for outcome in slow.under_way.get(timeout=PATIENCE)]
    assert sorted(sent) == ["job_1", "job_2"]
    slow.accept()
    assert [outcome.id for outcome in slow.under_way.get(timeout=PATIENCE)] == ["job_1"]
    assert (logged(state), slow_runner._in_flight.count, slow_runner._in_flight.unwritten) == (
        ["job_1"],
        0,
        1,
    )
    slow.unwritten.clear()
    slow.accept()
    slow_runner._in_flight.wait(lambda: not slow_runner._in_flight.unwritten, PATIENCE)
    assert (logged(state), slow_runner._in_flight.count, len(slow_runner.free_slots)) == ([], 0, 2)


def test_the_log_holds_exactly_what_is_not_yet_accepted(
    slow_runner: AsyncRunner, state: ChildState, slow: SlowSend
) -> None:
    """Also while there is always something unreported, which is when the log must not grow."""
    log = state.concurrent_log
    run_to_end(slow_runner, state, "job_0")
    whole = log.free_bytes
    report = slow.under_way.get(timeout=PATIENCE)
    for round_ in range(1, 200):
        new = [f"job_{round_}_{n}" for n in range(round_ % 3 + 1)]
        for job_id in new:
            run_to_end(slow_runner, state, job_id)
        assert logged(state) == [outcome.id for outcome in report] + new
        slow.accept()
        report = slow.under_way.get(timeout=PATIENCE)  # the last is accepted by now
        assert [outcome.id for outcome in report] == new
        assert logged(state) == new
        assert log.free_bytes > whole - 1000
    slow.open()
    slow_runner._in_flight.wait(lambda: not slow_runner._in_flight.count, PATIENCE)
    assert log.is_empty


def test_outcomes_that_wait_for_several_reports_stay_logged_until_their_own(
    slow_runner: AsyncRunner, state: ChildState, slow: SlowSend
) -> None:
    run_to_end(slow_runner, state, "job_first")
    slow.under_way.get(timeout=PATIENCE)
    rest = [f"job_{n}" for n in range(REPORTED_TOGETHER + 3)]
    for job_id in rest:
        run_to_end(slow_runner, state, job_id)
    slow.accept()
    assert len(slow.under_way.get(timeout=PATIENCE)) == REPORTED_TOGETHER
    assert logged(state) == rest
    slow.accept()
    slow.under_way.get(timeout=PATIENCE)
    assert logged(state) == rest[REPORTED_TOGETHER:]


def test_no_place_comes_free_while_the_log_has_no_room_for_what_would_end_there(
    slow_runner: AsyncRunner, state: ChildState, slow: SlowSend
) -> None:
    log = state.concurrent_log
    log.record(Outcome("job_large", 1, 1, OutcomeKind.COMPLETED, "x" * (LOG_BYTES // 2)))
    run_to_end(slow_runner, state, "job_first")
    assert len(slow_runner.free_slots) == 1
    slow.accept()
    slow_runner._in_flight.wait(lambda: len(slow_runner.free_slots) == 2, PATIENCE)
    assert (len(slow_runner.free_slots), log.is_empty) == (2, True)


class Wire:
    """What is sent to Redis: progress, which takes its time, and outcomes."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.is_ours = True
        self.failures = 0
        self.is_broken = False

    def progress(self, job: ClaimedJob, text: str) -> bool:
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
        self.sent += [f"{outcome.id} {outcome.kind}" for outcome in outcomes]
        return [True] * len(outcomes)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def wired(state: ChildState, wire: Wire) -> Iterator[AsyncRunner]:
    made = AsyncRunner(PIPELINE, InFlight(state, wire.progress, wire.outcomes), 2, 1)
    yield made
    wire.go_on.set()
    end(made)


def start_progress(runner: AsyncRunner, state: ChildState, job_id: str, *args: Any) -> None:
    name = worker_tasks.async_progress.name
    job = ClaimedJob(job_id, "default", name, "[[],{}]", 1, 0, 0, "", 1)
    state.offer([job])
    token = state.take()
    assert token is not None
    runner.start(Execution(job, worker_tasks.async_progress, list(args), {}, 0, 1), token)


def test_progress_does_not_hold_the_loop_the_loop(
    wired: AsyncRunner, state: ChildState, wire: Wire
) -> None:
    start_progress(wired, state, "job_slow", 3, 60)
    assert wire.begun.wait(PATIENCE)
    run_to_end(wired, state, "job_other")
    wired._in_flight.interrupt("cancel", "job_slow", 1)
    wired._in_flight.wait(lambda: ("job_slow", 1) not in wired._in_flight._running, PATIENCE)
    assert wired.free_slots
    assert not wire.go_on.is_set()
    assert not state.running()


def test_the_last_progress_goes_before_the_outcome_and_none_after(
    wired: AsyncRunner, state: ChildState, wire: Wire
) -> None:
    """Those in between, which came while another was sent, may be left out."""
    start_progress(wired, state, "job_1", 1000)
    wired._in_flight.wait(lambda: not wired._in_flight._running, PATIENCE)
    wire.go_on.set()
    wired._in_flight.wait(lambda: not wired._in_flight.count, PATIENCE)
    assert wire.sent[-2:] == ["job_1 1000", "job_1 completed"]
    rounds = [int(line.split()[1]) for line in wire.sent[:-1]]
    assert rounds == sorted(set(rounds))


@pytest.mark.parametrize("failures", [1, 2])
def test_progress_that_redis_did_not_take_is_sent_when_it_is_back(
    wired: AsyncRunner, state: ChildState, wire: Wire, failures: int
) -> None:
    wire.failures = failures
    wire.go_on.set()
    start_progress(wired, state, "job_1", 5)
    wired._in_flight.wait(lambda: not wired._in_flight.count, PATIENCE)
    assert wire.sent[-2:] == ["job_1 5", "job_1 completed"]


def test_a_lost_lease_is_told_by_the_next_progress(
    wired: AsyncRunner, state: ChildState, wire: Wire
) -> None:
    wire.is_ours = False
    wire.go_on.set()
    start_progress(wired, state, "job_1", 10_000, 0.01)
    wired._in_flight.wait(lambda: not wired._in_flight.count, PATIENCE)
    assert wire.sent[-1] == f"job_1 {OutcomeKind.QUEUED}"


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
    wired: AsyncRunner, state: ChildState, wire: Wire
) -> None:
    wire.go_on.set()
    start_progress(wired, state, "job_1", 1, 0, "\ud800")
    wired._in_flight.wait(lambda: not wired._in_flight.count, PATIENCE)
    start_progress(wired, state, "job_2", 1)
    wired._in_flight.wait(lambda: not wired._in_flight.count, PATIENCE)
    assert wire.sent == ["job_1 failed", "job_2 1", "job_2 completed"]


def test_trouble_with_progress_does_not_keep_an_outcome_back(
    wired: AsyncRunner, state: ChildState, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "is_broken", True)
    wire.go_on.set()
    for job_id in ("job_1", "job_2"):
        start_progress(wired, state, job_id, 1)
        wired._in_flight.wait(lambda: not wired._in_flight.count, PATIENCE)
    assert wire.sent == ["job_1 completed", "job_2 completed"]
