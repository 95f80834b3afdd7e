"""The maintenance role: its work, which queues it knows, and what it continues for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_redisqueue import JobQueue
from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.schedules import ScheduleQueries
from django_redisqueue.conf import get_settings
from django_redisqueue.core.ids import shard_of_key
from django_redisqueue.worker.maintenance import maintenance, upkeep
from django_redisqueue.worker.maintenance.leader import RoleHost
from django_redisqueue.worker.maintenance.maintenance import Maintenance
from django_redisqueue.worker.maintenance.upkeep import KNOWN_FOR, KnownQueues
from tests.broker.lab import Lab
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
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
    role = Maintenance("w.0", get_settings(), RoleHost(shard_of()))

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
    role = Maintenance("w.0", get_settings(), RoleHost(shard_of()))

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
        role = Maintenance("w.0", get_settings(), RoleHost(shard_of()))

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
    roles = [Maintenance("w.0", get_settings(), RoleHost(shard)) for shard in range(4)]

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


JOBS, LATER = 1000, 10
SLOW_MS = 25  # each way: a step takes 50 ms, and all of them a second


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
@pytest.mark.parametrize("verb", ["clear", "requeue_all"])
def test_what_a_killed_process_leaves_is_done_once(
    stage: Stage, fresh_proxy: Callable[..., Proxy], verb: str
) -> None:
    worker = stage.worker("--processes", "1").wait_until_up(2)
    queue = JobQueue()
    queue.pause()
    tasks.run.enqueue_many([(stage.book, f"meant{n}") for n in range(JOBS)])
    assert queue.clear("queued") == JOBS
    proxy = fresh_proxy(stage.server.address, delay_ms=SLOW_MS)
    call = f"from django_redisqueue import JobQueue; JobQueue().{verb}('cancelled')"
    caller = stage.worker("-c", call, command="shell", address=proxy.address)
    eventually(lambda: stage.stats()["cancelled"] < JOBS - 100, every=0.002, why=stage.report)
    caller.kill()
    left = stage.stats()["cancelled"]
    assert left > 100, "it was killed too late to leave anything"
    for job in tasks.run.enqueue_many([(stage.book, f"later{n}") for n in range(LATER)]):
        job.cancel()
    eventually(lambda: stage.stats()["cancelled"] == LATER, 30, why=stage.report)
    eventually(lambda: not stage.redis.exists(keys_of().continuations), why=stage.report)
    assert "goes on without its caller" in worker.output
    queue.resume()
    requeued = JOBS if verb == "requeue_all" else 0
    stage.until_done(requeued, cancelled=LATER)
    assert stage.runs() == Counter([f"meant{n}" for n in range(requeued)])
    assert stage.count("requeued_total") == requeued


@pytest.fixture
def lab(queue_settings: dict[str, Any], redis_server: RedisServer) -> Iterator[Lab]:
    made = Lab(redis_server)
    yield made
    made.close()


@pytest.mark.one_server("looks at its server's clients and commands")
def test_redis_is_asked_once_a_minute(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr(upkeep.time, "monotonic", lambda: clock)
    known = KnownQueues(lab.store, ["default", "mail"])
    lab.add("j1", queue="former")
    lab.add("j2", queue="mail")
    assert known.names() == ["default", "mail", "former"]  # the project's first, each once
    lab.add("j3", queue="another")
    lab.redis.config_resetstat()
    clock += KNOWN_FOR - 1
    assert known.names() == ["default", "mail", "former"]
    assert "cmdstat_smembers" not in lab.redis.info("commandstats")
    clock += 1
    assert known.names() == ["default", "mail", "another", "former"]


def test_the_projects_own_are_known_whatever_redis_says(lab: Lab) -> None:
    lab.redis.set(lab.keys.queues, "theirs")
    assert KnownQueues(lab.store, ["default"]).names() == ["default"]
