"""Numbers within bounds. True and False are none, though Python takes them for 1 and 0."""

from __future__ import annotations

from typing import TypeGuard


def is_whole(value: object, low: int, high: int) -> TypeGuard[int]:
    """Whether it is a whole number from ``low`` to ``high``."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_number(value: object, low: float, high: float) -> TypeGuard[float]:
    """Whether it is a number from ``low`` to ``high``, so neither NaN nor endless."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
