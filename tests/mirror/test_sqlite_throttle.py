"""On SQLite the bridge leaves the file to other writers for most of the time, if there are any."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_redisqueue.mirror.writer import SqliteThrottle
from tests.support.postgres import as_database

from .mirror_processes import sqlite_entry
from .mirrored_shard import MirroredShard


@pytest.fixture
def file(tmp_path: Path, django_db_blocker: Any) -> Iterator[Path]:
    path = tmp_path / "throttle.sqlite3"
    with django_db_blocker.unblock(), as_database("default", sqlite_entry(path)):
        connection.cursor().execute("CREATE TABLE mine (n integer)")
        yield path


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The lengths of its sleeps, which are skipped."""
    found: list[float] = []
    monkeypatch.setattr("django_redisqueue.mirror.writer.time.sleep", found.append)
    return found


def write(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("INSERT INTO mine VALUES (1)")


def test_alone_it_does_not_wait(file: Path, naps: list[float]) -> None:
    throttle = SqliteThrottle("default")
    for _ in range(3):
        throttle.wait()
        connection.cursor().execute("INSERT INTO mine VALUES (1)")
        throttle.record(1.0)
    assert naps == []


def test_it_waits_four_times_as_long_as_it_held_the_lock(file: Path, naps: list[float]) -> None:
    throttle = SqliteThrottle("default")
    throttle.wait()
    throttle.record(0.5)
    write(file)
    throttle.wait()
    assert naps == [pytest.approx(2.0, abs=0.05)]
    throttle.record(0.1)
    throttle.wait()  # others may come again
    assert naps[1:] == [pytest.approx(0.4, abs=0.05)]


def test_time_that_has_passed_counts(file: Path, naps: list[float]) -> None:
    throttle = SqliteThrottle("default")
    throttle.wait()
    write(file)
    throttle.record(0.01)
    begun = time.monotonic()
    while time.monotonic() - begun < 0.04:
        pass
    throttle.wait()
    assert naps == [0.0]


def test_others_are_forgotten(
    file: Path, naps: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    throttle = SqliteThrottle("default")
    throttle.wait()
    write(file)
    throttle.wait()
    later = time.monotonic() + 6
    monkeypatch.setattr("django_redisqueue.mirror.writer.time.monotonic", lambda: later)
    throttle.record(1.0)
    naps.clear()
    throttle.wait()
    assert naps == []


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_server_needs_no_throttle(shard: MirroredShard, naps: list[float]) -> None:
    throttle = SqliteThrottle("default")
    throttle.record(1.0)
    throttle.wait()
    assert naps == []
