"""Numbers, durations and arguments as people read them, on pages and on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from .codec import dumps

NOTHING = "–"
SHORT = 160  # characters of arguments in a list
LONG = 50_000  # characters of one value on its own page


def number(value: float) -> str:
    """``12,345``"""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}"


def jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{number(count)} jobs"


def duration(ms: float | None, missing: str = NOTHING) -> str:
    """At most two units: ``12 ms``, ``1.5 s``, ``3 m 20 s``, ``2 h 5 m``, ``4 d 3 h``."""
    if ms is None:
        return missing
    if ms < 0:
        return f"-{duration(-ms)}"
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    left, parts = round(seconds), list[tuple[int, str]]()
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count)


def rate(per_second: float | None, missing: str = NOTHING) -> str:
    """``0``, ``2.5``, ``1,234``"""
    if per_second is None:
        return missing
    if per_second == 0:
        return "0"
    return number(per_second) if per_second >= 100 else f"{per_second:.1f}"


def instant(at: datetime | None) -> str:
    """To the second, in the time zone of ``at``: ``2026-01-31 12:00:00``"""
    return NOTHING if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def size(count: int) -> str:
    """Bytes in powers of 1,024: ``512 bytes``, ``1.5 MB``"""
    value = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TB"


def arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Arguments as in a call, each as JSON: ``"de/django.po", limit=3``"""
    return ", ".join(
        [*(dumps(value) for value in args), *(f"{name}={dumps(v)}" for name, v in kwargs.items())]
    )


def shorten(text: str, limit: int = SHORT) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
