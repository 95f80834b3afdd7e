"""Counts per hour of the last week, small enough for a column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..core.codec import dumps
from ..core.parsing import MAX_EXACT, is_int, object_or_none

HOURS = 7 * 24
HOUR_MS = 3_600_000


def add_hours(text: str, counts: Mapping[int, int]) -> str:
    """The text with more counts, by hours since the epoch, without those over a week before the
    newest."""
    found = Counter(_decode(text))
    found.update(counts)
    first = max(found, default=0) - HOURS
    return dumps({str(hour): found[hour] for hour in sorted(found) if hour > first})


def last_hours(text: str, now_hour: int) -> Sequence[int]:
    """The counts of the last HOURS, the oldest first."""
    found = _decode(text)
    return [found.get(hour, 0) for hour in range(now_hour - HOURS + 1, now_hour + 1)]


def _decode(text: str) -> dict[int, int]:
    """A corrupt text counts nothing."""
    raw = object_or_none(text) or {}
    return {
        int(hour): count
        for hour, count in raw.items()
        if hour.isdecimal() and len(hour) < 10 and is_int(count, 0, MAX_EXACT)
    }
