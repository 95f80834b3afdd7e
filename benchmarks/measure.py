"""Numbers from samples: percentiles, medians of interleaved rounds, rates of watched counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

Result = TypeVar("Result")
LOOK = 0.004  # s between two looks at a counter
PATIENCE = 120.0  # s without progress after which something must be broken


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` (0 to 1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, round(share * len(ordered) + 0.5) - 1))]


def interleaved(rounds: int, **cases: Callable[[], Result]) -> dict[str, list[Result]]:
    """Run the cases in turn, ``rounds`` times, so that drift affects all of them."""
    results: dict[str, list[Result]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            results[name].append(case())
    return results


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The ratios, round by round."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


def watched_rate(count: Callable[[], int], total: int) -> float:
    """The rate per second from the first look that saw a completion to the first that saw all.

    Jobs completed by the first of these looks do not count, so start-up is excluded exactly. Times
    are accurate to the 4 ms between two looks.
    """
    first_time, first = 0.0, 0
    moved = time.monotonic()
    last = 0
    while True:
        done, now = count(), time.perf_counter()
        if done and not first:
            first_time, first = now, done
        if done >= total:
            return (done - first) / (now - first_time) if now > first_time else float("inf")
        if done != last:
            moved, last = time.monotonic(), done
        elif time.monotonic() - moved > PATIENCE:
            raise TimeoutError(f"{done} of {total} done, and no progress")
        time.sleep(LOOK)


def until(condition: Callable[[], object], what: str, timeout: float = 30.0) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"timed out after {timeout:g} s: {what}")
        time.sleep(0.002)


def rate(call: Callable[[int], object], calls: int) -> float:
    """Calls per second; each call gets its number."""

    def loop() -> None:
        for number in range(calls):
            call(number)

    return calls / timed(loop)


def timed(action: Callable[[], object]) -> float:
    """How many seconds the call took."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun
