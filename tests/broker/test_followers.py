"""Followers of a job: a foreign key in their place stops no other job."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.commands import ClaimRequest

from .harness import ERROR, BrokerHarness, invariants, outcome
from .workflows import BrokerWorkflow


@pytest.mark.parametrize("kind", ["completed", "failed", "cancelled"])
def test_followers_of_another_type_do_not_stop_the_end_of_a_job(
    broker: BrokerHarness, kind: str
) -> None:
    broker.add("a", "b", "c")
    jobs = broker.claim(jobs=3).jobs
    broker.add("fol", after="skip b")
    broker.redis.set(broker.keys.followers("b"), "theirs")
    outs = [outcome(job, kind, ERROR if kind == "failed" else '"ok"') for job in jobs]
    codes, _ = broker.store.finish(ClaimRequest("c1", ()), 9, outs, 0)
    assert codes == [1, 1, 1]
    assert sorted(broker.ids(kind)) == ["a", "b", "c"]
    assert broker.held() == []
    assert broker.redis.get(broker.keys.followers("b")) == "theirs"
    assert list(broker.advancing()) == []
    broker.advance(20_000)
    assert broker.store.prune("default", kind, 0, 0)[0] == 3  # no job waits for it
    assert broker.store.cancel(["fol"]) == [1]
    assert broker.redis.llen(broker.keys.pending_writes) == 0


WIDE = {0: [], 1: [], **{n: [0] for n in range(2, 123)}}


@pytest.mark.parametrize("policy", ["fail", "skip"])
@pytest.mark.parametrize("kind", ["completed", "failed"])
def test_dependants_of_another_type_do_not_stop_the_end_of_a_job(
    broker: BrokerHarness, kind: str, policy: str
) -> None:
    workflow = BrokerWorkflow(broker, WIDE, on_fail={0: policy})
    workflow.push_all()
    workflow.advance()
    broker.add("a")
    jobs = broker.claim(jobs=3).jobs
    assert [job.id for job in jobs] == [workflow.job(0), workflow.job(1), "a"]
    broker.redis.set(broker.keys.dependants(workflow.job(0)), "theirs")
    body = ERROR if kind == "failed" else "1"
    outs = [outcome(jobs[0], kind, body), outcome(jobs[1]), outcome(jobs[2])]
    codes, _ = broker.store.finish(ClaimRequest("c1", ()), 9, outs, 0)
    assert codes == [1, 1, 1]
    assert len(broker.ids("completed")) + len(broker.ids("failed")) == 3
    assert broker.held() == []
    workflow.advance()
    assert broker.redis.llen(broker.keys.pending_writes) == 0
    assert broker.redis.get(broker.keys.dependants(workflow.job(0))) == "theirs"
    invariants(broker)


def test_dependants_of_another_type_do_not_prevent_deletion(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0], 2: [0]})
    workflow.push()
    workflow.run_one("failed")
    broker.redis.set(broker.keys.dependants(workflow.job(0)), "theirs")
    broker.end("b", kind="failed")
    broker.store.delete([workflow.job(0), "b"])
    assert broker.ids("failed") == []
    workflow.advance()
    assert broker.redis.llen(broker.keys.pending_writes) == 0
    assert broker.redis.get(broker.keys.dependants(workflow.job(0))) == "theirs"


def test_a_push_names_dependants_of_another_type_and_creates_nothing(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, WIDE)
    with broker.refused_over(broker.keys.dependants(workflow.job(0))):
        workflow.push_batch(0, 100, first=True)
