"""Random verbs on jobs with lanes: the laws in lanes.py hold after every step, no limit is ever
exceeded, no window has more starts than its rate allows, and in the end every job has run."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from django_redisqueue.broker.replies import ClaimedJob

from .harness import BrokerHarness, invariants, outcome
from .lanes import check_limits
from .planted import plant_bug

QUEUES = ("x", "y")
# Limits with one key each, a limit that all share, one shared by queues, and none at all
LANES = [
    *[f"|c:t:{n} c:t=2" for n in range(3)],
    *[f"a{n}|c:t:{n}|c:all: c:t=2 c:all=3 s:a0=3" for n in range(3)],
    *[f"a{n} " for n in range(3)],
    *[f"|r:r:{n} r:r=4/10000000/2" for n in range(2)],
    "a1|c:all:|r:r:0 c:all=3 r:r=4/10000000/2",
    *[f"|k:w:{n} k:w=2/2000" for n in range(2)],  # chunks: one that waits, and one that does not
    "a0|k:k:|c:all: k:k=3/0 c:all=3",
    "",
]
RATE, WINDOW = 4, 10_000


class LaneMachine:
    """One random run."""

    def __init__(self, broker: BrokerHarness, seed: int) -> None:
        self.broker, self.random = broker, random.Random(seed)
        self.held: list[tuple[str, ClaimedJob]] = []
        self.lanes: dict[str, str] = {}
        self.starts: dict[str, list[int]] = defaultdict(list)
        self.call = 0
        broker.redis.flushdb()

    def step(self) -> None:
        verbs = [
            self.enqueue, self.enqueue, self.claim, self.claim, self.claim, self.finish,
            self.finish, self.release, self.reap, self.cancel, self.clear, self.wait, self.pause,
            self.requeue, self.pause_lanes, self.set_aging,
        ]  # fmt: skip
        self.random.choice(verbs)()
        self.check()

    def check(self) -> None:
        check_limits(invariants(self.broker, tokens=False), self.broker.keys.base)

    def enqueue(self) -> None:
        queue, lane = self.random.choice(QUEUES), self.random.choice(LANES).strip()
        priority = self.random.choice([0, 0, 0, 5, -5])
        when = self.random.choice(["", "", "", "+3000"])
        for _ in range(self.random.randint(1, 3)):
            job_id = f"j{len(self.lanes)}"
            self.lanes[job_id] = lane
            self.broker.add(job_id, queue=queue, lane=lane, priority=priority, when=when)

    def claim(self, floor: int | None = None) -> int:
        child = self.random.choice(["c1", "c2"])
        queues = self.random.choice([("x", "y"), ("y", "x"), ("x",), ("y",)])
        if floor is None:
            floor = self.random.choice([-100, -100, 0, 1])
        jobs = self.random.choice([1, 2, 8])
        claim = self.broker.claim(child, jobs, queues, min_priority=floor)
        assert claim.lost == []
        chunks = {lane for job in claim.jobs if "|k:" in (lane := self.lanes[job.id])}
        assert not chunks or {self.lanes[job.id] for job in claim.jobs} == chunks
        for job in claim.jobs:
            assert not job.recoveries or len(claim.jobs) == 1
            for key in self.lanes[job.id].split(" ")[0].split("|")[1:]:
                if key.startswith("r:"):
                    self._started(key)
        self.held += [(child, job) for job in claim.jobs]
        return len(claim.jobs)

    def _started(self, key: str) -> None:
        starts = self.starts[key]
        starts.append(self.broker.now)
        assert len(starts) <= RATE or starts[-1] - starts[-1 - RATE] >= WINDOW, key

    def _pick(self) -> tuple[str, ClaimedJob] | None:
        if not self.held:
            return None
        return self.held.pop(self.random.randrange(len(self.held)))

    def finish(self, kind: str = "") -> None:
        if found := self._pick():
            child, job = found
            kind = kind or self.random.choice(
                ["completed", "completed", "failed", "retrying", "cancelled", "delayed"]
            )
            assert self.broker.finish(outcome(job, kind), child=child)[0] in (1, 3)

    def release(self) -> None:
        if found := self._pick():
            child, job = found
            was_rated = [key for key in self.lanes[job.id].split(" ")[0].split("|") if "r:" in key]
            assert self.broker.store.release(child, [(job.id, job.lease)])[0] in (1, 3)
            for key in was_rated:  # a token may be returned; here it still counts as used
                starts = self.starts[key]
                starts.remove(max(starts))

    def reap(self) -> None:
        child = self.random.choice(["c1", "c2"])
        held = [job.id for holder, job in self.held if holder == child]
        self.broker.store.reap(child, held[: self.random.randint(0, 2)])
        self.held = [found for found in self.held if found[0] != child]

    def cancel(self) -> None:
        if self.lanes:
            self.broker.store.cancel([self.random.choice(list(self.lanes))])

    def requeue(self) -> None:
        if self.lanes:
            self.broker.store.requeue([self.random.choice(list(self.lanes))])

    def clear(self) -> None:
        if self.random.random() < 0.3:
            self.broker.store.clear(self.random.choice(QUEUES), "queued", 2)

    def pause(self) -> None:
        self.broker.store.pause(self.random.choice(QUEUES), self.random.random() < 0.3)

    def pause_lanes(self) -> None:
        key = self.random.choice(["s:a0", "s:a1", "c:t:1", "c:all:", "r:r:0"])
        self.broker.store.pause_lanes(self.random.choice(QUEUES), key, self.random.random() < 0.3)

    def set_aging(self) -> None:
        aging = self.random.choice([None, 1, 400, 4000])
        self.broker.store.set_aging({self.random.choice(QUEUES): aging})

    def wait(self) -> None:
        self.broker.advance(self.random.choice([1, 500, 3000]))
        self.broker.store.promote(QUEUES)

    def run_to_the_end(self) -> None:
        for queue in QUEUES:
            self.broker.store.pause(queue, False)
            for key in self.broker.redis.hkeys(self.broker.keys.queue(queue).pauses):
                self.broker.store.pause_lanes(queue, key, False)
        idle = 0
        while idle < 60:
            while self.held:
                self.finish("completed")
            self.broker.advance(500)
            self.broker.store.promote(QUEUES)
            idle = 0 if self.claim(-100) else idle + 1
        dump = invariants(self.broker, tokens=False)
        left = [key for key in dump if (":q:" in key and "keyed" in key) or key.endswith("slots")]
        assert left == []
        assert self.broker.keys.waiting_limits not in dump
        assert self.broker.keys.waiting_chunks not in dump


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_verbs_keeps_the_limits(broker: BrokerHarness, seed: int) -> None:
    machine = LaneMachine(broker, seed)
    for _ in range(90):
        machine.step()
    machine.run_to_the_end()


BUGS = {
    "limits are not looked at": ("return limit.max - limit.used", "return 9"),
    "slots are not freed": ("redis.pcall('ZREM', slots_key, unpack(members))", ""),
    "a freed slot calls nobody": (
        "if someone_waits() then call_waiting_lanes(keys) end\nend\n\n-- A job", "end\n\n-- A job",
    ),
    "a cancelled job stays in its lane": (
        "redis.pcall('ZREM', lane_key(queue, lane.name), id)", "",
    ),
    "a job that is claimed by age is not the first of its heads": (
        "{ job.id, job.score }, 0", "{}, 0",
    ),
    "a rate is not taken": ("+ #ids * limit.interval", ""),
    "a reaped job keeps its slot": ("\n  leave_slots(id, lane)", ""),
}  # fmt: skip


def _run_seeds(broker: BrokerHarness) -> None:
    for seed in range(30):
        test_any_order_of_verbs_keeps_the_limits(broker, seed)


@pytest.mark.parametrize("bug", BUGS)
def test_the_machine_finds_planted_bugs(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    plant_bug(monkeypatch, *BUGS[bug])
    with pytest.raises((AssertionError, KeyError)):
        _run_seeds(broker)
