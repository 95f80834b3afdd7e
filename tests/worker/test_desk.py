"""The desk: chores that ask the database run beside the timer, while this process leads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest
from django.db import DatabaseError

from django_redisqueue.exceptions import RedisUnavailable
from django_redisqueue.worker import desk as desk_module
from django_redisqueue.worker.desk import Desk
from django_redisqueue.worker.roles import Chore, do_due

from .processes import eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "LOOK", 0.01)
    monkeypatch.setattr(desk_module, "MORE", 0.001)


@pytest.fixture
def desks() -> Iterator[list[Desk]]:
    made: list[Desk] = []
    yield made
    for desk in made:
        desk.close()


def test_chores_take_turns_and_go_on_while_they_have_more() -> None:
    done: list[str] = []
    chores = [
        Chore(lambda: done.append("often") or len(done) < 5, 0),  # type: ignore[func-returns-value]
        Chore(lambda: bool(done.append("seldom")), 3600),  # type: ignore[func-returns-value]
    ]
    assert do_due(chores) is True
    assert do_due(chores) is True
    assert done == ["often", "seldom", "often"]


def test_a_chore_that_fails_waits_for_its_turn() -> None:
    calls = []

    def fails() -> bool:
        calls.append(1)
        raise DatabaseError

    chores = [Chore(fails, 3600)]
    with pytest.raises(DatabaseError):
        do_due(chores)
    assert do_due(chores) is False
    assert len(calls) == 1


def test_it_works_only_while_this_process_leads(desks: list[Desk]) -> None:
    calls: list[float] = []
    desk = Desk([Chore(lambda: bool(calls.append(time.monotonic())), 0)])  # type: ignore[func-returns-value]
    desks.append(desk)
    desk.lead(False)
    assert calls == []
    desk.lead(True)
    eventually(lambda: len(calls) > 2)
    desk.lead(False)
    eventually(lambda: not calls or time.monotonic() - calls[-1] > 0.2)
    before = len(calls)
    desk.lead(True)
    eventually(lambda: len(calls) > before)


def test_a_chore_that_hangs_holds_up_nobody(
    desks: list[Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "STOP", 0.05)
    held, entered = threading.Event(), threading.Event()

    def hangs() -> bool:
        entered.set()
        return held.wait(30) and False

    desk = Desk([Chore(hangs, 0)])
    begun = time.monotonic()
    desk.lead(True)
    assert entered.wait(10)
    desk.lead(True)
    desk.close()
    assert time.monotonic() - begun < 5
    held.set()


def test_a_chore_that_hangs_does_not_stop_the_others(
    desks: list[Desk], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A database that hangs for one: the process leads, so nobody else would do the others."""
    held, entered, calls = threading.Event(), threading.Event(), [0]

    def hangs() -> bool:
        entered.set()
        return held.wait(30) and False

    def counts() -> bool:
        calls[0] += 1
        return False

    desk = Desk([Chore(hangs, 0, name="the relay"), Chore(counts, 0, name="the retention")])
    desks.append(desk)
    desk.lead(True)
    assert entered.wait(10)
    before = calls[0]
    eventually(lambda: calls[0] > before + 1)
    assert not desk.hangs()
    monkeypatch.setattr(desk_module, "HANGS", 0.01)
    eventually(desk.hangs)
    assert "maintenance: the relay has not come back for 0.01 s; a new process" in caplog.text
    held.set()
    eventually(lambda: not desk.hangs())


@pytest.mark.parametrize(
    "error", [DatabaseError("locked"), RedisUnavailable("away"), KeyError("a router's")]
)
def test_an_error_is_logged_once_and_tried_again(
    desks: list[Desk], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def fails() -> bool:
        calls.append(1)
        if len(calls) < 4:
            raise error
        return False

    desk = Desk([Chore(fails, 0)])
    desks.append(desk)
    with caplog.at_level(logging.ERROR):
        desk.lead(True)
        eventually(lambda: len(calls) >= 6)
    assert sum(str(error) in record.getMessage() for record in caplog.records) == 1
    assert ("Traceback" in caplog.text) == isinstance(error, KeyError)
