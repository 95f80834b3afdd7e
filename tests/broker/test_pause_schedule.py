"""pause_schedule: a schedule stops, and resumes with its future due times."""

from __future__ import annotations

from .lab import Lab
from .schedules import FIRST, MINUTE, define, definition, read, timer_is_awake


def test_a_paused_schedule_is_not_due(lab: Lab) -> None:
    define(lab, definition())
    assert lab.store.pause_schedule("report", True) == 1
    assert lab.store.pause_schedule("report", True) == 0
    lab.advance(10 * MINUTE)
    assert lab.store.promote([]).schedule_ms == -1
    assert read(lab).paused_ms == lab.now - 10 * MINUTE


def test_a_resumed_schedule_continues_with_future_due_times(lab: Lab) -> None:
    define(lab, definition())
    assert lab.store.pause_schedule("report", False) == 0
    lab.store.pause_schedule("report", True)
    timer_is_awake(lab)
    lab.advance(10 * MINUTE)
    assert lab.store.pause_schedule("report", False, FIRST + 10 * MINUTE) == 1
    assert (read(lab).paused_ms, read(lab).next_ms) == (None, FIRST + 10 * MINUTE)
    assert timer_is_awake(lab)


def test_an_unknown_schedule(lab: Lab) -> None:
    assert lab.store.pause_schedule("never", True) == -1


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    define(lab, definition())
    with lab.full():
        assert lab.store.pause_schedule("report", True) == 1
