"""pause_schedule: a schedule stops, and goes on with what is to come."""

from __future__ import annotations

from .lab import Lab
from .schedules import FIRST, MINUTE, define, definition, read, timer_is_awake


def test_paused_it_is_not_due(lab: Lab) -> None:
    define(lab, definition())
    assert lab.store.pause_schedule("report", True) == 1
    assert lab.store.pause_schedule("report", True) == 0
    lab.advance(10 * MINUTE)
    assert lab.store.promote([]).schedule_ms == -1
    assert read(lab).paused_ms == lab.now - 10 * MINUTE


def test_resumed_it_goes_on_with_what_is_to_come(lab: Lab) -> None:
    define(lab, definition())
    assert lab.store.pause_schedule("report", False) == 0
    lab.store.pause_schedule("report", True)
    timer_is_awake(lab)
    lab.advance(10 * MINUTE)
    assert lab.store.pause_schedule("report", False, FIRST + 10 * MINUTE) == 1
    assert (read(lab).paused_ms, read(lab).next_ms) == (None, FIRST + 10 * MINUTE)
    assert timer_is_awake(lab)


def test_an_unknown_one(lab: Lab) -> None:
    assert lab.store.pause_schedule("never", True) == -1


def test_a_full_redis_lets_it_through(lab: Lab) -> None:
    define(lab, definition())
    with lab.full():
        assert lab.store.pause_schedule("report", True) == 1
