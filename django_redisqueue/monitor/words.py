"""Durations and rates, made short for a terminal."""

from __future__ import annotations


def duration(ms: int | None) -> str:
    """``0.4 s``, ``12 s``, ``3 m 20 s``, ``5 h 2 m``, ``4 d 1 h``; ``-`` for None."""
    if ms is None:
        return "-"
    if abs(ms) < 10_000:
        return f"{ms / 1000:.1f} s"
    sign, rest = "-" if ms < 0 else "", abs(ms) // 1000
    for size, unit, below, part in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if rest >= size:
            return f"{sign}{rest // size} {unit} {rest % size // below} {part}"
    return f"{sign}{rest} s"


def rate(value: float | None) -> str:
    """Jobs a second, ``-`` when not known."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
