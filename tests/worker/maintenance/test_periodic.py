"""Periodic tasks, and the threads of those that use the database."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest
from django.db import DatabaseError

from django_redisqueue.exceptions import RedisUnavailable
from django_redisqueue.worker.maintenance import maintenance
from django_redisqueue.worker.maintenance.maintenance import PeriodicTask, TaskThreads, run_due
from tests.support.stopwatch import Stopwatch
from tests.worker.processes import eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "CHECK_DUE", 0.01)
    monkeypatch.setattr(maintenance, "MORE", 0.001)


@pytest.fixture
def made() -> Iterator[list[TaskThreads]]:
    made: list[TaskThreads] = []
    yield made
    for threads in made:
        threads.close()


def test_tasks_take_turns_and_go_on_while_they_have_more() -> None:
    done: list[str] = []
    tasks = [
        PeriodicTask(lambda: done.append("often") or len(done) < 5, 0),  # type: ignore[func-returns-value]
        PeriodicTask(lambda: bool(done.append("seldom")), 3600),  # type: ignore[func-returns-value]
    ]
    assert run_due(tasks) is True
    assert run_due(tasks) is True
    assert done == ["often", "seldom", "often"]


def test_a_chore_that_fails_waits_for_its_turn() -> None:
    calls = []

    def fails() -> bool:
        calls.append(1)
        raise DatabaseError

    tasks = [PeriodicTask(fails, 3600)]
    with pytest.raises(DatabaseError):
        run_due(tasks)
    assert run_due(tasks) is False
    assert len(calls) == 1


def test_it_works_only_while_this_process_leads(made: list[TaskThreads]) -> None:
    calls: list[float] = []
    threads = TaskThreads([PeriodicTask(lambda: bool(calls.append(time.monotonic())), 0)])  # type: ignore[func-returns-value]
    made.append(threads)
    threads.lead(False)
    assert calls == []
    threads.lead(True)
    eventually(lambda: len(calls) > 2)
    threads.lead(False)
    eventually(lambda: not calls or time.monotonic() - calls[-1] > 0.2)
    before = len(calls)
    threads.lead(True)
    eventually(lambda: len(calls) > before)


def test_a_chore_that_hangs_holds_up_nobody(
    made: list[TaskThreads], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "STOP", 0.05)
    held, entered = threading.Event(), threading.Event()

    def hangs() -> bool:
        entered.set()
        return held.wait(30) and False

    threads = TaskThreads([PeriodicTask(hangs, 0)])
    watch = Stopwatch()
    threads.lead(True)
    assert entered.wait(10)
    threads.lead(True)
    threads.close()
    assert watch.seconds < 5
    held.set()


def test_a_chore_that_hangs_does_not_stop_the_others(
    made: list[TaskThreads], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A database that hangs for one: the process leads, so nobody else would do the others."""
    held, entered, calls = threading.Event(), threading.Event(), [0]

    def hangs() -> bool:
        entered.set()
        return held.wait(30) and False

    def counts() -> bool:
        calls[0] += 1
        return False

    threads = TaskThreads(
        [PeriodicTask(hangs, 0, name="the relay"), PeriodicTask(counts, 0, name="the retention")]
    )
    made.append(threads)
    threads.lead(True)
    assert entered.wait(10)
    before = calls[0]
    eventually(lambda: calls[0] > before + 1)
    assert not threads.hangs()
    monkeypatch.setattr(maintenance, "HUNG_AFTER", 0.01)
    eventually(threads.hangs)
    assert "maintenance: the relay has not come back for 0.01 s; a new process" in caplog.text
    held.set()
    eventually(lambda: not threads.hangs())


@pytest.mark.parametrize(
    "error", [DatabaseError("locked"), RedisUnavailable("away"), KeyError("a router's")]
)
def test_an_error_is_logged_once_and_tried_again(
    made: list[TaskThreads], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def fails() -> bool:
        calls.append(1)
        if len(calls) < 4:
            raise error
        return False

    threads = TaskThreads([PeriodicTask(fails, 0)])
    made.append(threads)
    with caplog.at_level(logging.ERROR):
        threads.lead(True)
        eventually(lambda: len(calls) >= 6)
    assert sum(str(error) in record.getMessage() for record in caplog.records) == 1
    assert ("Traceback" in caplog.text) == isinstance(error, KeyError)
