"""The stream of events as a live reader follows it: the events alone, without their bodies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..conf import Settings, get_settings
from ..connection import Link
from ..keys import Keys

Position = tuple[int, int]  # an entry's instant in ms, and its number within that
Entry = tuple[Position, str]  # an event as JSON
START: Position = (0, 0)


def to_text(position: Position) -> str:
    """The id of an entry, as Redis writes it."""
    return f"{position[0]}-{position[1]}"


def from_text(text: str) -> Position:
    """An entry's id as numbers, for text of another order would not compare."""
    instant, _, number = text.partition("-")
    return int(instant), int(number)


class Feed:
    """Reads of the stream, on one link."""

    def __init__(self, link: Link, settings: Settings | None = None) -> None:
        self.link = link
        self._key = Keys((settings or get_settings()).prefix).events

    def ends(self) -> tuple[Position, Position]:
        """The first and the last entry; twice START when there is none. One round trip."""
        replies = self.link.pipeline(
            [("XRANGE", self._key, "-", "+", "COUNT", 1),
             ("XREVRANGE", self._key, "+", "-", "COUNT", 1)]
        )  # fmt: skip
        first, last = (from_text(reply[0][0]) if reply else START for reply in replies)
        return first, last

    def page(self, after: Position, count: int) -> list[Entry]:
        """The next ``count`` entries behind ``after``."""
        reply = self.link.call("XRANGE", self._key, f"({to_text(after)}", "+", "COUNT", count)
        return list(_entries(reply))

    def wait(self, after: Position, count: int, seconds: float) -> list[Entry]:
        """As ``page``, but waits up to ``seconds`` for the first of them."""
        reply = self.link.call(
            "XREAD", "COUNT", count, "BLOCK", round(seconds * 1000),
            "STREAMS", self._key, to_text(after),
        )  # fmt: skip
        return list(_entries(reply[0][1])) if reply else []


def _entries(reply: Iterable[Sequence[Any]]) -> Iterable[Entry]:
    for entry_id, fields in reply:
        if fields and fields[0] == "event":  # what else stands in a stream is not an event
            yield from_text(entry_id), fields[1]
