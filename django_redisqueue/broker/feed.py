"""The event stream for live readers: as text, without arguments and results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..conf import Settings
from ..core.codec import dumps, loads
from .base import QueryBase
from .connection import RedisConnection
from .entries import JOB, Entries, EntryBatch, RawEvent, parse_entry, wait_for_entries
from .events import ENTRY, START, Position, entry_id, first_position, last_position
from .reads import Read, Strict, query

EventLine = tuple[Position, str]  # an event as JSON
Ends = tuple[Position, Position]  # of a stream: its first and its last event


class EventFeed(QueryBase):
    """Reads the stream, on one connection."""

    def __init__(self, connection: RedisConnection, settings: Settings | None = None) -> None:
        super().__init__(connection, settings)
        self._entries = Entries(connection, self.keys.events)

    @query
    def ends(self) -> Read[Ends]:
        """The positions of the first and the last event, START for none. One round trip."""
        first, last = yield Strict(
            [("XRANGE", self.keys.events, "-", "+", "COUNT", "1"),
             ("XREVRANGE", self.keys.events, "+", "-", "COUNT", "1")]
        )  # fmt: skip
        if not first or not last:
            return START, START
        return first_position(first[0][0]), last_position(
            first_position(last[0][0]), parse_entry(last[0][1])
        )

    def page(self, after: Position, count: int) -> list[EventLine]:
        """The events after ``after``, which may be in the middle of an entry: at least ``count`` if
        there are so many, up to the end of an entry."""
        start = "-" if after == START else entry_id(after)
        return [line for line in _lines(self._entries.read(start, count)) if line[0] > after]


def wait_for_lines(
    feeds: Sequence[EventFeed], after: Sequence[Position], count: int, seconds: float
) -> tuple[list[list[EventLine]], bool]:
    """Wait up to ``seconds`` for events of these streams, which are on one server.

    ``after`` has a position for each stream, that of the last event of an entry. Returns about
    ``count`` events in all, a list for each stream, and whether more follow.
    """
    places = [entry_id(position) for position in after]
    found = wait_for_entries([feed._entries for feed in feeds], places, count, seconds)
    return [list(_lines(one)) for one in found], not all(one.is_end for one in found)


def _lines(stretch: EntryBatch) -> Iterator[EventLine]:
    for name, parts in stretch.entries:
        ms, number = first_position(name)
        if not parts:
            yield (ms, number), ""
        for at, part in enumerate(parts[:ENTRY], number):
            yield (ms, at), _text(part)


def _text(part: RawEvent) -> str:
    """A job's event, with its error if that is short. Of other events only the position counts."""
    field, json, name, value = part
    if field != JOB:
        return ""
    text = f'{json[:-1]},"error":{value}}}' if name == "error" else json
    try:
        loads(text)  # nothing that a client's parser refuses may reach it
    except ValueError as error:
        return dumps({"unreadable": str(error)})
    return text
