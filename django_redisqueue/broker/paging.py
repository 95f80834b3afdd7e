"""Pages of sorted sets.

A page continues after a member. A position would shift while members come and go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..core.text import printable
from ..exceptions import InvalidOption, short_repr
from .packed import AS_READ
from .reads import Read, Strict

_AFTER = re.compile(r"(-?(?:inf|[0-9.]{1,20}(?:e[+-]?[0-9]{1,3})?)) (.{0,1000})", re.DOTALL)


class Entry(NamedTuple):
    """A member of a sorted set and its score, as Redis has it."""

    member: str
    score: str

    @property
    def place(self) -> tuple[float, bytes]:
        """What Redis sorts by."""
        return float(self.score), self.member.encode(*AS_READ)


class EntryPage(NamedTuple):
    """Entries in their order, and whether more follow."""

    entries: Sequence[Entry]
    has_more: bool

    @property
    def following(self) -> str:
        """The ``after`` of the next page, '' at the end."""
        if not self.has_more:
            return ""
        return printable(f"{self.entries[-1].score} {self.entries[-1].member}")


def merged(pages: Iterable[EntryPage], count: int) -> EntryPage:
    """The first ``count`` entries of the pages of several sets, which all start after one place."""
    pages = list(pages)
    if len(pages) == 1:
        return pages[0]
    entries = sorted((one for page in pages for one in page.entries), key=lambda one: one.place)
    has_more = len(entries) > count or any(page.has_more for page in pages)
    return EntryPage(entries[:count], has_more)


def page_after(key: str, after: str, count: int) -> Read[EntryPage]:
    """Up to ``count`` entries of a sorted set after the place ``after``. Takes two round trips of
    logarithmic time. Raises InvalidOption.

    If the member in ``after`` is gone or has moved, the page starts at the first member behind its
    old place. A binary search finds it among those with the same score, with a round trip a step.
    """
    start = (yield from _start(key, after)) if after else 0
    [raw] = yield Strict([("ZRANGE", key, start, start + count, "WITHSCORES")])
    found = [Entry(*pair) for pair in zip(raw[::2], raw[1::2], strict=True)]
    return EntryPage(found[:count], len(found) > count)


def _start(key: str, after: str) -> Read[int]:
    match = _AFTER.fullmatch(after)
    if match is None:
        raise InvalidOption(
            f"after must be what the page before gave as the next one, not {short_repr(after)}"
        )
    score, member = match.groups()
    rank, found, low, high = yield Strict(
        [
            ("ZRANK", key, member),
            ("ZSCORE", key, member),
            ("ZCOUNT", key, "-inf", f"({score}"),
            ("ZCOUNT", key, "-inf", score),
        ]
    )
    if found is not None and float(found) == float(score):
        return int(rank) + 1
    wanted = member.encode(*AS_READ)
    while low < high:
        middle = (low + high) // 2
        [there] = yield Strict([("ZRANGE", key, middle, middle)])
        if there and there[0].encode(*AS_READ) <= wanted:
            low = middle + 1
        else:
            high = middle
    return int(low)
