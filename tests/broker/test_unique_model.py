"""Random jobs with unique keys under random verbs: after every step, each key belongs to a living
job, no two jobs exist that a key rules out, and no older arguments run after newer ones."""

from __future__ import annotations

import random

import pytest

from django_redisqueue.broker.replies import ClaimedJob
from django_redisqueue.core.job_data import NewJob

from .harness import ERROR, FINISHED, PAYLOAD, BrokerHarness, invariants, outcome
from .uniques import MODES, check_uniques

STEPS = 120
DAY = 86_400_000
OUTCOME_KINDS = ["completed"] * 4 + ["failed", "cancelled", "queued", "retrying", "delayed"]


class UniqueMachine:
    """Jobs with five keys, one for each mode, driven by chance; their payloads are numbers."""

    def __init__(self, broker: BrokerHarness, seed: int) -> None:
        self.broker = broker
        self.chance = random.Random(seed)
        self.ids: list[str] = []
        self.held: list[tuple[str, ClaimedJob]] = []
        self.newest: dict[str, int] = {}  # the payload that was enqueued last, by key
        self.run: dict[str, int] = {}  # the payload that ran last, by key
        self.duplicates = 0

    def put(self) -> None:
        mode, number = self.chance.choice(list(MODES)), len(self.ids)
        new = NewJob(
            f"j{number}", "default", "app.task", f"[[{number}],{{}}]",
            priority=self.chance.choice([0, 0, 5]), unique=f"{mode} {MODES[mode]}",
            when="+1000" if mode == "replace" else self.chance.choice(["", "", "+1500"]),
        )  # fmt: skip
        before = self.broker.redis.get(self.broker.keys.unique(mode))
        (is_new,) = self.broker.store.enqueue([new])
        assert is_new is not bool(new.owner)
        if new.owner:
            assert new.owner == before, "a living job lost its key"
            self.duplicates += 1
        if self.chance.random() < 0.3:  # its reply was lost
            owner = new.owner
            assert self.broker.store.enqueue([new]) == [False]
            assert new.owner == owner
        self.ids.append(new.id)
        self.newest[mode] = number

    def claim(self) -> None:
        child = self.chance.choice("ab")
        for job in self.broker.claim(child, self.chance.randint(1, 3)).jobs:
            self.held.append((child, job))
            key, number = self.broker.job(job.id)["unique"].split()[0], int(job.payload[2:-5])
            if key in ("replace", "last"):
                assert number >= self.run.get(key, -1), "older arguments ran after newer ones"
            self.run[key] = number

    def finish(self) -> None:
        if self.held:
            child, job = self.held.pop(self.chance.randrange(len(self.held)))
            kind = self.chance.choice(OUTCOME_KINDS)
            bodies = {"completed": "1", "cancelled": "", "queued": ""}
            body = bodies.get(kind, ERROR)
            assert self.broker.finish(outcome(job, kind, body), child=child) in ([1], [3])

    def reap(self) -> None:
        child = self.chance.choice("ab")
        running = [job.id for holder, job in self.held if holder == child]
        started = self.chance.sample(running, self.chance.randint(0, len(running)))
        self.broker.store.reap(child, started)
        self.held = [pair for pair in self.held if pair[0] != child]

    def cancel(self) -> None:
        self.broker.store.cancel(self.chance.sample(self.ids, min(2, len(self.ids))))

    def requeue(self) -> None:
        if self.ids:
            job_id = self.chance.choice(self.ids)
            found = self.broker.job(job_id)
            if self.broker.store.requeue([job_id]) == [1]:  # on request, older arguments run too
                self.run.pop(found["unique"].split()[0], None)

    def pass_time(self) -> None:
        self.broker.advance(self.chance.choice([100, 700, 2500]))
        self.broker.store.promote([])

    def clear(self) -> None:
        status = self.chance.choice(["scheduled", "retrying", "queued", *FINISHED])
        self.broker.store.clear("default", status, self.chance.randint(1, 2))

    def prune(self) -> None:
        self.broker.store.prune("default", self.chance.choice(FINISHED), 3, DAY)

    def check(self) -> None:
        check_uniques(self.broker, invariants(self.broker, tokens=False))

    def run_steps(self) -> None:
        acts = [self.put] * 6 + [self.claim, self.finish] * 4 + [self.pass_time] * 3
        acts += [self.reap, self.cancel, self.requeue, self.clear, self.prune]
        for _ in range(STEPS):
            self.chance.choice(acts)()
            self.check()

    def rest(self) -> None:
        """Everything runs to its end."""
        for _ in range(100):
            for child, job in self.held:
                self.broker.finish(outcome(job, "completed", "1"), child=child)
            self.held = []
            self.pass_time()
            self.claim()
            if not self.held and not any(
                self.broker.ids(name) for name in ("scheduled", "retrying")
            ):
                break
        self.check()


@pytest.mark.parametrize("seed", range(5))
def test_random_verbs(broker: BrokerHarness, seed: int) -> None:
    machine = UniqueMachine(broker, seed)
    machine.run_steps()
    assert machine.duplicates > 5
    machine.rest()
    assert not broker.redis.exists(*(broker.keys.unique(key) for key in MODES if key != "lasting"))
    assert broker.ids("waiting") == []
    for key, words in MODES.items():  # what is enqueued at rest is new, and runs
        broker.advance(5000)
        new = NewJob(f"end{key}", "default", "t", PAYLOAD, unique=f"{key} {words}")
        assert broker.store.enqueue([new]) == [True]
    assert len(broker.claim(jobs=5).jobs) == len(MODES)


@pytest.mark.parametrize("mode", ["replace", "last"])
def test_the_last_arguments_are_never_lost(broker: BrokerHarness, mode: str) -> None:
    """Without cancels and whatever crashes: the newest arguments run, and run last."""
    for seed in range(5):
        machine = UniqueMachine(broker, seed)
        machine.chance.choice = _only(machine.chance, mode)  # type: ignore[method-assign]
        for _ in range(40):
            verbs = [machine.put, machine.claim, machine.reap, machine.pass_time]
            machine.chance.sample(verbs, 1)[0]()
        machine.rest()
        assert machine.run[mode] == machine.newest[mode]
        broker.redis.flushdb()


def _only(chance: random.Random, mode: str) -> object:
    choose = chance.choice

    def choice(found: object) -> object:
        return mode if found == list(MODES) else choose(found)  # type: ignore[arg-type]

    return choice
