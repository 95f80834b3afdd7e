"""The registry of what a step can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .history import Step
from .shard import Shard

Act = Callable[[Shard, Step], str]


class Idle(str):
    """What a step returns if it had nothing to do and sent nothing."""


class Verb(NamedTuple):
    """What a step does in its shard, or in every shard (``everywhere``). A verb of twice the weight
    is chosen twice as often."""

    act: Act
    weight: int
    everywhere: bool


VERBS: dict[str, Verb] = {}


def verb(weight: int, *, everywhere: bool = False) -> Callable[[Act], Act]:
    """Makes a verb of a function that carries out a step and returns what happened."""

    def register(act: Act) -> Act:
        VERBS[act.__name__] = Verb(act, weight, everywhere)
        return act

    return register


def weights() -> dict[str, int]:
    return {name: verb.weight for name, verb in VERBS.items()}
