"""What a project on MariaDB (or MySQL, whose SQL and errors are the same here) depends on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
from django.db import Error, OperationalError, connection, connections, transaction
from django.db.models import Model
from django.utils import timezone

from django_redisqueue import find_jobs
from django_redisqueue.broker import durability
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.conf import get_settings
from django_redisqueue.dashboard.periodic import history
from django_redisqueue.exceptions import JobTimeout
from django_redisqueue.mirror import bridge as bridge_module
from django_redisqueue.mirror import retention, sessions
from django_redisqueue.mirror.database_errors import ErrorCause, error_cause
from django_redisqueue.models import (
    JobEvent,
    JobRecord,
    MirrorState,
    OutboxJob,
    Receipt,
    Rollup,
    StepReceipt,
)
from django_redisqueue.outbox.receipts import run_once, run_step
from django_redisqueue.outbox.relay import Relay
from django_redisqueue.outbox.rows import unrelayed
from django_redisqueue.worker.child.databases import Databases
from tests.app import tasks
from tests.app.models import Counter
from tests.app.tasks import bump
from tests.broker.harness import BrokerHarness
from tests.client.test_transactions import queued
from tests.dashboard.conftest import redisqueue, site, staff
from tests.dashboard.site import Site
from tests.mirror.mirrored_shard import MirroredShard
from tests.mirror.rows import T0, record
from tests.support.mariadb import MariaDBServer
from tests.support.servers import RedisServer
from tests.support.shards import shard_of
from tests.worker.child.test_databases import raise_late
from tests.worker.processes import eventually

__all__ = ["redisqueue", "site", "staff"]

pytestmark = pytest.mark.usefixtures("on_mariadb")
IS_PYMYSQL = find_spec("MySQLdb") is None
AWAY = {"CONNECTION": {"URL": "unix:///nonexistent.sock"}}


@pytest.fixture
def shard(
    redis_server: RedisServer, queue_settings: dict[str, Any], settings: Any
) -> Iterator[MirroredShard]:
    settings.REDISQUEUE = {**queue_settings, "MIRROR": True}
    made = MirroredShard(BrokerHarness(redis_server))
    yield made
    made.close()


class CompetingTransaction:
    """Another connection, in its own thread, with the larger transaction: in a deadlock, MariaDB
    ends the smaller one."""

    def __init__(self, first: Callable[[], object], second: Callable[[], object]) -> None:
        self._first, self._second = first, second
        self._has_first, self._may_resume = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> CompetingTransaction:
        self._thread.start()
        self._has_first.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._may_resume.set()
        self._thread.join()

    def resume(self) -> None:
        self._may_resume.set()

    def _run(self) -> None:
        with transaction.atomic():
            Counter.objects.bulk_create(Counter(name=f"large {n}") for n in range(200))
            self._first()
            self._has_first.set()
            self._may_resume.wait(10)
            self._second()
            transaction.set_rollback(True)
        connections.close_all()


def until_one_waits(server: MariaDBServer) -> None:
    """Wait until a transaction waits for a lock."""
    waiting = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    # MariaDB repeats its previous answer if it is asked again within 0.1 s.
    eventually(lambda: bool(server.execute(waiting)), every=0.15)


def test_names_that_differ_in_case_or_in_a_space_at_the_end_are_different(
    queue_settings: dict[str, Any],
) -> None:
    found = [
        run_step("j", name, "default", lambda name=name: f'"{name}"')
        for name in ("Go", "go", "go ")
    ]
    assert found == ['"Go"', '"go"', '"go "']
    assert StepReceipt.objects.count() == 3
    for name in ("app.Run", "app.run"):
        Rollup.objects.create(minute=timezone.now().replace(second=0), queue="q", task=name)


def test_every_event_has_a_row(shard: MirroredShard) -> None:
    shard.run_jobs(120)
    shard.broker.add("strange", payload='[["é€😀 \\\\ \'%s"],{}]')
    shard.mirror()
    shard.assert_complete()


def test_after_a_deadlock_the_batch_is_written_again(
    shard: MirroredShard, on_mariadb: MariaDBServer
) -> None:
    shard.run_jobs(2, "a")
    shard.mirror()
    shard.run_jobs(2, "b")
    lock, states = Rollup.objects.select_for_update(), MirrorState.objects
    with CompetingTransaction(
        lambda: list(lock), lambda: states.update(fault="competing")
    ) as competing:

        def resume() -> None:
            until_one_waits(on_mariadb)
            competing.resume()

        watcher = threading.Thread(target=resume)
        watcher.start()
        with pytest.raises(OperationalError, match="Deadlock") as raised:
            shard.mirror()
        watcher.join()
    assert error_cause(raised.value, "default") is ErrorCause.DATABASE
    shard.bridge.close()
    shard.mirror()
    shard.assert_complete()
    assert MirrorState.objects.get().left_out == 0


def test_a_row_that_exceeds_the_packet_size_does_not_stop_a_reconcile(
    shard: MirroredShard, on_mariadb: MariaDBServer
) -> None:
    """The server answers by closing the connection."""
    shard.broker.store.now_ms = None
    shard.broker.add("a", "b")
    shard.broker.add("odd", payload=f'[["{"x" * 1_100_000}"],{{}}]')
    shard.broker.redis.delete(shard.broker.keys.events)
    bridge = bridge_module.make_bridge(get_settings())
    on_mariadb.execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        shard.mirror(bridge)
    finally:
        on_mariadb.execute("SET GLOBAL max_allowed_packet = DEFAULT")
        bridge.close()
    assert set(JobRecord.objects.values_list("pk", flat=True)) == {"a", "b"}
    state = MirrorState.objects.get()
    assert (state.unreconciled, state.incomplete) == (False, 1)
    assert "job odd cannot be reconciled" in state.fault


@pytest.mark.parametrize("lock", ["LOCK TABLES {} WRITE", "SELECT * FROM {} FOR UPDATE"])
def test_a_wait_for_a_lock_ends_before_the_watchdog_ends_the_process(
    shard: MirroredShard, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    """By the server's defaults a table is waited for for a day, or a year on MySQL, even if the
    process has ended."""
    monkeypatch.setattr(sessions, "LOCK_WAIT", 1)
    shard.run_jobs(1)
    shard.mirror()
    shard.run_jobs(1, "b")
    shard.bridge.close()
    other = connection.get_new_connection(connection.get_connection_params())
    with closing(other), other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(lock.format(Rollup._meta.db_table))
        with pytest.raises(OperationalError, match="Lock wait timeout") as raised:
            shard.mirror()
    assert error_cause(raised.value, "default") is ErrorCause.DATABASE
    shard.bridge.close()
    shard.mirror()
    shard.assert_complete()


@pytest.mark.skipif(not IS_PYMYSQL, reason="the driver is not PyMySQL")
def test_an_interrupt_between_a_query_and_its_reply_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the next query would get that reply."""
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", None)
    databases = Databases()
    connection.ensure_connection()

    @transaction.atomic
    def job() -> None:
        Counter.objects.create(name="before")
        with transaction.atomic(), monkeypatch.context() as patch:
            patch.setattr(type(connection.connection), "_read_query_result", raise_late)
            Counter.objects.create(name="interrupted")

    with pytest.raises(JobTimeout):
        job()
    databases.after_error()
    databases.after()
    databases.before()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 42")
        assert cursor.fetchone() == (42,)
    assert not Counter.objects.exists()
    connection.close()


def test_the_outbox_commits_with_its_transaction_and_is_relayed(
    queue_settings: dict[str, Any], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "FSYNCED_MS", 0)
    settings.REDISQUEUE = {**queue_settings, **AWAY, "OUTBOX": True}
    with suppress(ZeroDivisionError), transaction.atomic():
        tasks.noop.enqueue("rolled back")
        raise ZeroDivisionError
    with transaction.atomic():
        tasks.noop.enqueue_many([(n,) for n in range(3)])
    settings.REDISQUEUE = {**queue_settings, "OUTBOX": True}
    OutboxJob.objects.update(created_at=timezone.now() - timedelta(minutes=1))
    with closing(worker_connection(shard_of())) as link:
        Relay(Commands(link), "default").run_once()
    assert sorted(queued()) == [0, 1, 2]
    assert not OutboxJob.objects.exists()


def test_many_large_rows_of_the_outbox(queue_settings: dict[str, Any], settings: Any) -> None:
    """Together they exceed what MariaDB accepts in one statement: a quote takes four bytes."""
    settings.REDISQUEUE = {**queue_settings, "OUTBOX": True}
    with transaction.atomic():
        tasks.noop.enqueue_many([('"' * 100_000,)] * 50)
        assert OutboxJob.objects.count() == 50
        transaction.set_rollback(True)


def test_exactly_once() -> None:
    for _ in range(2):
        assert run_once("j", "default", lambda: str(bump("n"))) == "1"
    assert (Counter.objects.get().value, Receipt.objects.count()) == (1, 1)


def test_a_duplicate_that_commits_first_wins() -> None:
    def work() -> str:
        bump("mine")
        thread = threading.Thread(target=twin)
        thread.start()
        thread.join()
        return '"mine"'

    def twin() -> None:
        run_once("j", "default", lambda: '"the twin"')
        connections.close_all()

    assert run_once("j", "default", work) == '"the twin"'
    assert not Counter.objects.exists()


def test_a_deadlock_that_the_task_hides_commits_nothing() -> None:
    """MariaDB has rolled back what the task did before, and would commit what it does
    afterwards."""
    Counter.objects.bulk_create(Counter(name=name) for name in "ab")
    rows = Counter.objects.select_for_update()

    def work() -> str:
        list(rows.filter(name="b"))
        bump("before")
        competing.resume()
        with suppress(OperationalError):
            list(rows.filter(name="a"))
        bump("after")
        return "1"

    with (
        CompetingTransaction(
            lambda: list(rows.filter(name="a")), lambda: list(rows.filter(name="b"))
        ) as competing,
        pytest.raises(OperationalError, match="SAVEPOINT"),
    ):
        run_once("j", "default", work)
    assert sorted(Counter.objects.values_list("name", flat=True)) == ["a", "b"]
    assert not Receipt.objects.exists()


@pytest.mark.slow
@pytest.mark.django_db(databases=["default", "other"])
def test_pages_of_the_dashboard(redisqueue: None, site: Site) -> None:
    record(
        "job_1_a_0", "failed", payload='[["Größe"],{}]', tags='{"shop":"7"}', correlation_id="c-1",
        error='{"type":"ValueError","message":"no stock","traceback":""}', error_type="ValueError",
    )  # fmt: skip
    record("job_2_b_0", task="app.other")
    for asked in (
        {"text": "größe"}, {"text": "no stock"}, {"tag": "shop=7"}, {"correlation": "c-1"},
        {"id": "job_1"}, {"status": "failed"}, {"task": "app.task"},
    ):  # fmt: skip
        page = site.text("jobrecord_changelist", **asked)
        assert ("job_1_a_0" in page, "job_2_b_0" in page) == (True, False), asked
    for name in ("overview", "overview_charts", "errors", "tasks", "workflows", "workers"):
        site.get(name)
    assert "job_1_a_0" in site.text("search", q="job_1")


def test_ids_with_a_prefix_are_found_by_an_index(shard: MirroredShard) -> None:
    count = 2000
    rows = [JobRecord(id=f"job_{n:05}", status="queued", enqueued_at=T0) for n in range(count)]
    JobRecord.objects.bulk_create(rows)
    for act in (partial(find_jobs, workflow="flow_1_0"), partial(history, "nightly")):
        before = rows_read()
        act()
        assert rows_read() - before < count


def test_a_page_of_old_rows_is_read_without_sorting_all(
    shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS_PER_STEP", 10)
    numbers, now = range(2000), timezone.now()
    JobEvent.objects.bulk_create(JobEvent(job_id="j", at=T0, entry_ms=n) for n in numbers)
    Rollup.objects.bulk_create(
        Rollup(minute=T0 + timedelta(minutes=n), queue="q", task="t") for n in numbers
    )
    OutboxJob.objects.bulk_create(
        OutboxJob(id=f"job_{n:04}", queue="q", task="t", relayed_at=now if n % 2 else None)
        for n in numbers
    )
    _analyze(OutboxJob)
    before = rows_read()
    for rule in retention.mirror_rules():
        rule.step(now, timedelta(days=1))
        rule.step(now, timedelta(days=1))
    assert len(unrelayed("default")[:10]) == 10
    assert rows_read() - before < len(numbers) / 2
    assert (JobEvent.objects.count(), Rollup.objects.count()) == (1980, 1980)


def _analyze(model: type[Model]) -> None:
    """Otherwise MySQL may take the table for an empty one, and scan it."""
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE TABLE {model._meta.db_table}")


def rows_read() -> int:
    """How many rows and keys this connection has read."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(number) for _, number in cursor.fetchall())


def test_the_cause_of_an_error(redisqueue: None) -> None:
    table = "CREATE TEMPORARY TABLE t (x varchar(9) CHARACTER SET latin1)"
    for sql, cause in (
        ("INSERT INTO t VALUES ('😀')", ErrorCause.CONTENT),
        ("INSERT INTO t VALUES ('more than nine')", ErrorCause.CONTENT),
        ("SELECT 1 FROM nothing_here", ErrorCause.DATABASE),
        ("KILL CONNECTION CONNECTION_ID()", ErrorCause.DATABASE),
    ):
        with connection.cursor() as cursor:
            cursor.execute(table)
            with pytest.raises(Error, match=r"\(\d+, ") as raised:
                cursor.execute(sql)
        connection.close()
        assert error_cause(raised.value, "default") is cause, sql
