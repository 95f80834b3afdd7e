"""Lanes of chunk tasks: one claim takes a whole chunk, and a chunk that is not full waits."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.commands import ClaimRequest

from .harness import BrokerHarness, invariants, outcome


def lane(value: str = "", *, size: int = 3, wait_ms: int = 0, limits: str = "") -> str:
    return f"|k:t:{value}{limits} k:t={size}/{wait_ms}"


def test_a_claim_takes_one_chunk_and_nothing_else(broker: BrokerHarness) -> None:
    """However many jobs were requested, and wherever they are in their queue."""
    for n in range(4):
        broker.add(f"x{n}", lane=lane("x"))
        broker.add(f"y{n}", lane=lane("y"))
    assert broker.taken() == ["x0", "x1", "x2"]
    invariants(broker)
    assert broker.taken("c2", jobs=8) == ["y0", "y1", "y2"]
    assert [broker.taken(f"d{n}", jobs=8) for n in range(3)] == [["x3"], ["y3"], []]
    invariants(broker)


def test_a_chunk_in_another_queue_does_not_prolong_the_wait(broker: BrokerHarness) -> None:
    broker.add("a", lane=lane(wait_ms=5000))
    broker.advance(3000)
    broker.add("b", lane=lane(wait_ms=5000), queue="other")
    broker.advance(2000)
    broker.store.promote([])
    assert broker.taken() == ["a"]


def test_a_chunk_is_never_behind_other_jobs_in_a_batch(broker: BrokerHarness) -> None:
    broker.add("plain")
    broker.add("other", lane="s|c:all: c:all=9")
    broker.add("a", "b", lane=f"z{lane()}")
    batches = [broker.taken(f"c{n}", jobs=8) for n in range(4)]
    assert ["a", "b"] in batches
    assert sorted(job_id for batch in batches for job_id in batch) == ["a", "b", "other", "plain"]


def test_a_resent_call_returns_its_chunk(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c", "d", lane=lane())
    assert broker.taken(call=5) == ["a", "b", "c"]
    assert broker.taken(call=5, resent=True) == ["a", "b", "c"]
    invariants(broker)


def test_a_chunk_that_is_not_full_waits_for_its_first_job(broker: BrokerHarness) -> None:
    broker.add("a", lane=lane(wait_ms=5000))
    broker.advance(3000)
    broker.add("b", lane=lane(wait_ms=5000))
    invariants(broker)
    broker.advance(1999)
    assert broker.taken(jobs=8) == []
    assert broker.store.promote([]).next_ms == 1
    while broker.pop_token():
        pass
    broker.advance(1)
    broker.store.promote([])
    assert broker.tokens() == 1
    invariants(broker)
    assert broker.taken() == ["a", "b"]
    broker.add("c", lane=lane(wait_ms=5000))  # which starts a new wait
    assert broker.taken(jobs=8) == []
    broker.advance(5000)
    assert broker.taken(jobs=8) == ["c"]  # a claim also looks at due jobs
    invariants(broker)


def test_a_full_chunk_does_not_wait(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=lane(wait_ms=5000))
    assert broker.taken(jobs=8) == []
    while broker.pop_token():
        pass
    broker.add("c", lane=lane(wait_ms=5000))
    assert broker.tokens() == 1
    invariants(broker)
    assert broker.taken() == ["a", "b", "c"]
    assert not broker.redis.exists(broker.keys.due_limits)


def test_more_than_a_chunk_at_once_leaves_nothing_behind(broker: BrokerHarness) -> None:
    broker.add(*(f"j{n}" for n in range(7)), lane=lane(wait_ms=5000))
    assert [len(broker.taken(f"c{n}")) for n in range(4)] == [3, 3, 1, 0]
    invariants(broker)


def test_limits_hold_within_a_chunk(broker: BrokerHarness) -> None:
    one = lane(size=4, limits="|c:all:") + " c:all=2"
    broker.add("a", "b", "c", lane=one)
    jobs = broker.claim(jobs=8).jobs
    assert [job.id for job in jobs] == ["a", "b"]
    assert broker.taken("c2", jobs=8) == []
    invariants(broker)
    codes, _ = broker.store.finish(ClaimRequest("c1", ()), 9, [outcome(job) for job in jobs], 0)
    assert codes == [1, 1]
    assert broker.taken("c2", jobs=8) == ["c"]
    invariants(broker)


def test_each_job_of_a_chunk_takes_a_token(broker: BrokerHarness) -> None:
    rated = lane(limits="|r:r:") + " r:r=6/60000000/4"
    broker.add(*"abcdef", lane=rated)
    assert [broker.taken(f"c{n}") for n in range(3)] == [["a", "b", "c"], ["d"], []]
    invariants(broker)


def test_jobs_that_a_dead_child_ran_run_alone(broker: BrokerHarness) -> None:
    broker.add("a", "b", "c", lane=lane())
    assert broker.taken() == ["a", "b", "c"]
    broker.store.reap("c1", ["a", "b"])  # "c" had not started
    invariants(broker)
    assert [broker.taken(f"d{n}", jobs=8) for n in range(3)] == [["a"], ["b"], ["c"]]


def test_cancelled_and_cleared_jobs_leave_no_lane_waiting(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=lane(wait_ms=5000))
    broker.store.cancel(["a"])
    invariants(broker)
    broker.store.cancel(["b"])
    invariants(broker)
    assert not broker.redis.exists(broker.keys.waiting_chunks)
    broker.add("c", lane=lane("x", wait_ms=5000))
    broker.store.clear("default", "queued", 9)
    invariants(broker)
    broker.advance(5000)
    broker.store.promote([])
    invariants(broker)


@pytest.mark.parametrize("how", ["released", "retried"])
def test_a_returning_job_waits_for_others(broker: BrokerHarness, how: str) -> None:
    broker.add("a", lane=lane(wait_ms=5000))
    broker.advance(5000)
    job = broker.take()
    broker.finish(outcome(job, "queued" if how == "released" else "retrying"))
    invariants(broker)
    broker.advance(1)
    broker.add("b", lane=lane(wait_ms=5000))
    broker.advance(5000)
    assert sorted(broker.taken(jobs=8)) == ["a", "b"]


def test_a_chunk_of_a_broken_queue_runs_once_the_queue_is_repaired(broker: BrokerHarness) -> None:
    broker.add("a", lane=lane(wait_ms=5000))
    with broker.broken("completed"):
        broker.advance(5000)
        assert broker.store.promote([]).next_ms == 1000
        assert broker.taken() == []
    broker.advance(1000)
    broker.store.promote([])
    assert broker.taken() == ["a"]
    invariants(broker)


def test_a_smaller_size_and_no_wait_hold_from_the_next_job_on(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane=lane(wait_ms=5000))
    broker.add("c", lane=lane("x", size=2))
    broker.store.promote([])
    assert [broker.taken(f"c{n}") for n in range(3)] == [["a", "b"], ["c"], []]
    invariants(broker)
