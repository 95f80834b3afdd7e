"""Plans side by side: which fault is in which plan, and what ends them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from . import ledger
from .deployment import Place
from .fault_runner import SIDES, FaultRunner, Length, plans
from .faults import Faults, choose
from .ledger import Tail
from .plan import PlannedFault, make_plan

PLACES = [
    Place(on, database) for on in ("redis", "sentinel", "cluster")
    for database in ("postgresql", "sqlite")
] + [Place(on, clock_jumps=True) for on in ("redis", "sentinel", "cluster")]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_each_fault_is_in_one_plan(place: Place) -> None:
    chosen = choose(place)
    found = plans(7, chosen, side_by_side=True)
    round_ = {
        side: [
            planned.fault for planned in islice(plan, sum(name in SIDES[side] for name in chosen))
        ]
        for side, plan in found.items()
    }
    assert sorted(fault for faults in round_.values() for fault in faults) == chosen
    assert all(set(faults) <= set(SIDES[side]) for side, faults in round_.items())


def test_the_seed_decides_every_plan() -> None:
    def drawn(seed: int) -> list[list[PlannedFault]]:
        found = plans(seed, choose(Place()), side_by_side=True)
        return [list(islice(plan, 40)) for plan in found.values()]

    assert drawn(7) == drawn(7)
    assert all(one != other for one, other in zip(drawn(7), drawn(8), strict=True))
    whole = plans(7, choose(Place()), side_by_side=False)
    assert list(islice(whole[""], 40)) == list(islice(make_plan(7, choose(Place())), 40))


class FakeDeployment:
    """A deployment whose faults do nothing, while jobs run."""

    place = Place(lease=0.04)

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self.misses = ""  # the fault that has no effect
        itself: Any = self
        self.runner = FaultRunner(itself, Tail(self.ledger), lambda _: None, lambda: "")

    def inject(self, planned: PlannedFault) -> list[int]:
        assert planned.fault != self.misses, f"{planned.fault} did not strike"
        return []

    def work(self, stop: threading.Event) -> None:
        while not stop.wait(0.001):
            with ledger.running("plain", "", "job"):
                pass


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDeployment]:
    deployment, stop = FakeDeployment(tmp_path), threading.Event()
    monkeypatch.setenv(ledger.VARIABLE, str(deployment.ledger))
    monkeypatch.setattr(Faults, "inject", lambda _, planned: deployment.inject(planned))
    jobs = threading.Thread(target=deployment.work, args=[stop])
    jobs.start()
    yield deployment
    stop.set()
    jobs.join()


def test_each_plan_side_by_side_completes_a_round(deployment: FakeDeployment) -> None:
    chosen = choose(Place())
    deployment.runner.run(list(plans(7, chosen, side_by_side=True).values()), Length(rounds=2))
    assert deployment.runner.fired == dict.fromkeys(chosen, 2)
    assert len(ledger.read_file(deployment.ledger).faults) == 2 * len(chosen)


def test_a_fault_without_effect_ends_all_plans(deployment: FakeDeployment) -> None:
    deployment.misses = "database_cut"
    endless = plans(7, choose(Place()), side_by_side=True)
    with pytest.raises(AssertionError, match="database_cut did not strike"):
        deployment.runner.run(list(endless.values()), Length(seconds=3600))
    assert "database_cut" not in deployment.runner.fired
