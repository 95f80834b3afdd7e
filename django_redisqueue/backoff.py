"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from .clock import to_ms
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
        if self.base < 0 or self.maximum < 0 or self.factor < 1 or not 0 <= self.jitter <= 1:
            raise InvalidOption(
                f"{self!r}: base and maximum must be >= 0, factor >= 1, jitter between 0 and 1"
            )

    def delay_ms(self, attempt: int) -> int:
        """Milliseconds to wait after the ``attempt``-th try (1 is the first) failed."""
        # The exponent is capped: factor ** 5000 would overflow a float long after maximum won.
        seconds = min(self.maximum, self.base * self.factor ** min(attempt - 1, 64))
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
