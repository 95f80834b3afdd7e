"""define_schedules: definitions change, due times stay."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.schedules import ScheduleQueries, UnreadableSchedule
from django_redisqueue.core.schedules import Cron, Every, Source
from django_redisqueue.exceptions import WrongKeyType

from .lab import Lab
from .schedules import FIRST, MINUTE, SET, define, definition, fire, read, timer_is_awake


def test_a_new_schedule_waits_for_its_next_due_time(lab: Lab) -> None:
    cron = Cron("*/5 * * * *", timezone="Asia/Tokyo", misfire="all", overlap="skip")
    assert define(lab, definition(schedule=cron, task="app.report", queue="other")) == [1]
    found = read(lab)
    assert found.schedule == cron
    assert (found.task, found.queue, found.source) == ("app.report", "other", Source.CODE)
    assert found.next_ms == cron.after(lab.now)
    assert timer_is_awake(lab)
    assert lab.store.promote([]).schedule_ms == (found.next_ms or 0) - lab.now


def test_defining_it_again_changes_nothing(lab: Lab) -> None:
    define(lab, definition())
    fire(lab, FIRST)
    before = lab.dump()
    lab.advance(1)
    assert lab.store.define_schedules(SET, [(definition(), FIRST + 9 * MINUTE)]) == [0]
    assert lab.dump() == before


def test_a_changed_job_keeps_the_due_times(lab: Lab) -> None:
    """A weekly schedule fires even if it is deployed every hour."""
    week = Every("7d")
    define(lab, definition(schedule=week))
    due = read(lab).next_ms
    for hour in range(1, 5):
        lab.advance(60 * MINUTE)
        assert define(lab, definition(schedule=week, payload=f"[[{hour}],{{}}]")) == [1]
    assert read(lab).next_ms == due


def test_other_due_times_count_from_now(lab: Lab) -> None:
    define(lab, definition(schedule=Every("7d")))
    define(lab, definition(schedule=Every("1h")))
    assert read(lab).next_ms == Every("1h").after(lab.now)


def test_a_due_time_that_has_arrived_stays_due(lab: Lab) -> None:
    define(lab, definition())
    lab.advance(2 * MINUTE)
    define(lab, definition(schedule=Every("1h")))
    assert read(lab).next_ms == FIRST
    assert fire(lab, FIRST) == 1


def test_a_schedule_with_an_error_does_not_fire_and_the_others_do(lab: Lab) -> None:
    define(lab, definition(), definition("gone", error="no task 'app.gone' is registered"))
    lab.advance(MINUTE)
    assert ScheduleQueries(lab.connection).due(lab.now, 100) == ["report"]
    assert read(lab, "gone").error == "no task 'app.gone' is registered"
    assert read(lab, "gone").is_stopped
    define(lab, definition("gone"))
    assert not read(lab, "gone").is_stopped
    assert len(ScheduleQueries(lab.connection).due(lab.now, 100)) == 2


def test_a_paused_schedule_stays_paused(lab: Lab) -> None:
    define(lab, definition())
    lab.store.pause_schedule("report", True)
    define(lab, definition(task="app.other"))
    assert read(lab).paused_ms == lab.now
    assert lab.store.promote([]).schedule_ms == -1


def test_only_the_newest_code_defines(lab: Lab) -> None:
    define(lab, definition(task="app.old"), set_digest="old")
    lab.advance(1)
    define(lab, definition(task="app.new"), set_digest="new")
    assert define(lab, definition(task="app.old"), set_digest="old") == [-1]
    assert read(lab).task == "app.new"


def test_the_admin_does_not_change_what_the_code_defines(lab: Lab) -> None:
    admin = definition(source=Source.ADMIN, task="app.admin")
    assert define(lab, admin, set_digest="") == [1]
    assert define(lab, definition()) == [1]
    assert define(lab, admin, set_digest="") == [-2]
    assert read(lab).task == "app.task"


def test_an_unreadable_definition_is_named(lab: Lab) -> None:
    define(lab, *(definition(name) for name in "abc"))
    lab.redis.hset(lab.keys.schedule("a"), "timing", "every now and then")
    lab.redis.hdel(lab.keys.schedule("b"), "kind")
    lab.redis.set(lab.keys.schedule("c"), "theirs")
    found = ScheduleQueries(lab.connection).schedules(["a", "b", "c", "d"])
    problems = [one.problem for one in found if isinstance(one, UnreadableSchedule)]
    assert "cannot be read: every must be seconds" in problems[0]
    assert "has no field 'kind'" in problems[1]
    assert "does not hold a schedule" in problems[2]
    assert found[3] is None


def test_a_key_of_another_type_is_named(lab: Lab) -> None:
    lab.redis.set(lab.keys.schedule("report"), "theirs")
    with pytest.raises(WrongKeyType, match="holds a string where a hash belongs"):
        define(lab, definition("a"), definition())
    assert ScheduleQueries(lab.connection).names() == []


def test_names_are_in_the_order_of_their_due_times(lab: Lab) -> None:
    define(
        lab, definition("hour", Every("1h")), definition("minute"), definition("day", Every("1d"))
    )
    lab.store.pause_schedule("minute", True)
    queries = ScheduleQueries(lab.connection)
    assert queries.names() == ["hour", "day", "minute"]
    assert queries.count() == 3
    assert queries.of_source("code") == ["hour", "day", "minute"]
    assert queries.of_source("admin") == []
