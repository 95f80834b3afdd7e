from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.postgres import as_database
from tests.servers import RedisServer
from tests.store.lab import Lab
from tests.worker.conftest import migrated, stage
from tests.worker.stage import Stage

from .scene import Scene
from .theatre import Theatre, sqlite_entry

__all__ = ["migrated", "stage"]

# The bridge settles the outboxes of all aliases.
IN_MEMORY = pytest.param(
    "sqlite", marks=pytest.mark.django_db(transaction=True, databases=["default", "other"])
)


@pytest.fixture(params=[IN_MEMORY, "postgresql"])
def database(request: pytest.FixtureRequest) -> str:
    """Real transactions in the alias ``default``, on each database."""
    if request.param != "sqlite":
        request.getfixturevalue("on_postgres")
    name: str = request.param
    return name


@pytest.fixture
def mirrored(queue_settings: dict[str, Any], settings: Any) -> None:
    """A shard of the test's own whose events are mirrored."""
    settings.REDISQUEUE = {**queue_settings, "MIRROR": True}


@pytest.fixture
def scene(mirrored: None, redis_server: RedisServer, database: str) -> Iterator[Scene]:
    """A shard by hand and a bridge."""
    made = Scene(Lab(redis_server))
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def theatre(
    request: pytest.FixtureRequest,
    stage: Stage,
    migrated: Path,
    tmp_path: Path,
    django_db_blocker: Any,
) -> Iterator[Theatre]:
    """A stage whose processes mirror into a database of their own, which the test reads too."""
    server = None
    if request.param == "sqlite":
        shutil.copy(migrated / "default.sqlite3", tmp_path / "default.sqlite3")
        entry = sqlite_entry(tmp_path / "default.sqlite3")
    else:
        server = request.getfixturevalue("postgres")
        entry = server.new_database()
    with django_db_blocker.unblock(), as_database("default", entry):
        made = Theatre(stage, entry, server)
        yield made
        made.close()
