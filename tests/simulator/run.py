"""Runs histories, and shrinks those that fail."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import producers, schedules, upkeep, workers
from .history import LENGTH, Step, generate, shrink
from .keyspace import SimulatedBroker
from .rest import come_to_rest
from .verbs import weights
from .world import World

WEIGHTS = weights()  # after all verbs are registered

__all__ = [
    "WEIGHTS", "Failure", "fail_of", "producers", "schedules", "simulate", "upkeep", "workers",
]  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """A history that breaks a law, in the shortest form that was found."""

    seed: int
    steps: list[Step]
    error: BaseException
    told: list[str]

    def __str__(self) -> str:
        lines = "\n".join(f"  {line}" for line in self.told)
        error = "".join(traceback.format_exception_only(self.error)).strip()
        return f"seed {self.seed}, {len(self.steps)} steps:\n{lines}\n{_place(self.error)}: {error}"


def fail_of(
    brokers: Sequence[SimulatedBroker],
    steps: Sequence[Step],
    tell: Callable[[str], object] = lambda _: None,
) -> BaseException | None:
    """What a history raises between its start and the point at which everything has settled, or
    None."""
    try:
        world = World(brokers[: 1 + max((step.shard for step in steps), default=0)])
        world.run(steps, tell)
        come_to_rest(world)
    except Exception as error:
        return error
    return None


def simulate(brokers: Sequence[SimulatedBroker], seed: int, length: int = LENGTH) -> Failure | None:
    """Run the history of a seed. If it fails, return the shortest history that fails in the same
    place."""
    steps = generate(seed, WEIGHTS, length)
    error = fail_of(brokers, steps)
    if error is None:
        return None
    place = _place(error)

    def fails(shorter: Sequence[Step]) -> bool:
        found = fail_of(brokers, shorter)
        return found is not None and _place(found) == place

    shortest = shrink(steps, fails)
    told: list[str] = []
    error = fail_of(brokers, shortest, told.append) or error
    # which may fail sooner, because of a 0
    return Failure(seed, shortest[: len(told)], error, told)


def _place(error: BaseException) -> str:
    """The type of an error, and the line in these tests that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/tests/" in frame.filename]
    return f"{type(error).__name__} in {ours[-1].name}: {ours[-1].line}"
