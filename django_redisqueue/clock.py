"""Time: milliseconds inside, seconds and timedeltas at the edge.

``real_ms`` is for persistence and display, ``mono_ms`` for differences. Redis's own ``TIME``
decides every instant that two processes compare; nothing here is ever compared with it.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from .exceptions import InvalidOption, shown

Duration = int | float | timedelta
# s, a hundred years. Not where dates end, but timers do: setitimer takes 292 years at the most.
LONGEST = 100 * 365 * 86_400
# Not quite where dates end: any time zone can still show these, a day away at the most.
FIRST_MS = -62_135_596_800_000 + 2 * 86_400_000
LAST_MS = 253_402_300_800_000 - 2 * 86_400_000


def real_ms() -> int:
    """Wall clock, milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def mono_ms() -> int:
    """Monotonic clock of this machine (the same in all its processes), milliseconds."""
    return time.monotonic_ns() // 1_000_000


def to_seconds(value: object, name: str) -> float:
    """A duration in seconds from seconds or a timedelta.

    Raises InvalidOption, naming ``name``, for anything else, for a negative one, and for one of
    more than a hundred years.
    """
    seconds: float
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value  # as it is: float() of an int with 400 digits would raise
    else:
        raise InvalidOption(f"{name} must be seconds or a timedelta, not {shown(value)}")
    if not 0 <= seconds <= LONGEST:
        bound = "a hundred years at the most" if seconds > 0 else "zero or more"
        raise InvalidOption(f"{name} must be a duration of {bound}, not {shown(value)}")
    return seconds


def to_ms(value: object, name: str) -> int:
    """The same in milliseconds; at least 1 unless it is 0."""
    seconds = to_seconds(value, name)
    # A timeout of half a millisecond must not become 0, which is none.
    return max(round(seconds * 1000), 1 if seconds else 0)


def ms_of(moment: datetime) -> int:
    """An aware datetime as ms since the epoch."""
    return round(moment.timestamp() * 1000)


def from_ms(value_ms: int | None) -> datetime | None:
    """An aware UTC datetime, or None."""
    return None if value_ms is None else instant(value_ms)


def instant(value_ms: int) -> datetime:
    """An aware UTC datetime; the first or last there is, nearly, for what lies beyond: one job with
    such a number must not take down the page that lists it."""
    return datetime.fromtimestamp(min(max(value_ms, FIRST_MS), LAST_MS) / 1000, UTC)
