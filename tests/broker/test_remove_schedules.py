"""remove_schedules: schedules are only removed by those who define them."""

from __future__ import annotations

from django_redisqueue.broker.schedules import ScheduleQueries
from django_redisqueue.core.schedules import Source

from .harness import BrokerHarness
from .schedules import FIRST, SET, define, definition, fire, job_id


def test_a_schedule_is_removed_and_its_jobs_stay(broker: BrokerHarness) -> None:
    define(broker, definition(), definition("other"))
    fire(broker, FIRST)
    assert broker.store.remove_schedules(SET, ["report", "never"]) == [1, 0]
    assert ScheduleQueries(broker.connection).names() == ["other"]
    assert broker.ids("queued") == [job_id(FIRST)]


def test_old_code_removes_nothing(broker: BrokerHarness) -> None:
    define(broker, definition(), set_digest="old")
    broker.advance(1)
    define(broker, definition("new"), set_digest="new")
    assert broker.store.remove_schedules("old", ["new"]) == [-1]
    assert broker.store.remove_schedules("new", ["report"]) == [1]


def test_code_and_admin_leave_each_other_alone(broker: BrokerHarness) -> None:
    define(broker, definition("code"))
    define(broker, definition("admin", source=Source.ADMIN), set_digest="")
    assert broker.store.remove_schedules(SET, ["admin", "code"]) == [-1, 1]
    define(broker, definition("code"))
    assert broker.store.remove_schedules("", ["admin", "code"]) == [1, -1]


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    define(broker, definition())
    with broker.full():
        assert broker.store.remove_schedules(SET, ["report"]) == [1]
