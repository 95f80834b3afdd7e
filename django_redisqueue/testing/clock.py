"""The clock of jobs in memory, which a test can move."""

from __future__ import annotations

from datetime import timedelta

from ..core.clock import MAX_DURATION, real_ms
from ..exceptions import InvalidOption, short_repr


class InMemoryClock:
    """The wall clock, and how far the test has moved on from it."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    def now_ms(self) -> int:
        """The present instant of the test, in ms since the epoch."""
        return real_ms() + self._ahead_ms

    def move_to(self, instant_ms: int) -> None:
        """Make it this instant, unless it is later already: the clock never goes back."""
        self._ahead_ms = max(self._ahead_ms, instant_ms - real_ms())


def to_travel_ms(by: timedelta | None, parts: dict[str, float]) -> int:
    """The arguments of ``travel`` as ms: a timedelta, or what ``timedelta`` takes. Raises
    InvalidOption."""
    try:
        total = (by or timedelta()) + timedelta(**parts)
        seconds = total.total_seconds()
    except (TypeError, OverflowError) as error:
        given = ", ".join(f"{name}={short_repr(value)}" for name, value in parts.items())
        raise InvalidOption(
            f"travel() takes a timedelta, or its parts such as hours=1, minutes=30; "
            f"not {given or short_repr(by)} ({error})"
        ) from None
    if not 0 <= seconds <= MAX_DURATION:
        raise InvalidOption(
            f"travel() goes forward, by a hundred years at the most; not by {total}"
        )
    return round(seconds * 1000)
