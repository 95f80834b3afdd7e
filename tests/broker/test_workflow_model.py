"""Random workflows under random verbs: law 1 and the counts hold after every step, every job that
can run runs once, and callbacks run once per generation."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from .harness import ERROR, BrokerHarness, invariants, outcome
from .workflows import BrokerWorkflow

STEPS = 120


def random_parents(chance: random.Random) -> dict[int, list[int]]:
    size = chance.randint(1, 14)
    return {
        n: sorted(chance.sample(range(n), min(n, chance.choice([0, 1, 1, 2, 3]))))
        for n in range(size)
    }


class WorkflowMachine:
    """One workflow after another, driven by chance."""

    def __init__(self, broker: BrokerHarness, seed: int) -> None:
        self.broker = broker
        self.chance = random.Random(seed)
        self.policies = ["", "", "skip", "go_on"]
        self.workflows: list[BrokerWorkflow] = []
        self.ended: Counter[str] = Counter()
        self.checked: dict[str, list[Any]] = {}  # workflow id -> its hashes

    def push(self) -> None:
        parents = random_parents(self.chance)
        on_fail = {n: self.chance.choice(self.policies) for n in parents}
        workflow = BrokerWorkflow(
            self.broker, parents, on_fail=on_fail, name=str(len(self.workflows)),
            complete_task="app.done", complete_payload="[[],{}]",
            failure_task="app.alarm", failure_payload="[[],{}]",
            failure_options='{"index":"task:app.alarm"}',
            options=f'{{"index":"task:app.task workflow:{len(self.workflows)}"}}',
        )  # fmt: skip
        workflow.push()
        self.workflows.append(workflow)

    def work(self) -> None:
        child = self.chance.choice(["a", "b"])
        jobs = self.broker.claim(child, self.chance.randint(1, 5)).jobs
        for job in jobs:
            end = self.chance.choice(["completed"] * 6 + ["failed", "retrying", "queued"])
            body = {"completed": "null", "queued": ""}.get(end, ERROR)
            settled = outcome(job, end, body)
            (code,) = self.broker.finish(settled, child=child)
            if end == "completed" and code == 1:
                self.ended[job.id] += 1
            if self.chance.random() < 0.3:  # its reply was lost
                assert self.broker.finish(settled, child=child) == [2]

    def control(self) -> None:
        workflow = self.chance.choice(self.workflows)
        order = self.chance.choice(["pause", "release", "release", "pause", "cancel"])
        if order != "cancel" or self.chance.random() < 0.2:
            self.broker.store.control_workflow(workflow.id, order)

    def retry(self) -> None:
        workflow = self.chance.choice(self.workflows)
        ids = [workflow.job(n) for n in workflow.parents]
        self.broker.store.requeue([job for job in ids if self.broker.status(job) == "failed"][:1])

    def later(self) -> None:
        self.broker.advance(1500)
        self.broker.store.promote(["default"])
        self.broker.store.advance()

    def step(self) -> None:
        self.chance.choice(
            [self.push, self.work, self.work, self.work, self.control, self.retry,
             self.broker.crash, self.later]
        )()  # fmt: skip

    def rest(self) -> None:
        """No more interference: everything is released, and runs without failures."""
        for workflow in self.workflows:
            self.broker.store.control_workflow(workflow.id, "release")
        for _ in range(1000):
            self.broker.advance(1500)
            self.broker.store.promote(["default"])
            self.broker.store.advance()
            jobs = self.broker.claim("z", 50).jobs
            self.ended.update(job.id for job in jobs)
            self.broker.finish(*[outcome(job, "completed", "null") for job in jobs], child="z")
            if not jobs and not any(self.broker.ids(name) for name in ("queued", "retrying")):
                return
        raise AssertionError("it never comes to rest")

    def check(self) -> None:
        """A workflow whose hashes have not changed has already been checked."""
        dump = invariants(self.broker, tokens=False)
        for workflow in self.workflows:
            hashes = workflow.hashes(dump)
            if self.checked.get(workflow.id) != hashes:
                workflow.check_counts(workflow.statuses())
                self.checked[workflow.id] = hashes


@pytest.mark.parametrize("seed", range(6))
def test_random_workflows(broker: BrokerHarness, seed: int) -> None:
    machine = WorkflowMachine(broker, seed)
    machine.push()
    for _ in range(STEPS):
        machine.step()
        machine.check()
    machine.rest()
    machine.check()
    assert all(times == 1 for times in machine.ended.values()), machine.ended
    for workflow in machine.workflows:
        data, statuses = workflow.data(), workflow.statuses()
        assert data.status.is_final, (data, statuses)
        if data.status == "completed":
            assert "waiting" not in statuses
            assert broker.status(f"{workflow.id}.complete{data.generation}") is not None
        if data.status == "failed":
            assert {"failed", "cancelled"} & set(statuses)
            assert broker.status(f"{workflow.id}.failure{data.generation}") is not None
