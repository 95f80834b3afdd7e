"""A limited number of histories breaks no law, and planted bugs are found and shrunk."""

from __future__ import annotations

import pytest

from ..broker import test_lane_model, test_model
from ..broker.planted import plant_bug
from .history import parse
from .keyspace import SimulatedBroker
from .run import Failure, fail_of, simulate

SEEDS = range(60, 120)  # always the same histories, which reveal all planted bugs
SHORT = 6  # steps that reveal what a planted bug does


def first_failure(brokers: list[SimulatedBroker]) -> Failure | None:
    found = (simulate(brokers, seed) for seed in SEEDS)
    return next((failure for failure in found if failure is not None), None)


@pytest.mark.slow
def test_no_history_breaks_a_law(brokers: list[SimulatedBroker]) -> None:
    failure = first_failure(brokers)
    assert failure is None, str(failure)


BUGS = {
    "a key of another shard is written": (
        "workers_key = base ..", "workers_key = string.gsub(base, '{.*}', '{0}') ..",
    ),
    "the timer is not woken": (
        "if redis.pcall('ZRANGE', key, 0, 0)[1] == member then wake_timer() end", "",
    ),
    "a due time is fired whenever a call arrives": ("known_cursor ~= cursor or", ""),
    "nobody hears of the end of a job": (
        "if has(job.watched, '1') then publish(base .. 'done:' .. job.id, status) end", "",
    ),
    "a unique job is superseded by none": (
        "newer = after_that\n  end\n  return false", "newer = after_that\n  end\n  return true",
    ),
} | {
    name: {**test_model.BUGS, **test_lane_model.BUGS}[name]
    for name in (
        "the child's list keeps what was settled",
        "a repeat is settled again",
        "a requeued job stays in its list",
        "the lease does not rise",
        "a resent claim claims anew",
        "no token is restored",
        "slots are not freed",
        "a freed slot calls nobody",
    )
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found_and_shrunk(
    brokers: list[SimulatedBroker], monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    plant_bug(monkeypatch, *BUGS[bug])
    failure = first_failure(brokers)
    assert failure is not None
    assert len(failure.steps) <= SHORT, str(failure)
    printed = str(failure).splitlines()[1 : 1 + len(failure.steps)]
    assert parse(printed) == failure.steps
    assert type(fail_of(brokers, parse(printed))) is type(failure.error)


def test_steps_in_a_shard_do_not_affect_the_others(brokers: list[SimulatedBroker]) -> None:
    """What happens to processes, and what operators do everywhere, affects all shards."""
    told: list[str] = []
    lines = [
        "1 enqueue@1 0 0 0 0 0", "2 snapshot 0", "3 claim@1 0 0 0 0 1", "4 kill_child 0 0 0",
        "5 rewind 0", "6 recover_a_dead_child 0 0", "7 recover_a_dead_child@1 0 1",
    ]  # fmt: skip
    assert fail_of(brokers, parse(lines), told.append) is None
    assert told[2].startswith("3 claim@1 0 0 0 0 1  # w0-0 takes j1-0/1")
    assert told[3].endswith("w0-0 with []; w0-0 with ['j1-0']")
    assert told[5].endswith("# w0-0, of which None had started: []")
    assert told[6].endswith("# w0-0, of which ['j1-0'] had started: [('j1-0', 'recovered')]")


def test_a_rewind_restores_everything(brokers: list[SimulatedBroker]) -> None:
    """What was accepted since then is known to be lost."""
    steps = parse(["1 enqueue 0 0 0 0 0", "2 snapshot", "3 claim 0 0 0 0 1", "4 enqueue 0 0 0 0 0"])
    told: list[str] = []
    assert fail_of(brokers, [*steps, *parse(["5 rewind", "6 heartbeat 0 0"])], told.append) is None
    assert told[2].endswith("w0-0 takes j1-0/1")
    assert told[4].endswith("# Redis is back at its last save")
    assert told[5].endswith("lost ['j1-0'], to cancel []")


@pytest.mark.parametrize("ends", [False, True])
def test_a_lease_that_a_rewind_gave_to_another_child_is_not_stale(
    brokers: list[SimulatedBroker], ends: bool
) -> None:
    lines = [
        "1 enqueue 0 0 0 0 0", "2 snapshot", "3 claim 0 0 0 0 1", "4 rewind",
        "5 claim 1 0 0 0 1", *(["6 finish_and_claim 1 0 0 0 0"] if ends else []),
        "7 write_what_is_stale 0 1 0 0 0",
    ]  # fmt: skip
    told: list[str] = []
    assert fail_of(brokers, parse(lines), told.append) is None
    assert told[4].endswith("w0-1 takes j1-0/1")
    assert told[-1].endswith("# w0-1 has or had j1-0/1 by now")
