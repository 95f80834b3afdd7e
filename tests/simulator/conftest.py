from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ..support.servers import RedisServer
from .history import SHARDS
from .keyspace import SimulatedLab


@pytest.fixture
def labs(queue_settings: dict[str, Any], redis_server: RedisServer) -> Iterator[list[SimulatedLab]]:
    """The shards of simulated worlds, on the shared server, which is emptied."""
    made = [SimulatedLab(redis_server, shard) for shard in range(SHARDS)]
    yield made
    for lab in made:
        lab.close()
