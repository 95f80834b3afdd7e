"""What the jobs of all peers do, and where they note the time."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from functools import cache
from pathlib import Path

KIND = os.environ.get("PEER_KIND", "")
URL = os.environ["PEER_URL"]
CONCURRENCY = {"ten_ms": 8, "async": 100}.get(KIND)  # None: the default
EVERY = {"noop": 50, "async": 10}
FOR_EVER = 600.0


def work(kind: str, number: int) -> None:
    if kind == "ten_ms":
        time.sleep(0.01)
    note(kind, number)
    if kind == "long" and is_first():
        time.sleep(FOR_EVER)


async def work_async(kind: str, number: int) -> None:
    if kind in ("ten_ms", "async"):
        await asyncio.sleep(0.01)
    note(kind, number)
    if kind == "long" and is_first():
        await asyncio.sleep(FOR_EVER)


def note(kind: str, number: int) -> None:
    if number % EVERY.get(kind, 1) == 0:
        line = f"{number} {time.time()} {os.getpid()} {os.getsid(0)}\n"
        os.write(notes(), line.encode())


@cache
def notes() -> int:
    return os.open(os.environ["PEER_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def is_first() -> bool:
    """Whether this run of the long job is the first."""
    try:
        os.close(os.open(os.environ["PEER_NOTES"] + ".long", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def program(name: str) -> str:
    """A program of the peer's environment."""
    return str(Path(sys.executable).with_name(name))
