"""What can be wrong with limits and schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.broker.policies import LimitQueries
from django_redisqueue.conf import get_settings
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.schedules import Source
from django_redisqueue.health.policies import policy_lines
from django_redisqueue.health.report import read_health
from tests.broker.schedules import definition
from tests.support.manual_worker import ManualWorker
from tests.support.shards import shard_of

pytestmark = pytest.mark.django_db(databases=["default", "other"])
HOUR = 3_600_000


@pytest.fixture
def manual_worker(
    request: pytest.FixtureRequest, queue_settings: dict[str, Any], settings: Any
) -> Iterator[ManualWorker]:
    """The parameter is the number of shards."""
    shards = getattr(request, "param", get_settings().shards)
    settings.REDISQUEUE = {
        **queue_settings, "MIRROR": True, "SHARDS": shards,
        "QUEUES": {"default": {"ALERT_WAIT": 7200}, "low": {}},
    }  # fmt: skip
    made = ManualWorker("default", "low")
    made.store.heartbeat([made.claim_request.child], (), ["default", "low"])
    yield made
    made.close()


def found() -> dict[str, tuple[str, str]]:
    return {
        each.id.value: (each.level.value, f"{each.text} {each.remedy}")
        for each in read_health(producer_connection()).findings
    }


def lines() -> dict[str, str]:
    return dict(policy_lines(read_health(producer_connection()).facts))


def schedule(manual_worker: ManualWorker, name: str, next_ms: int | None, error: str = "") -> None:
    made = definition(name, source=Source.ADMIN, error=error)
    manual_worker.store.define_schedules("", [(made, next_ms)])


def test_schedules_that_do_not_run(manual_worker: ManualWorker) -> None:
    now_ms = LimitQueries(manual_worker.connection).now_ms()
    schedule(manual_worker, "fine", now_ms + 5 * HOUR)
    schedule(manual_worker, "paused", now_ms + HOUR)
    manual_worker.store.pause_schedule("paused", True)
    assert found() == {}
    assert lines()["Schedules"] in (
        "2, 1 paused, next fine in 5 h",
        "2, 1 paused, next fine in 4 h 59 m",
    )
    schedule(manual_worker, "wrong", None, "no task app.gone")
    level, text = found()["schedule_error"]
    assert text.startswith("1 schedule does not run: wrong (no task app.gone). Correct the code")
    assert level == "error"
    assert lines()["Schedules"].startswith("3, 1 paused, 1 with an error (wrong), next fine in ")
    for n in range(4):
        schedule(manual_worker, f"wrong{n}", None, "x")
    assert found()["schedule_error"][1].startswith("5 schedules do not run: wrong (no task app.gon")


def test_many_schedules_of_a_task_that_is_gone(manual_worker: ManualWorker) -> None:
    """As those that each tenant has."""
    schedule(manual_worker, "paused", LimitQueries(manual_worker.connection).now_ms() + HOUR)
    manual_worker.store.pause_schedule("paused", True)
    for n in range(150):
        schedule(manual_worker, f"wrong{n}", None, "no task app.gone")
    assert lines()["Schedules"].startswith("151, 1 paused, 150 with an error (wrong")
    assert found()["schedule_error"][1].startswith("150 schedules do not run: wrong")


def test_a_schedule_that_is_due_and_does_not_fire(manual_worker: ManualWorker) -> None:
    now_ms = LimitQueries(manual_worker.connection).now_ms()
    schedule(manual_worker, "just", now_ms - 1000)
    assert found() == {}
    schedule(manual_worker, "late", now_ms - 3 * HOUR)
    level, text = found()["schedule_late"]
    assert (level, text.startswith("Schedule late was due 3 h ago, but has not fired.")) == (
        "error", True,
    )  # fmt: skip
    assert lines()["Schedules"] == "2, 1 late (late), next late now"


@pytest.fixture
def parked(manual_worker: ManualWorker) -> ManualWorker:
    """A limit with one slot, its holder, and a waiting lane."""
    for name in ("job_1", "job_2"):
        lane = "|c:stripe:42 c:stripe=1"
        manual_worker.store.enqueue([NewJob(name, "default", "t", "[[],{}]", lane=lane)])
    manual_worker.claim_one()
    manual_worker.claim()
    return manual_worker


def test_a_job_that_waits_too_long_for_a_limit(parked: ManualWorker, redis: Redis) -> None:
    assert found() == {}
    assert lines()["Limits"].startswith("stripe:42 1 of 1, 1 lane parked, oldest ")
    redis.hincrby(parked.store.keys.job("job_2"), "enqueued_ms", -3 * HOUR)
    level, text = found()["limit_late"]
    assert level == "warning"
    assert text.startswith(
        "A job has waited for 3 h for limit stripe:42, 1 of 1, held by job_1, longer than 2 h "
        "(ALERT_WAIT). Raise the limit"
    )


@pytest.mark.parametrize("manual_worker", [1, 4], indirect=True)
def test_slots_of_jobs_that_do_not_run(parked: ManualWorker, redis: Redis) -> None:
    gone = new_job_id(shard_of())
    redis.zadd(parked.store.keys.slots, {f"c:stripe:42 {gone}": 0})
    level, text = found()["limit_stuck"]
    assert level == "error"
    assert text == (
        f"Limit stripe:42 has slots of jobs that are not running ({gone}), so fewer jobs can "
        "start. Something else has written to Redis. Return each slot: "
        f'ZREM {parked.store.keys.slots} "c:stripe:42 {gone}".'
    )
    redis.zrem(parked.store.keys.slots, f"c:stripe:42 {gone}")
    assert found() == {}


def test_wrong_types_hide_nothing_else(parked: ManualWorker, redis: Redis) -> None:
    keys = parked.store.keys
    for key in (keys.uniques, keys.schedules, keys.waiting_limits):
        redis.delete(key)
        redis.set(key, "theirs")
    assert found() == {}
    assert lines() == {}


def test_unique_keys_and_many_limits(manual_worker: ManualWorker, redis: Redis) -> None:
    unique = "k until_finished - -"
    manual_worker.store.enqueue([NewJob("own", "low", "t", "[[],{}]", unique=unique)])
    low = manual_worker.store.keys.queue("low")
    for n in range(12):
        redis.zadd(manual_worker.store.keys.waiting_limits, {f"c:l:{n:02} low": 0})
        redis.zadd(low.parked_at(f"c:l:{n:02}"), {f"lane{m}": 0 for m in range(n + 1)})
    assert lines() == {
        "Limits": "l:11 0, no limit, 12 lanes parked; l:10 0, no limit, 11 lanes parked; "
                  "l:09 0, no limit, 10 lanes parked; and 9 more",
        "Unique keys": "1",
    }  # fmt: skip
    assert len(read_health(producer_connection()).facts.limits) == 10
