"""Random gathers under random verbs: after every step law 1 holds, the results are those of the
completed jobs, and the follow-up exists once, in the form in which the gather ended."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from .gathers import DELAY_MS, KEEP_MS, TTL_MS, Query
from .harness import ERROR, BrokerHarness, invariants, job_events, outcome

STEPS = 150
OUTCOME_KINDS = ["completed"] * 6 + ["failed", "failed", "retrying", "queued"]


class GatherMachine:
    """Gathers, driven by chance."""

    def __init__(self, broker: BrokerHarness, seed: int) -> None:
        self.broker = broker
        self.chance = random.Random(seed)
        self.queries: list[Query] = []
        self.expired: set[str] = set()
        self.without_follow_up: set[str] = set()  # the follow-up was deleted
        self.reached: dict[str, tuple[str, str]] = {}
        self.checked: dict[str, list[Any]] = {}  # key -> the hashes of its gather

    def start(self) -> None:
        size = self.chance.randint(1, 6)
        query = Query(
            self.broker, "abcdef"[:size], key=f"k{len(self.queries)}", name=str(len(self.queries)),
            threshold=self.chance.randint(1, size), failure=self.chance.random() < 0.7,
        )  # fmt: skip
        assert query.start() == 1
        if self.chance.random() < 0.3:  # its reply was lost
            assert query.start() == 0
        self.queries.append(query)

    def work(self) -> None:
        child = self.chance.choice(["a", "b"])
        jobs = self.broker.claim(child, self.chance.randint(1, 5)).jobs
        ends = [self.chance.choice(OUTCOME_KINDS) for _ in jobs]
        settled = [
            outcome(job, end, {"completed": '"ok"', "queued": ""}.get(end, ERROR))
            for job, end in zip(jobs, ends, strict=True)
        ]
        for code in self.broker.finish(*settled, child=child):
            assert code in (1, 3)
        if self.chance.random() < 0.3:
            assert set(self.broker.finish(*settled, child=child)) <= {2}

    def any_job(self) -> str:
        query = self.chance.choice(self.queries)
        names = [*range(len(query.plan.listeners)), "then", "failure"]
        return query.job(self.chance.choice(names))

    def cancel(self) -> None:
        self.broker.store.cancel([self.any_job()])

    def retry(self) -> None:
        self.broker.store.requeue([self.any_job()])

    def expire(self) -> None:
        query = self.chance.choice(self.queries)
        if self.chance.random() < 0.2 and query.ttl_ms() > 0:
            query.expire()
            self.expired.add(query.key)

    def delete(self) -> None:
        query = self.chance.choice(self.queries)
        for which in ("then", "failure"):
            if self.broker.store.delete([query.job(which)]) == [1]:
                self.without_follow_up.add(query.key)

    def later(self) -> None:
        self.broker.advance(self.chance.choice([1500, 1500, DELAY_MS]))
        self.queries[0].look()

    def step(self) -> None:
        upkeep = [self.broker.crash, self.expire, self.delete, self.later]
        self.chance.choice([self.start, self.cancel, self.retry, *upkeep, *[self.work] * 5])()

    def rest(self) -> None:
        """No more interference: everything that can run runs, and time passes."""
        for _ in range(100):
            self.broker.advance(DELAY_MS)
            self.queries[0].look()
            jobs = self.broker.claim("z", 50).jobs
            self.broker.finish(*[outcome(job) for job in jobs], child="z")
            if not jobs and all(query.data().status.is_final for query in self.known()):
                return
        raise AssertionError("it never comes to rest")

    def known(self) -> list[Query]:
        return [query for query in self.queries if query.is_known]

    def check(self) -> None:
        """A gather whose hashes have not changed has already been checked."""
        dump, keys = invariants(self.broker, tokens=False), self.broker.keys
        known = [query for query in self.queries if keys.gather_plan(query.key) in dump]
        listed = {key for key, _ in dump.get(keys.gathers, ("zset", []))[1]}
        assert listed == {query.key for query in known}
        assert listed == {key for key, _ in dump.get(keys.newest_gathers, ("zset", []))[1]}
        events = job_events(dump, keys)
        completions = Counter(job_id for job_id, status, _ in events if status == "completed")
        for query in known:
            assert all(completions[query.job(which)] <= 1 for which in ("then", "failure"))
            hashes = query.hashes(dump)
            if self.checked.get(query.key) != hashes:
                self.check_one(query)
                self.checked[query.key] = hashes

    def check_one(self, query: Query) -> None:
        data = query.data()
        state = data.status.value, data.reason.value
        *jobs, then, failure = self.broker.statuses(
            [query.job(n) for n in (*range(len(data.listeners)), "then", "failure")]
        )
        ends = zip(data.listeners, jobs, strict=True)
        completed = {name for name, status in ends if status == "completed"}
        results = set(query.queries.results(query.key))
        if query.key not in self.expired and query.ttl_ms() != -2:
            assert results == completed
            assert data.done_count == len(results)
            assert state[0] != "collecting" or len(results) < data.threshold
        else:
            assert results == set()
        before = self.reached.setdefault(query.key, state)
        assert before[0] == "collecting" or before == state, "an end is for good"
        self.reached[query.key] = state
        follow = [which for which, its in {"then": then, "failure": failure}.items() if its]
        has_failure = "failure_task" in query.plan.fields
        expected = {"collecting": [], "released": ["then"]}
        if query.key in self.without_follow_up:
            assert follow == []
        else:
            assert follow == expected.get(state[0], ["failure"] if has_failure else [])


@pytest.mark.parametrize("seed", range(6))
def test_random_gathers(broker: BrokerHarness, seed: int) -> None:
    machine = GatherMachine(broker, seed)
    machine.start()
    for _ in range(STEPS):
        machine.step()
        machine.check()
    machine.rest()
    machine.check()
    assert {status for status, _ in machine.reached.values()} == {"released", "failed"}
    for _ in range(5):
        broker.advance(max(TTL_MS, KEEP_MS))
        machine.queries[0].look()
    assert machine.known() == []
    assert not broker.redis.exists(broker.keys.gathers, broker.keys.newest_gathers)
    left = [key for key in invariants(broker, tokens=False) if ":gather:" in key]
    assert left == []
