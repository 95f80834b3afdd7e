"""What a rollup row holds about many jobs: counts, logarithmic histograms of durations, which are
small but good enough for percentiles, and counts per hour of the last week.

A histogram has ten buckets per decade, from 1 ms to over a day, so a percentile is off by at most a
quarter. It is a list of counts by bucket without trailing zeros; lists of any length can be added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import cast

from ..core.codec import dumps, loads
from ..core.parsing import MAX_EXACT, is_int, object_or_none
from ..models import Rollup

COUNTS = ("enqueued", "completed", "failed", "retried", "cancelled")
COLUMNS = (*COUNTS, "wait", "run")  # of a rollup row, except its key
MAX_COUNT = 2**53  # in one bucket
# Bucket n counts durations over BOUNDS[n - 1] and up to BOUNDS[n]; the last one counts the rest.
BOUNDS = tuple(sorted({round(10 ** (step / 10)) for step in range(81)}))  # ms
HOURS = 7 * 24
HOUR_MS = 3_600_000


def bucket(ms: float) -> int:
    """The bucket of a duration; a negative one (clocks may step back) counts as zero."""
    return bisect_left(BOUNDS, ms)


def add(counts: list[int], ms: float) -> None:
    place = bucket(ms)
    if place >= len(counts):
        counts.extend([0] * (place + 1 - len(counts)))
    counts[place] += 1


def merge(first: Sequence[int], second: Sequence[int]) -> list[int]:
    long, short = (first, second) if len(first) >= len(second) else (second, first)
    both = list(long)
    for place, count in enumerate(short):
        both[place] += count
    return both


def percentile(counts: Sequence[int], q: float) -> float | None:
    """The duration in ms at the quantile ``q`` (0 to 1), interpolated within its bucket, or None
    for an empty histogram. Durations above the last bound count as that bound."""
    wanted = q * sum(counts)
    if not any(counts):
        return None
    seen = 0
    for place, count in enumerate(counts):
        if count and seen + count >= wanted:
            low = BOUNDS[place - 1] if place else 0
            high = BOUNDS[min(place, len(BOUNDS) - 1)]
            return low + (high - low) * max(0.0, wanted - seen) / count
        seen += count
    return float(BOUNDS[-1])  # q above 1


def encode(counts: Sequence[int]) -> str:
    """The text of a rollup row; '' for an empty histogram."""
    return dumps(list(counts)) if counts else ""


def decode(text: str) -> list[int]:
    """The histogram in a row's text; a corrupt one counts nothing."""
    try:
        return decode_all([text])[0] if text else []
    except ValueError:
        return []


def decode_all(texts: Collection[str]) -> list[list[int]]:
    """Several non-empty texts at once. Raises ValueError when one is not a histogram."""
    found = loads(f"[{','.join(texts)}]")
    if len(found) != len(texts):
        raise ValueError("not one histogram per text")
    if set(map(type, found)) - {list} or not _are_counts(list(chain.from_iterable(found))):
        raise ValueError(f"not a histogram: {str(found)[:80]}")
    return cast(list[list[int]], found)


def _are_counts(numbers: Sequence[int]) -> bool:
    """Checks all histograms at once: a chart has about 200,000 numbers."""
    if set(map(type, numbers)) - {int}:
        return False
    return min(numbers, default=0) >= 0 and max(numbers, default=0) <= MAX_COUNT


@dataclass(slots=True)
class Sums:
    """The sums over several rows; ``wait`` and ``run`` are histograms of the times from queued to
    started, and from started to ended."""

    enqueued: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    cancelled: int = 0
    wait: list[int] = field(default_factory=list)
    run: list[int] = field(default_factory=list)


def add_to_row(row: Rollup, sums: Sums) -> None:
    """Add to the row in memory. A corrupt histogram counts nothing."""
    for name in COUNTS:
        setattr(row, name, getattr(row, name) + getattr(sums, name))
    row.wait = encode(merge(decode(row.wait), sums.wait))
    row.run = encode(merge(decode(row.run), sums.run))


def add_hours(text: str, counts: Mapping[int, int]) -> str:
    """The text with more counts, by hours since the epoch. Drops hours more than a week before the
    newest."""
    found = Counter(_decode_hours(text))
    found.update(counts)
    first = max(found, default=0) - HOURS
    return dumps({str(hour): found[hour] for hour in sorted(found) if hour > first})


def last_hours(text: str, now_hour: int) -> Sequence[int]:
    """The counts of the last HOURS, the oldest first."""
    found = _decode_hours(text)
    return [found.get(hour, 0) for hour in range(now_hour - HOURS + 1, now_hour + 1)]


def _decode_hours(text: str) -> dict[int, int]:
    """A corrupt text counts nothing."""
    raw = object_or_none(text) or {}
    return {
        int(hour): count
        for hour, count in raw.items()
        if hour.isdecimal() and len(hour) < 10 and is_int(count, 0, MAX_EXACT)
    }
