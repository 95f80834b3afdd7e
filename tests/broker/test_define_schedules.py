"""define_schedules: definitions change, due times stay."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.schedules import ScheduleQueries, UnreadableSchedule
from django_redisqueue.core.schedules import Cron, Every, Source
from django_redisqueue.exceptions import WrongKeyType

from .harness import BrokerHarness
from .schedules import FIRST, MINUTE, SET, define, definition, fire, read, timer_is_awake


def test_a_new_schedule_waits_for_its_next_due_time(broker: BrokerHarness) -> None:
    cron = Cron("*/5 * * * *", timezone="Asia/Tokyo", misfire="all", overlap="skip")
    assert define(broker, definition(schedule=cron, task="app.report", queue="other")) == [1]
    found = read(broker)
    assert found.schedule == cron
    assert (found.task, found.queue, found.source) == ("app.report", "other", Source.CODE)
    assert found.next_ms == cron.after(broker.now)
    assert timer_is_awake(broker)
    assert broker.store.promote([]).schedule_ms == (found.next_ms or 0) - broker.now


def test_defining_it_again_changes_nothing(broker: BrokerHarness) -> None:
    define(broker, definition())
    fire(broker, FIRST)
    with broker.unchanged():
        broker.advance(1)
        assert broker.store.define_schedules(SET, [(definition(), FIRST + 9 * MINUTE)]) == [0]


def test_a_changed_job_keeps_the_due_times(broker: BrokerHarness) -> None:
    """A weekly schedule fires even if it is deployed every hour."""
    week = Every("7d")
    define(broker, definition(schedule=week))
    due = read(broker).next_ms
    for hour in range(1, 5):
        broker.advance(60 * MINUTE)
        assert define(broker, definition(schedule=week, payload=f"[[{hour}],{{}}]")) == [1]
    assert read(broker).next_ms == due


def test_other_due_times_count_from_now(broker: BrokerHarness) -> None:
    define(broker, definition(schedule=Every("7d")))
    define(broker, definition(schedule=Every("1h")))
    assert read(broker).next_ms == Every("1h").after(broker.now)


def test_a_due_time_that_has_arrived_stays_due(broker: BrokerHarness) -> None:
    define(broker, definition())
    broker.advance(2 * MINUTE)
    define(broker, definition(schedule=Every("1h")))
    assert read(broker).next_ms == FIRST
    assert fire(broker, FIRST) == 1


def test_a_schedule_with_an_error_does_not_fire_and_the_others_do(broker: BrokerHarness) -> None:
    define(broker, definition(), definition("gone", error="no task 'app.gone' is registered"))
    broker.advance(MINUTE)
    assert ScheduleQueries(broker.connection).due(broker.now, 100) == ["report"]
    assert read(broker, "gone").error == "no task 'app.gone' is registered"
    assert read(broker, "gone").is_stopped
    define(broker, definition("gone"))
    assert not read(broker, "gone").is_stopped
    assert len(ScheduleQueries(broker.connection).due(broker.now, 100)) == 2


def test_a_paused_schedule_stays_paused(broker: BrokerHarness) -> None:
    define(broker, definition())
    broker.store.pause_schedule("report", True)
    define(broker, definition(task="app.other"))
    assert read(broker).paused_ms == broker.now
    assert broker.store.promote([]).schedule_ms == -1


def test_only_the_newest_code_defines(broker: BrokerHarness) -> None:
    define(broker, definition(task="app.old"), set_digest="old")
    broker.advance(1)
    define(broker, definition(task="app.new"), set_digest="new")
    assert define(broker, definition(task="app.old"), set_digest="old") == [-1]
    assert read(broker).task == "app.new"


def test_the_admin_does_not_change_what_the_code_defines(broker: BrokerHarness) -> None:
    admin = definition(source=Source.ADMIN, task="app.admin")
    assert define(broker, admin, set_digest="") == [1]
    assert define(broker, definition()) == [1]
    assert define(broker, admin, set_digest="") == [-2]
    assert read(broker).task == "app.task"


def test_an_unreadable_definition_is_named(broker: BrokerHarness) -> None:
    define(broker, *(definition(name) for name in "abc"))
    broker.redis.hset(broker.keys.schedule("a"), "timing", "every now and then")
    broker.redis.hdel(broker.keys.schedule("b"), "kind")
    broker.redis.set(broker.keys.schedule("c"), "theirs")
    found = ScheduleQueries(broker.connection).schedules(["a", "b", "c", "d"])
    problems = [one.problem for one in found if isinstance(one, UnreadableSchedule)]
    assert "cannot be read: every must be seconds" in problems[0]
    assert "has no field 'kind'" in problems[1]
    assert "does not hold a schedule" in problems[2]
    assert found[3] is None


def test_a_key_of_another_type_is_named(broker: BrokerHarness) -> None:
    broker.redis.set(broker.keys.schedule("report"), "theirs")
    with pytest.raises(WrongKeyType, match="holds a string where a hash belongs"):
        define(broker, definition("a"), definition())
    assert ScheduleQueries(broker.connection).names() == []


def test_names_are_in_the_order_of_their_due_times(broker: BrokerHarness) -> None:
    define(
        broker,
        definition("hour", Every("1h")),
        definition("minute"),
        definition("day", Every("1d")),
    )
    broker.store.pause_schedule("minute", True)
    queries = ScheduleQueries(broker.connection)
    assert queries.names() == ["hour", "day", "minute"]
    assert queries.count() == 3
    assert queries.of_source("code") == ["hour", "day", "minute"]
    assert queries.of_source("admin") == []
