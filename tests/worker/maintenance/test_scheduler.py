"""Schedules are deployed by the newest code, and fired by the leader, once per due time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import RedisConnection
from django_redisqueue.broker.schedules import FireCall, ScheduleQueries
from django_redisqueue.core.ids import due_ms_of, periodic_prefix
from django_redisqueue.core.schedules import Cron, Every, Schedule, ScheduleDefinition, Source
from django_redisqueue.exceptions import RedisUnavailable
from django_redisqueue.worker.maintenance.schedules import (
    TOGETHER,
    TTL_MS,
    ScheduleDeployment,
    Scheduler,
)
from tests.broker.harness import BrokerHarness
from tests.broker.schedules import FIRST, MINUTE, define, definition, read
from tests.support.round_trips import round_trips

HOUR, DAY = 60 * MINUTE, 24 * 60 * MINUTE


def deploy(broker: BrokerHarness, *definitions: ScheduleDefinition) -> ScheduleDeployment:
    """Start a worker with this code."""
    broker.advance(1)
    deployment = ScheduleDeployment(broker.store, definitions)
    deployment.run_once()
    return deployment


def names(broker: BrokerHarness) -> list[str]:
    return sorted(ScheduleQueries(broker.connection).names())


def fired(broker: BrokerHarness, name: str = "report") -> list[int]:
    """The due times that have jobs, in order."""
    ids = [str(key).rpartition("job:")[2] for key in broker.redis.keys(f"{broker.keys.base}job:*")]
    return sorted(due_ms_of(one) or 0 for one in ids if one.startswith(periodic_prefix(name)))


# -- deployments


def test_schedules_are_created_changed_and_removed_by_deployments(broker: BrokerHarness) -> None:
    old = deploy(broker, definition("a"), definition("b"))
    assert names(broker) == ["a", "b"]
    new = deploy(broker, definition("b", task="app.changed"), definition("c"))
    assert (names(broker), read(broker, "b").task) == (["b", "c"], "app.changed")
    for deployment in (old, new, old):  # which alternate while the deployment is in progress
        deployment.run_once()
        assert (names(broker), read(broker, "b").task) == (["b", "c"], "app.changed")
    deploy(broker, definition("a"), definition("b"))  # a worker with the old code starts late
    assert names(broker) == ["b", "c"]


def test_code_without_schedules_removes_those_of_the_code_before(broker: BrokerHarness) -> None:
    deploy(broker, definition("a"))
    define(broker, definition("row", source=Source.ADMIN), set_digest="")
    deploy(broker)
    assert names(broker) == ["row"]


def test_a_rollback_brings_the_older_schedules_back(broker: BrokerHarness) -> None:
    old = deploy(broker, definition("a"))
    deploy(broker, definition("b"))
    for _ in range(4):
        broker.advance(TTL_MS // 3)
        old.run_once()
    assert names(broker) == ["a"]


def test_a_deployment_that_died_half_way_is_finished_by_another_worker(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = [definition(f"s{n:03}") for n in range(150)]
    deploy(broker, definition("former"))
    whole = broker.store.define_schedules
    calls: list[int] = []

    def dies(*args: Any) -> list[int]:
        calls.append(1)
        if len(calls) == 2:
            raise RedisUnavailable("the worker is killed")
        return whole(*args)

    monkeypatch.setattr(broker.store, "define_schedules", dies)
    with pytest.raises(RedisUnavailable):
        deploy(broker, *code)
    assert len(names(broker)) == 101
    deploy(broker, *code)
    assert names(broker) == [one.name for one in code]


def test_a_schedule_with_an_error_is_logged_and_the_others_are_defined(
    broker: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    deploy(broker, definition("gone", error="no task 'app.gone' is registered"), definition())
    assert "the schedule gone does not run: no task 'app.gone'" in caplog.text
    broker.advance(MINUTE)
    Scheduler(broker.store).run_once()
    assert (len(fired(broker)), fired(broker, "gone")) == (1, [])


def test_a_key_of_another_type_does_not_stop_the_maintenance(
    broker: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    broker.redis.set(broker.keys.schedule_sets, "theirs")
    for _ in range(2):
        deploy(broker, definition())
    assert names(broker) == []
    assert caplog.text.count("the schedules cannot be defined: the key") == 2  # once per deployment


# -- firing


def test_each_due_time_gets_its_job(broker: BrokerHarness) -> None:
    deploy(broker, definition())
    scheduler = Scheduler(broker.store)
    scheduler.run_once()
    assert fired(broker) == []
    for _ in range(3):
        broker.advance(MINUTE)
        scheduler.run_once()
        scheduler.run_once()
    assert fired(broker) == [FIRST, FIRST + MINUTE, FIRST + 2 * MINUTE]


@pytest.mark.parametrize(
    ("misfire", "due", "missed"),
    [("once", [60], 12), ("skip", [60], 12), ("all", list(range(0, 65, 5)), 0)],
)
def test_after_an_outage_of_an_hour(
    broker: BrokerHarness, misfire: str, due: list[int], missed: int
) -> None:
    deploy(broker, definition(schedule=Cron("*/5 * * * *", misfire=misfire)))
    first = read(broker).next_ms or 0
    broker.advance(first - broker.now + HOUR + 59_000)
    Scheduler(broker.store).run_once()
    assert fired(broker) == [first + minute * MINUTE for minute in due]
    found = read(broker)
    assert (found.missed, found.next_ms) == (missed, first + 65 * MINUTE)


def test_a_leader_that_dies_while_catching_up(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(broker, definition(schedule=Every("1m", misfire="all")))
    broker.advance(50 * MINUTE)
    whole = broker.store.fire

    def dies(calls: Sequence[FireCall]) -> Any:
        whole(calls[:7])
        raise RedisUnavailable("killed")

    monkeypatch.setattr(broker.store, "fire", dies)
    for _ in range(8):
        assert len(fired(broker)) < 50
        with pytest.raises(RedisUnavailable):
            Scheduler(broker.store).run_once()
    assert fired(broker) == list(range(FIRST, FIRST + 50 * MINUTE, MINUTE))
    assert read(broker).missed == 0


def test_a_schedule_that_cannot_be_fired_does_not_stop_the_others(
    broker: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    deploy(broker, *(definition(name) for name in ("bad", "gone", "odd", "report")))
    broker.redis.hset(broker.keys.schedule("bad"), "timing", "sometimes")
    broker.redis.delete(broker.keys.schedule("gone"))
    broker.redis.hset(broker.keys.schedule("odd"), "next_ms", "")
    broker.advance(MINUTE)
    scheduler = Scheduler(broker.store)
    for _ in range(3):
        wait_ms = scheduler.run_once()
    assert fired(broker) == [FIRST]
    assert wait_ms > 1000  # it does not keep the leader busy
    assert caplog.text.count("the schedule bad cannot be fired") == 1
    assert names(broker) == ["bad", "odd", "report"]


def test_a_hundred_schedules_are_fired_in_a_few_round_trips(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if Redis has forgotten the script: then the next pass takes a few again."""
    all_names = [f"s{n:03}" for n in range(100)]
    deploy(broker, *map(definition, all_names))
    scheduler = Scheduler(broker.store)
    for n in range(3):
        if n == 1:
            broker.redis.script_flush()
        broker.advance(MINUTE)
        with round_trips(monkeypatch) as trips:
            scheduler.run_once()
        assert [fired(broker, name) for name in all_names] == [
            [FIRST + past * MINUTE for past in range(n + 1)]
        ] * 100
    assert len(trips) == 2 + 100 // TOGETHER


def test_a_due_time_that_redis_refuses_stops_no_other(
    broker: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    missed = Every("1m", misfire="all")
    deploy(broker, definition("a"), definition("b", missed, queue="reports"), definition("c"))
    broker.redis.set(broker.keys.queue("reports").queued, "theirs")
    broker.advance(5 * MINUTE)
    scheduler = Scheduler(broker.store)
    scheduler.run_once()
    assert [len(fired(broker, name)) for name in "abc"] == [1, 0, 1]
    assert caplog.text.count("the schedule b cannot be fired: the key") == 1
    assert scheduler.run_once() > 1000
    broker.redis.delete(broker.keys.queue("reports").queued)
    Scheduler(broker.store).run_once()
    assert fired(broker, "b") == list(range(FIRST, FIRST + 5 * MINUTE, MINUTE))


# -- a year


YEAR: dict[str, Schedule] = {
    "daily": Cron("30 2 * * *", timezone="Europe/Berlin"),
    "lord-howe": Cron("15 2 * * *", timezone="Australia/Lord_Howe"),
    "troll": Cron("0 1 * * *", timezone="Antarctica/Troll"),
    "monthly": Cron("0 0 31 * *", timezone="Africa/Cairo"),
    "every": Every("31h"),
}


@pytest.mark.slow
def test_a_year_with_leaders_that_die_and_return(broker: BrokerHarness) -> None:
    """Three leaders, each with its own connection, sometimes all believe that they lead, and die
    between any two calls. Still, each due time has one job."""
    chance = random.Random(7)
    begin = round(datetime(2025, 1, 1, tzinfo=UTC).timestamp() * 1000)
    broker.store.now_ms = begin
    deploy(broker, *(definition(name, schedule) for name, schedule in YEAR.items()))
    connections = [RedisConnection(broker.connection.redis_url, 5.0, 2.0) for _ in range(3)]
    leaders = [_CrashingLeader(connection, chance) for connection in connections]
    while True:
        wait_ms = broker.store.promote([]).schedule_ms
        if broker.now + wait_ms >= begin + 365 * DAY:
            break
        broker.advance(wait_ms + chance.randrange(20_000))
        while broker.store.promote([]).schedule_ms == 0:
            for leader in chance.sample(leaders, chance.randint(1, 3)):
                leader.run_once(broker.now)
    for connection in connections:
        connection.close()
    for name, schedule in YEAR.items():
        expected = schedule.between(schedule.after(begin) or 0, broker.now)
        assert fired(broker, name) == list(expected)
        found = read(broker, name)
        assert (found.fired, found.missed) == (len(expected), 0)


class _CrashingLeader:
    """A leader that may die before any call, and that continues with stale data when it resumes."""

    def __init__(self, connection: RedisConnection, chance: random.Random) -> None:
        self.store = Commands(connection)
        self.chance = chance
        # calls that it was about to make when it was suspended
        self.late: list[FireCall] = []
        self._fire = self.store.fire
        self.store.fire = self.fire  # type: ignore[method-assign]

    def run_once(self, now_ms: int) -> None:
        self.store.now_ms = now_ms
        if self.late:
            self._fire(self.late)
        self.late.clear()
        try:
            Scheduler(self.store).run_once()
        except RedisUnavailable:
            pass

    def fire(self, calls: Sequence[FireCall]) -> Any:
        fate = self.chance.random()
        begun = self.chance.randrange(len(calls) + 1) if fate < 0.2 else len(calls)
        replies = self._fire(calls[:begun]) if begun else []
        if 0.1 <= fate < 0.2:
            self.late.extend(calls[begun:])
        if fate < 0.3:
            raise RedisUnavailable("killed or suspended after some of the calls, or before any")
        if fate < 0.4:
            assert set(self._fire(calls)) == {0}  # sent again
        return replies
