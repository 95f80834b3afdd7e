"""Maintenance: its work, the queues that it knows, and what it continues for other processes; and
the threads of its periodic tasks."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections, transaction

from django_redisqueue import JobQueue
from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.replies import PromoteReply
from django_redisqueue.broker.schedules import ScheduleQueries
from django_redisqueue.conf import get_settings
from django_redisqueue.core.ids import shard_of_key
from django_redisqueue.exceptions import RedisUnavailable
from django_redisqueue.mirror import sessions
from django_redisqueue.models import Receipt
from django_redisqueue.worker.maintenance import maintenance, upkeep
from django_redisqueue.worker.maintenance.leader import RoleHost
from django_redisqueue.worker.maintenance.maintenance import (
    Maintenance,
    PeriodicTask,
    TaskThreads,
    run_due,
)
from django_redisqueue.worker.maintenance.upkeep import KNOWN_FOR, KnownQueues, Promoter
from tests.broker.harness import BrokerHarness
from tests.mirror.mirror_processes import sqlite_entry
from tests.support.postgres import PostgresServer, as_database
from tests.support.proxy import Proxy
from tests.support.shards import keys_of, shard_of
from tests.support.stopwatch import Stopwatch
from tests.worker import tasks
from tests.worker.harness import WorkerHarness
from tests.worker.processes import eventually

CLAIM_REQUEST = ClaimRequest("c1", ("default",))


def test_maintenance_finds_jobs_whose_child_is_unknown(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "AUDIT", 0.0)
    monkeypatch.setattr(maintenance, "RENEW", 0.05)
    # The periodic tasks would query the database.
    monkeypatch.setattr(maintenance.TaskThreads, "lead", lambda *_: None)
    harness.configure(LEASE=0.6, HEARTBEAT=0.2)
    job = tasks.run.enqueue(harness.book, "held")
    store = Commands(worker_connection(shard_of()), get_settings())
    store.claim(CLAIM_REQUEST, 1, 1)
    harness.redis.delete(store.keys.child_processing("c1"), store.keys.workers)
    role = Maintenance("w.0", get_settings(), RoleHost(shard_of()))

    def is_back() -> bool:
        store.heartbeat([])
        role.run_once()
        job.refresh()
        return job.status == "queued"

    eventually(is_back)
    assert job.recoveries == 1
    store.connection.close()


def test_maintenance_repairs_slots(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "RENEW", 0.05)
    monkeypatch.setattr(maintenance.TaskThreads, "lead", lambda *_: None)
    slots = keys_of().slots
    harness.redis.zadd(slots, {"c:t:1 ghost": 0})
    role = Maintenance("w.0", get_settings(), RoleHost(shard_of()))

    def is_gone() -> bool:
        role.run_once()
        return not harness.redis.exists(slots)

    eventually(is_gone)


def test_maintenance_tells_redis_which_queues_have_aging(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "RENEW", 0.05)
    monkeypatch.setattr(maintenance.TaskThreads, "lead", lambda *_: None)
    keys = Commands(worker_connection(shard_of()), get_settings()).keys
    for aging, stored in ((90, "90000"), (None, None)):
        harness.configure(QUEUES={"default": {"AGING": aging}, "low": {}})
        role = Maintenance("w.0", get_settings(), RoleHost(shard_of()))

        def is_stored(role: Maintenance = role, stored: str | None = stored) -> bool:
            role.run_once()
            return harness.redis.hget(keys.queue("default").meta, "aging") == stored

        eventually(is_stored)
        assert not harness.redis.hexists(keys.queue("low").meta, "aging")


def test_a_schedule_of_the_code_is_in_one_of_several_shards(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "RENEW", 0.05)
    monkeypatch.setattr(maintenance.TaskThreads, "lead", lambda *_: None)
    schedules = {
        f"s{n}": {"task": tasks.run.name, "args": ["x", "y"], "every": "1h", "queue_name": f"q{n}"}
        for n in range(8)
    }
    queues = {f"q{n}": {} for n in range(8)}
    harness.configure(SHARDS=4, QUEUES={"default": {}, **queues}, SCHEDULES=schedules)
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
SLOW_MS = 25  # in each direction: a step takes 50 ms, and all of them take a second


@pytest.mark.slow
@pytest.mark.one_server("stops its server, or has a proxy in front of it")
@pytest.mark.parametrize("verb", ["clear", "requeue_all"])
def test_the_remaining_work_of_a_killed_process_is_done_once(
    harness: WorkerHarness, fresh_proxy: Callable[..., Proxy], verb: str
) -> None:
    worker = harness.worker("--processes", "1").wait_until_up(2)
    queue = JobQueue()
    queue.pause()
    tasks.run.enqueue_many([(harness.book, f"meant{n}") for n in range(JOBS)])
    assert queue.clear("queued") == JOBS
    proxy = fresh_proxy(harness.server.address, delay_ms=SLOW_MS)
    call = f"from django_redisqueue import JobQueue; JobQueue().{verb}('cancelled')"
    caller = harness.worker("-c", call, command="shell", address=proxy.address)
    eventually(lambda: harness.stats()["cancelled"] < JOBS - 100, every=0.002, why=harness.report)
    caller.kill()
    left = harness.stats()["cancelled"]
    assert left > 100, "it was killed too late to leave anything"
    for job in tasks.run.enqueue_many([(harness.book, f"later{n}") for n in range(LATER)]):
        job.cancel()
    eventually(lambda: harness.stats()["cancelled"] == LATER, 30, why=harness.report)
    eventually(lambda: not harness.redis.exists(keys_of().continuations), why=harness.report)
    assert "continues without its caller" in worker.output
    queue.resume()
    requeued = JOBS if verb == "requeue_all" else 0
    harness.until_done(requeued, cancelled=LATER)
    assert harness.runs() == Counter([f"meant{n}" for n in range(requeued)])
    assert harness.count("requeued_total") == requeued


@pytest.mark.one_server("looks at its server's clients and commands")
def test_redis_is_asked_once_a_minute(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    monkeypatch.setattr(upkeep.time, "monotonic", lambda: clock)
    known = KnownQueues(broker.store, ["default", "mail"])
    broker.add("j1", queue="former")
    broker.add("j2", queue="mail")
    # the project's own queues first, each once
    assert known.names() == ["default", "mail", "former"]
    broker.add("j3", queue="another")
    broker.redis.config_resetstat()
    clock += KNOWN_FOR - 1
    assert known.names() == ["default", "mail", "former"]
    assert broker.calls("smembers") == [0]
    clock += 1
    assert known.names() == ["default", "mail", "another", "former"]


def test_the_projects_own_queues_are_known_even_if_redis_does_not_list_them(
    broker: BrokerHarness,
) -> None:
    broker.redis.set(broker.keys.queues, "theirs")
    assert KnownQueues(broker.store, ["default"]).names() == ["default"]


def test_a_backlog_of_due_jobs_leaves_time_for_schedules(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    monkeypatch.setattr(upkeep.time, "monotonic", lambda: clock)
    calls: list[str] = []

    def take(verb: str, reply: Any) -> Any:
        nonlocal clock
        clock += 0.3
        calls.append(verb)
        return reply

    monkeypatch.setattr(
        broker.store, "promote", lambda _: take("promote", PromoteReply(100, 0, {}))
    )
    monkeypatch.setattr(broker.store, "advance", lambda: take("advance", True))
    assert Promoter(broker.store).run_once() == 1
    assert calls == ["promote", "advance", "advance", "advance"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "CHECK_DUE", 0.01)
    monkeypatch.setattr(maintenance, "MORE", 0.001)


@pytest.fixture
def made() -> Iterator[list[TaskThreads]]:
    made: list[TaskThreads] = []
    yield made
    for threads in made:
        threads.close()


def test_tasks_take_turns_and_run_again_while_they_have_more_to_do() -> None:
    done: list[str] = []
    tasks = [
        PeriodicTask(lambda: done.append("often") or len(done) < 5, 0),  # type: ignore[func-returns-value]
        PeriodicTask(lambda: bool(done.append("seldom")), 3600),  # type: ignore[func-returns-value]
    ]
    assert run_due(tasks) is True
    assert run_due(tasks) is True
    assert done == ["often", "seldom", "often"]


def test_a_periodic_task_that_fails_waits_for_its_next_turn() -> None:
    calls = []

    def fails() -> bool:
        calls.append(1)
        raise DatabaseError

    tasks = [PeriodicTask(fails, 3600)]
    with pytest.raises(DatabaseError):
        run_due(tasks)
    assert run_due(tasks) is False
    assert len(calls) == 1


def test_it_works_only_while_this_process_leads(made: list[TaskThreads]) -> None:
    calls: list[float] = []
    threads = TaskThreads([PeriodicTask(lambda: bool(calls.append(time.monotonic())), 0)])  # type: ignore[func-returns-value]
    made.append(threads)
    threads.lead(False)
    assert calls == []
    threads.lead(True)
    eventually(lambda: len(calls) > 2)
    threads.lead(False)
    eventually(lambda: not calls or time.monotonic() - calls[-1] > 0.2)
    before = len(calls)
    threads.lead(True)
    eventually(lambda: len(calls) > before)


@pytest.mark.parametrize("has_more", [False, True])
def test_a_slow_pass_is_followed_by_a_rest_unless_there_is_more(
    made: list[TaskThreads], has_more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "close_old_connections", lambda: None)

    def takes_ten_seconds() -> bool:
        thread._began -= 10
        return has_more

    task = PeriodicTask(takes_ten_seconds, 5)
    made.append(TaskThreads([task]))
    (thread,) = made[0]._threads
    assert thread._work() is has_more
    rest = task.due - time.monotonic()
    assert rest <= 0 if has_more else rest > 35


def test_a_periodic_task_closes_its_connection(tmp_path: Path, django_db_blocker: Any) -> None:
    """Django's pool may have fewer connections than there are tasks: one of them would never get
    any."""
    were_open: list[bool] = []

    def queries() -> bool:
        were_open.append(connections["pooled"].connection is not None)
        connections["pooled"].ensure_connection()
        return True

    with as_database("pooled", sqlite_entry(tmp_path / "db")), django_db_blocker.unblock():
        threads = TaskThreads([PeriodicTask(queries, 0)])
        threads.lead(True)
        eventually(lambda: len(were_open) > 2)
        threads.close()
    assert not any(were_open)


def test_a_wait_for_a_lock_ends(
    on_postgres: PostgresServer,
    made: list[TaskThreads],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise its connection would keep waiting, and each new process would add another."""
    monkeypatch.setattr(sessions, "LOCK_WAIT", 0.05)
    made.append(TaskThreads([PeriodicTask(Receipt.objects.exists, 0)]))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {Receipt._meta.db_table}")
        made[0].lead(True)
        eventually(lambda: "lock timeout; trying again" in caplog.text)


def test_a_hanging_periodic_task_does_not_delay_the_end(
    made: list[TaskThreads], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "STOP", 0.05)
    held, entered = threading.Event(), threading.Event()

    def hangs() -> bool:
        entered.set()
        return held.wait(30) and False

    threads = TaskThreads([PeriodicTask(hangs, 0)])
    watch = Stopwatch()
    threads.lead(True)
    assert entered.wait(10)
    threads.lead(True)
    threads.close()
    assert watch.seconds < 5
    held.set()


def test_a_hanging_periodic_task_does_not_stop_the_others(
    made: list[TaskThreads], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A database hangs for one task. This process leads, so no other would do the remaining
    tasks."""
    held, entered, calls = threading.Event(), threading.Event(), [0]

    def hangs() -> bool:
        entered.set()
        return held.wait(30) and False

    def counts() -> bool:
        calls[0] += 1
        return False

    threads = TaskThreads(
        [PeriodicTask(hangs, 0, name="the relay"), PeriodicTask(counts, 0, name="the retention")]
    )
    made.append(threads)
    threads.lead(True)
    assert entered.wait(10)
    before = calls[0]
    eventually(lambda: calls[0] > before + 1)
    assert not threads.hangs()
    monkeypatch.setattr(maintenance, "HUNG_AFTER", 0.01)
    eventually(threads.hangs)
    assert "maintenance: the relay has not returned for 0.01 s; a new process" in caplog.text
    held.set()
    eventually(lambda: not threads.hangs())


@pytest.mark.parametrize(
    "error", [DatabaseError("locked"), RedisUnavailable("away"), KeyError("a router's")]
)
def test_an_error_is_logged_once_and_the_task_is_retried(
    made: list[TaskThreads], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def fails() -> bool:
        calls.append(1)
        if len(calls) < 4:
            raise error
        return False

    threads = TaskThreads([PeriodicTask(fails, 0)])
    made.append(threads)
    with caplog.at_level(logging.ERROR):
        threads.lead(True)
        eventually(lambda: len(calls) >= 6)
    assert sum(str(error) in record.getMessage() for record in caplog.records) == 1
    assert ("Traceback" in caplog.text) == isinstance(error, KeyError)


def test_an_error_that_lasts_is_logged_once(
    made: list[TaskThreads], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Although the thread looks several times until the task is due again."""
    monkeypatch.setattr(maintenance, "close_old_connections", lambda: None)
    answers = iter([DatabaseError("away"), DatabaseError("away"), None, DatabaseError("away")])

    def asks() -> bool:
        if (error := next(answers)) is not None:
            raise error
        return False

    task = PeriodicTask(asks, 60)
    made.append(TaskThreads([task]))
    (thread,) = made[0]._threads
    logged = []
    for _ in range(4):
        task.due = 0.0
        for _ in range(2):  # it is due, and then it is not
            thread._work()
        logged.append(len(caplog.records))
    assert logged == [1, 1, 1, 2]
