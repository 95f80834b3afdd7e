"""What the tests of schedules share."""

from __future__ import annotations

from math import inf
from typing import Any

from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.keys import Keys
from django_redisqueue.broker.replies import FireReply
from django_redisqueue.broker.schedules import FireCall, ScheduleQueries
from django_redisqueue.core.ids import periodic_job_id
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.schedules import (
    Every,
    Schedule,
    ScheduleData,
    ScheduleDefinition,
    Source,
)
from django_redisqueue.exceptions import RedisQueueError

from .harness import PAYLOAD, T0, BrokerHarness

MINUTE = 60_000
FIRST = (T0 // MINUTE + 1) * MINUTE  # the first whole minute after the clock begins
SET = "set-1"


def definition(
    name: str = "report",
    schedule: Schedule | None = None,
    *,
    source: Source = Source.CODE,
    error: str = "",
    **job: Any,
) -> ScheduleDefinition:
    job = {"queue": "default", "task": "app.task", "payload": PAYLOAD, **job}
    return ScheduleDefinition(
        name=name, source=source, schedule=schedule or Every("1m"), error=error,
        job=NewJob("", **job),
    )  # fmt: skip


def define(
    broker: BrokerHarness, *definitions: ScheduleDefinition, set_digest: str = SET
) -> list[int]:
    """Define schedules; a set from code is announced first, as deployments do."""
    if set_digest:
        broker.store.announce_schedules(set_digest, 60_000)
    due = [(one, one.schedule.after(broker.now)) for one in definitions]
    return broker.store.define_schedules(set_digest, due)


def read(broker: BrokerHarness, name: str = "report") -> ScheduleData:
    found = ScheduleQueries(broker.connection).schedule(name)
    assert isinstance(found, ScheduleData)
    return found


def fire(broker: BrokerHarness, due_ms: int) -> int:
    """Fire the schedule ``report``, which runs every minute, at a due time."""
    return fire_one(broker.store, read(broker), due_ms, due_ms + MINUTE, due_ms, 0)


def fire_one(store: Commands, *call: Any) -> FireReply:
    """One call of ``fire``; raises its error."""
    (reply,) = store.fire([FireCall(*call)])
    if isinstance(reply, RedisQueueError):
        raise reply
    return reply


def job_id(due_ms: int) -> str:
    return periodic_job_id("report", due_ms)


def timer_is_awake(broker: BrokerHarness) -> bool:
    return broker.redis.lpop(broker.keys.timer) is not None


def check_schedules(dump: dict[str, Any], keys: Keys) -> None:
    """Each schedule is listed by the time when it is due next, if it fires."""
    start = keys.schedule("")
    found = {key.removeprefix(start): dump[key][1] for key in dump if key.startswith(start)}
    assert dict(dump.get(keys.schedules, ("zset", []))[1]) == {
        name: inf if "paused" in one or not one["next_ms"] else int(one["next_ms"])
        for name, one in found.items()
    }
