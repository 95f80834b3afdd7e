"""Entries of the event stream, as Redis sends them, and as text for live readers.

An entry has the events of one script call: up to 100, usually fewer (include/emit.lua). The
position of an event is its entry's id with the second number multiplied by ENTRY, plus the number
of events before it in the entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any, NamedTuple

from ..conf import Settings
from ..core.codec import dumps, loads
from ..core.parsing import int_or_none
from .base import QueryBase, Read, Strict, query
from .connection import RedisConnection

JOB, WORKFLOW = "job", "workflow"
COUNTER = ":n"  # the first field: how many events were ever written before this entry
ALIKE = ":alike"  # JSON that the events of the next jobs share: all but the job's id
STATUS_AT = len('{"status":"')  # where this JSON has the status
OF_WORKFLOW, NAME = ":workflow", ":name"
BESIDE = {"queued": "args", "scheduled": "args", "waiting": "args", "completed": "result"}
CHUNK = 100  # entries per command, which bounds a reply of unknown size
DEFAULT_DENSITY = 25.0  # events per entry, until some have been read
BYTES = 8_000_000  # roughly the most characters of one read; 100 of our entries have no more
ENTRY = 1000  # positions in an entry
Position = tuple[int, int]
Positions = tuple[Position, ...]  # one in each shard
START: Position = (0, 0)
Raw = Sequence[Any]  # the entry's id, and its fields and values one after the other
EventLine = tuple[Position, str]  # an event as JSON
Ends = tuple[Position, Position]  # of a stream: its first and its last event
#: One event: JOB or WORKFLOW; its JSON; and the name and text of one more value, if it has one
#: (args, result or error of a job, name of a workflow). A plain tuple, because there are many.
RawEvent = tuple[str, str, str | None, str | None]


class EntryBatch(NamedTuple):
    """Consecutive entries, each with its id and its events. ``is_end``: nothing follows."""

    entries: list[tuple[str, list[RawEvent]]]
    is_end: bool


class Entries:
    """Reads about as many events as requested, estimated from the entries read last."""

    def __init__(self, connection: RedisConnection, key: str) -> None:
        self._connection = connection
        self._key = key
        self._density = DEFAULT_DENSITY
        self._weight = 1.0  # characters per entry

    def read(self, start: str, events: int) -> EntryBatch:
        """Entries from ``start`` (as XRANGE takes it) until they have ``events`` events or BYTES
        characters. The first entry does not count if ``start`` is its id."""
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
                if have >= events or size >= BYTES:  # drop the rest, which will be read again
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
            name, attached = (what, text) if text else (None, None)
            for job_id in field.split(" "):
                found.append((JOB, f'{{"jobId":"{job_id}",{alike}', name, attached))
        elif field == ALIKE:
            status = text[STATUS_AT : text.find('"', STATUS_AT)]
            alike, what = text[1:], BESIDE.get(status, "error")
        elif field == OF_WORKFLOW:
            found.append((WORKFLOW, text, None, None))
        elif field == NAME and found:
            found[-1] = (*found[-1][:2], "name", text)
    return found


def events_before(entry: Raw) -> int | None:
    """How many events were ever written before this entry; None if another program wrote it."""
    field, before = entry[1][:2]
    return int_or_none(before) if field == COUNTER else None


def count_events(entries: Sequence[Raw], total: str | None) -> int | None:
    """The number of events from the first of these entries to the end of the stream; None if
    another program wrote the entry, or the counter was lost. ``total``: how many events were ever
    written."""
    if not entries:
        return 0
    began, ended = events_before(entries[0]), int_or_none(total)
    if began is None or ended is None:
        return None
    return ended - began if ended > began else None


# Positions


def parse_position(text: str) -> Position:
    """The numbers in ``'1526919030474-55'``. Raises ValueError."""
    ms, _, number = text.partition("-")
    return int(ms), int(number)


def format_position(position: Position) -> str:
    return f"{position[0]}-{position[1]}"


def first_position(name: str) -> Position:
    """The position of an entry's first event."""
    ms, number = parse_position(name)
    return ms, number * ENTRY


def last_position(begin: Position, parts: Sequence[RawEvent]) -> Position:
    """The position of the last event of the entry that begins there."""
    ms, number = begin
    return ms, number + min(max(len(parts), 1), ENTRY) - 1


def entry_id(position: Position) -> str:
    """The id of the entry that contains the event."""
    return format_position((position[0], position[1] // ENTRY))


def is_entry_after(entry: str, position: Position) -> bool:
    """Whether the entry with this id follows the one that contains the event. False for a text that
    is no id."""
    try:
        return parse_position(entry) > parse_position(entry_id(position))
    except ValueError:
        return False


# Live readers


class EventFeed(QueryBase):
    def __init__(self, connection: RedisConnection, settings: Settings | None = None) -> None:
        super().__init__(connection, settings)
        self._entries = Entries(connection, self.keys.events)

    @query
    def ends(self) -> Read[Ends]:
        """The positions of the first and the last event, START for none. One round trip."""
        first, last = yield Strict(
            ("XRANGE", self.keys.events, "-", "+", "COUNT", "1"),
             ("XREVRANGE", self.keys.events, "+", "-", "COUNT", "1")
        )  # fmt: skip
        if not first or not last:
            return START, START
        return first_position(first[0][0]), last_position(
            first_position(last[0][0]), parse_entry(last[0][1])
        )

    def page(self, after: Position, count: int) -> list[EventLine]:
        """The events after ``after``, which may be in the middle of an entry: at least ``count`` if
        there are that many, up to the end of an entry."""
        start = "-" if after == START else entry_id(after)
        batch = self._entries.read(start, count)
        return [line for line in _lines(batch.entries) if line[0] > after]


def wait_for_lines(
    feeds: Sequence[EventFeed], after: Sequence[Position], count: int, seconds: float
) -> tuple[list[list[EventLine]], bool]:
    """Wait up to ``seconds`` for events of these streams, which are on one server. Returns about
    ``count`` events in all, a list for each stream, and whether more follow. ``after``: for each
    stream the position of the last event of an entry."""
    streams = [feed._entries for feed in feeds]
    most = min(one._count(ceil(count / len(streams))) for one in streams)
    reply = streams[0]._connection.call(
        "XREAD", "COUNT", str(most), "BLOCK", str(round(seconds * 1000)),
        "STREAMS", *(one._key for one in streams), *map(entry_id, after),
    )  # fmt: skip
    raw = dict(reply or ())
    found = [one._parts(raw.get(one._key, ())) for one in streams]
    return [list(_lines(some)) for some in found], any(len(some) >= most for some in found)


def _lines(entries: Sequence[tuple[str, list[RawEvent]]]) -> Iterator[EventLine]:
    for name, parts in entries:
        ms, number = first_position(name)
        if not parts:
            yield (ms, number), ""
        for at, part in enumerate(parts[:ENTRY], number):
            yield (ms, at), _text(part)


def _text(part: RawEvent) -> str:
    """A job's event, with its error if that is short. Other events only advance the position."""
    field, json, name, value = part
    if field != JOB:
        return ""
    text = f'{json[:-1]},"error":{value}}}' if name == "error" else json
    try:
        loads(text)  # a client must never get JSON that its parser refuses
    except ValueError as error:
        return dumps({"unreadable": str(error)})
    return text
