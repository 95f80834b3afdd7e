"""The maintenance role, in the process of the test."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.schedules import ScheduleQueries
from django_redisqueue.conf import get_settings
from django_redisqueue.core.placement import shard_of_key
from django_redisqueue.worker.maintenance import maintenance
from django_redisqueue.worker.maintenance.maintenance import Maintenance
from tests.support.shards import keys_of, shard_of
from tests.worker import tasks
from tests.worker.processes import eventually
from tests.worker.stage import Stage

CLAIM_REQUEST = ClaimRequest("c1", ("default",))


def test_maintenance_finds_jobs_whose_child_nobody_knows(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "AUDIT", 0.0)
    monkeypatch.setattr(maintenance, "RENEW", 0.05)
    # Their tasks would query the database.
    monkeypatch.setattr(maintenance.TaskThreads, "lead", lambda *_: None)
    stage.configure(LEASE=0.6, HEARTBEAT=0.2)
    job = tasks.run.enqueue(stage.book, "held")
    store = Commands(worker_connection(shard_of()), get_settings())
    store.claim(CLAIM_REQUEST, 1, 1)
    stage.redis.delete(store.keys.child_processing("c1"), store.keys.workers)
    role = Maintenance("w.0", get_settings(), shard_of())

    def is_back() -> bool:
        store.heartbeat([])
        role.run_once()
        job.refresh()
        return job.status == "queued"

    eventually(is_back)
    assert job.recoveries == 1
    store.connection.close()


def test_maintenance_mends_slots(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "RENEW", 0.05)
    monkeypatch.setattr(maintenance.TaskThreads, "lead", lambda *_: None)
    slots = keys_of().slots
    stage.redis.zadd(slots, {"c:t:1 ghost": 0})
    role = Maintenance("w.0", get_settings(), shard_of())

    def is_gone() -> bool:
        role.run_once()
        return not stage.redis.exists(slots)

    eventually(is_gone)


def test_maintenance_tells_redis_which_queues_have_aging(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "RENEW", 0.05)
    monkeypatch.setattr(maintenance.TaskThreads, "lead", lambda *_: None)
    keys = Commands(worker_connection(shard_of()), get_settings()).keys
    for aging, stored in ((90, "90000"), (None, None)):
        stage.configure(QUEUES={"default": {"AGING": aging}, "low": {}})
        role = Maintenance("w.0", get_settings(), shard_of())

        def is_stored(role: Maintenance = role, stored: str | None = stored) -> bool:
            role.run_once()
            return stage.redis.hget(keys.queue("default").meta, "aging") == stored

        eventually(is_stored)
        assert not stage.redis.hexists(keys.queue("low").meta, "aging")


def test_a_schedule_of_the_code_is_in_one_of_several_shards(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "RENEW", 0.05)
    monkeypatch.setattr(maintenance.TaskThreads, "lead", lambda *_: None)
    schedules = {
        f"s{n}": {"task": tasks.run.name, "args": ["x", "y"], "every": "1h", "queue_name": f"q{n}"}
        for n in range(8)
    }
    queues = {f"q{n}": {} for n in range(8)}
    stage.configure(SHARDS=4, QUEUES={"default": {}, **queues}, SCHEDULES=schedules)
    roles = [Maintenance("w.0", get_settings(), shard) for shard in range(4)]

    def names() -> list[list[str]]:
        return [sorted(ScheduleQueries(worker_connection(n)).names()) for n in range(4)]

    expected = [
        sorted(f"s{n}" for n in range(8) if shard_of_key(f"q{n}", 4) == shard) for shard in range(4)
    ]

    def are_defined() -> bool:
        for role in roles:
            role.run_once()
        return [[one for one in found if one in schedules] for found in names()] == expected

    eventually(are_defined)
