"""Claims planned in the order of ``keyed`` have the same result as claims made share by share."""

from __future__ import annotations

import random
from typing import Any

import pytest

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.core.job_data import NewJob

from .harness import PAYLOAD, T0, BrokerHarness, invariants, outcome

A, B = "|c:t:a c:t=2", "|c:u:b c:u=9"
LANES = (
    A,
    B,
    "|c:t:c|c:all: c:t=2 c:all=7",  # two limits
    "|c:u:d|c:all: c:u=9 c:all=7",
    "|c:u:e|c:none: c:u=9",  # a limit without a number
    "|c:u:f c:u=9",
)


@pytest.fixture(autouse=True)
def statistics(broker: BrokerHarness) -> None:
    broker.redis.config_resetstat()


def is_planned(broker: BrokerHarness) -> bool:
    """Whether a claim was planned since the last reset of the statistics."""
    return broker.calls("zremrangebyrank") != [0]


def pause_another(broker: BrokerHarness) -> None:
    """While anything in the queue is paused, no claim is planned."""
    broker.store.pause_lanes("default", "s:nobody", True)


def _played(
    broker: BrokerHarness, seed: int, *, planned: bool
) -> tuple[list[list[str]], dict[str, Any]]:
    """What some claims take, with other verbs in between, and then all keys except the events and
    the history of pauses."""
    broker.redis.flushdb()
    broker.redis.config_resetstat()
    broker.store.now_ms, broker.call = T0, 0
    chance = random.Random(seed)
    lanes = chance.sample(LANES, chance.randint(2, len(LANES)))
    if not planned:
        pause_another(broker)
    broker.store.enqueue(
        [
            NewJob(
                f"j{n:02}", "default", "app.task", PAYLOAD,
                lane=chance.choice(lanes), priority=chance.choice((0, 0, 0, 3, -3)),
            )
            for n in range(60)
        ]
    )  # fmt: skip
    claims = []
    for n in range(8):
        lowest = chance.choice((-100, -100, 0))
        reply = broker.claim(f"c{n}", chance.randint(1, 20), min_priority=lowest)
        claims.append([job.id for job in reply.jobs] + reply.lost)
        chance.shuffle(reply.jobs)
        ended, rest = reply.jobs[::2], reply.jobs[1::2]
        broker.finish(*map(outcome, ended), child=f"c{n}")
        broker.store.reap(f"c{n}", [job.id for job in rest[:1]])  # which must then run alone
        queued = broker.ids("keyed")
        broker.store.cancel(chance.sample(queued, min(2, len(queued))))
        broker.redis.delete(broker.keys.job(chance.choice(broker.ids("keyed") or ["none"])))
    assert is_planned(broker) == planned
    broker.store.pause_lanes("default", "s:nobody", False)
    broker.redis.delete(broker.keys.queue("default").pause_history)
    dump = broker.dump()
    return claims, {key: dump[key] for key in dump if ":events" not in key}


@pytest.mark.parametrize("seed", range(6))
def test_a_planned_claim_takes_and_leaves_the_same_as_share_by_share(
    broker: BrokerHarness, seed: int
) -> None:
    claims, left = _played(broker, seed, planned=True)
    others, left_by_shares = _played(broker, seed, planned=False)
    assert claims == others
    assert left == left_by_shares


def test_a_limit_with_room_for_fewer_than_the_others(broker: BrokerHarness) -> None:
    for n in range(4):
        broker.add(f"a{n}", lane=A)
        broker.add(f"b{n}", lane=B)
    assert broker.taken(jobs=8) == ["a0", "b0", "a1", "b1", "b2", "b3"]
    assert is_planned(broker)
    invariants(broker)
    assert broker.taken("c2", jobs=8) == []


def test_a_lane_whose_second_limit_refuses_holds_nothing(broker: BrokerHarness) -> None:
    broker.add("holder", lane="|c:all: c:all=1")
    broker.take()
    broker.add("both", lane="|c:t:1|c:all: c:t=1 c:all=1")
    broker.add("one", lane="|c:t:1 c:t=1")
    assert broker.taken("c2", jobs=8) == ["one"]
    invariants(broker)


@pytest.mark.parametrize("jobs", [1, 3, 8])
def test_claims_without_the_keyed_set(broker: BrokerHarness, jobs: int) -> None:
    """The lanes still have them, and are read in the same order."""
    for n in range(6):
        broker.add(f"j{n}", lane=LANES[n % 2])
    broker.redis.delete(broker.keys.queue("default").keyed)
    taken = broker.taken(jobs=jobs)
    assert taken == ["j0", "j1", "j2", "j3", "j5"][:jobs]  # j4 exceeds the limit of its lane
    assert not is_planned(broker)


def test_a_next_job_missing_from_the_keyed_set(broker: BrokerHarness) -> None:
    """Its lane stays ready, with the score that it has there."""
    broker.add("a0", "a1", lane=B)
    keyed = broker.keys.queue("default").keyed
    lost = broker.redis.zscore(keyed, "a1")
    broker.redis.zrem(keyed, "a1")
    assert broker.taken() == ["a0"]
    assert is_planned(broker)
    broker.redis.zadd(keyed, {"a1": lost})
    invariants(broker)
    assert broker.taken("c2") == ["a1"]


def test_planned_heads_that_were_ended_by_hand(broker: BrokerHarness) -> None:
    """One has no hash, the other another status: the other jobs start, and only they hold slots."""
    for n in range(6):
        broker.add(f"j{n}", lane=(A, B)[n % 2])
    broker.redis.delete(broker.keys.job("j1"))
    broker.redis.hset(broker.keys.job("j2"), "status", "cancelled")
    reply = broker.claim(jobs=8)
    assert [job.id for job in reply.jobs] == ["j0", "j3", "j4", "j5"]
    assert reply.lost == ["j1"]
    slots = broker.redis.zrange(broker.keys.slots, 0, -1)
    assert sorted(slots) == ["c:t:a j0", "c:t:a j4", "c:u:b j3", "c:u:b j5"]


def test_a_limit_that_changes_after_it_was_read(broker: BrokerHarness) -> None:
    """A job's end, in the same call, wakes the lane of another queue."""
    lane = "|c:all: c:all=2"
    broker.add("first", "second", lane=lane)
    job, _ = broker.claim(jobs=2).jobs
    broker.add("other", queue="x", lane=lane)
    assert broker.taken("c2", queues=["x"]) == []  # parked
    broker.add("next", lane=lane)
    request = ClaimRequest("c1", ("default", "x"))
    _, reply = broker.store.finish(request, 9, [outcome(job)], 8)
    assert [job.id for job in reply.jobs] == ["next"]
    invariants(broker, tokens=False)
