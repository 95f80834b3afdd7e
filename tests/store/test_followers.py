"""Those who wait for a job: large results go to them in bounded steps, and a key that somebody has
put in the place of theirs stops nobody else."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from django_redisqueue.exceptions import WrongKeyType
from django_redisqueue.store.transitions import Seeker

from .flows import Flow
from .lab import ERROR, Lab, invariants, outcome

MB = 1_000_000


def result_of(size: int) -> str:
    """JSON of so many bytes."""
    return '"' + "r" * (size - 2) + '"'


def given(lab: Lab, *parents: str, of: int) -> int:
    """How many results f0, f1, ... have got."""
    return sum(
        bool(lab.redis.hexists(lab.keys.job(f"f{n}"), f"from:{parent}"))
        for n in range(of)
        for parent in parents
    )


def theirs(lab: Lab, key: str) -> None:
    lab.redis.delete(key)
    lab.redis.set(key, "theirs")


# -- large results


@pytest.mark.parametrize(("size", "step"), [(2 * MB, 1), (MB, 1), (300_000, 3), (10_000, 100)])
def test_a_megabyte_of_results_goes_to_followers_at_a_time(lab: Lab, size: int, step: int) -> None:
    lab.add("p")
    job = lab.take()
    lab.add(*[f"f{n}" for n in range(10)], after="wait p")
    lab.finish(outcome(job, body=result_of(size)))
    counts = [0, given(lab, "p", of=10)]
    for _ in lab.advancing():
        counts.append(given(lab, "p", of=10))
    counts.append(given(lab, "p", of=10))
    assert counts[1] == min(step, 10)
    assert all(b - a <= step for a, b in pairwise(counts))
    assert counts[-1] == 10
    assert len(lab.ids("queued")) == 10
    assert lab.redis.hstrlen(lab.keys.job("f9"), "from:p") == size
    assert lab.redis.llen(lab.keys.flows) == 0
    invariants(lab)


def test_the_parents_of_one_call_share_that_megabyte(lab: Lab) -> None:
    parents = ("p0", "p1", "p2")
    lab.add(*parents)
    jobs = lab.claim(jobs=3).jobs
    lab.add(*[f"f{n}" for n in range(10)], after="wait p0 p1 p2")
    lab.finish(*[outcome(job, body=result_of(400_000)) for job in jobs])
    counts = [0, given(lab, *parents, of=10)]
    for _ in lab.advancing():
        counts.append(given(lab, *parents, of=10))
    counts.append(given(lab, *parents, of=10))
    assert all(b - a <= 2 for a, b in pairwise(counts))
    assert counts[-1] == 30
    assert len(lab.ids("queued")) == 10
    invariants(lab)


def test_a_failure_is_told_at_once_whatever_results_are_under_way(lab: Lab) -> None:
    lab.add("p", "q")
    p, q = lab.claim(jobs=2).jobs
    lab.add(*[f"f{n}" for n in range(10)], after="wait p")
    lab.add(*[f"s{n}" for n in range(10)], after="skip q")
    lab.finish(outcome(p, body=result_of(2 * MB)), outcome(q, "failed", ERROR))
    assert len(lab.ids("cancelled")) == 10
    assert list(lab.advancing())
    assert given(lab, "p", of=10) == 10
    invariants(lab)


# -- keys of another type


@pytest.mark.parametrize("verdict", ["completed", "failed", "cancelled"])
def test_followers_of_another_type_stop_no_end(lab: Lab, verdict: str) -> None:
    lab.add("a", "b", "c")
    jobs = lab.claim(jobs=3).jobs
    lab.add("fol", after="skip b")
    theirs(lab, lab.keys.followers("b"))
    outs = [outcome(job, verdict, ERROR if verdict == "failed" else '"ok"') for job in jobs]
    codes, _ = lab.store.finish(Seeker("c1", ()), 9, outs, 0)
    assert codes == [1, 1, 1]
    assert sorted(lab.ids(verdict)) == ["a", "b", "c"]
    assert lab.held() == []
    assert lab.redis.get(lab.keys.followers("b")) == "theirs"
    assert list(lab.advancing()) == []
    lab.advance(20_000)
    assert lab.store.prune("default", verdict, 0, 0)[0] == 3  # nobody waits for it
    assert lab.store.cancel(["fol"]) == [1]
    assert lab.redis.llen(lab.keys.flows) == 0


WIDE = {0: [], 1: [], **{n: [0] for n in range(2, 123)}}


@pytest.mark.parametrize("policy", ["fail", "skip"])
@pytest.mark.parametrize("verdict", ["completed", "failed"])
def test_dependants_of_another_type_stop_no_end(lab: Lab, verdict: str, policy: str) -> None:
    flow = Flow(lab, WIDE, on_fail={0: policy})
    flow.push_all()
    flow.advance()
    lab.add("a")
    jobs = lab.claim(jobs=3).jobs
    assert [job.id for job in jobs] == [flow.job(0), flow.job(1), "a"]
    theirs(lab, lab.keys.dependants(flow.job(0)))
    body = ERROR if verdict == "failed" else "1"
    outs = [outcome(jobs[0], verdict, body), outcome(jobs[1]), outcome(jobs[2])]
    codes, _ = lab.store.finish(Seeker("c1", ()), 9, outs, 0)
    assert codes == [1, 1, 1]
    assert len(lab.ids("completed")) + len(lab.ids("failed")) == 3
    assert lab.held() == []
    flow.advance()
    assert lab.redis.llen(lab.keys.flows) == 0
    assert lab.redis.get(lab.keys.dependants(flow.job(0))) == "theirs"
    invariants(lab)


def test_dependants_of_another_type_let_a_job_go(lab: Lab) -> None:
    flow = Flow(lab, {0: [], 1: [0], 2: [0]})
    flow.push()
    flow.run_one("failed")
    theirs(lab, lab.keys.dependants(flow.job(0)))
    lab.end("b", verdict="failed")
    lab.store.delete([flow.job(0), "b"])
    assert lab.ids("failed") == []
    flow.advance()
    assert lab.redis.llen(lab.keys.flows) == 0
    assert lab.redis.get(lab.keys.dependants(flow.job(0))) == "theirs"


def test_a_push_names_dependants_of_another_type_and_makes_nothing(lab: Lab) -> None:
    flow = Flow(lab, WIDE)
    theirs(lab, lab.keys.dependants(flow.job(0)))
    before = lab.dump()
    with pytest.raises(WrongKeyType, match=re.escape(lab.keys.dependants(flow.job(0)))):
        flow.push_batch(0, 100, first=True)
    assert lab.dump() == before
