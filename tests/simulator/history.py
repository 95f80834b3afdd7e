"""Histories: lists of steps that mean something whatever came before them.

A step names what it creates by its own number, and picks from what exists by numbers of its own. So
steps can be left out of a history and the rest still does much the same: that is how histories are
shrunk.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")
PICKS, RANGE = 5, 720  # numbers per step, and their upper bound, which many numbers divide
LENGTH = 25  # steps
SHARDS = 2
ALWAYS = frozenset({"enqueue", "claim", "finish"})  # verbs that every history has


class Step(NamedTuple):
    """One step: its number, its verb, the numbers by which it picks, and its shard."""

    n: int
    verb: str
    picks: tuple[int, ...]
    shard: int = 0

    def pick(self, at: int, found: Sequence[Item]) -> Item:
        """One of ``found``, which is not empty."""
        return found[self.picks[at] % len(found)]

    def some(self, at: int, found: Sequence[Item], most: int) -> list[Item]:
        """Up to ``most`` neighbouring items of ``found``; at least one if there are any."""
        if not found:
            return []
        first = self.picks[at] % len(found)
        return list(found[first : first + 1 + self.picks[at] // len(found) % most])

    def __str__(self) -> str:
        where = f"{self.verb}@{self.shard}" if self.shard else self.verb
        return f"{self.n} {where} {' '.join(map(str, self.picks))}"


def generate(seed: int, weights: Mapping[str, int], length: int = LENGTH) -> list[Step]:
    """A random history. Each uses only some of the verbs, so that some histories get far with few
    of them; and some have several shards."""
    chance = random.Random(seed)
    verbs = [verb for verb in sorted(weights) if verb in ALWAYS or chance.random() < 0.45]
    chosen = chance.choices(verbs, [weights[verb] for verb in verbs], k=length)
    shards = chance.choice([1, 1, 1, SHARDS])
    return [
        Step(
            n, verb, tuple(chance.randrange(RANGE) for _ in range(PICKS)), chance.randrange(shards)
        )
        for n, verb in enumerate(chosen)
    ]  # fmt: skip


def parse(lines: Iterable[str]) -> list[Step]:
    """The history that was printed; text after a # is ignored."""
    steps = []
    for line in lines:
        n, *rest = line.partition("#")[0].split() or [""]
        if n:
            verb, _, shard = rest[0].partition("@")
            steps.append(Step(int(n), verb, tuple(map(int, rest[1:])), int(shard or 0)))
    return steps


def shrink(
    steps: Sequence[Step], fails: Callable[[Sequence[Step]], bool], runs: int = 400
) -> list[Step]:
    """A shorter history that still fails: steps are left out, in halves, quarters and so on, and
    then shards and numbers become 0. Calls ``fails`` at most ``runs`` times."""
    left = list(steps)

    def try_instead(shorter: list[Step]) -> bool:
        nonlocal left, runs
        runs -= 1
        if runs < 0 or not fails(shorter):
            return False
        left = shorter
        return True

    size = len(left) // 2
    while size and runs > 0:
        at, is_shorter = 0, False
        while at < len(left):
            if try_instead(left[:at] + left[at + size :]):
                is_shorter = True
            else:
                at += size
        if not is_shorter or size > 1:
            size //= 2
    try_instead([step._replace(shard=0) for step in left])
    for at in range(len(left)):
        for number in range(PICKS):
            step = left[at]
            picks = (*step.picks[:number], 0, *step.picks[number + 1 :])
            if step.picks[number]:
                try_instead([*left[:at], step._replace(picks=picks), *left[at + 1 :]])
    return left
