"""A bounded number of histories breaks no law, and planted bugs are found and shrunk."""

from __future__ import annotations

import pytest

from ..broker import test_lane_model, test_model
from ..broker.planted import plant_bug
from .history import parse
from .run import Failure, fail_of, simulate
from .world import SimulatedLab

HISTORIES = 60  # always the same
SHORT = 6  # steps that tell what a planted bug does


def first_failure(lab: SimulatedLab) -> Failure | None:
    found = (simulate(lab, seed) for seed in range(HISTORIES))
    return next((failure for failure in found if failure is not None), None)


def test_no_history_breaks_a_law(lab: SimulatedLab) -> None:
    failure = first_failure(lab)
    assert failure is None, str(failure)


BUGS = {
    name: {**test_model.BUGS, **test_lane_model.BUGS}[name]
    for name in (
        "the child's list keeps what was settled",
        "a repeat is settled again",
        "a requeued job stays in its list",
        "a resent claim claims anew",
        "no token is restored",
        "slots are not freed",
        "a freed slot calls nobody",
    )
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found_and_shrunk(
    lab: SimulatedLab, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    plant_bug(monkeypatch, *BUGS[bug])
    failure = first_failure(lab)
    assert failure is not None
    assert len(failure.steps) <= SHORT, str(failure)
    printed = str(failure).splitlines()[1 : 1 + len(failure.steps)]
    assert parse(printed) == failure.steps
    assert type(fail_of(lab, parse(printed))) is type(failure.error)


def test_a_rewind_brings_back_everything(lab: SimulatedLab) -> None:
    """And what was accepted since then is known to be lost."""
    steps = parse(["1 enqueue 0 0 0 0 0", "2 snapshot", "3 claim 0 0 0 0 1", "4 enqueue 0 0 0 0 0"])
    told: list[str] = []
    assert fail_of(lab, [*steps, *parse(["5 rewind", "6 heartbeat 0 0"])], told.append) is None
    assert told[2].endswith("w0-0 takes j1-0/1")
    assert told[4].endswith("# Redis is back at its last save")
    assert told[5].endswith("lost ['j1-0'], to cancel []")
