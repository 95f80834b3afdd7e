"""pause_schedule: a schedule stops, and resumes with its future due times."""

from __future__ import annotations

from .harness import BrokerHarness
from .schedules import FIRST, MINUTE, define, definition, read, timer_is_awake


def test_a_paused_schedule_is_not_due(broker: BrokerHarness) -> None:
    define(broker, definition())
    assert broker.store.pause_schedule("report", True) == 1
    assert broker.store.pause_schedule("report", True) == 0
    broker.advance(10 * MINUTE)
    assert broker.store.promote([]).schedule_ms == -1
    assert read(broker).paused_ms == broker.now - 10 * MINUTE


def test_a_resumed_schedule_continues_with_future_due_times(broker: BrokerHarness) -> None:
    define(broker, definition())
    assert broker.store.pause_schedule("report", False) == 0
    broker.store.pause_schedule("report", True)
    timer_is_awake(broker)
    broker.advance(10 * MINUTE)
    assert broker.store.pause_schedule("report", False, FIRST + 10 * MINUTE) == 1
    assert (read(broker).paused_ms, read(broker).next_ms) == (None, FIRST + 10 * MINUTE)
    assert timer_is_awake(broker)


def test_an_unknown_schedule(broker: BrokerHarness) -> None:
    assert broker.store.pause_schedule("never", True) == -1


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    define(broker, definition())
    with broker.full():
        assert broker.store.pause_schedule("report", True) == 1
