from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ..support.servers import RedisServer
from .lab import Lab


@pytest.fixture
def lab(queue_settings: dict[str, Any], redis_server: RedisServer) -> Iterator[Lab]:
    """A shard by hand, on the shared, emptied server."""
    made = Lab(redis_server)
    yield made
    made.close()


@pytest.fixture
def mirrored(lab: Lab) -> Lab:
    """A lab on Redis's own clock, as the ids of the stream are, whose promises but one are off."""
    lab.store.now_ms = None
    lab.store.settings = replace(lab.store.settings, mirror=True, resend_window_ms=0)
    return lab
