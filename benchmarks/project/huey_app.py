"""The same tasks for Huey: Redis without acknowledgement, otherwise its defaults."""

from __future__ import annotations

import os
import time

from huey import RedisHuey

huey = RedisHuey("benchmark", url=os.environ["BENCHMARK_URL"])
QUEUE_KEY: str = huey.storage.queue_key


@huey.task()  # type: ignore[untyped-decorator]
def noop(value: object = None) -> None:
    """Does nothing, with one small argument."""


@huey.task()  # type: ignore[untyped-decorator]
def stamp(value: object = None) -> float:
    """Records when it started."""
    return time.time()
