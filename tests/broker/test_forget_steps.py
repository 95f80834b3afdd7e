"""forget_steps: a failed or cancelled job starts over when it is requeued."""

from __future__ import annotations

import pytest

from .lab import ERROR, Lab, invariants, outcome
from .test_step import remembered, with_step


@pytest.mark.parametrize("verdict", ["failed", "cancelled"])
def test_steps_are_forgotten_and_no_longer_counted(lab: Lab, verdict: str) -> None:
    lab.finish(outcome(with_step(lab), verdict, ERROR))
    assert lab.store.forget_steps(["a"]) == [1]
    assert remembered(lab) == {}
    invariants(lab)
    assert lab.store.forget_steps(["a"]) == [1]
    invariants(lab)


def test_a_job_that_continues_keeps_its_steps(lab: Lab) -> None:
    with_step(lab)
    lab.add("b")
    before = lab.dump()
    assert lab.store.forget_steps(["a", "b", "never"]) == [0, 0, -1]
    assert lab.dump() == before


def test_a_job_without_steps(lab: Lab) -> None:
    lab.end("a", verdict="failed", body=ERROR)
    before = lab.dump()
    assert lab.store.forget_steps(["a"]) == [1]
    assert lab.dump() == before
