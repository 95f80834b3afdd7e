"""The results of a benchmark: rows, shown as a table for people and as JSON for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import django
import redis


@dataclass(frozen=True, slots=True)
class Row:
    """A number, its target if it has one, and the rounds of which it is the median.

    If there is no number (None), the unit says why.
    """

    what: str
    value: float | None
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    rounds: tuple[float, ...] = ()

    @property
    def is_met(self) -> bool | None:
        """None without a target."""
        if self.value is None:
            return None
        if self.at_least is not None:
            return self.value >= self.at_least
        return self.value <= self.at_most if self.at_most is not None else None

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f"≥ {number(self.at_least)}"
        return f"≤ {number(self.at_most)}" if self.at_most is not None else ""


def of_rounds(what: str, rounds: Sequence[float], unit: str = "", **target: float) -> Row:
    """The row for the median of these rounds."""
    return Row(what, median(rounds), unit, rounds=tuple(rounds), **target)


def number(value: float | None) -> str:
    """The number with at least three significant digits, but without false precision."""
    if value is None:
        return "—"
    if value != value or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(title: str, rows: Iterable[Row]) -> str:
    """Aligned columns: what, value, unit, target, and whether the target was met or missed."""
    cells = [(row.what, number(row.value), row.unit, row.target, verdict(row)) for row in rows]
    heads = ("measure", "value", "", "target", "")
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    lines = [title, "-" * len(title)]
    for what, value, *rest in (heads, *cells):
        line = [what.ljust(widths[0]), value.rjust(widths[1])]
        line += [cell.ljust(width) for cell, width in zip(rest, widths[2:], strict=True)]
        lines.append("  ".join(line).rstrip())
    return "\n".join(lines)


def verdict(row: Row) -> str:
    return {True: "met", False: "MISSED", None: ""}[row.is_met]


def as_json(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [{**asdict(row), "is_met": row.is_met} for row in rows]


def machine(redis_version: str) -> dict[str, Any]:
    """The machine that was measured."""
    return {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "django": django.get_version(),
        "redis-py": redis.__version__,
        "redis": redis_version,
    }
