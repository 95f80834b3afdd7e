"""Tasks for the tests of gathers."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from django_redisqueue import listener, task


@listener("report")
def users(record_id: int) -> list[int]:
    return [record_id, 1]


@listener("report", queue_name="default", priority=5)
async def funds(record_id: int) -> dict[str, int]:
    return {"id": record_id, "funds": 2}


@listener("report")
def accounts(record_id: int) -> str:
    return f"accounts of {record_id}"


@task
def anything(**payload: Any) -> int:
    return len(payload)


@task(takes_context=True)
def merge(context: Any, record_id: int) -> dict[str, Any]:
    """What the listeners returned."""
    return {"id": record_id, **context.gather.results}


@task(takes_context=True)
def mark_failed(context: Any, record_id: int) -> dict[str, Any]:
    """Which listeners are missing, and why."""
    gather = context.gather
    return {"missing": list(gather.missing), "why": gather.reason, "there": gather.results}


@listener("shaky")
def steady(book: str) -> str:
    return "steady"


@listener("shaky")
def broken(book: str) -> str:
    """Fails until the file ``mended`` exists."""
    if not (Path(book) / "mended").exists():
        raise ValueError("broken")
    return "mended"


@task(takes_context=True)
def note(context: Any, book: str, name: str = "") -> list[str]:
    """Record its run in a ledger: one file per run."""
    gather = context.gather
    for n in range(1, 100):
        try:
            file = (Path(book) / f"{name or gather.key}.{n}").open("x")
        except FileExistsError:
            continue
        with file:
            file.write(f"{os.getpid()} {time.time_ns()} {sorted(gather.results)}")
        break
    return sorted(gather.results)


@listener("work")
def first(book: str, n: int) -> int:
    return n


@listener("work")
async def second(book: str, n: int) -> int:
    return n + 1


@listener("work")
def third(book: str, n: int) -> int:
    return n + 2


@listener("large")
def large(size: int) -> str:
    return "x" * size


@listener("large", listens_as="large_async")
async def large_too(size: int) -> list[str]:
    return ["y" * size]


@task(takes_context=True)
def sizes(context: Any, size: int) -> dict[str, int]:
    """How large the results are."""
    return {name: len(str(value)) for name, value in context.gather.results.items()}


@task
def size_of(text: str) -> int:
    """The size of its argument, which is the result of its parent in a chain."""
    return len(text)


@task(takes_context=True)
def sizes_of_parents(context: Any) -> list[int]:
    return [len(result) for result in context.parent_results.values()]


@listener("silent")
def silent(record_id: int) -> None:
    """No worker serves its queue where this is used."""
