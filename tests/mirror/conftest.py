from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.harness import BrokerHarness
from tests.support.postgres import as_database
from tests.support.servers import RedisServer
from tests.worker.conftest import harness
from tests.worker.harness import WorkerHarness

from .mirror_processes import MirrorProcesses, sqlite_entry
from .mirrored_shard import MirroredShard

__all__ = ["harness"]

# The bridge processes the outboxes of all aliases; ``other`` stays in memory, even next to
# PostgreSQL.
ALL_ALIASES = pytest.mark.django_db(transaction=True, databases=["default", "other"])
IN_MEMORY = pytest.param("sqlite", marks=ALL_ALIASES)


@pytest.fixture(params=[IN_MEMORY, pytest.param("postgresql", marks=ALL_ALIASES)])
def database(request: pytest.FixtureRequest) -> str:
    """Real transactions in the alias ``default``, on each kind of database."""
    if request.param != "sqlite":
        request.getfixturevalue("on_postgres")
    name: str = request.param
    return name


@pytest.fixture
def mirrored(queue_settings: dict[str, Any], settings: Any) -> None:
    """Settings with a mirror, and a shard for this test only."""
    settings.REDISQUEUE = {**queue_settings, "MIRROR": True}


@pytest.fixture
def shard(mirrored: None, redis_server: RedisServer, database: str) -> Iterator[MirroredShard]:
    """A shard that the test operates directly, and a bridge."""
    made = MirroredShard(BrokerHarness(redis_server))
    yield made
    made.close()


@pytest.fixture
def full_shard(shard: MirroredShard) -> MirroredShard:
    """A shard on Redis's own clock, and a bridge with everything that belongs to it."""
    shard.use_full_bridge(page=100)
    return shard


@pytest.fixture(params=["sqlite", "postgresql"])
def processes(
    request: pytest.FixtureRequest,
    harness: WorkerHarness,
    migrated: Path,
    tmp_path: Path,
    django_db_setup: None,
    django_db_blocker: Any,
) -> Iterator[MirrorProcesses]:
    """A harness whose processes mirror into their own database, which the test reads too. The
    other aliases have their tables: a job that Redis does not have may be in an outbox there."""
    server = None
    if request.param == "sqlite":
        shutil.copy(migrated / "default.sqlite3", tmp_path / "default.sqlite3")
        entry = sqlite_entry(tmp_path / "default.sqlite3")
    else:
        server = request.getfixturevalue("postgres")
        entry = server.new_database()
    with django_db_blocker.unblock(), as_database("default", entry):
        made = MirrorProcesses(harness, entry, server)
        yield made
        made.close()
    if server is not None:
        harness.end_workers()  # otherwise one might write into the database after it was emptied
        server.drop(entry)
