from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.mirror.mirror_processes import sqlite_entry
from tests.support.postgres import as_database
from tests.worker.conftest import harness
from tests.worker.harness import WorkerHarness

__all__ = ["harness"]

MODULES = ["tests.worker.tasks", "tests.outbox.tasks", "tests.outbox.quick"]
ALIASES = ("default", "other")


class OutboxHarness:
    """A harness whose processes share databases with the test."""

    def __init__(self, harness: WorkerHarness, server: Any) -> None:
        self.harness = harness
        self.server = server  #: PostgreSQL, or None

    def run(self, code: str, *, redis: str = "", kill: int = 0, **settings: Any) -> None:
        """Run code in a separate process with Django set up; it ends by the signal ``kill``."""
        setup = "import os, signal\nfrom tests.outbox.tasks import *\n"
        script = self.harness.script(setup + code, redis=redis, **settings)
        code_of_exit = script.wait()
        assert code_of_exit == -kill, f"{code_of_exit}\n{script.output}"


@pytest.fixture(scope="session")
def empty_sqlite(migrated: Path) -> bytes:
    """The bytes of a migrated SQLite database."""
    return (migrated / "default.sqlite3").read_bytes()


@pytest.fixture(params=["sqlite", "postgresql"])
def outbox_harness(
    request: pytest.FixtureRequest,
    harness: WorkerHarness,
    empty_sqlite: bytes,
    tmp_path: Path,
    django_db_blocker: Any,
) -> Iterator[OutboxHarness]:
    """A harness with two migrated databases for its processes and the test, of each kind."""
    server = None if request.param == "sqlite" else request.getfixturevalue("postgres")
    entries = {}
    for alias in ALIASES:
        if server is None:
            (tmp_path / f"{alias}.sqlite3").write_bytes(empty_sqlite)
            entries[alias] = sqlite_entry(tmp_path / f"{alias}.sqlite3")
        else:
            entries[alias] = server.new_database()
    harness.configure(TASK_MODULES=MODULES, MIRROR=False)
    harness.environment["REDISQUEUE_TEST_DATABASES"] = json.dumps(entries)
    with django_db_blocker.unblock(), ExitStack() as stack:
        for alias, entry in entries.items():
            stack.enter_context(as_database(alias, entry))
        yield OutboxHarness(harness, server)
    if server is not None:
        harness.end_workers()  # otherwise one might write into a database after it was emptied
        for entry in entries.values():
            server.drop(entry)


@pytest.fixture
def deaths(outbox_harness: OutboxHarness, tmp_path: Path) -> Path:
    """A folder with a file for each process that a task of this harness has killed."""
    folder = tmp_path / "deaths"
    folder.mkdir()
    outbox_harness.harness.environment["REDISQUEUE_TEST_DEATHS"] = str(folder)
    return folder
