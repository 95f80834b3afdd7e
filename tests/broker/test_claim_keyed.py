"""Claims planned in the order of ``keyed`` have the same result as claims made share by share."""

from __future__ import annotations

import random
from typing import Any

import pytest

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.core.job_data import NewJob

from .lab import PAYLOAD, T0, Lab, invariants, outcome

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
def statistics(lab: Lab) -> None:
    lab.redis.config_resetstat()


def is_planned(lab: Lab) -> bool:
    """Whether a claim was planned since the last reset of the statistics."""
    return "cmdstat_zremrangebyrank" in lab.redis.info("commandstats")


def pause_another(lab: Lab) -> None:
    """While anything in the queue is paused, no claim is planned."""
    lab.store.pause_lanes("default", "s:nobody", True)


def _played(lab: Lab, seed: int, *, planned: bool) -> tuple[list[list[str]], dict[str, Any]]:
    """What some claims take, with other verbs in between, and then all keys except the events and
    the history of pauses."""
    lab.redis.flushdb()
    lab.redis.config_resetstat()
    lab.store.now_ms, lab.call = T0, 0
    chance = random.Random(seed)
    lanes = chance.sample(LANES, chance.randint(2, len(LANES)))
    if not planned:
        pause_another(lab)
    lab.store.enqueue(
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
        reply = lab.claim(f"c{n}", chance.randint(1, 20), min_priority=lowest)
        claims.append([job.id for job in reply.jobs] + reply.lost)
        chance.shuffle(reply.jobs)
        ended, rest = reply.jobs[::2], reply.jobs[1::2]
        lab.finish(*map(outcome, ended), child=f"c{n}")
        lab.store.reap(f"c{n}", [job.id for job in rest[:1]])  # which must then run alone
        queued = lab.ids("keyed")
        lab.store.cancel(chance.sample(queued, min(2, len(queued))))
        lab.redis.delete(lab.keys.job(chance.choice(lab.ids("keyed") or ["none"])))
    assert is_planned(lab) == planned
    lab.store.pause_lanes("default", "s:nobody", False)
    lab.redis.delete(lab.keys.queue("default").pause_history)
    dump = lab.dump()
    return claims, {key: dump[key] for key in dump if ":events" not in key}


@pytest.mark.parametrize("seed", range(6))
def test_a_planned_claim_takes_and_leaves_the_same_as_share_by_share(lab: Lab, seed: int) -> None:
    claims, left = _played(lab, seed, planned=True)
    others, left_by_shares = _played(lab, seed, planned=False)
    assert claims == others
    assert left == left_by_shares


def test_a_limit_with_room_for_fewer_than_the_others(lab: Lab) -> None:
    for n in range(4):
        lab.add(f"a{n}", lane=A)
        lab.add(f"b{n}", lane=B)
    assert lab.taken(jobs=8) == ["a0", "b0", "a1", "b1", "b2", "b3"]
    assert is_planned(lab)
    invariants(lab)
    assert lab.taken("c2", jobs=8) == []


def test_a_lane_whose_second_limit_refuses_holds_nothing(lab: Lab) -> None:
    lab.add("holder", lane="|c:all: c:all=1")
    lab.take()
    lab.add("both", lane="|c:t:1|c:all: c:t=1 c:all=1")
    lab.add("one", lane="|c:t:1 c:t=1")
    assert lab.taken("c2", jobs=8) == ["one"]
    invariants(lab)


@pytest.mark.parametrize("jobs", [1, 3, 8])
def test_claims_without_the_keyed_set(lab: Lab, jobs: int) -> None:
    """The lanes still have them, and are read in the same order."""
    for n in range(6):
        lab.add(f"j{n}", lane=LANES[n % 2])
    lab.redis.delete(lab.keys.queue("default").keyed)
    taken = lab.taken(jobs=jobs)
    assert taken == ["j0", "j1", "j2", "j3", "j5"][:jobs]  # j4 exceeds the limit of its lane
    assert not is_planned(lab)


def test_a_next_job_missing_from_the_keyed_set(lab: Lab) -> None:
    """Its lane stays ready, with the score that it has there."""
    lab.add("a0", "a1", lane=B)
    keyed = lab.keys.queue("default").keyed
    lost = lab.redis.zscore(keyed, "a1")
    lab.redis.zrem(keyed, "a1")
    assert lab.taken() == ["a0"]
    assert is_planned(lab)
    lab.redis.zadd(keyed, {"a1": lost})
    invariants(lab)
    assert lab.taken("c2") == ["a1"]


def test_planned_heads_that_were_ended_by_hand(lab: Lab) -> None:
    """One has no hash, the other another status: the other jobs start, and only they hold slots."""
    for n in range(6):
        lab.add(f"j{n}", lane=(A, B)[n % 2])
    lab.redis.delete(lab.keys.job("j1"))
    lab.redis.hset(lab.keys.job("j2"), "status", "cancelled")
    reply = lab.claim(jobs=8)
    assert [job.id for job in reply.jobs] == ["j0", "j3", "j4", "j5"]
    assert reply.lost == ["j1"]
    slots = lab.redis.zrange(lab.keys.slots, 0, -1)
    assert sorted(slots) == ["c:t:a j0", "c:t:a j4", "c:u:b j3", "c:u:b j5"]


def test_a_limit_that_changes_after_it_was_read(lab: Lab) -> None:
    """A job's end, in the same call, wakes the lane of another queue."""
    lane = "|c:all: c:all=2"
    lab.add("first", "second", lane=lane)
    job, _ = lab.claim(jobs=2).jobs
    lab.add("other", queue="x", lane=lane)
    assert lab.taken("c2", queues=["x"]) == []  # parked
    lab.add("next", lane=lane)
    request = ClaimRequest("c1", ("default", "x"))
    _, reply = lab.store.finish(request, 9, [outcome(job)], 8)
    assert [job.id for job in reply.jobs] == ["next"]
    invariants(lab, tokens=False)
