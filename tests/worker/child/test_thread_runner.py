"""The thread runner, without a child process around it."""

from __future__ import annotations

import itertools
import json
import linecache
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

from django_redisqueue import task
from django_redisqueue.broker import scripts
from django_redisqueue.broker.cluster import ClusterMap, parse_cluster_url
from django_redisqueue.broker.replies import Outcome, OutcomeKind
from django_redisqueue.client.tasks import Task
from django_redisqueue.conf import load
from django_redisqueue.core.interrupts import interrupt_shield
from django_redisqueue.exceptions import JobAbandoned, JobCancelled, JobTimeout
from django_redisqueue.worker.child.executor import Execution, Pipeline
from django_redisqueue.worker.child.in_flight import InFlight
from django_redisqueue.worker.child.job_redis import LatestProgress
from django_redisqueue.worker.child.thread_runner import ThreadRun, ThreadRunner
from django_redisqueue.worker.child_state import ChildState
from tests.app import tasks
from tests.worker.parts import claimed
from tests.worker.processes import eventually

from .test_steps import Memory

PATIENCE = 10
PIPELINE = Pipeline(load({}), lambda job_id: 0, lambda job_id: None)
FIRST_SLOT, THREADS = 5, 2
_held: SimpleQueue[threading.Event] = SimpleQueue()


@task
def hold() -> str:
    """Waits for its event in pure Python, where interrupts can reach it."""
    go_on = threading.Event()
    _held.put(go_on)
    while not go_on.is_set():
        time.sleep(0.001)
    return threading.current_thread().name


@task(takes_context=True)
def report(context: Any, done: int) -> bool:
    context.progress(done, done)
    return bool(context.cancelled)


class RunnerHarness:
    """A runner, and what it reports."""

    def __init__(self) -> None:
        self.state = ChildState(0, FIRST_SLOT + THREADS)
        self.sent: SimpleQueue[Outcome] = SimpleQueue()
        self.progress: list[str] = []
        self.in_flight = InFlight(self.state, self._report, self._send, Memory())
        self.runner = ThreadRunner(PIPELINE, self.in_flight, THREADS, FIRST_SLOT)

    def _send(self, outcomes: list[Outcome]) -> list[bool]:
        for outcome in outcomes:
            self.sent.put(outcome)
        return [True] * len(outcomes)

    def _report(self, job: object, text: str) -> bool:
        self.progress.append(text)
        return True

    def start(self, job_id: str, called: Task, *args: Any, timeout_ms: int = 0) -> None:
        job = claimed(job_id)
        self.state.offer([job])
        token = self.state.take()
        assert token is not None
        self.runner.start(Execution(job, called, list(args), {}, timeout_ms, 1), token)

    def outcome(self) -> Outcome:
        return self.sent.get(timeout=PATIENCE)


@pytest.fixture
def harness() -> Iterator[RunnerHarness]:
    while not _held.empty():
        _held.get()
    made = RunnerHarness()
    yield made
    made.runner.close()


def test_jobs_run_concurrently_and_the_supervisor_sees_each(harness: RunnerHarness) -> None:
    harness.start("job_1", hold)
    harness.start("job_2", hold)
    events = [_held.get(timeout=PATIENCE) for _ in range(THREADS)]
    assert {job.id for job in harness.state.running()} == {"job_1", "job_2"}
    assert harness.state.running_sync() is None
    assert harness.runner.free_slots == []
    for event in events:
        event.set()
    outcomes = [harness.outcome() for _ in range(THREADS)]
    assert {outcome.body for outcome in outcomes} == {'"job-1"', '"job-2"'}
    harness.in_flight.wait(lambda: len(harness.runner.free_slots) == THREADS, PATIENCE)
    harness.in_flight.wait(lambda: not harness.in_flight.count, PATIENCE)
    assert sorted(harness.runner.free_slots) == [FIRST_SLOT, FIRST_SLOT + 1]
    assert (harness.state.running(), harness.state.outcomes()) == ([], [])


def test_the_soonest_deadline_is_kept_whatever_started_before(harness: RunnerHarness) -> None:
    harness.start("job_long", hold, timeout_ms=60_000)
    go_on = _held.get(timeout=PATIENCE)
    harness.start("job_late", hold, timeout_ms=30)
    late = harness.outcome()
    assert (late.id, late.kind, late.detail) == ("job_late", OutcomeKind.FAILED, "timeout")
    assert "longer than its timeout" in json.loads(late.body)["message"]
    go_on.set()
    assert harness.outcome().kind == OutcomeKind.COMPLETED


def test_a_cancel_is_for_its_job_and_lease_only(harness: RunnerHarness) -> None:
    harness.start("job_1", hold)
    harness.start("job_2", hold)
    events = [_held.get(timeout=PATIENCE) for _ in range(THREADS)]
    harness.in_flight.interrupt("cancel", "job_2", 2)
    harness.in_flight.interrupt("cancel", "job_3", 1)
    harness.in_flight.interrupt("cancel", "job_1", 1)
    assert (harness.outcome()[0:4:3]) == ("job_1", OutcomeKind.CANCELLED)
    for event in events:
        event.set()
    assert (harness.outcome()[0:4:3]) == ("job_2", OutcomeKind.COMPLETED)


def test_progress_is_sent_before_the_outcome(harness: RunnerHarness) -> None:
    harness.start("job_1", report, 3)
    assert harness.outcome().body == "false"
    assert json.loads(harness.progress[-1])["done"] == 3


def test_a_job_that_is_claimed_again_while_it_runs_keeps_running(harness: RunnerHarness) -> None:
    harness.start("job_1", hold)
    go_on = _held.get(timeout=PATIENCE)
    harness.start("job_1", hold)
    assert (harness.in_flight.count, len(harness.runner.free_slots)) == (1, 1)
    go_on.set()
    assert harness.outcome().kind == OutcomeKind.COMPLETED


def test_an_error_and_an_exit_fail_their_job_and_no_thread(harness: RunnerHarness) -> None:
    for n in range(2 * THREADS):
        harness.start(f"job_{n}", tasks.fail, "boom")
        assert json.loads(harness.outcome().body)["message"] == "boom"
        harness.in_flight.wait(lambda: len(harness.runner.free_slots) == THREADS, PATIENCE)


def run_of(interrupts: SimpleQueue[Any]) -> ThreadRun:
    execution = Execution(claimed(), hold, [], {}, 0, 1)
    return ThreadRun(execution, [], interrupts.put)


def test_an_interrupt_from_before_the_call_keeps_it_from_starting() -> None:
    run = run_of(SimpleQueue())
    run.raise_in_thread(JobAbandoned("gone"))
    with pytest.raises(JobAbandoned, match="gone"):
        run.call(lambda: pytest.fail("it has started"))


def test_an_interrupt_that_comes_after_its_call_is_not_raised() -> None:
    run = run_of(SimpleQueue())
    asked, done = threading.Event(), threading.Event()

    def ask() -> None:
        asked.wait(PATIENCE)
        run.raise_in_thread(JobCancelled("late"))
        done.set()

    thread = threading.Thread(target=ask)
    thread.start()
    assert run.call(lambda: "done") == "done"
    asked.set()
    assert done.wait(PATIENCE)
    thread.join()
    sum(n for n in range(1000))  # no interrupt here


def test_a_job_that_handles_its_interrupt_gets_no_second_one() -> None:
    """Not even after it has enqueued a job, during which interrupts wait."""
    run = run_of(SimpleQueue())

    def code() -> str:
        try:
            threading.Thread(target=run.raise_in_thread, args=(JobCancelled("stop"),)).start()
            while True:
                time.sleep(0)
        except JobCancelled:
            with run.shield():
                pass
            return "cleaned up"

    assert run.call(code) == "cleaned up"


@pytest.fixture
def lock() -> Iterator[threading.Lock]:
    """A lock that the test holds, until `interrupt_as_it_gets` gives it to a job."""
    lock = threading.Lock()
    lock.acquire()
    yield lock
    assert lock.acquire(blocking=False), "the interrupted job still holds it"


AT_LOCK = "if not self._lock", "with interrupt_shield"


def line_of(thread: threading.Thread) -> str:
    """The line of code that a thread is at."""
    frame = sys._current_frames()[thread.ident or 0]
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


def interrupt_as_it_gets(lock: threading.Lock, code: Callable[[], object]) -> None:
    """Interrupt the job ``code`` as it waits for the lock, then let it have the lock."""
    run = run_of(SimpleQueue())
    has_begun = threading.Event()

    def job() -> None:
        interrupt_shield.set(run.shield)
        has_begun.set()
        code()

    def call() -> None:
        with pytest.raises(JobTimeout, match="late"):
            run.call(job)

    thread = threading.Thread(target=copy_context().run, args=(call,))
    thread.start()
    assert has_begun.wait(PATIENCE)
    eventually(lambda: line_of(thread).startswith(AT_LOCK))
    run.raise_in_thread(JobTimeout("late"))
    lock.release()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_an_interrupt_leaves_no_lock_of_the_cluster_map_held(lock: threading.Lock) -> None:
    """Otherwise the child could never open a connection again."""
    nodes = ClusterMap(parse_cluster_url("redis+cluster://127.0.0.1:1"))
    nodes._lock = lock
    interrupt_as_it_gets(lock, lambda: nodes.owner(7, PATIENCE))


def test_an_interrupt_leaves_no_lock_of_the_progress_held(lock: threading.Lock) -> None:
    """Otherwise the child could report no outcome again."""
    progress = LatestProgress(lambda text: True, lambda one: None)
    progress._guard = lock
    interrupt_as_it_gets(lock, lambda: progress.give("{}"))


def test_an_interrupt_leaves_no_lock_of_the_scripts_held(
    lock: threading.Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the child could never call a script again, or fork."""
    monkeypatch.setattr(scripts, "_assembling", lock)
    monkeypatch.delitem(scripts._loaded, "enqueue", raising=False)
    interrupt_as_it_gets(lock, lambda: scripts.load("enqueue"))


def _spin(rounds: int) -> None:
    for _ in range(rounds):
        time.monotonic()


@pytest.fixture
def runs() -> Iterator[SimpleQueue[ThreadRun | None]]:
    """Each run that is put into the queue is soon interrupted."""
    given: SimpleQueue[ThreadRun | None] = SimpleQueue()

    def interrupt_all() -> None:
        for n in itertools.count():
            run = given.get()
            if run is None:
                return
            _spin(n % 70)
            run.raise_in_thread(JobTimeout("late"))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.000_005)
    thread = threading.Thread(target=interrupt_all)
    thread.start()
    yield given
    given.put(None)
    thread.join()
    sys.setswitchinterval(interval)


def test_an_interrupt_never_hits_what_comes_after_its_call(
    runs: SimpleQueue[ThreadRun | None],
) -> None:
    """Interrupts arrive at every moment around the end of a call: each call is interrupted or
    completes, and the code between two calls is never hit."""
    completed, interrupted = 0, 0
    for n in range(200_000):
        run = run_of(SimpleQueue())
        runs.put(run)
        try:
            run.call(partial(_spin, n % 100))
        except JobTimeout:
            interrupted += 1
        else:
            completed += 1
        _spin(20)
        if n > 20_000 and min(completed, interrupted) > 10:
            return
    pytest.fail(f"{completed} completed, {interrupted} interrupted: the two never raced")
