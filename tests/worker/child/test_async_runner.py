"""The async runner, without a child process around it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from django_redisqueue.broker.replies import ClaimedJob, Outcome, OutcomeKind
from django_redisqueue.client.tasks import Task
from django_redisqueue.conf import load
from django_redisqueue.exceptions import RedisUnavailable
from django_redisqueue.worker.child import async_runner
from django_redisqueue.worker.child.async_runner import AsyncRunner
from django_redisqueue.worker.child.executor import Execution, Pipeline
from django_redisqueue.worker.child.in_flight import REPORTED_TOGETHER, InFlight
from django_redisqueue.worker.child.job_redis import LatestProgress
from django_redisqueue.worker.child.loop import Child
from django_redisqueue.worker.child_state import LOG_BYTES, ChildState
from django_redisqueue.worker.options import WorkerOptions
from tests.app import tasks
from tests.worker import tasks as worker_tasks
from tests.worker.processes import eventually

from .test_steps import Memory

PATIENCE = 10
PIPELINE = Pipeline(load({}), lambda job_id: 0, lambda job_id: None)


class FakeRedis:
    """The recipient of reports and progress. It can delay them, refuse them, or be unavailable."""

    def __init__(self) -> None:
        self.sent: list[str] = []  # progress and outcomes, in order
        self.reports: SimpleQueue[list[Outcome]] = SimpleQueue()  # including those that are delayed
        self.holds_reports = False
        self._accepted: SimpleQueue[None] = SimpleQueue()
        self.unwritten: set[str] = set()
        self.progress_begun = threading.Event()
        self.takes_progress = threading.Event()
        self.is_ours = True
        self.failures: list[Exception] = []  # of the next reports of progress

    def report(self, outcomes: list[Outcome]) -> list[bool]:
        self.sent += [f"{outcome.id} {outcome.kind}" for outcome in outcomes]
        self.reports.put(outcomes)
        if self.holds_reports:
            self._accepted.get(timeout=PATIENCE)
        return [outcome.id not in self.unwritten for outcome in outcomes]

    def next_report(self) -> list[str]:
        """The ids of the jobs in the next report."""
        return [outcome.id for outcome in self.reports.get(timeout=PATIENCE)]

    def accept(self) -> None:
        """Answer the delayed report."""
        self._accepted.put(None)

    def progress(self, job: ClaimedJob, text: str) -> bool:
        self.progress_begun.set()
        assert self.takes_progress.wait(PATIENCE)
        if self.failures:
            raise self.failures.pop()
        self.sent.append(f"{job.id} {json.loads(text)['done']}")
        return self.is_ours

    def open(self) -> None:
        """Delay nothing from now on."""
        self.holds_reports = False
        self.accept()
        self.takes_progress.set()


class RunnerHarness:
    """A runner of two jobs at a time, and the objects that it talks to."""

    def __init__(self) -> None:
        self.redis = FakeRedis()
        self.state = ChildState(0, 3)
        self.in_flight = InFlight(self.state, self.redis.progress, self.redis.report, Memory())
        self.runner = AsyncRunner(PIPELINE, self.in_flight, 2, 1)

    @property
    def free(self) -> int:
        return len(self.runner.free_slots)

    def start(
        self, job_id: str, *args: Any, task: Task = tasks.async_sleep, timeout_ms: int = 0
    ) -> None:
        job = ClaimedJob(job_id, "default", task.name, "[[],{}]", 1, 0, 0, "", 1)
        self.state.offer([job])
        token = self.state.take()
        assert token is not None
        self.runner.start(Execution(job, task, list(args), {}, timeout_ms, 1), token)

    def start_progress(self, job_id: str, *args: Any) -> None:
        self.start(job_id, *args, task=worker_tasks.async_progress)

    def run_to_end(self, job_id: str) -> None:
        """The job has run, but its outcome may not have been reported."""
        self.start(job_id, 0)
        self.wait(lambda: (job_id, 1) not in self.in_flight._running)

    def wait(self, until: Callable[[], bool] | None = None) -> None:
        """Wait for this, or until no job is in flight."""
        self.in_flight.wait(until or (lambda: not self.in_flight.count), PATIENCE)

    def logged(self) -> list[str]:
        return [outcome.id for outcome in self.state.outcomes()]

    def hold_the_loop(self) -> threading.Event:
        """Keep the event loop busy until the event is set."""
        busy, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            busy.set()
            go_on.wait(PATIENCE)

        assert self.runner._loop is not None
        self.runner._loop.call_soon_threadsafe(hold)
        assert busy.wait(PATIENCE)
        return go_on


def end(runner: AsyncRunner) -> None:
    """End the runner, and wait for its event loop to stop."""
    runner.close()
    loop = runner._loop
    if loop is not None:
        eventually(lambda: not loop.is_running())
        loop.close()


@pytest.fixture
def harness() -> Iterator[RunnerHarness]:
    made = RunnerHarness()
    yield made
    made.redis.open()
    end(made.runner)


@pytest.fixture
def redis(harness: RunnerHarness) -> FakeRedis:
    return harness.redis


def test_a_cancel_before_its_job_has_begun_on_the_loop_ends_the_job(
    harness: RunnerHarness, redis: FakeRedis
) -> None:
    harness.run_to_end("job_first")
    redis.next_report()
    go_on = harness.hold_the_loop()
    harness.start("job_second", 60)
    harness.in_flight.interrupt("cancel", "job_second", 1)
    go_on.set()
    [outcome] = redis.reports.get(timeout=PATIENCE)
    assert (outcome.id, outcome.kind) == ("job_second", OutcomeKind.CANCELLED)
    harness.wait()
    assert (harness.free, harness.state.running()) == (2, [])


@pytest.mark.parametrize("place", ["finish", "_send"])
def test_a_fault_outside_of_the_job_ends_the_child(
    harness: RunnerHarness, redis: FakeRedis, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Otherwise the job would seem to run forever, as heartbeats would keep renewing its lease."""
    ended: SimpleQueue[int] = SimpleQueue()
    monkeypatch.setattr(os, "_exit", ended.put)
    monkeypatch.setattr(harness.in_flight, place, lambda *_: 1 / 0)
    harness.start("job_first", 0)
    assert ended.get(timeout=PATIENCE) == 1


def test_a_job_that_is_cancelled_by_another_before_its_first_step_ends_the_child(
    harness: RunnerHarness, redis: FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: SimpleQueue[int] = SimpleQueue()
    monkeypatch.setattr(os, "_exit", ended.put)
    harness.run_to_end("job_first")
    redis.next_report()
    go_on = harness.hold_the_loop()
    harness.start("job_second", 60)
    loop = harness.runner._loop
    assert loop is not None
    loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
    go_on.set()
    assert ended.get(timeout=PATIENCE) == 1


def test_a_job_starts_no_thread(
    harness: RunnerHarness, redis: FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.run_to_end("job_first")  # starts the threads that all jobs share
    redis.next_report()
    started: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread.name))
    harness.start("job_second", 0)
    [outcome] = redis.reports.get(timeout=PATIENCE)
    assert (outcome.id, outcome.kind, started) == ("job_second", OutcomeKind.COMPLETED, [])


def test_jobs_that_start_together_wake_the_loop_once(
    harness: RunnerHarness, redis: FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.run_to_end("job_first")
    redis.next_report()
    harness.wait(lambda: harness.free == 2)
    go_on = harness.hold_the_loop()
    loop = harness.runner._loop
    assert loop is not None
    wake, woken = loop.call_soon_threadsafe, list[str]()

    def count(callback: Callable[..., object], *args: Any) -> object:
        woken.append(callback.__name__)
        return wake(callback, *args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", count)
    harness.start("job_second", 0)
    harness.start("job_third", 0)
    assert woken == ["_launch"]
    go_on.set()
    harness.wait()
    assert harness.free == 2


def child_without_redis(monkeypatch: pytest.MonkeyPatch, concurrency: int) -> Child:
    """Every outcome that it reports is accepted."""
    options = WorkerOptions(queues=("default",), async_concurrency=concurrency)
    child = Child("child", ChildState(0, options.slots), options, load({}), lambda: None)
    monkeypatch.setattr(child._in_flight, "_send", lambda outcomes: [True] * len(outcomes))
    return child


def test_a_child_takes_a_batch_of_async_jobs_with_one_system_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = child_without_redis(monkeypatch, concurrency=3)
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


def test_a_lone_job_waits_for_the_slot_of_one_that_was_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread, for example, first closes its database connections."""
    child = child_without_redis(monkeypatch, concurrency=1)
    monkeypatch.setattr(child._in_flight, "free_slot", lambda run: None)
    name = tasks.async_sleep.name
    for one in ("job_first", "job_second"):
        child._run_batch([ClaimedJob(one, "default", name, "[[0],{}]", 1, 0, 0, "", 1)])
        child._in_flight.wait(lambda: not child._in_flight.count, PATIENCE)
    assert [(one.id, one.kind) for one in child._claims.current.outcomes] == [
        ("job_second", "queued")
    ]
    end(child._async_runner)


def test_a_job_that_the_loop_has_not_begun_has_no_deadline(
    harness: RunnerHarness, redis: FakeRedis
) -> None:
    """Otherwise its timeout would pass while another job blocks the loop, and its process would be
    killed."""
    harness.run_to_end("job_first")
    redis.next_report()
    go_on = harness.hold_the_loop()
    harness.start("job_second", 60, timeout_ms=60_000)
    assert [(job.id, job.deadline_ms) for job in harness.state.running()] == [("job_second", 0)]
    go_on.set()
    eventually(lambda: harness.state.running()[0].deadline_ms)
    harness.in_flight.interrupt("cancel", "job_second", 1)
    harness.wait()


@pytest.mark.parametrize("launched", [False, True])
def test_jobs_behind_one_that_blocks_the_loop_are_released(
    monkeypatch: pytest.MonkeyPatch, launched: bool
) -> None:
    child = child_without_redis(monkeypatch, concurrency=3)
    runner, go_on = child._async_runner, threading.Event()
    launch = runner._launch
    if launched:  # the tasks exist, and the first of them blocks the others
        monkeypatch.setattr(runner, "_launch", lambda: (launch(), go_on.wait(PATIENCE)))
    else:
        runner._start_loop().call_soon_threadsafe(go_on.wait, PATIENCE)
    name = tasks.async_sleep.name
    jobs = [ClaimedJob(f"job_{n}", "default", name, "[[60],{}]", 1, 0, 0, "", 1) for n in range(2)]
    child._run_batch(jobs)
    assert child._can_claim()
    assert runner.blocked_after < 1
    monkeypatch.setattr(async_runner, "BLOCKED_AFTER", -1.0)
    assert not child._can_claim()
    monkeypatch.setattr(child._claims, "flush", go_on.set)
    child._wait_for_room()  # until the loop continues
    outcomes = child._claims.current.outcomes
    assert [(one.id, one.kind) for one in outcomes] == [("job_1", "queued"), ("job_0", "queued")]
    assert (child._state.running(), child._in_flight.count) == ([], 0)
    assert child._can_claim()
    assert (sorted(runner.free_slots), runner.blocked_after) == ([1, 2, 3], math.inf)
    end(runner)


def test_an_outcome_that_cannot_be_written_stays_in_the_log_and_is_sent_again(
    harness: RunnerHarness, redis: FakeRedis
) -> None:
    redis.holds_reports, redis.unwritten = True, {"job_1"}
    harness.run_to_end("job_1")
    redis.next_report()
    harness.run_to_end("job_2")
    redis.accept()
    assert sorted(redis.next_report()) == ["job_1", "job_2"]
    redis.accept()
    assert redis.next_report() == ["job_1"]
    in_flight = harness.in_flight
    assert (harness.logged(), in_flight.count, in_flight.unwritten) == (["job_1"], 0, 1)
    redis.unwritten.clear()
    redis.accept()
    harness.wait(lambda: not in_flight.unwritten)
    assert (harness.logged(), in_flight.count, harness.free) == ([], 0, 2)


def test_the_log_holds_exactly_what_is_not_yet_accepted(
    harness: RunnerHarness, redis: FakeRedis
) -> None:
    """Even if something is always unreported, which is when the log must not grow."""
    redis.holds_reports, log = True, harness.state.concurrent_log
    harness.run_to_end("job_0")
    whole = log.free_bytes
    report = redis.next_report()
    for round_ in range(1, 200):
        new = [f"job_{round_}_{n}" for n in range(round_ % 3 + 1)]
        for job_id in new:
            harness.run_to_end(job_id)
        assert harness.logged() == report + new
        redis.accept()
        report = redis.next_report()  # the last is accepted by now
        assert report == new
        assert harness.logged() == new
        assert log.free_bytes > whole - 1000
    redis.open()
    harness.wait()
    assert log.is_empty


def test_outcomes_that_wait_for_several_reports_stay_logged_until_their_own(
    harness: RunnerHarness, redis: FakeRedis
) -> None:
    redis.holds_reports = True
    harness.run_to_end("job_first")
    redis.next_report()
    rest = [f"job_{n}" for n in range(REPORTED_TOGETHER + 3)]
    for job_id in rest:
        harness.run_to_end(job_id)
    redis.accept()
    assert len(redis.next_report()) == REPORTED_TOGETHER
    assert harness.logged() == rest
    redis.accept()
    redis.next_report()
    assert harness.logged() == rest[REPORTED_TOGETHER:]


def test_no_slot_becomes_free_while_the_log_has_no_room_for_the_next_outcome(
    harness: RunnerHarness, redis: FakeRedis
) -> None:
    redis.holds_reports, log = True, harness.state.concurrent_log
    log.record(Outcome("job_large", 1, 1, OutcomeKind.COMPLETED, "x" * (LOG_BYTES // 2)))
    harness.run_to_end("job_first")
    assert harness.free == 1
    redis.accept()
    harness.wait(lambda: harness.free == 2)
    assert (harness.free, log.is_empty) == (2, True)


def test_progress_does_not_hold_the_loop(harness: RunnerHarness, redis: FakeRedis) -> None:
    harness.start_progress("job_slow", 3, 60)
    assert redis.progress_begun.wait(PATIENCE)
    harness.run_to_end("job_other")
    harness.in_flight.interrupt("cancel", "job_slow", 1)
    harness.wait(lambda: ("job_slow", 1) not in harness.in_flight._running)
    assert harness.free
    assert not redis.takes_progress.is_set()
    assert not harness.state.running()


def test_the_last_progress_is_sent_before_the_outcome_and_none_after(
    harness: RunnerHarness, redis: FakeRedis
) -> None:
    """Reports in between, made while another was being sent, may be left out."""
    harness.start_progress("job_1", 1000)
    harness.wait(lambda: not harness.in_flight._running)
    redis.takes_progress.set()
    harness.wait()
    assert redis.sent[-2:] == ["job_1 1000", "job_1 completed"]
    rounds = [int(line.split()[1]) for line in redis.sent[:-1]]
    assert rounds == sorted(set(rounds))


@pytest.mark.parametrize("failures", [1, 2])
def test_progress_that_redis_did_not_accept_is_sent_once_it_is_reachable_again(
    harness: RunnerHarness, redis: FakeRedis, failures: int
) -> None:
    redis.failures = [RedisUnavailable("away")] * failures
    redis.takes_progress.set()
    harness.start_progress("job_1", 5)
    harness.wait()
    assert redis.sent[-2:] == ["job_1 5", "job_1 completed"]


def test_a_lost_lease_is_told_by_the_next_progress(
    harness: RunnerHarness, redis: FakeRedis
) -> None:
    redis.is_ours = False
    redis.takes_progress.set()
    harness.start_progress("job_1", 10_000, 0.01)
    harness.wait()
    assert redis.sent[-1] == f"job_1 {OutcomeKind.QUEUED}"


def test_a_thread_that_a_job_left_behind_sends_no_progress() -> None:
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


def test_a_note_that_cannot_be_encoded_fails_its_job_and_no_thread_of_the_runner(
    harness: RunnerHarness, redis: FakeRedis
) -> None:
    redis.takes_progress.set()
    harness.start_progress("job_1", 1, 0, "\ud800")
    harness.wait()
    harness.start_progress("job_2", 1)
    harness.wait()
    assert redis.sent == ["job_1 failed", "job_2 1", "job_2 completed"]


def test_an_error_in_sending_progress_does_not_delay_an_outcome(
    harness: RunnerHarness, redis: FakeRedis
) -> None:
    redis.failures = [ValueError("unexpected")] * 100
    redis.takes_progress.set()
    for job_id in ("job_1", "job_2"):
        harness.start_progress(job_id, 1)
        harness.wait()
    assert redis.sent == ["job_1 completed", "job_2 completed"]
