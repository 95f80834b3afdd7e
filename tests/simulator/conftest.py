from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ..support.servers import RedisServer
from .world import SimulatedLab


@pytest.fixture
def lab(queue_settings: dict[str, Any], redis_server: RedisServer) -> Iterator[SimulatedLab]:
    """The shard of simulated worlds, on the shared, emptied server."""
    made = SimulatedLab(redis_server)
    yield made
    made.close()
