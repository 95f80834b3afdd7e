from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ..support.servers import RedisServer
from .history import SHARDS
from .keyspace import SimulatedBroker


@pytest.fixture
def brokers(
    queue_settings: dict[str, Any], redis_server: RedisServer
) -> Iterator[list[SimulatedBroker]]:
    """The shards of simulated worlds, on the shared server, which is emptied."""
    made = [SimulatedBroker(redis_server, shard) for shard in range(SHARDS)]
    yield made
    for broker in made:
        broker.close()
