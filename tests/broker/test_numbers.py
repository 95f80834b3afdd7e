"""Fields of a job that should be whole numbers, but were changed by hand."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.commands import ClaimRequest

from .harness import ERROR, BrokerHarness, invariants, outcome
from .workflows import BrokerWorkflow

FIELDS = ["attempts", "recoveries", "lease", "seq"]
NONE = ["?", "", "nan", "-nan", "inf", "1e300", "-1e20"]


def corrupt(broker: BrokerHarness, job_id: str, value: str, *fields: str) -> None:
    broker.redis.hset(broker.keys.job(job_id), mapping=dict.fromkeys(fields, value))


def told(broker: BrokerHarness, job_id: str) -> list[tuple[str, int, int]]:
    """Its events, which must all be JSON with whole numbers."""
    found = [(one["status"], one["attempt"], one["seq"]) for one in broker.events(job_id)]
    assert all(isinstance(number, int) for event in found for number in event[1:])
    return found


@pytest.mark.parametrize("value", NONE)
def test_invalid_numbers_stop_no_job(broker: BrokerHarness, value: str) -> None:
    broker.add("z", "a", "b")
    corrupt(broker, "a", value, *FIELDS)
    claim = broker.claim(jobs=5)
    found = [(job.id, job.lease, job.attempts, job.recoveries) for job in claim.jobs]
    assert found == [("z", 1, 0, 0), ("a", 1, 0, 0), ("b", 1, 0, 0)]
    assert told(broker, "a")[-1] == ("processing", 1, 2)
    assert broker.finish(*map(outcome, claim.jobs)) == [1, 1, 1]
    assert sorted(broker.ids("completed")) == ["a", "b", "z"]
    invariants(broker)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [*NONE, "1.5"])
def test_a_single_invalid_number_stops_no_job(
    broker: BrokerHarness, field: str, value: str
) -> None:
    broker.add("z", "a", "b")
    corrupt(broker, "a", "4", "seq")  # it has run before
    corrupt(broker, "a", value, field)
    claims = [broker.claim(child, jobs=5) for child in ("c1", "c2", "c3")]
    found = {job.id: job for claim in claims for job in claim.jobs}
    assert sorted(found) == ["a", "b", "z"]
    more = 1 if value == "1.5" else 0  # which counts as 1
    expected = {"lease": 1, "attempts": 0, "recoveries": 0}
    expected = {name: at + more * (name == field) for name, at in expected.items()}
    assert found["a"]._asdict() | expected == found["a"]._asdict()
    told(broker, "a")


@pytest.mark.parametrize("value", [*NONE, "1.5"])
def test_a_resent_call_also_gets_whole_numbers(broker: BrokerHarness, value: str) -> None:
    broker.add("a", "b")
    broker.claim(jobs=2, call=5)
    corrupt(broker, "a", value, "attempts", "recoveries", "lease")
    n = 1 if value == "1.5" else 0
    a, b = broker.claim(jobs=2, call=5, resent=True).jobs
    assert (a.id, a.lease, a.attempts, a.recoveries) == ("a", 1, n, n)
    assert (b.id, b.lease, b.attempts, b.recoveries) == ("b", 1, 0, 0)


@pytest.mark.parametrize("value", NONE)
@pytest.mark.parametrize("kind", ["retrying", "delayed", "queued", "failed", "cancelled"])
def test_invalid_numbers_do_not_stop_the_end_of_a_run(
    broker: BrokerHarness, kind: str, value: str
) -> None:
    broker.add("a", "b", audit="all")
    corrupt(broker, "a", "1", "lease")
    a, b = broker.claim(jobs=2).jobs
    corrupt(broker, "a", value, "attempts", "recoveries", "seq", "priority", "delays", "due_ms")
    ends = [outcome(job, kind, ERROR) for job in (a, b)]
    assert broker.store.finish(ClaimRequest("c1", ()), 9, ends, 0)[0] == [1, 1]
    broker.advance(2000)
    broker.store.promote(["default"])
    assert told(broker, "a")[-1][0] == told(broker, "b")[-1][0]
    if kind not in ("failed", "cancelled"):
        taken = [*broker.claim(jobs=2).jobs, *broker.claim("c2", jobs=2).jobs]
        assert sorted(job.id for job in taken) == ["a", "b"]
    if kind == "delayed":
        assert (broker.job("a")["delays"], broker.job("b")["delays"]) == ("1", "1")
    assert broker.tokens() <= 1


@pytest.mark.parametrize("value", NONE)
def test_invalid_numbers_do_not_stop_a_recovery(broker: BrokerHarness, value: str) -> None:
    broker.add("a", "b")
    broker.claim(jobs=2)
    corrupt(broker, "a", value, "attempts", "recoveries", "seq", "lease")
    assert sorted(broker.store.reap("c1", ["a"]).jobs) == [("a", "recovered"), ("b", "released")]
    assert told(broker, "a")[-1][0] == "queued"
    assert broker.take("c2").recoveries == 1
    invariants(broker, tokens=False)


@pytest.mark.parametrize("value", NONE)
def test_invalid_numbers_do_not_stop_waiting_jobs(broker: BrokerHarness, value: str) -> None:
    broker.add("p")
    broker.add("a", "b", after="wait p")
    corrupt(broker, "a", value, "waits", "attempts", "seq", "priority", "when")
    broker.finish(outcome(broker.take()))
    assert sorted(broker.ids("queued")) == ["a", "b"]
    told(broker, "a")


@pytest.mark.parametrize("value", NONE)
def test_invalid_numbers_do_not_stop_a_deletion(broker: BrokerHarness, value: str) -> None:
    broker.end("a", "b", "c", "d", kind="failed")
    for job_id in "abcd":
        corrupt(broker, job_id, value, "bytes", "finished_ms", "until_ms", "generation", "seq")
    assert broker.store.delete(["a"]) == [1]
    assert broker.store.requeue(["b"]) == [1]
    assert broker.store.clear("default", "failed").done == 2
    assert broker.ids("failed") == []
    assert broker.taken() == ["b"]
    told(broker, "b")


@pytest.mark.parametrize("value", NONE)
def test_an_ended_or_paused_workflow_holds_back_jobs_with_invalid_numbers(
    broker: BrokerHarness, value: str
) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: []})
    workflow.push()
    corrupt(broker, workflow.job(0), value, "attempts", "seq")
    broker.redis.hset(broker.keys.workflow(workflow.id), "paused_ms", "1")
    assert broker.taken(jobs=2) == []
    assert workflow.statuses() == ["waiting", "waiting"]
    told(broker, workflow.job(0))
    invariants(broker, tokens=False)


@pytest.mark.parametrize("value", NONE)
def test_invalid_counts_of_a_workflow_stop_no_job(broker: BrokerHarness, value: str) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: []})
    workflow.push()
    counts = ("total", "waiting", "processing", "completed", "failed", "generation")
    broker.redis.hset(broker.keys.workflow(workflow.id), mapping=dict.fromkeys(counts, value))
    jobs = broker.claim(jobs=2).jobs
    assert broker.finish(outcome(jobs[0]), outcome(jobs[1], "failed", ERROR)) == [1, 1]
    assert workflow.statuses() == ["completed", "failed"]
    assert broker.held() == []
    assert broker.store.control_workflow(workflow.id, "cancel") == 1
    assert [event.data["status"] for event in broker.written("workflow")][-1] == "cancelled"


@pytest.mark.parametrize("value", [*NONE, "1.5", str(2**63 - 1)])
def test_invalid_counters_restart(broker: BrokerHarness, value: str) -> None:
    meta, counters = broker.keys.queue("default").meta, ("tail", "head", "finished_bytes")
    totals = [
        f"{verb}_total" for verb in ("enqueued", "completed", "failed", "retried", "released")
    ]
    broker.add("a", "b", "c", "d", priority=1)
    held = broker.claim(jobs=4).jobs
    broker.redis.hset(meta, mapping=dict.fromkeys([*totals, *counters], value))
    ends = ["completed", "failed", "retrying", "queued"]
    outcomes = [outcome(job, end, ERROR) for job, end in zip(held, ends, strict=True)]
    assert broker.finish(*outcomes) == [1, 1, 1, 1]
    broker.add("e", "f", priority=1)
    assert broker.taken(jobs=3) == ["d", "e", "f"]
    broker.advance(20_000)
    assert broker.store.prune("default", "completed", 0, 0)[0] == 1
    found = dict(zip(totals, broker.redis.hmget(meta, totals), strict=True))
    assert found == {**dict.fromkeys(totals, "1"), "enqueued_total": "2"}
    invariants(broker)
