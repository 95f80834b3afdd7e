"""The stream of events as a live reader follows it: as text, without arguments and results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .events import START, Position, parse_position, show
from .reader import Reader

Entry = tuple[Position, str]  # an event as JSON


class Feed(Reader):
    """Reads of the stream, on one link."""

    def ends(self) -> tuple[Position, Position]:
        """The first and the last entry; twice START when there is none. One round trip."""
        replies = self.link.pipeline(
            [("XRANGE", self.keys.events, "-", "+", "COUNT", "1"),
             ("XREVRANGE", self.keys.events, "+", "-", "COUNT", "1")]
        )  # fmt: skip
        first, last = (parse_position(reply[0][0]) if reply else START for reply in replies)
        return first, last

    def page(self, after: Position, count: int) -> list[Entry]:
        """The next ``count`` entries behind ``after``."""
        reply = self.link.call(
            "XRANGE", self.keys.events, f"({show(after)}", "+", "COUNT", str(count)
        )
        return list(_entries(reply))

    def wait(self, after: Position, count: int, seconds: float) -> list[Entry]:
        """As ``page``, but waits up to ``seconds`` for the first of them."""
        reply = self.link.call(
            "XREAD", "COUNT", str(count), "BLOCK", str(round(seconds * 1000)),
            "STREAMS", self.keys.events, show(after),
        )  # fmt: skip
        return list(_entries(reply[0][1])) if reply else []


def _entries(reply: Iterable[Sequence[Any]]) -> Iterator[Entry]:
    for name, fields in reply:
        yield parse_position(name), _text(fields)


def _text(fields: Sequence[str]) -> str:
    """The event with its error, if it has a short one; of what somebody else wrote into the stream
    only the place counts."""
    if fields[0] != "event":
        return ""
    if len(fields) > 2 and fields[2] == "error":
        return f'{fields[1][:-1]},"error":{fields[3]}}}'
    return fields[1]
