"""Database connections between jobs, on a real PostgreSQL that cuts them at the critical
moments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from django.core.cache import caches
from django.core.cache.backends.base import BaseCache
from django.db import InterfaceError, connections
from django.db.backends.sqlite3.base import DatabaseWrapper

from django_redisqueue import task
from django_redisqueue.client.tasks import Task
from django_redisqueue.exceptions import JobTimeout
from django_redisqueue.worker.child.databases import CommitShield, Databases
from tests.app import tasks as app_tasks
from tests.support.burst import work
from tests.support.postgres import PostgresServer, as_database
from tests.worker import tasks
from tests.worker.harness import WorkerHarness
from tests.worker.processes import eventually


@pytest.fixture
def name(harness: WorkerHarness, postgres: PostgresServer) -> Iterator[str]:
    """The name of the database that the harness's workers use, with persistent connections."""
    entry: dict[str, Any] = {**postgres.new_database(), "CONN_MAX_AGE": None}
    harness.environment["REDISQUEUE_TEST_DATABASES"] = json.dumps({"default": entry})
    yield entry["NAME"]
    postgres.drop(entry)


def test_a_connection_that_was_cut_between_two_jobs_is_replaced(
    harness: WorkerHarness, postgres: PostgresServer, name: str
) -> None:
    worker = harness.worker("--processes", "1").wait_until_up(2)
    child, seen = worker.children[0], set()
    for _ in range(5):
        job = harness.ended(tasks.backend.enqueue())
        assert (job.status, job.attempts) == ("completed", 0), harness.report()
        seen.add(job.result)
        assert postgres.terminate(name) >= 1
        alive = f"SELECT 1 FROM pg_stat_activity WHERE pid = {job.result}"
        eventually(lambda alive=alive: not postgres.execute(alive))
    assert len(seen) == 5
    assert child in worker.children


@pytest.mark.parametrize("task", [tasks.async_in_plain_thread, tasks.run_async])
def test_threads_outside_jobs_replace_a_cut_connection(
    harness: WorkerHarness, postgres: PostgresServer, name: str, task: Task
) -> None:
    """The threads of ``asyncio.to_thread``, and asgiref's for ``asyncio.run``: both are reused."""
    harness.worker("--processes", "1").wait_until_up(2)
    for _ in range(3):
        job = harness.ended(task.enqueue())
        assert job.status == "completed", harness.report()
        postgres.terminate(name)


def test_a_working_connection_is_kept(
    harness: WorkerHarness, postgres: PostgresServer, name: str
) -> None:
    harness.worker("--processes", "1")
    assert len({harness.ended(tasks.backend.enqueue()).result for _ in range(3)}) == 1


def test_children_do_not_share_a_pool_of_connections(
    harness: WorkerHarness, postgres: PostgresServer
) -> None:
    """The supervisor used it in its checks. If children inherited it, they would get each other's
    rows."""
    entry = {**postgres.new_database(), "OPTIONS": {"pool": True}}
    harness.environment["REDISQUEUE_TEST_DATABASES"] = json.dumps({"default": entry})
    harness.worker("--processes", "2", MIRROR=True)
    gates = [harness.gate() for _ in range(2)]
    jobs = [harness.running(tasks.backend_until_gate_opens.enqueue(gate)) for gate in gates]
    for gate in gates:
        harness.open_gate(gate)
    ended = [harness.ended(job) for job in jobs]
    assert len({job.result for job in ended}) == 2, harness.report()
    harness.end_workers()
    postgres.drop(entry)


def test_a_job_leaves_alone_the_connections_of_other_threads(
    harness: WorkerHarness, database: object
) -> None:
    """Those of async jobs that are still running, and of threads that a job started."""
    worker = harness.worker("--processes", "1").wait_until_up(2)
    child = worker.children[0]
    others = [tasks.async_orm.enqueue(1.0) for _ in range(3)]
    for job in others:
        harness.running(job)
    between = [app_tasks.count.enqueue("a"), tasks.threads_orm.enqueue(2)]
    between += [app_tasks.count.enqueue("b"), tasks.threads_orm.enqueue(2)]
    for job in between + others:
        harness.ended(job)
        assert (job.status, job.recoveries) == ("completed", 0), harness.report()
    assert child in worker.children


class CacheClient(BaseCache):
    """Counts the clients that were made, and how often they were closed."""

    made = closed = 0

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        CacheClient.made += 1

    def close(self, **kwargs: Any) -> None:
        CacheClient.closed += 1


@task
def use_cache() -> int:
    return id(caches["default"])


def test_jobs_share_the_client_of_a_cache(
    queue_settings: dict[str, Any], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job has its own context, in which Django would create and connect another client."""
    settings.CACHES = {
        "default": {"BACKEND": f"{__name__}.CacheClient"},
        "wrong": {"BACKEND": "nowhere.Cache"},
    }
    for count in ("made", "closed"):
        monkeypatch.setattr(CacheClient, count, 0)
    jobs = use_cache.enqueue_many([()] * 3)
    work()
    for job in jobs:
        job.refresh()
    assert len({job.result for job in jobs}) == 1
    assert (CacheClient.made, CacheClient.closed) == (1, 3)


class FakeConnection:
    """The parts of a connection that the worker looks at."""

    def __init__(self, usable: bool = True) -> None:
        self.connection: object | None = object()
        self.usable = usable
        self.in_atomic_block = False
        self.calls: list[str] = []
        self.error: Exception | None = None

    def is_usable(self) -> bool:
        return self.usable

    def commit(self) -> None: ...

    rollback = set_autocommit = commit

    def close(self) -> None:
        self.calls.append(f"close {'inside' if self.in_atomic_block else 'outside'}")
        self.connection = None
        if self.error is not None:
            raise self.error

    def close_if_unusable_or_obsolete(self) -> None:
        self.calls.append("check")
        if self.error is not None:
            self.close()


def test_connections_are_checked_before_and_after_a_job() -> None:
    databases = Databases()
    good, gone, inside = FakeConnection(), FakeConnection(usable=False), FakeConnection()
    for connection in (good, gone, inside, good):
        databases._remember(connection)  # type: ignore[arg-type]
    databases.before()
    assert (good.calls, gone.calls) == ([], ["close outside"])
    inside.in_atomic_block = True
    databases.after()
    assert good.calls == ["check"]
    assert inside.calls[0] == "close outside"  # otherwise Django keeps what it has closed
    assert list(databases.opened) == [good]


def test_a_connection_on_which_a_job_was_enqueued_before_is_shielded() -> None:
    """Its method ``commit`` has been replaced by then (client/enqueue.py)."""
    connection = FakeConnection()
    connection.commit = lambda: None  # type: ignore[method-assign]
    Databases()._remember(connection)  # type: ignore[arg-type]
    assert isinstance(vars(connection)["commit"].__self__, CommitShield)


def test_a_connection_closed_by_a_job_does_not_end_the_child() -> None:
    """MySQL's driver refuses to close it again."""
    databases = Databases()
    before, after = FakeConnection(usable=False), FakeConnection()
    for connection in (before, after):
        connection.error = InterfaceError("it is closed already")
        databases._remember(connection)  # type: ignore[arg-type]
    databases.before()
    databases.after()
    assert not databases.opened


@pytest.mark.django_db
def test_a_connection_that_was_interrupted_as_it_reconnected_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Django has not set it up: on PostgreSQL it may never commit."""
    with as_database("extra", sqlite_file(tmp_path)) as alias:
        connection, databases = connections[alias], Databases()
        connection.connect()
        connection.close()
        with monkeypatch.context() as patch:
            patch.setattr(connection, "init_connection_state", raise_late)
            with pytest.raises(JobTimeout):
                connection.connect()
        assert connection.connection is not None
        databases.after_error()
        assert connection.connection is None
        connection.connect()
        databases.after_error()
        assert connection.connection is not None


def raise_late(*_: object, **__: object) -> NoReturn:
    raise JobTimeout


def sqlite_file(folder: Path) -> dict[str, Any]:
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "db.sqlite3")}


@pytest.mark.django_db
def test_a_connection_closed_by_a_job_in_a_transaction_can_be_used_again(
    tmp_path: Path,
) -> None:
    """An interrupt may have hit the end of the transaction."""
    entry = sqlite_file(tmp_path)
    connection = DatabaseWrapper(connections.configure_settings({"default": entry})["default"])
    databases = Databases()
    databases._remember(connection)
    connection.connect()
    connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    connection.in_atomic_block = True
    connection.close()
    databases.after()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    connection.close()
