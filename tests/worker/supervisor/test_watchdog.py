"""The watchdog with a fake clock, and in real workers: slow jobs and silent children."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_redisqueue import JobQueue
from django_redisqueue.broker.replies import ClaimedJob, Outcome
from django_redisqueue.conf import load
from django_redisqueue.worker.child_state import ChildState
from django_redisqueue.worker.supervisor.child_handle import ChildHandle
from django_redisqueue.worker.supervisor.fork_server import Role
from django_redisqueue.worker.supervisor.heartbeat import ReleaseUnstarted
from django_redisqueue.worker.supervisor.watchdog import (
    HARD_GRACE_MS,
    IDLE_INTERVAL,
    WATCH_SECONDS,
    Watchdog,
)
from tests.worker import tasks
from tests.worker.harness import WorkerHarness
from tests.worker.parts import claimed, outcome
from tests.worker.processes import eventually

WINDOW_MS = 20


class WatchdogHarness:
    """A child, simulated by the test, and the watchdog."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.state = ChildState(0, 2)
        self.handle = ChildHandle(self.state, "jobs", child="c1", pid=1, watched_until=float("inf"))
        self.released: list[ReleaseUnstarted] = []
        heartbeat: Any = type("Posted", (), {"submit": self.released.append})
        self.watchdog = Watchdog([self.handle], heartbeat, load({"BATCH_WINDOW_MS": WINDOW_MS}), 0)

    def begin(self, job: ClaimedJob) -> None:
        token = self.state.take()
        assert token is not None
        self.state.begin(0, token, self.now_ms, 0)

    def end(self, ended: Outcome) -> None:
        self.state.log.record(ended)
        self.state.end(0)

    def look_at(self, now_ms: int) -> list[ReleaseUnstarted]:
        """The releases that the watchdog submits when it looks at this time."""
        self.now_ms = now_ms
        self.released.clear()
        self.watchdog.check()
        return self.released


@pytest.fixture
def watchdog_harness(monkeypatch: pytest.MonkeyPatch) -> WatchdogHarness:
    made = WatchdogHarness()
    clock: Callable[[], int] = lambda: made.now_ms  # noqa: E731
    for module in ("child_state", "supervisor.watchdog"):
        monkeypatch.setattr(f"django_redisqueue.worker.{module}.mono_ms", clock)
    return made


SHORT, SLOW, LAST = (claimed(f"job_{n}", n) for n in (1, 2, 3))


def test_an_outcome_waits_no_longer_than_a_window(watchdog_harness: WatchdogHarness) -> None:
    """No matter how late in the batch the slow job began."""
    watchdog_harness.state.offer([SHORT, SLOW])
    watchdog_harness.begin(SHORT)
    watchdog_harness.now_ms = 1005
    watchdog_harness.end(outcome(1))
    watchdog_harness.now_ms = 1018
    watchdog_harness.begin(SLOW)
    assert watchdog_harness.look_at(1024) == []
    assert watchdog_harness.watchdog.interval == 0.001
    assert watchdog_harness.look_at(1025) == [ReleaseUnstarted("c1", [], [outcome(1)])]
    assert watchdog_harness.look_at(1060) == []  # once per slow job


def test_a_job_starts_within_a_window_or_is_released(watchdog_harness: WatchdogHarness) -> None:
    watchdog_harness.state.offer([SLOW, LAST])
    watchdog_harness.begin(SLOW)
    assert watchdog_harness.look_at(1010) == []
    assert watchdog_harness.watchdog.interval == 0.010
    assert watchdog_harness.look_at(1020) == [ReleaseUnstarted("c1", [("job_3", 3)], [])]


@pytest.mark.parametrize("commits", [False, True])
def test_a_job_that_is_killed_as_it_commits_is_recovered(
    watchdog_harness: WatchdogHarness, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    """Only its receipt tells whether it committed, so it did not simply time out."""
    killed: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, _: killed.append(pid))
    watchdog_harness.state.offer([SLOW, LAST])
    for slot, deadline_ms in ((0, 1500), (1, 9000)):
        watchdog_harness.state.begin(slot, watchdog_harness.state.take() or b"", 1000, deadline_ms)
    if commits:
        watchdog_harness.state.note_commit(0)
    watchdog_harness.look_at(1500 + HARD_GRACE_MS)
    assert killed == []
    watchdog_harness.look_at(1501 + HARD_GRACE_MS)
    assert killed == [1]
    report = watchdog_harness.watchdog.exit_report(watchdog_harness.handle)
    late = ("job_2", 2)
    expected = (["job_2"], []) if commits else ([], [late])
    assert (report.blamed, report.timed_out) == expected


def test_the_outcome_of_an_async_job_does_not_wait_behind_a_sync_job(
    watchdog_harness: WatchdogHarness,
) -> None:
    """A job that holds the GIL blocks the thread that reports async outcomes."""
    watchdog_harness.state.offer([SLOW])
    watchdog_harness.begin(SLOW)
    watchdog_harness.now_ms = 1003
    watchdog_harness.state.concurrent_log.record(outcome(1))
    assert watchdog_harness.look_at(1022) == []
    assert watchdog_harness.look_at(1023) == [ReleaseUnstarted("c1", [], [outcome(1)])]


def test_a_thread_that_holds_the_gil_does_not_keep_jobs_from_other_workers(
    watchdog_harness: WatchdogHarness,
) -> None:
    """The main thread runs no job, but cannot start the next one either."""
    watchdog_harness.state.offer([SLOW, LAST])
    # nothing is running: the child is about to start them
    assert watchdog_harness.look_at(1025) == []
    watchdog_harness.state.begin(1, watchdog_harness.state.take() or b"", 1000, 0)
    assert watchdog_harness.look_at(1025) == [ReleaseUnstarted("c1", [("job_3", 3)], [])]


def test_the_rest_of_a_concurrent_log_has_waited_since_the_last_report(
    watchdog_harness: WatchdogHarness,
) -> None:
    reported = watchdog_harness.state.concurrent_log.record(outcome(1))
    watchdog_harness.state.concurrent_log.record(outcome(2))
    watchdog_harness.now_ms = 1900
    watchdog_harness.state.concurrent_log.discard_before(reported)
    assert watchdog_harness.state.ended_since() == 1900


def test_a_batch_claimed_as_the_watchdog_relaxes_is_seen(
    watchdog_harness: WatchdogHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its child read the flag just before, so it did not wake the supervisor."""
    watchdog_harness.handle.watched_until = WATCH_SECONDS  # long ago
    set_watched = watchdog_harness.state.set_watched

    def begin_just_before(watched: bool) -> None:
        if not watched:
            watchdog_harness.state.offer([SHORT, SLOW])
            watchdog_harness.begin(SHORT)
            watchdog_harness.end(outcome(1))
            watchdog_harness.begin(SLOW)
        set_watched(watched)

    monkeypatch.setattr(watchdog_harness.state, "set_watched", begin_just_before)
    assert watchdog_harness.look_at(1000) == []
    assert watchdog_harness.state.is_watched
    assert watchdog_harness.watchdog.interval <= WINDOW_MS / 1000
    assert watchdog_harness.look_at(1020) == [ReleaseUnstarted("c1", [], [outcome(1)])]


def test_a_child_without_new_batches_has_to_wake_the_supervisor_again(
    watchdog_harness: WatchdogHarness,
) -> None:
    watchdog_harness.state.set_watched(True)
    watchdog_harness.handle.watched_until = WATCH_SECONDS  # long ago
    assert watchdog_harness.look_at(1000) == []
    assert not watchdog_harness.state.is_watched
    assert watchdog_harness.look_at(1001) == []
    assert watchdog_harness.watchdog.interval == IDLE_INTERVAL


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The pids and signals that the supervisor would send."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    return sent


KILL = (1, signal.SIGKILL)


@pytest.mark.parametrize("role", ["jobs", "maintenance", "bridge"])
def test_a_child_without_a_sign_of_life_is_replaced_and_its_jobs_are_not_blamed(
    watchdog_harness: WatchdogHarness,
    killed: list[tuple[int, int]],
    caplog: pytest.LogCaptureFixture,
    role: Role,
) -> None:
    watchdog_harness.handle.role = role
    watchdog_harness.state.keep_alive(20)
    watchdog_harness.look_at(21_000)  # exactly at the promised millisecond
    watchdog_harness.look_at(21_001)
    watchdog_harness.look_at(23_001)
    assert killed == []
    watchdog_harness.look_at(23_002)
    watchdog_harness.look_at(23_003)
    assert killed == [KILL]
    assert watchdog_harness.handle.is_killed
    assert f"child c1 ({role}) is stopped or stuck" in caplog.text


def test_a_late_sign_of_life_is_enough(
    watchdog_harness: WatchdogHarness, killed: list[tuple[int, int]]
) -> None:
    """As when the whole worker was stopped, and the supervisor is the first to resume."""
    watchdog_harness.state.keep_alive(20)
    watchdog_harness.look_at(90_000)
    watchdog_harness.now_ms = 91_000
    watchdog_harness.state.keep_alive(20)
    watchdog_harness.look_at(93_000)
    watchdog_harness.look_at(111_001)
    watchdog_harness.look_at(113_001)
    assert killed == []
    watchdog_harness.look_at(113_002)
    assert killed == [KILL]


def test_a_child_that_runs_a_job_is_left_to_its_timeout(
    watchdog_harness: WatchdogHarness, killed: list[tuple[int, int]]
) -> None:
    watchdog_harness.state.offer([SLOW])
    watchdog_harness.state.keep_alive(20)
    watchdog_harness.begin(SLOW)
    for now_ms in (30_000, 60_000, 90_000):
        watchdog_harness.look_at(now_ms)
    assert killed == []


def test_a_child_that_has_promised_no_sign_of_life_is_not_watched(
    watchdog_harness: WatchdogHarness, killed: list[tuple[int, int]]
) -> None:
    watchdog_harness.state.keep_alive(20)
    watchdog_harness.state.keep_alive(0)
    for now_ms in (30_000, 60_000, 90_000):
        watchdog_harness.look_at(now_ms)
    assert killed == []


def test_jobs_do_not_wait_for_a_stuck_child_that_runs_no_job(
    watchdog_harness: WatchdogHarness,
) -> None:
    """It may be reading a parent's large result from a file storage that hangs."""
    watchdog_harness.state.offer([SHORT, SLOW, LAST])
    watchdog_harness.state.take()
    assert watchdog_harness.look_at(1900) == []
    (request,) = watchdog_harness.look_at(2100)
    assert [job_id for job_id, _ in request.unstarted] == [SLOW.id, LAST.id]


def test_a_child_in_which_a_receiver_hangs_is_replaced(
    harness: WorkerHarness, tmp_path: Path
) -> None:
    """During its start or its end. Otherwise its slot would silently stay empty."""
    harness.environment["REDISQUEUE_TEST_DEATHS"] = str(tmp_path)
    harness.alter("hanging_receivers")
    worker = harness.worker("--processes", "1", "--max-jobs", "1")
    for name in ("behind the start", "behind the stop"):
        assert harness.ended(tasks.run.enqueue(harness.book, name)).status == "completed"
    assert worker.output.count("is stopped or stuck") >= 2


SLOW_TASKS = {
    "sleeping": tasks.run_until_gate_opens,
    "holding the GIL in C": tasks.run_until_gate_opens_in_c,
}


@pytest.mark.parametrize("how", SLOW_TASKS)
def test_short_jobs_do_not_wait_behind_a_slow_one(harness: WorkerHarness, how: str) -> None:
    harness.worker("--processes", "2").wait_until_up(3)
    warm = harness.warm_up()
    queue = JobQueue("default")
    queue.pause()
    gate = harness.gate()
    slow = SLOW_TASKS[how].enqueue(harness.book, "slow", gate)
    short = tasks.run.enqueue_many([(harness.book, f"short{n}") for n in range(400)])
    queue.resume()
    eventually(lambda: harness.stats()["completed"] == warm + 400, why=harness.report)
    slow.refresh()
    assert slow.status == "processing"
    assert harness.statuses(short) == {"completed": 400}
    harness.open_gate(gate)
    harness.until_done(warm + 401)
    assert set(harness.runs().values()) == {1}
    assert harness.count("recovered_total") == 0


@pytest.mark.parametrize("how", SLOW_TASKS)
@pytest.mark.parametrize("behind", [0, 10], ids=["the slow one is last", "others follow"])
def test_outcomes_are_reported_while_a_slow_job_of_their_batch_runs(
    harness: WorkerHarness, how: str, behind: int
) -> None:
    harness.worker("--processes", "1").wait_until_up(2)
    warm = harness.warm_up()
    queue = JobQueue("default")
    queue.pause()
    before = tasks.run.enqueue_many([(harness.book, f"before{n}") for n in range(10)])
    gate = harness.gate()
    slow = SLOW_TASKS[how].enqueue(harness.book, "slow", gate)
    tasks.run.enqueue_many([(harness.book, f"behind{n}") for n in range(behind)])
    queue.resume()
    eventually(lambda: harness.runs()["slow"], why=harness.report)
    eventually(lambda: harness.statuses(before) == {"completed": 10}, why=harness.report)
    slow.refresh()
    assert slow.status == "processing"
    # The remaining jobs of the batch are in the queue again, where another worker could claim them.
    eventually(lambda: harness.stats()["queued"] == behind, why=harness.report)
    assert harness.stats()["processing"] == 1
    harness.open_gate(gate)
    harness.until_done(warm + 11 + behind)
    assert set(harness.runs().values()) == {1}


def test_a_retry_that_started_before_its_childs_own_report_is_no_lost_lease(
    harness: WorkerHarness,
) -> None:
    """The supervisor has reported the failed attempt, because a slow job followed it."""
    worker = harness.worker("--processes", "1").wait_until_up(2)
    warm = harness.warm_up()
    queue = JobQueue("default")
    queue.pause()
    retried = tasks.retried_once.enqueue(harness.book, "retried")
    gate = harness.gate()
    tasks.run_until_gate_opens.enqueue(harness.book, "slow", gate)
    queue.resume()
    eventually(lambda: harness.runs()["slow"], why=harness.report)
    harness.worker("--processes", "1")
    assert harness.ended(retried).result == 2
    harness.open_gate(gate)
    harness.until_done(warm + 2)
    assert "refused" not in worker.output


def test_a_high_result_limit_does_not_cause_releases_of_small_jobs(harness: WorkerHarness) -> None:
    """Even though the log of unreported outcomes only holds 4 MB."""
    harness.configure(MAX_RESULT_BYTES=16_000_000)
    harness.worker("--processes", "1").wait_until_up(2)
    warm = harness.warm_up()
    assert harness.count("released_total") < warm / 2  # some are released when the machine is busy


def test_released_jobs_keep_their_order(harness: WorkerHarness) -> None:
    # A window longer than any stall of the machine; otherwise a second release would come too late.
    harness.worker("--processes", "1", BATCH_WINDOW_MS=1000).wait_until_up(2)
    warm = harness.warm_up()
    queue = JobQueue("default")
    queue.pause()
    gate = harness.gate()
    tasks.run_until_gate_opens.enqueue(harness.book, "slow", gate)
    tasks.run.enqueue_many([(harness.book, f"{n:03}") for n in range(200)])
    queue.resume()
    # Later, the child would claim others before its batch's jobs are back.
    eventually(
        lambda: harness.stats()["queued"] == 200 and harness.runs()["slow"], why=harness.report
    )
    harness.open_gate(gate)
    harness.until_done(warm + 201)
    assert harness.in_order() == ["slow", *[f"{n:03}" for n in range(200)]]
