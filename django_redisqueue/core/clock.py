"""Clocks and durations: milliseconds internally, seconds and timedeltas in the public API.

Use ``real_ms`` for persistence and display, and ``mono_ms`` for differences. Times that two
processes compare come from Redis's ``TIME``, and are never compared with these clocks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeGuard

from ..exceptions import InvalidOption, WaitTimeout, short_repr

Duration = int | float | timedelta | str  # a str such as "90s": see to_seconds
# s, a hundred years: datetimes would allow more, but setitimer takes 292 years at most.
MAX_DURATION = 100 * 365 * 86_400
# Two days inside the range of a datetime, so that every time zone can show them.
FIRST_MS = -62_135_596_800_000 + 2 * 86_400_000
LAST_MS = 253_402_300_800_000 - 2 * 86_400_000
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
# JSON Schema gets this pattern too, so it uses only syntax that JavaScript also understands.
DURATION_TEXT = r"(?:[0-9]{1,9}(?:ms|[smhdw]))+"
_PART = re.compile(r"([0-9]+)(ms|[smhdw])")


def real_ms() -> int:
    """The wall clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def mono_ms() -> int:
    """This machine's monotonic clock, shared by its processes, in milliseconds."""
    return time.monotonic_ns() // 1_000_000


def is_duration_text(value: object) -> TypeGuard[str]:
    """Whether this is text that ``to_seconds`` can parse."""
    return isinstance(value, str) and re.fullmatch(DURATION_TEXT, value) is not None


def to_seconds(value: object, name: str) -> float:
    """A duration in seconds from seconds, a timedelta, or a text such as "90s", "5m" or "1h30m"
    (ms, s, m, h, d, w).

    Raises InvalidOption, naming ``name``, for anything else, for a negative duration, and for one
    over a hundred years.
    """
    seconds: float
    if is_duration_text(value):
        seconds = sum(int(number) * UNITS_MS[unit] for number, unit in _PART.findall(value)) / 1000
    elif isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value  # not float(), which raises for an int with 400 digits
    else:
        raise InvalidOption(
            f'{name} must be seconds, a timedelta, or a text such as "90s", "5m" or "1h30m", '
            f"not {short_repr(value)}"
        )
    if not 0 <= seconds <= MAX_DURATION:
        bound = "at most a hundred years" if seconds > 0 else "zero or more"
        raise InvalidOption(f"{name} must be a duration of {bound}, not {short_repr(value)}")
    return seconds


def to_ms(value: object, name: str) -> int:
    """``to_seconds`` in milliseconds; at least 1 unless it is 0."""
    seconds = to_seconds(value, name)
    # A timeout of half a millisecond must not become 0, which means no timeout.
    return max(round(seconds * 1000), 1 if seconds else 0)


def to_period_ms(value: object, name: str) -> int:
    """``to_ms`` for a period, which is at least a millisecond."""
    period_ms = to_ms(value, name)
    if period_ms == 0:
        raise InvalidOption(f"{name} must be more than 0")
    return period_ms


def period_text(period_ms: int) -> str:
    """A period as ``to_period_ms`` reads it: "1h30m"."""
    parts = []
    for unit in ("w", "d", "h", "m", "s", "ms"):
        number, period_ms = divmod(period_ms, UNITS_MS[unit])
        parts += [f"{number}{unit}"] if number else []
    return "".join(parts)


def ms_of(moment: datetime) -> int:
    """An aware datetime as ms since the epoch."""
    return round(moment.timestamp() * 1000)


def from_ms(value_ms: int | None) -> datetime | None:
    return None if value_ms is None else instant(value_ms)


def instant(value_ms: int) -> datetime:
    """An aware UTC datetime, clamped to its range: an impossible time must not break a page."""
    return datetime.fromtimestamp(min(max(value_ms, FIRST_MS), LAST_MS) / 1000, UTC)


class Deadline:
    """The end of a wait: ``timeout`` from now; None means never. ``message`` turns the number of
    seconds that have passed into the text of the WaitTimeout."""

    def __init__(self, timeout: Duration | None, message: Callable[[float], str]) -> None:
        self._seconds = None if timeout is None else to_ms(timeout, "timeout") / 1000
        self._deadline = time.monotonic() + (self._seconds or 0)
        self._message = message

    def end(self) -> None:
        """End the wait at its next look, because nobody awaits it any more. Any thread may call
        this."""
        self._deadline, self._seconds = 0.0, self._seconds or 0.0

    def left(self, at_most: float) -> float:
        """Seconds left to wait, capped by ``at_most``. Raises WaitTimeout when none are left."""
        if self._seconds is None:
            return at_most
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise WaitTimeout(self._message(self._seconds))
        return min(left, at_most)
