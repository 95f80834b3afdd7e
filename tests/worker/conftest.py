from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import has_cluster

from .harness import WorkerHarness


@pytest.fixture
def harness(
    request: pytest.FixtureRequest, tmp_path: Path, settings: Any
) -> Iterator[WorkerHarness]:
    """A harness on an append-only server of the test's own, or on the cluster if the suite runs on
    one. Its workers end with the test."""
    if has_cluster(request):
        server = request.getfixturevalue("cluster")
    else:
        server = request.getfixturevalue("fresh_server")()
    with ExitStack() as stack:
        yield WorkerHarness(server, tmp_path, settings, stack)


@pytest.fixture
def database(harness: WorkerHarness, migrated: Path, tmp_path: Path) -> Path:
    """The SQLite file that the harness's workers share."""
    for path in migrated.iterdir():
        shutil.copy(path, tmp_path / path.name)
    harness.environment["REDISQUEUE_TEST_FOLDER"] = str(tmp_path)
    return tmp_path / "default.sqlite3"
