"""Which fault happens when: drawn from the seed alone, so the same seed gives the same plan."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

GAPS = (0.03, 0.25)  # leases between the end of a fault and the next one


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One planned fault. ``pick``, from 0 to 1, chooses its victim, and ``share`` its length,
    between the shortest and the longest of its kind."""

    number: int
    round: int
    gap: float  # leases before it is injected
    fault: str
    pick: float
    share: float


def make_plan(
    seed: int | str, faults: Sequence[str], gaps: tuple[float, float] = GAPS
) -> Iterator[PlannedFault]:
    """Endless rounds. Each contains every fault once, in random order, so none is left out.
    ``gaps``: the shortest and the longest."""
    dice, number, round_ = random.Random(seed), 0, 0
    while True:
        round_ += 1
        for fault in dice.sample(sorted(faults), len(faults)):
            number += 1
            gap, pick, share = dice.uniform(*gaps), dice.random(), dice.random()
            yield PlannedFault(number, round_, gap, fault, pick, share)
