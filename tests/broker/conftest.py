from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ..support.servers import RedisServer
from .harness import BrokerHarness


@pytest.fixture
def broker(queue_settings: dict[str, Any], redis_server: RedisServer) -> Iterator[BrokerHarness]:
    """A shard that tests operate directly, on the shared server, which is emptied."""
    made = BrokerHarness(redis_server)
    yield made
    made.close()


@pytest.fixture
def mirrored(broker: BrokerHarness) -> BrokerHarness:
    """A shard on Redis's own clock, which also gives the stream its ids, with a mirror and without
    a resend window."""
    broker.store.now_ms = None
    broker.store.settings = replace(broker.store.settings, mirror=True, resend_window_ms=0)
    return broker
