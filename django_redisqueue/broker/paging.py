"""Pages of sorted sets by key: a page goes on behind a member, not at a position that shifts while
members come and go."""

from __future__ import annotations

import re

from ..core.text import printable
from ..exceptions import InvalidOption, short_repr
from .connection import RedisConnection

_AFTER = re.compile(r"(-?(?:inf|[0-9.]{1,20}(?:e[+-]?[0-9]{1,3})?)) (.{0,1000})", re.DOTALL)


def page_after(
    connection: RedisConnection, key: str, after: str, count: int
) -> tuple[list[tuple[str, str]], str]:
    """Up to ``count`` members of a sorted set with their scores, and the ``after`` of the next
    page, '' at the end. Two round trips, of logarithmic time. Raises InvalidOption.

    When the member that ``after`` names is gone or has moved, the page goes on at its old score: it
    may repeat members of the same score, and leaves none out.
    """
    start = _start(connection, key, after) if after else 0
    raw = connection.call("ZRANGE", key, start, start + count, "WITHSCORES")
    found = list(zip(raw[::2], raw[1::2], strict=True))
    if len(found) <= count:
        return found, ""
    member, score = found[count - 1]
    return found[:count], printable(f"{score} {member}")


def _start(connection: RedisConnection, key: str, after: str) -> int:
    match = _AFTER.fullmatch(after)
    if match is None:
        raise InvalidOption(
            f"after must be what the page before gave as the next one, not {short_repr(after)}"
        )
    score, member = match.groups()
    rank, found, before = connection.pipeline(
        [("ZRANK", key, member), ("ZSCORE", key, member), ("ZCOUNT", key, "-inf", f"({score}")]
    )
    is_there = found is not None and float(found) == float(score)
    start: int = rank + 1 if is_there else before
    return start
