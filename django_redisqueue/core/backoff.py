"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from ..exceptions import InvalidOption, short_repr
from .clock import Duration, to_ms, to_seconds
from .parsing import is_number

MAX_FACTOR = 1_000_000


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays with jitter: ``base * factor ** (attempt - 1)``, at most ``maximum``.

    ``base`` and ``maximum`` are seconds or timedeltas; ``jitter`` is the fraction by which a delay
    may vary either way, so that jobs that failed together do not come back together (AWS
    Architecture Blog, "Exponential Backoff And Jitter", 2015).
    """

    base: Duration = 2.0
    factor: float = 2.0
    maximum: Duration = 600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        to_seconds(self.base, "Backoff(base=...)")
        to_seconds(self.maximum, "Backoff(maximum=...)")
        _check_number(self.factor, "factor", 1, MAX_FACTOR)
        _check_number(self.jitter, "jitter", 0, 1)

    def delay_ms(self, attempt: int) -> int:
        """Milliseconds to wait after the ``attempt``-th try (1 is the first) failed."""
        base, maximum = to_seconds(self.base, "base"), to_seconds(self.maximum, "maximum")
        try:
            seconds = min(maximum, base * float(self.factor) ** (attempt - 1))
        except OverflowError:  # far above maximum
            seconds = maximum if base else 0.0
        return round(1000 * seconds * (1 + self.jitter * random.uniform(-1, 1)))


def _check_number(value: object, name: str, low: int, high: int) -> None:
    if not is_number(value, low, high):
        raise InvalidOption(
            f"Backoff({name}=...) must be a number from {low} to {high}, not {short_repr(value)}"
        )


@dataclass(frozen=True, slots=True)
class FixedDelays:
    """A list of delays in milliseconds, one for each attempt; the last repeats."""

    delays_ms: tuple[int, ...]

    def delay_ms(self, attempt: int) -> int:
        """Milliseconds to wait after the ``attempt``-th try failed."""
        return self.delays_ms[min(attempt, len(self.delays_ms)) - 1]


def to_backoff(value: object) -> Backoff | FixedDelays:
    """Convert a Backoff, a delay (seconds or a timedelta) or a list of delays. Raises
    InvalidOption."""
    if isinstance(value, Backoff | FixedDelays):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and value:
        delays = enumerate(value, 1)
        return FixedDelays(tuple(to_ms(delay, f"delay {n} of backoff") for n, delay in delays))
    if isinstance(value, int | float | timedelta) and not isinstance(value, bool):
        return FixedDelays((to_ms(value, "backoff"),))
    raise InvalidOption(
        f"backoff must be a Backoff or a list of delays (seconds or timedeltas), "
        f"not {short_repr(value)}"
    )
