"""What all reads share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import parsing
from ..conf import Settings, get_settings
from ..keys import Keys
from ..link import Link


class Reader:
    """A link to read on, and the names of the keys."""

    def __init__(self, link: Link, settings: Settings | None = None) -> None:
        self.link = link
        self.keys = Keys((settings or get_settings()).prefix)

    def now_ms(self) -> int:
        """Redis's clock."""
        return clock_ms(self.link.call("TIME"))

    def _each(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """A pipeline in which a key of the wrong type is None, and hides nothing else."""
        return self.link.pipeline(commands, lenient=True) if commands else []


def pairs(reply: Sequence[str]) -> dict[str, str]:
    """What Redis sends as one name after the other, each with its value."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def whole(text: str | None) -> int | None:
    """A number of a hash; None when there is none, or a hand has made it something else."""
    return parsing.whole(text, -parsing.INT64)


def score_ms(text: str) -> int:
    """A score of a sorted set, which may be endless, as an instant that a page can show."""
    return round(min(max(float(text), -parsing.EXACT), parsing.EXACT))


def counters(reply: Sequence[str]) -> dict[str, int]:
    """What HGETALL says of a hash of counters; 0 for those that a hand has spoilt, which the next
    script to count begins anew."""
    return {name: whole(text) or 0 for name, text in pairs(reply).items()}


def clock_ms(reply: Sequence[str]) -> int:
    """The reply to TIME, in ms since the epoch."""
    seconds, micros = reply
    return int(seconds) * 1000 + int(micros) // 1000
