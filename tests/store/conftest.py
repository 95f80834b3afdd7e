from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ..servers import RedisServer
from .lab import Lab


@pytest.fixture
def lab(queue_settings: dict[str, Any], redis_server: RedisServer) -> Iterator[Lab]:
    """A shard by hand, on the shared, emptied server."""
    made = Lab(redis_server)
    yield made
    made.close()
