from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import RedisServer

from .processes import MonitorHarness


@pytest.fixture
def harness(
    fresh_server: Callable[..., RedisServer], tmp_path: Path, settings: Any
) -> Iterator[MonitorHarness]:
    """A Redis that may go down, a worker that the test operates, and monitors that end with the
    test."""
    with ExitStack() as stack:
        yield MonitorHarness(fresh_server(), settings, stack)
