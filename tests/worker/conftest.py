from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import has_cluster

from .stage import Stage


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path, settings: Any) -> Iterator[Stage]:
    """A stage on an append-only server of the test's own, or on the cluster if the suite runs on
    one. Its workers end with the test."""
    if has_cluster(request):
        server = request.getfixturevalue("cluster")
    else:
        server = request.getfixturevalue("fresh_server")()
    with ExitStack() as stack:
        yield Stage(server, tmp_path, settings, stack)


@pytest.fixture
def database(stage: Stage, migrated: Path, tmp_path: Path) -> Path:
    """The SQLite file that the stage's workers share."""
    for path in migrated.iterdir():
        shutil.copy(path, tmp_path / path.name)
    stage.environment["REDISQUEUE_TEST_FOLDER"] = str(tmp_path)
    return tmp_path / "default.sqlite3"
