"""The stream of events as it lies in Redis, taken apart without the code that is tested."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from redis import Redis

RAW = "return redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2])"  # redis-py would join like fields


class Written(NamedTuple):
    """One event: its place, its entry, the field it begins with, its JSON, what stands beside."""

    place: tuple[int, int]
    entry: str
    field: str
    text: str
    beside: dict[str, str]

    @property
    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text)
        return found


def entries(
    redis: Redis, key: str, start: str = "-", end: str = "+"
) -> list[tuple[str, list[str]]]:
    """Ids and all that they hold, one after the other."""
    found: Any = redis.eval(RAW, 1, key, start, end)
    return [(_text(name), [_text(part) for part in parts]) for name, parts in found]


def written(redis: Redis, key: str) -> list[Written]:
    """Every event, oldest first."""
    return [event for name, parts in entries(redis, key) for event in _apart(name, parts)]


def last(redis: Redis, key: str) -> Written | None:
    """The newest event; of a stream with many it is quicker so."""
    newest: Any = redis.xrevrange(key, count=1)
    if not newest:
        return None
    name = _text(newest[0][0])
    ((_, parts),) = entries(redis, key, name, name)
    return _apart(name, parts)[-1]


def _apart(name: str, parts: list[str]) -> list[Written]:
    ms, number = name.split("-")
    found: list[Written] = []
    for field, value in zip(parts[::2], parts[1::2], strict=True):
        if field in ("event", "workflow"):
            place = (int(ms), int(number) * 1000 + len(found))
            found.append(Written(place, name, field, value, {}))
        elif found:
            found[-1].beside[field] = value
    return found


def _text(part: str | bytes) -> str:
    return part if isinstance(part, str) else part.decode()
