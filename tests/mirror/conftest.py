from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers import RedisServer
from tests.store.lab import Lab

from .scene import Scene

IN_MEMORY = pytest.param("sqlite", marks=pytest.mark.django_db(transaction=True))


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
