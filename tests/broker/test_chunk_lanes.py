"""Lanes of chunk tasks: one claim takes a whole chunk, and a chunk that is not full waits."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.commands import ClaimRequest

from .lab import Lab, invariants, outcome


def lane(value: str = "", *, size: int = 3, wait_ms: int = 0, limits: str = "") -> str:
    return f"|k:t:{value}{limits} k:t={size}/{wait_ms}"


def test_a_claim_takes_one_chunk_and_nothing_else(lab: Lab) -> None:
    """However many jobs were requested, and wherever they are in their queue."""
    for n in range(4):
        lab.add(f"x{n}", lane=lane("x"))
        lab.add(f"y{n}", lane=lane("y"))
    assert lab.taken() == ["x0", "x1", "x2"]
    invariants(lab)
    assert lab.taken("c2", jobs=8) == ["y0", "y1", "y2"]
    assert [lab.taken(f"d{n}", jobs=8) for n in range(3)] == [["x3"], ["y3"], []]
    invariants(lab)


def test_a_chunk_is_never_behind_other_jobs_in_a_batch(lab: Lab) -> None:
    lab.add("plain")
    lab.add("other", lane="s|c:all: c:all=9")
    lab.add("a", "b", lane=lane())
    batches = [lab.taken(f"c{n}", jobs=8) for n in range(4)]
    assert ["a", "b"] in batches
    assert sorted(job_id for batch in batches for job_id in batch) == ["a", "b", "other", "plain"]


def test_a_resent_call_returns_its_chunk(lab: Lab) -> None:
    lab.add("a", "b", "c", "d", lane=lane())
    assert lab.taken(call=5) == ["a", "b", "c"]
    assert lab.taken(call=5, resent=True) == ["a", "b", "c"]
    invariants(lab)


def test_a_chunk_that_is_not_full_waits_for_its_first_job(lab: Lab) -> None:
    lab.add("a", lane=lane(wait_ms=5000))
    lab.advance(3000)
    lab.add("b", lane=lane(wait_ms=5000))
    invariants(lab)
    lab.advance(1999)
    assert lab.taken(jobs=8) == []
    assert lab.store.promote([]).next_ms == 1
    while lab.pop_token():
        pass
    lab.advance(1)
    lab.store.promote([])
    assert lab.tokens() == 1
    invariants(lab)
    assert lab.taken() == ["a", "b"]
    lab.add("c", lane=lane(wait_ms=5000))  # which starts a new wait
    assert lab.taken(jobs=8) == []
    lab.advance(5000)
    assert lab.taken(jobs=8) == ["c"]  # a claim also looks at due jobs
    invariants(lab)


def test_a_full_chunk_does_not_wait(lab: Lab) -> None:
    lab.add("a", "b", lane=lane(wait_ms=5000))
    assert lab.taken(jobs=8) == []
    while lab.pop_token():
        pass
    lab.add("c", lane=lane(wait_ms=5000))
    assert lab.tokens() == 1
    invariants(lab)
    assert lab.taken() == ["a", "b", "c"]
    assert not lab.redis.exists(lab.keys.due_limits)


def test_more_than_a_chunk_at_once_leaves_nothing_behind(lab: Lab) -> None:
    lab.add(*(f"j{n}" for n in range(7)), lane=lane(wait_ms=5000))
    assert [len(lab.taken(f"c{n}")) for n in range(4)] == [3, 3, 1, 0]
    invariants(lab)


def test_limits_hold_within_a_chunk(lab: Lab) -> None:
    one = lane(size=4, limits="|c:all:") + " c:all=2"
    lab.add("a", "b", "c", lane=one)
    jobs = lab.claim(jobs=8).jobs
    assert [job.id for job in jobs] == ["a", "b"]
    assert lab.taken("c2", jobs=8) == []
    invariants(lab)
    codes, _ = lab.store.finish(ClaimRequest("c1", ()), 9, [outcome(job) for job in jobs], 0)
    assert codes == [1, 1]
    assert lab.taken("c2", jobs=8) == ["c"]
    invariants(lab)


def test_jobs_that_a_dead_child_ran_run_alone(lab: Lab) -> None:
    lab.add("a", "b", "c", lane=lane())
    assert lab.taken() == ["a", "b", "c"]
    lab.store.reap("c1", ["a", "b"])  # "c" had not started
    invariants(lab)
    assert [lab.taken(f"d{n}", jobs=8) for n in range(3)] == [["a"], ["b"], ["c"]]


def test_cancelled_and_cleared_jobs_leave_no_lane_waiting(lab: Lab) -> None:
    lab.add("a", "b", lane=lane(wait_ms=5000))
    lab.store.cancel(["a"])
    invariants(lab)
    lab.store.cancel(["b"])
    invariants(lab)
    assert not lab.redis.exists(lab.keys.waiting_chunks)
    lab.add("c", lane=lane("x", wait_ms=5000))
    lab.store.clear("default", "queued", 9)
    invariants(lab)
    lab.advance(5000)
    lab.store.promote([])
    invariants(lab)


@pytest.mark.parametrize("how", ["released", "retried"])
def test_a_returning_job_waits_for_others(lab: Lab, how: str) -> None:
    lab.add("a", lane=lane(wait_ms=5000))
    lab.advance(5000)
    job = lab.take()
    lab.finish(outcome(job, "queued" if how == "released" else "retrying"))
    invariants(lab)
    lab.advance(1)
    lab.add("b", lane=lane(wait_ms=5000))
    lab.advance(5000)
    assert sorted(lab.taken(jobs=8)) == ["a", "b"]


def test_a_chunk_of_a_broken_queue_runs_once_the_queue_is_repaired(lab: Lab) -> None:
    lab.add("a", lane=lane(wait_ms=5000))
    with lab.broken("completed"):
        lab.advance(5000)
        lab.store.promote([])
        assert lab.taken() == []
    lab.advance(1000)
    lab.store.promote([])
    assert lab.taken() == ["a"]
    invariants(lab)


def test_a_smaller_size_and_no_wait_hold_from_the_next_job_on(lab: Lab) -> None:
    lab.add("a", "b", lane=lane(wait_ms=5000))
    lab.add("c", lane=lane("x", size=2))
    lab.store.promote([])
    assert [lab.taken(f"c{n}") for n in range(3)] == [["a", "b"], ["c"], []]
    invariants(lab)
