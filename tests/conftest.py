"""Fixtures for tests that speak to Redis. Only servers started here are ever flushed."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from django.db import connections
from django.db.backends.sqlite3.creation import DatabaseCreation
from django.test import SimpleTestCase, TransactionTestCase
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from redis import Redis

from django_redisqueue.broker.cluster import forget_clusters
from django_redisqueue.broker.embedded import version_of
from django_redisqueue.conf import DEFAULTS, get_settings

from .support import mariadb as mariadb_module
from .support import postgres as postgres_module
from .support.cluster import ClusterNodes, has_cluster, is_on_cluster
from .support.commands import migrate
from .support.manual_worker import ManualWorker
from .support.mariadb import MariaDBServer
from .support.postgres import FILLED, PostgresServer, as_database
from .support.proxy import Proxy
from .support.servers import RedisServer, program
from .support.suite import (
    dealing_order,
    run_folder,
    send_less,
    shared,
    use_memory_for_files,
    wait_for_processes,
)
from .support.warm import remember_versions

remember_versions()

# No test fails because the machine is busy: neither for a slow example, nor for slow generation.
hypothesis_settings.register_profile(
    "unhurried", hypothesis_settings(), deadline=None, suppress_health_check=list(HealthCheck)
)
hypothesis_settings.load_profile("unhurried")

# A shell that runs the suite in the background makes it ignore Ctrl-C; the processes that tests
# start and interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


READ_HEALTH = {"api", "browser", "dashboard"}  # tests here show pages that read every outbox

DATABASES = {"db", "transactional_db"}  # fixtures

# Fixtures of pytest-django that every test has and that do nothing without this mark. To set them
# all up takes a third of what pytest itself spends on a test.
WITHOUT_MARK = {
    "_django_db_marker": "django_db",
    "_django_isolate_apps": "django_isolate_apps",
    "_django_set_urlconf": "urls",
    "_template_string_if_invalid_marker": "ignore_template_errors",
}

# Folders whose tests talk to one store directly, or have their own settings.
ONE_SHARD = {
    "broker": "a store is a shard",
    "simulator": "a store is a shard",
    "gauntlet": "its deployments say how many shards they have",
}


def pytest_report_header() -> str:
    server = program()
    version = subprocess.run([server, "--version"], capture_output=True, text=True, check=True)
    where = "a Redis Cluster" if is_on_cluster() else "one server"
    name = version.stdout.partition(" sha=")[0].strip()
    return f"tests on: {name} ({server}), {DEFAULTS['SHARDS']} shard(s) on {where}"


def pytest_configure(config: pytest.Config) -> None:
    use_memory_for_files()
    run_folder()  # before xdist starts the processes that share it
    if hasattr(config, "workerinput"):
        send_less(config)
    else:
        wait_for_processes()
    gc.disable()  # collecting tests allocates much and frees little


def pytest_collection_finish() -> None:
    gc.freeze()  # these objects stay to the end: do not scan them again and again
    gc.set_threshold(20_000, 10, 50)  # tests allocate much that is soon garbage
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if reason := ONE_SHARD.get(item.path.parent.name):
            item.add_marker(pytest.mark.one_shard(reason))
        mark = item.get_closest_marker("django_db")
        has_database = mark or DATABASES & set(getattr(item, "fixturenames", ()))
        if item.path.parent.name in READ_HEALTH and has_database:
            options = {**(mark.kwargs if mark else {}), "databases": ["default", "other"]}
            item.add_marker(pytest.mark.django_db(**options), append=False)
        _drop_idle_fixtures(item)
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        items[:] = dealing_order(items, processes)


def _drop_idle_fixtures(item: pytest.Item) -> None:
    if not isinstance(item, pytest.Function):
        return
    names = item.fixturenames
    idle = {name for name, mark in WITHOUT_MARK.items() if not item.get_closest_marker(mark)}
    if "live_server" not in names:
        idle.add("_live_server_helper")
    if DEFAULTS["SHARDS"] == 1:
        idle.add("one_shard")
    if not issubclass(item.cls or object, SimpleTestCase):
        idle.add("_django_setup_unittest")
    item.fixturenames = [name for name in names if name not in idle]


def _delete_rows(case: TransactionTestCase) -> None:
    """Does what ``flush`` does after a test with real transactions, in a tenth of the time: empties
    only tables that have rows, and leaves what ``migrate`` fills."""
    for alias in case._databases_names(include_mirrors=False):  # type: ignore[attr-defined]
        connection = connections[alias]
        tables = set(connection.introspection.django_table_names()) - set(FILLED)
        with connection.constraint_checks_disabled(), connection.cursor() as cursor:
            each = (f"SELECT '{table}' WHERE EXISTS (SELECT * FROM {table})" for table in tables)
            cursor.execute(" UNION ALL ".join(each))
            for (table,) in cursor.fetchall():
                cursor.execute(f"DELETE FROM {table}")


@pytest.fixture(scope="session", autouse=True)
def quick_flush() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", _delete_rows)
        yield


@pytest.fixture(scope="session")
def migrated() -> Path:
    """A folder with the migrated SQLite file of the alias ``default``."""
    return shared("migrated", lambda folder: migrate(REDISQUEUE_TEST_FOLDER=str(folder)))


@pytest.fixture(scope="session")
def django_db_modify_db_settings(migrated: Path) -> Iterator[None]:
    """Databases in memory are copies of that file: migrating them would take each process seconds
    of CPU."""

    def create(creation: DatabaseCreation, **_: object) -> str:
        connection = creation.connection
        connection.close()
        connection.settings_dict["NAME"] = name = creation._get_test_db_name()
        connection.ensure_connection()
        with closing(sqlite3.connect(migrated / "default.sqlite3")) as source:
            source.backup(connection.connection)
        return name

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseCreation, "create_test_db", create)
        yield


@pytest.fixture(autouse=True)
def one_shard(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test with this mark has one shard, however many other tests have."""
    if DEFAULTS["SHARDS"] == 1 or not request.node.get_closest_marker("one_shard"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DEFAULTS, "SHARDS", 1)
        patch.setenv("REDISQUEUE_TEST_SHARDS", "1")
        get_settings.cache_clear()
        yield
    get_settings.cache_clear()


@pytest.fixture(scope="session")
def shared_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_server(request: pytest.FixtureRequest) -> RedisServer | ClusterNodes:
    """The server that most tests share: a Unix socket, no persistence. Never stop or pause it. With
    ``REDISQUEUE_TEST_CLUSTER`` it is the shared cluster."""
    name = "cluster_nodes" if has_cluster(request) else "shared_server"
    found: RedisServer | ClusterNodes = request.getfixturevalue(name)
    return found


def _scope_of_cluster(fixture_name: str, config: pytest.Config) -> str:
    """An idle cluster costs a core 0.6 % of its time: it ends with the few modules that need it."""
    return "session" if is_on_cluster() else "module"


@pytest.fixture(scope=_scope_of_cluster)  # type: ignore[arg-type]
def cluster_nodes() -> Iterator[ClusterNodes]:
    """The Redis Cluster that tests share: see ``cluster``."""
    with ClusterNodes() as nodes:
        yield nodes


@pytest.fixture
def cluster(cluster_nodes: ClusterNodes, settings: Any) -> Iterator[ClusterNodes]:
    """A whole, empty Redis Cluster, named in the settings. A test may kill nodes, move slots and
    have replicas promoted."""
    settings.REDISQUEUE = {"CONNECTION": {"URL": cluster_nodes.url}, "MIRROR": False}
    forget_clusters()  # what this process remembers of slots that an earlier test moved
    cluster_nodes.empty()  # the fixture `redis` leaves its keys behind
    yield cluster_nodes
    cluster_nodes.heal()


@pytest.fixture
def redis(redis_server: RedisServer) -> Iterator[Redis]:
    """A client (returning bytes) of the shared server, which is empty when the test begins."""
    client = redis_server.client()
    client.flushdb()
    yield client
    client.close()


@pytest.fixture
def fresh_server() -> Iterator[Callable[..., RedisServer]]:
    """Makes servers that a test may kill, restart and pause: append-only, otherwise like
    RedisServer.

    With ``appendfsync no``, Redis writes to its file before it replies, so a kill loses nothing.
    With ``everysec`` it writes up to two seconds later if the disk is busy. A server that can
    confirm what is on disk (WAITAOF, from Redis 7.2 on) never does so with ``no``.
    """
    fsync = "always" if version_of(program()) >= (7, 2) else "no"
    with ExitStack() as servers:

        def make(**options: Any) -> RedisServer:
            defaults = {"appendonly": True, "appendfsync": fsync}
            return servers.enter_context(RedisServer(**{**defaults, **options}))

        yield make


@pytest.fixture
def fresh_proxy() -> Iterator[Callable[..., Proxy]]:
    """Makes proxies: ``fresh_proxy(server.address, delay_ms=1)``."""
    with ExitStack() as proxies:

        def make(target: str, **options: Any) -> Proxy:
            return proxies.enter_context(Proxy(target, **options))

        yield make


@pytest.fixture
def queue_settings(redis: Redis, redis_server: RedisServer, settings: Any) -> dict[str, Any]:
    """``settings.REDISQUEUE`` for the shared, emptied server, with a prefix for this test only.

    Change it by ``settings.REDISQUEUE = {**queue_settings, "LEASE": 3}``.
    """
    settings.REDISQUEUE = {
        "CONNECTION": {"URL": redis_server.url},
        "PREFIX": f"test_{uuid.uuid4().hex[:8]}",
        "MIRROR": False,  # otherwise no finished job is pruned before a bridge has read its events
    }
    result: dict[str, Any] = settings.REDISQUEUE
    return result


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer | MariaDBServer]:
    """A PostgreSQL for all tests that need one. Without its programs those tests are skipped,
    except in CI. ``REDISQUEUE_TEST_DATABASE`` can name another: ``mariadb`` or ``mysql``."""
    is_mariadb = os.environ.get("REDISQUEUE_TEST_DATABASE") in ("mariadb", "mysql")
    _require((mariadb_module if is_mariadb else postgres_module).missing())
    with MariaDBServer() if is_mariadb else PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDBServer]:
    """The same for MariaDB, or MySQL with ``REDISQUEUE_TEST_DATABASE=mysql``."""
    _require(mariadb_module.missing())
    with MariaDBServer() as server:
        yield server


def _require(problem: str) -> None:
    if problem:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(problem)


@pytest.fixture
def on_postgres(postgres: PostgresServer, django_db_blocker: Any) -> Iterator[PostgresServer]:
    """The alias ``default`` of this process is a fresh, migrated database on PostgreSQL, with real
    transactions. The test needs no ``django_db`` mark."""
    yield from _on(postgres, django_db_blocker)


@pytest.fixture
def on_mariadb(mariadb: MariaDBServer, django_db_blocker: Any) -> Iterator[MariaDBServer]:
    """The same for MariaDB."""
    yield from _on(mariadb, django_db_blocker)


Server = TypeVar("Server", PostgresServer, MariaDBServer)


def _on(server: Server, django_db_blocker: Any) -> Iterator[Server]:
    entry = server.new_database()
    with django_db_blocker.unblock(), as_database("default", entry):
        yield server
    server.drop(entry)


@pytest.fixture
def redisqueue(queue_settings: dict[str, Any]) -> None:
    """The settings of ``manual_worker``; a folder or a module may have its own."""


@pytest.fixture
def manual_worker(redisqueue: None) -> Iterator[ManualWorker]:
    """A ``ManualWorker`` on the queue ``default``: a worker that the test operates itself."""
    made = ManualWorker()
    yield made
    made.close()


@pytest.fixture
def key_count(redis: Redis, queue_settings: dict[str, Any]) -> Callable[[], int]:
    """How many keys Redis holds: 0 means that nothing was written."""
    return lambda: int(redis.dbsize())


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[RedisServer, RedisServer]]:
    """A master and its replica."""
    options: dict[str, Any] = {"tcp": True, "repl_diskless_sync_delay": 0}
    with RedisServer(**options) as master, RedisServer(**options) as replica:
        replica.follow(master)
        yield master, replica
