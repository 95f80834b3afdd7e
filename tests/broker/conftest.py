from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ..support.servers import RedisServer
from .lab import Lab


@pytest.fixture
def lab(queue_settings: dict[str, Any], redis_server: RedisServer) -> Iterator[Lab]:
    """A shard that tests operate directly, on the shared server, which is emptied."""
    made = Lab(redis_server)
    yield made
    made.close()


@pytest.fixture
def mirrored(lab: Lab) -> Lab:
    """A lab on Redis's own clock, which also gives the stream its ids, with a mirror and without a
    resend window."""
    lab.store.now_ms = None
    lab.store.settings = replace(lab.store.settings, mirror=True, resend_window_ms=0)
    return lab
