"""The event stream as stored in Redis, parsed without the code under test."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from redis import Redis

RAW = "return redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2])"  # redis-py would merge equal fields
WHAT = {"queued": "args", "scheduled": "args", "waiting": "args", "completed": "result"}


class Written(NamedTuple):
    """One event: its position, its entry, the id it belongs to, its JSON, and what it carries
    inline."""

    place: tuple[int, int]
    entry: str
    field: str
    text: str
    inline: dict[str, str]

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text)
        return found


def entries(
    redis: Redis, key: str, start: str = "-", end: str = "+"
) -> list[tuple[str, list[str]]]:
    """Ids and their contents, one after another."""
    found: Any = redis.eval(RAW, 1, key, start, end)
    return [(_text(name), [_text(part) for part in parts]) for name, parts in found]


def fields_of(event: str | bytes) -> list[str | bytes]:
    """The fields and values of this event of a job (its JSON, with ``jobId`` first)."""
    if isinstance(event, bytes):
        return [part.encode("latin-1") for part in map(str, fields_of(event.decode("latin-1")))]
    id_, rest = event.removeprefix('{"jobId":"').split('",', 1)
    return [":alike", "{" + rest, id_, ""]


def written(redis: Redis, key: str) -> list[Written]:
    """Every event, oldest first."""
    return events_of(entries(redis, key))


def events_of(found: Iterable[tuple[str, list[str]]]) -> list[Written]:
    """The events in these entries."""
    return [event for name, parts in found for event in _apart(name, tuple(parts))]


def last(redis: Redis, key: str) -> Written | None:
    """The newest event; faster than reading all events of a long stream."""
    newest: Any = redis.xrevrange(key, count=1)
    if not newest:
        return None
    name = _text(newest[0][0])
    ((_, parts),) = entries(redis, key, name, name)
    return _apart(name, tuple(parts))[-1]


@lru_cache(maxsize=1000)  # tests with random verbs read the same stream after every step
def _apart(name: str, parts: tuple[str, ...]) -> list[Written]:
    ms, number = name.split("-")
    found: list[Written] = []
    alike: dict[str, Any] = {}
    for field, value in zip(parts[::2], parts[1::2], strict=True):
        place = (int(ms), int(number) * 1000 + len(found))
        if field == ":alike":
            alike = json.loads(value)
        elif field == ":workflow":
            found.append(Written(place, name, "workflow", value, {}))
        elif field == ":name":
            found[-1].inline["name"] = value
        elif alike and not field.startswith(":"):
            inline = {WHAT.get(alike["status"], "error"): value} if value else {}
            for at, job_id in enumerate(field.split(" ")):
                text = json.dumps({"jobId": job_id, **alike}, separators=(",", ":"))
                found.append(Written((place[0], place[1] + at), name, "job", text, dict(inline)))
    return found


def _text(part: str | bytes) -> str:
    return part if isinstance(part, str) else part.decode()
