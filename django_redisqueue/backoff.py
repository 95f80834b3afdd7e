"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import inf

from .clock import LONGEST, to_ms
from .exceptions import InvalidOption


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays with jitter: ``base * factor ** (attempt - 1)``, at most ``maximum``.

    ``base`` and ``maximum`` are seconds; ``jitter`` is the fraction by which a delay may vary
    either way, so that jobs that failed together do not come back together (AWS Architecture Blog,
    "Exponential Backoff And Jitter", 2015).
    """

    base: float = 2.0
    factor: float = 2.0
    maximum: float = 600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        is_sound = 0 <= self.base < LONGEST and 0 <= self.maximum < LONGEST
        if not (is_sound and 1 <= self.factor < inf and 0 <= self.jitter <= 1):
            raise InvalidOption(
                f"{self!r}: base and maximum must be >= 0, factor >= 1, jitter between 0 and 1; "
                "none of them endless"
            )

    def delay_ms(self, attempt: int) -> int:
        """Milliseconds to wait after the ``attempt``-th try (1 is the first) failed."""
        try:
            seconds = min(self.maximum, self.base * float(self.factor) ** (attempt - 1))
        except OverflowError:  # long after maximum has won
            seconds = self.maximum if self.base else 0.0
        return round(1000 * seconds * (1 + self.jitter * random.uniform(-1, 1)))


@dataclass(frozen=True, slots=True)
class FixedDelays:
    """A list of delays in milliseconds, one an attempt; the last one repeats."""

    delays_ms: tuple[int, ...]

    def delay_ms(self, attempt: int) -> int:
        """Milliseconds to wait after the ``attempt``-th try failed."""
        return self.delays_ms[min(attempt, len(self.delays_ms)) - 1]


def to_backoff(value: object) -> Backoff | FixedDelays:
    """A Backoff, a list of seconds or timedeltas, or one such; raises InvalidOption otherwise."""
    if isinstance(value, Backoff | FixedDelays):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and value:
        return FixedDelays(tuple(to_ms(delay, "backoff") for delay in value))
    if isinstance(value, int | float | timedelta):
        return FixedDelays((to_ms(value, "backoff"),))
    raise InvalidOption(f"backoff must be a Backoff or a list of delays in seconds, not {value!r}")
