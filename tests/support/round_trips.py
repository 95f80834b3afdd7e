"""Counts round trips to Redis, and commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis
from redis.connection import AbstractConnection

from django_redisqueue.broker.wire import Wire


def calls_of(redis: Redis, command: str) -> int:
    """How often a command was called since the statistics were last reset."""
    stats = redis.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


@contextmanager
def round_trips(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Counts how often this process turns from writing to Redis to reading from it."""
    made: list[int] = []
    reading = [True]
    send, read = AbstractConnection.send_packed_command, AbstractConnection.read_response
    ask = Wire.ask

    def sending(self: AbstractConnection, *args: Any, **options: Any) -> Any:
        if reading[0]:
            made.append(1)
        reading[0] = False
        return send(self, *args, **options)

    def reads(self: AbstractConnection, *args: Any, **options: Any) -> Any:
        reading[0] = True
        return read(self, *args, **options)

    def asks(self: Wire, command: bytes) -> Any:
        if reading[0]:
            made.append(1)
        reading[0] = True
        return ask(self, command)

    with monkeypatch.context() as patch:
        patch.setattr(AbstractConnection, "send_packed_command", sending)
        patch.setattr(AbstractConnection, "read_response", reads)
        patch.setattr(Wire, "ask", asks)
        yield made
