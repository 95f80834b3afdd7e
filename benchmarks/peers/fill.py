"""Enqueue a peer's jobs one at a time, as the driver requests on standard input.

The first line of the output says which workers there are; then one line answers each request.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import time
from importlib import import_module
from importlib.metadata import version
from typing import Any

KINDS = ("noop", "ten_ms", "async", "pickup", "long")
CHUNK = 50  # jobs between two looks at the clock
adapter = import_module(f"{sys.argv[1]}_peer")


async def main() -> None:
    await enqueue("noop", -1)  # opens the connection
    package = adapter.PACKAGES[0].partition("[")[0]
    say(version=version(package), workers={kind: adapter.worker(kind) for kind in KINDS})
    for line in sys.stdin:
        say(**await fill(**json.loads(line)))


async def enqueue(kind: str, number: int) -> None:
    waiting = adapter.enqueue(kind, number)
    if inspect.isawaitable(waiting):
        await waiting


async def fill(kind: str, first: int, jobs: int, seconds: float, pause: float) -> dict[str, Any]:
    """Enqueue this many jobs, or fewer if the time is up, which is checked once per chunk."""
    is_async = inspect.iscoroutinefunction(adapter.enqueue)
    call, called = adapter.enqueue, []
    begun = time.perf_counter()
    for number in range(first, first + jobs):
        if pause:
            await asyncio.sleep(pause)
            called.append(time.time())
        if is_async:
            await call(kind, number)
        else:
            call(kind, number)
        if number % CHUNK == 0 and time.perf_counter() - begun > seconds:
            break
    done = number + 1 - first
    return {"jobs": done, "rate": done / (time.perf_counter() - begun), "called": called}


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


asyncio.run(main())
