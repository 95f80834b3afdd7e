"""On SQLite, the bridge leaves the file to other writers most of the time, if there are any."""

from __future__ import annotations

import sqlite3
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


class StoppedClock:
    """Stands in for ``time``: only the test advances it, and sleeps are recorded and skipped."""

    def __init__(self) -> None:
        self.now = 100.0
        self.naps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    stopped = StoppedClock()
    monkeypatch.setattr("django_redisqueue.mirror.writer.time", stopped)
    return stopped


def write(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("INSERT INTO mine VALUES (1)")


def test_alone_it_does_not_wait(file: Path, clock: StoppedClock) -> None:
    throttle = SqliteThrottle("default")
    for _ in range(3):
        throttle.wait()
        connection.cursor().execute("INSERT INTO mine VALUES (1)")
        throttle.record(1.0)
    assert clock.naps == []


def test_it_waits_four_times_as_long_as_it_held_the_lock(file: Path, clock: StoppedClock) -> None:
    throttle = SqliteThrottle("default")
    throttle.wait()
    throttle.record(0.5)
    write(file)
    throttle.wait()
    throttle.record(0.1)
    throttle.wait()  # others may return
    assert clock.naps == pytest.approx([2.0, 0.4])


def test_time_spent_elsewhere_counts(file: Path, clock: StoppedClock) -> None:
    throttle = SqliteThrottle("default")
    throttle.wait()
    write(file)
    throttle.record(0.5)
    clock.now += 1.5
    throttle.wait()
    clock.now += 1.5
    throttle.wait()
    assert clock.naps == pytest.approx([0.5, 0.0])


def test_others_are_forgotten(file: Path, clock: StoppedClock) -> None:
    throttle = SqliteThrottle("default")
    throttle.wait()
    write(file)
    throttle.wait()
    clock.now += 6
    throttle.record(1.0)
    clock.naps.clear()
    throttle.wait()
    assert clock.naps == []


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_server_needs_no_throttle(shard: MirroredShard, clock: StoppedClock) -> None:
    throttle = SqliteThrottle("default")
    throttle.record(1.0)
    throttle.wait()
    assert clock.naps == []
