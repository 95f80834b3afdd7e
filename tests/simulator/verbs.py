"""The registry of what a step can do."""

from __future__ import annotations

from collections.abc import Callable

from .history import Step
from .world import World

Act = Callable[[World, Step], str]

VERBS: dict[str, Act] = {}
WEIGHTS: dict[str, int] = {}


def verb(weight: int) -> Callable[[Act], Act]:
    """Makes a verb of a function that does a step and tells what happened. A verb of twice the
    weight is chosen twice as often."""

    def register(act: Act) -> Act:
        VERBS[act.__name__] = act
        WEIGHTS[act.__name__] = weight
        return act

    return register
