"""Random jobs wait for random others, under random verbs: law 1 holds after every step, and once
everything has settled, exactly those jobs have started whose parents allow it."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from .harness import ERROR, FINISHED, BrokerHarness, invariants, outcome

STEPS = 150
OPTIONS = '{"index":"task:app.task"}'


class FollowMachine:
    """Jobs outside workflows, driven by chance."""

    def __init__(self, broker: BrokerHarness, seed: int) -> None:
        self.broker = broker
        self.chance = random.Random(seed)
        self.parents: dict[str, tuple[str, list[str]]] = {}
        self.gone: set[str] = set()
        self.retried: set[str] = set()
        self.ended: Counter[str] = Counter()

    @property
    def there(self) -> list[str]:
        return [name for name in self.parents if name not in self.gone]

    def add(self) -> None:
        name, policy = f"j{len(self.parents)}", self.chance.choice(["wait", "skip", "go_on"])
        chosen = self.chance.sample(self.there, min(len(self.there), self.chance.randint(0, 3)))
        self.parents[name] = policy, chosen
        where = {
            "priority": self.chance.choice([0, 0, 5]),
            "options": self.chance.choice(["", OPTIONS]),
            "after": " ".join([policy, *chosen]) if chosen else "",
        }
        assert self.broker.add(name, **where) == [True]
        assert self.broker.add(name, **where) == [False]

    def work(self) -> None:
        child = self.chance.choice(["a", "b"])
        for job in self.broker.claim(child, self.chance.randint(1, 4)).jobs:
            self.check_results(job.id)
            end = self.chance.choice(["completed"] * 5 + ["failed", "cancelled", "queued"])
            settled = outcome(job, end, {"failed": ERROR, "queued": ""}.get(end, '"ok"'))
            (code,) = self.broker.finish(settled, child=child)
            if end == "completed" and code == 1:
                self.ended[job.id] += 1
            if self.chance.random() < 0.3:  # its reply was lost
                assert self.broker.finish(settled, child=child) == [2]

    def check_results(self, name: str) -> None:
        """A running job finds what its parents returned, whatever was deleted."""
        policy, parents = self.parents[name]
        results = self.broker.workflows.parent_results(name)
        assert list(results) == parents
        if policy == "wait" and name not in self.retried:
            assert set(results.values()) <= {"ok"}, (name, results)

    def cancel(self) -> None:
        self.broker.store.cancel([self.chance.choice(self.there)])

    def retry(self) -> None:
        name = self.chance.choice(self.there)
        if self.broker.store.requeue([name]) == [1]:
            self.retried.add(name)

    def delete(self) -> None:
        name = self.chance.choice(self.there)
        if self.broker.store.delete([name]) == [1]:
            self.gone.add(name)

    def advance(self) -> None:
        self.broker.advance(1000)
        self.broker.store.advance()

    def step(self) -> None:
        verbs = [self.add, self.add, self.work, self.work, self.cancel, self.retry, self.delete]
        self.chance.choice([*verbs, self.broker.crash, self.advance])()

    def rest(self) -> None:
        """All jobs run to the end, and deferred work is done."""
        for _ in range(500):
            more = self.broker.store.advance()
            jobs = self.broker.claim("z", 50).jobs
            self.ended.update(job.id for job in jobs)
            self.broker.finish(*[outcome(job) for job in jobs], child="z")
            if not jobs and not more and not self.broker.ids("queued"):
                return
        raise AssertionError("it never comes to rest")

    def check(self) -> None:
        """Every waiting job has a reason to wait, and no ended job had one."""
        for name in self.there:
            policy, parents = self.parents[name]
            statuses = [self.broker.status(parent) for parent in parents]
            status, is_over = (
                self.broker.status(name),
                all(s in (None, *FINISHED) for s in statuses),
            )
            if status == "waiting":
                assert any(s in ("failed", "cancelled", "waiting") for s in statuses), name
                assert policy == "wait" or not is_over, (name, policy, statuses)
            elif status == "completed" and policy == "wait" and name not in self.retried:
                # Its parents had completed when it started; they may be gone since.
                assert all(s in (None, "completed") for s in statuses), (name, statuses)


@pytest.mark.parametrize("seed", range(8))
def test_random_followers(broker: BrokerHarness, seed: int) -> None:
    machine = FollowMachine(broker, seed)
    machine.add()
    for _ in range(STEPS):
        if machine.there:
            machine.step()
        else:
            machine.add()
        invariants(broker, tokens=False)
    machine.rest()
    invariants(broker, tokens=False)
    machine.check()
    assert all(times == 1 for times in machine.ended.values()), machine.ended
    assert len(machine.ended) > 10
