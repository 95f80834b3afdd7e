"""The stream of events as a live reader follows it: as text, without arguments and results."""

from __future__ import annotations

from collections.abc import Iterator

from ..codec import dumps, loads
from ..conf import Settings
from ..link import Link
from .entries import JOB, Entries, Part, Stretch, parts_of
from .events import ENTRY, START, Position, entry_of, first_place, last_place
from .reader import Reader

Line = tuple[Position, str]  # an event as JSON


class Feed(Reader):
    """Reads of the stream, on one link."""

    def __init__(self, link: Link, settings: Settings | None = None) -> None:
        super().__init__(link, settings)
        self._entries = Entries(link, self.keys.events)

    def ends(self) -> tuple[Position, Position]:
        """The first and the last event; twice START when there is none. One round trip."""
        first, last = self.link.pipeline(
            [("XRANGE", self.keys.events, "-", "+", "COUNT", "1"),
             ("XREVRANGE", self.keys.events, "+", "-", "COUNT", "1")]
        )  # fmt: skip
        if not first or not last:
            return START, START
        return first_place(first[0][0]), last_place(first_place(last[0][0]), parts_of(last[0][1]))

    def page(self, after: Position, count: int) -> list[Line]:
        """The events behind ``after``, which may stand in the middle of an entry: at least
        ``count``, if there are so many, and to the end of an entry."""
        start = "-" if after == START else entry_of(after)
        return [line for line in _lines(self._entries.read(start, count)) if line[0] > after]

    def wait(self, after: Position, count: int, seconds: float) -> tuple[list[Line], bool]:
        """As ``page``, but behind the last event of an entry, waiting up to ``seconds`` for the
        first; about ``count``. False when that was all."""
        found = self._entries.wait(entry_of(after), count, seconds)
        return list(_lines(found)), not found.is_end


def _lines(stretch: Stretch) -> Iterator[Line]:
    for name, parts in stretch.entries:
        ms, number = first_place(name)
        if not parts:
            yield (ms, number), ""
        for at, part in enumerate(parts[:ENTRY], number):
            yield (ms, at), _text(part)


def _text(part: Part) -> str:
    """The event of a job with its error, if it has a short one; of all else only the place
    counts."""
    field, json, name, value = part
    if field != JOB:
        return ""
    text = f'{json[:-1]},"error":{value}}}' if name == "error" else json
    try:
        loads(text)  # what a client's parser would refuse must not reach it
    except ValueError as error:
        return dumps({"unreadable": str(error)})
    return text
