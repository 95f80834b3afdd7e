"""Followers of a job: a foreign key in their place stops no other job."""

from __future__ import annotations

import re

import pytest

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.exceptions import WrongKeyType

from .lab import ERROR, Lab, invariants, outcome
from .workflows import LabWorkflow


def theirs(lab: Lab, key: str) -> None:
    lab.redis.delete(key)
    lab.redis.set(key, "theirs")


@pytest.mark.parametrize("verdict", ["completed", "failed", "cancelled"])
def test_followers_of_another_type_do_not_stop_the_end_of_a_job(lab: Lab, verdict: str) -> None:
    lab.add("a", "b", "c")
    jobs = lab.claim(jobs=3).jobs
    lab.add("fol", after="skip b")
    theirs(lab, lab.keys.followers("b"))
    outs = [outcome(job, verdict, ERROR if verdict == "failed" else '"ok"') for job in jobs]
    codes, _ = lab.store.finish(ClaimRequest("c1", ()), 9, outs, 0)
    assert codes == [1, 1, 1]
    assert sorted(lab.ids(verdict)) == ["a", "b", "c"]
    assert lab.held() == []
    assert lab.redis.get(lab.keys.followers("b")) == "theirs"
    assert list(lab.advancing()) == []
    lab.advance(20_000)
    assert lab.store.prune("default", verdict, 0, 0)[0] == 3  # no job waits for it
    assert lab.store.cancel(["fol"]) == [1]
    assert lab.redis.llen(lab.keys.pending_writes) == 0


WIDE = {0: [], 1: [], **{n: [0] for n in range(2, 123)}}


@pytest.mark.parametrize("policy", ["fail", "skip"])
@pytest.mark.parametrize("verdict", ["completed", "failed"])
def test_dependants_of_another_type_do_not_stop_the_end_of_a_job(
    lab: Lab, verdict: str, policy: str
) -> None:
    workflow = LabWorkflow(lab, WIDE, on_fail={0: policy})
    workflow.push_all()
    workflow.advance()
    lab.add("a")
    jobs = lab.claim(jobs=3).jobs
    assert [job.id for job in jobs] == [workflow.job(0), workflow.job(1), "a"]
    theirs(lab, lab.keys.dependants(workflow.job(0)))
    body = ERROR if verdict == "failed" else "1"
    outs = [outcome(jobs[0], verdict, body), outcome(jobs[1]), outcome(jobs[2])]
    codes, _ = lab.store.finish(ClaimRequest("c1", ()), 9, outs, 0)
    assert codes == [1, 1, 1]
    assert len(lab.ids("completed")) + len(lab.ids("failed")) == 3
    assert lab.held() == []
    workflow.advance()
    assert lab.redis.llen(lab.keys.pending_writes) == 0
    assert lab.redis.get(lab.keys.dependants(workflow.job(0))) == "theirs"
    invariants(lab)


def test_dependants_of_another_type_do_not_prevent_deletion(lab: Lab) -> None:
    workflow = LabWorkflow(lab, {0: [], 1: [0], 2: [0]})
    workflow.push()
    workflow.run_one("failed")
    theirs(lab, lab.keys.dependants(workflow.job(0)))
    lab.end("b", verdict="failed")
    lab.store.delete([workflow.job(0), "b"])
    assert lab.ids("failed") == []
    workflow.advance()
    assert lab.redis.llen(lab.keys.pending_writes) == 0
    assert lab.redis.get(lab.keys.dependants(workflow.job(0))) == "theirs"


def test_a_push_names_dependants_of_another_type_and_creates_nothing(lab: Lab) -> None:
    workflow = LabWorkflow(lab, WIDE)
    theirs(lab, lab.keys.dependants(workflow.job(0)))
    before = lab.dump()
    with pytest.raises(WrongKeyType, match=re.escape(lab.keys.dependants(workflow.job(0)))):
        workflow.push_batch(0, 100, first=True)
    assert lab.dump() == before
