from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.mirror.mirror_processes import sqlite_entry
from tests.support.postgres import as_database
from tests.support.servers import RedisServer
from tests.worker.processes import WorkerProcess

from .site import Site


class UpgradeHarness:
    """A server and a database, which this process also reads, and sites on them."""

    def __init__(
        self, server: RedisServer, entry: dict[str, Any], folder: Path, stack: ExitStack
    ) -> None:
        self.redis = server.client(decode_responses=True)
        self.folder = folder
        self._make = lambda **options: Site(server.url, entry, folder, **options)
        self._stack = stack

    def site(self, **options: Any) -> Site:
        return self._make(**options)

    def worker(self, site: Site, *arguments: str) -> WorkerProcess:
        worker = site.start("runworker", *arguments)
        self._stack.callback(worker.end)
        return worker


@pytest.fixture(params=["sqlite", "postgresql"])
def harness(
    request: pytest.FixtureRequest,
    fresh_server: Callable[..., RedisServer],
    migrated: Path,
    tmp_path: Path,
    settings: Any,
    django_db_setup: None,  # a job that is not in Redis is looked for in every database
    django_db_blocker: Any,
) -> Iterator[UpgradeHarness]:
    server = fresh_server()
    with ExitStack() as stack:
        if request.param == "sqlite":
            shutil.copy(migrated / "default.sqlite3", tmp_path / "default.sqlite3")
            entry = sqlite_entry(tmp_path / "default.sqlite3")
        else:
            postgres = request.getfixturevalue("postgres")
            entry = postgres.new_database()
            stack.callback(postgres.drop, entry)
        stack.enter_context(django_db_blocker.unblock())
        stack.enter_context(as_database("default", entry))
        made = UpgradeHarness(server, entry, tmp_path, stack)
        settings.REDISQUEUE = made.site().settings
        yield made
