"""remove_schedules: schedules are only removed by those who define them."""

from __future__ import annotations

from django_redisqueue.broker.schedules import ScheduleQueries
from django_redisqueue.core.schedules import Source

from .lab import Lab
from .schedules import FIRST, SET, define, definition, fire, job_id


def test_a_schedule_is_removed_and_its_jobs_stay(lab: Lab) -> None:
    define(lab, definition(), definition("other"))
    fire(lab, FIRST)
    assert lab.store.remove_schedules(SET, ["report", "never"]) == [1, 0]
    assert ScheduleQueries(lab.connection).names() == ["other"]
    assert lab.ids("queued") == [job_id(FIRST)]


def test_old_code_removes_nothing(lab: Lab) -> None:
    define(lab, definition(), set_digest="old")
    lab.advance(1)
    define(lab, definition("new"), set_digest="new")
    assert lab.store.remove_schedules("old", ["new"]) == [-1]
    assert lab.store.remove_schedules("new", ["report"]) == [1]


def test_code_and_admin_leave_each_other_alone(lab: Lab) -> None:
    define(lab, definition("code"))
    define(lab, definition("admin", source=Source.ADMIN), set_digest="")
    assert lab.store.remove_schedules(SET, ["admin", "code"]) == [-1, 1]
    define(lab, definition("code"))
    assert lab.store.remove_schedules("", ["admin", "code"]) == [1, -1]


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    define(lab, definition())
    with lab.full():
        assert lab.store.remove_schedules(SET, ["report"]) == [1]
