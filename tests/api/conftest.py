from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from .hand import Hand


@pytest.fixture
def hand(queue_settings: dict[str, Any]) -> Iterator[Hand]:
    """A worker by hand on the queue ``default``."""
    made = Hand()
    yield made
    made.close()


@pytest.fixture
def key_count(redis: Redis, queue_settings: dict[str, Any]) -> Callable[[], int]:
    """How many keys Redis holds: 0 means that nothing was written."""
    return lambda: int(redis.dbsize())
