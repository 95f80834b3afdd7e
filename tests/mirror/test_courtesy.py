"""On SQLite the bridge leaves the file to others for most of the time, once there are others."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_redisqueue.mirror.courtesy import Courtesy
from tests.postgres import as_database

from .scene import Scene
from .theatre import sqlite_entry


@pytest.fixture
def file(tmp_path: Path, django_db_blocker: Any) -> Iterator[Path]:
    path = tmp_path / "courtesy.sqlite3"
    with django_db_blocker.unblock(), as_database("default", sqlite_entry(path)):
        connection.cursor().execute("CREATE TABLE mine (n integer)")
        yield path


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it has slept; it does not really."""
    found: list[float] = []
    monkeypatch.setattr("django_redisqueue.mirror.courtesy.time.sleep", found.append)
    return found


def write(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("INSERT INTO mine VALUES (1)")


def test_alone_it_does_not_wait(file: Path, naps: list[float]) -> None:
    courtesy = Courtesy("default")
    for _ in range(3):
        courtesy.wait()
        connection.cursor().execute("INSERT INTO mine VALUES (1)")
        courtesy.held(1.0)
    assert naps == []


def test_it_waits_four_times_as_long_as_it_held_the_lock(file: Path, naps: list[float]) -> None:
    courtesy = Courtesy("default")
    courtesy.wait()
    courtesy.held(0.5)
    write(file)
    courtesy.wait()
    assert naps == [pytest.approx(2.0, abs=0.05)]
    courtesy.held(0.1)
    courtesy.wait()  # others may come again
    assert naps[1:] == [pytest.approx(0.4, abs=0.05)]


def test_time_that_has_passed_counts(file: Path, naps: list[float]) -> None:
    courtesy = Courtesy("default")
    courtesy.wait()
    write(file)
    courtesy.held(0.01)
    begun = time.monotonic()
    while time.monotonic() - begun < 0.04:
        pass
    courtesy.wait()
    assert naps == [0.0]


def test_others_are_forgotten(
    file: Path, naps: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    courtesy = Courtesy("default")
    courtesy.wait()
    write(file)
    courtesy.wait()
    later = time.monotonic() + 6
    monkeypatch.setattr("django_redisqueue.mirror.courtesy.time.monotonic", lambda: later)
    courtesy.held(1.0)
    naps.clear()
    courtesy.wait()
    assert naps == []


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_server_needs_no_courtesy(scene: Scene, naps: list[float]) -> None:
    courtesy = Courtesy("default")
    courtesy.held(1.0)
    courtesy.wait()
    assert naps == []
