"""Histories are reproducible, can be printed and parsed, and can be shrunk."""

from __future__ import annotations

from collections.abc import Sequence

from .history import Step, generate, parse, shrink
from .run import WEIGHTS


def test_a_seed_makes_one_history() -> None:
    assert generate(7, WEIGHTS) == generate(7, WEIGHTS)
    assert generate(7, WEIGHTS) != generate(8, WEIGHTS)
    assert {step.verb for seed in range(100) for step in generate(seed, WEIGHTS)} == set(WEIGHTS)


def test_a_printed_history_can_be_parsed() -> None:
    steps = generate(7, WEIGHTS)
    printed = "\n".join(f"  {step}  # what it did" for step in steps)
    assert parse(["", "# a history", *printed.splitlines()]) == steps


def steps_of(verbs: str) -> list[Step]:
    return [Step(n, verb, (5, 6, 7, 8, 9)) for n, verb in enumerate(verbs)]


def verbs_of(steps: Sequence[Step]) -> str:
    return "".join(step.verb for step in steps)


def test_steps_that_do_not_matter_are_left_out() -> None:
    def fails(steps: Sequence[Step]) -> bool:
        verbs = verbs_of(steps)
        return "b" in verbs and "y" in verbs.partition("b")[2] and steps[-1].picks[1] == 6

    found = shrink(steps_of("abcdefghijklmnopqrstuvwxyz" * 2), fails)
    assert verbs_of(found) == "by"
    assert [step.picks for step in found] == [(0, 0, 0, 0, 0), (0, 6, 0, 0, 0)]


def test_shrinking_stops_after_a_number_of_runs() -> None:
    runs = 0

    def fails(_: Sequence[Step]) -> bool:
        nonlocal runs
        runs += 1
        return runs % 3 == 0

    shrink(steps_of("abcdefgh" * 20), fails, runs=50)
    assert runs == 50
