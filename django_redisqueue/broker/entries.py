"""Entries of the event stream, as Redis sends them.

An entry has the events of one script call: up to 100, mostly fewer (include/emit.lua).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple

from ..core.parsing import int_or_none
from .connection import RedisConnection

JOB, WORKFLOW = "job", "workflow"
COUNTER = ":n"  # the first field: how many events were ever written before this entry
ALIKE = ":alike"  # JSON that the next jobs' events share: all but the job's id
STATUS_AT = len('{"status":"')  # where this JSON has the status
OF_WORKFLOW, NAME = ":workflow", ":name"
BESIDE = {"queued": "args", "scheduled": "args", "waiting": "args", "completed": "result"}
CHUNK = 100  # entries a command, which bounds a reply of unknown size
DEFAULT_DENSITY = 25.0  # events an entry, until some were read
BYTES = 8_000_000  # about the characters of one read; 100 of our entries have no more

Raw = Sequence[Any]  # the entry's id, and its fields and values one after the other


#: One event: JOB or WORKFLOW; its JSON; and the name and text of one more value, if it has one
#: (args, result or error of a job, name of a workflow). A plain tuple, because there are many.
RawEvent = tuple[str, str, str | None, str | None]


class EntryBatch(NamedTuple):
    """Consecutive entries, each with its id and its events. ``is_end``: nothing follows."""

    entries: list[tuple[str, list[RawEvent]]]
    is_end: bool


class Entries:
    """Reads about as many events as wanted, estimating by the entries that were read last."""

    def __init__(self, connection: RedisConnection, key: str) -> None:
        self._connection = connection
        self._key = key
        self._density = DEFAULT_DENSITY
        self._weight = 1.0  # characters an entry

    def read(self, start: str, events: int) -> EntryBatch:
        """Entries from ``start`` (as XRANGE takes it) until they have that many events, or BYTES.
        The first entry does not count if ``start`` is its id."""
        found: list[tuple[str, list[RawEvent]]] = []
        skipped, have, size = int(start != "-"), 0, 0
        while True:
            count = self._count(events - have) + skipped
            some = self._parts(
                self._connection.call("XRANGE", self._key, start, "+", "COUNT", str(count))
            )
            for at, (_, parts) in enumerate(some[skipped:], skipped + 1):
                have += max(1, len(parts))
                size += _size(parts)
                if have >= events or size >= BYTES:  # drop the rest, which is read again
                    return EntryBatch([*found, *some[:at]], at == len(some) < count)
            found += some
            if len(some) < count:
                return EntryBatch(found, True)
            start, skipped = f"({found[-1][0]}", 0

    def _count(self, events: int) -> int:
        """About how many entries have that many events, and no more than BYTES."""
        return min(CHUNK, max(1, min(ceil(events / self._density), int(BYTES / self._weight))))

    def _parts(self, reply: Sequence[Raw]) -> list[tuple[str, list[RawEvent]]]:
        found = [(name, parse_entry(fields)) for name, fields in reply]
        if found:
            self._density = max(1.0, sum(len(parts) for _, parts in found) / len(found))
            self._weight = max(1.0, sum(_size(parts) for _, parts in found) / len(found))
        return found


def wait_for_entries(
    streams: Sequence[Entries], after: Sequence[str], events: int, seconds: float
) -> list[EntryBatch]:
    """Wait up to ``seconds`` for entries of these streams, which are on one server.

    ``after`` has the id of an entry for each stream. Returns a batch for each stream, with about
    ``events`` events in all. Takes one command.
    """
    count = min(one._count(ceil(events / len(streams))) for one in streams)
    reply = streams[0]._connection.call(
        "XREAD", "COUNT", str(count), "BLOCK", str(round(seconds * 1000)),
        "STREAMS", *(one._key for one in streams), *after,
    )  # fmt: skip
    raw = dict(reply or ())
    found = [one._parts(raw.get(one._key, ())) for one in streams]
    return [EntryBatch(some, len(some) < count) for some in found]


def _size(parts: Sequence[RawEvent]) -> int:
    return sum(len(json) + len(value or "") for _, json, _, value in parts)


def parse_entry(fields: Sequence[str]) -> list[RawEvent]:
    """The events of an entry; none if another program wrote it."""
    found: list[RawEvent] = []
    alike: str | None = None
    what = ""
    pairs = iter(fields)  # of a field and its value
    for field, text in zip(pairs, pairs, strict=True):
        if field[:1] != ":" and alike is not None:
            name, beside = (what, text) if text else (None, None)
            for job_id in field.split(" "):
                found.append((JOB, f'{{"jobId":"{job_id}",{alike}', name, beside))
        elif field == ALIKE:
            status = text[STATUS_AT : text.find('"', STATUS_AT)]
            alike, what = text[1:], BESIDE.get(status, "error")
        elif field == OF_WORKFLOW:
            found.append((WORKFLOW, text, None, None))
        elif field == NAME and found:
            found[-1] = (*found[-1][:2], "name", text)
    return found


def count_events(entries: Sequence[Raw], total: str | None) -> int | None:
    """The number of events from the first of these entries to the end of the stream.

    ``total``: how many events were ever written. None if unknown, because another program wrote the
    entry or the counter was lost.
    """
    if not entries:
        return 0
    field, before = entries[0][1][:2]
    began, ended = int_or_none(before), int_or_none(total)
    if field != COUNTER or began is None or ended is None:
        return None
    return ended - began if ended > began else None
