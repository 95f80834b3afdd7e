"""Fields of a job that should be whole numbers, but were changed by hand."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.commands import ClaimRequest

from .lab import ERROR, Lab, invariants, outcome
from .workflows import LabWorkflow

FIELDS = ["attempts", "recoveries", "lease", "seq"]
NONE = ["?", "", "nan", "-nan", "inf", "1e300", "-1e20"]


def corrupt(lab: Lab, job_id: str, value: str, *fields: str) -> None:
    lab.redis.hset(lab.keys.job(job_id), mapping=dict.fromkeys(fields, value))


def told(lab: Lab, job_id: str) -> list[tuple[str, int, int]]:
    """Its events, which must all be JSON with whole numbers."""
    found = [(one["status"], one["attempt"], one["seq"]) for one in lab.events(job_id)]
    assert all(isinstance(number, int) for event in found for number in event[1:])
    return found


@pytest.mark.parametrize("value", NONE)
def test_invalid_numbers_stop_no_job(lab: Lab, value: str) -> None:
    lab.add("z", "a", "b")
    corrupt(lab, "a", value, *FIELDS)
    claim = lab.claim(jobs=5)
    found = [(job.id, job.lease, job.attempts, job.recoveries) for job in claim.jobs]
    assert found == [("z", 1, 0, 0), ("a", 1, 0, 0), ("b", 1, 0, 0)]
    assert told(lab, "a")[-1] == ("processing", 1, 2)
    assert lab.finish(*map(outcome, claim.jobs)) == [1, 1, 1]
    assert sorted(lab.ids("completed")) == ["a", "b", "z"]
    invariants(lab)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [*NONE, "1.5"])
def test_a_single_invalid_number_stops_no_job(lab: Lab, field: str, value: str) -> None:
    lab.add("z", "a", "b")
    corrupt(lab, "a", "4", "seq")  # it has run before
    corrupt(lab, "a", value, field)
    claims = [lab.claim(child, jobs=5) for child in ("c1", "c2", "c3")]
    found = {job.id: job for claim in claims for job in claim.jobs}
    assert sorted(found) == ["a", "b", "z"]
    more = 1 if value == "1.5" else 0  # which counts as 1
    expected = {"lease": 1, "attempts": 0, "recoveries": 0}
    expected = {name: at + more * (name == field) for name, at in expected.items()}
    assert found["a"]._asdict() | expected == found["a"]._asdict()
    told(lab, "a")


@pytest.mark.parametrize("value", [*NONE, "1.5"])
def test_a_resent_call_also_gets_whole_numbers(lab: Lab, value: str) -> None:
    lab.add("a", "b")
    lab.claim(jobs=2, call=5)
    corrupt(lab, "a", value, "attempts", "recoveries", "lease")
    n = 1 if value == "1.5" else 0
    a, b = lab.claim(jobs=2, call=5, resent=True).jobs
    assert (a.id, a.lease, a.attempts, a.recoveries) == ("a", 1, n, n)
    assert (b.id, b.lease, b.attempts, b.recoveries) == ("b", 1, 0, 0)


@pytest.mark.parametrize("value", NONE)
@pytest.mark.parametrize("verdict", ["retrying", "delayed", "queued", "failed", "cancelled"])
def test_invalid_numbers_do_not_stop_the_end_of_a_run(lab: Lab, verdict: str, value: str) -> None:
    lab.add("a", "b", audit="all")
    corrupt(lab, "a", "1", "lease")
    a, b = lab.claim(jobs=2).jobs
    corrupt(lab, "a", value, "attempts", "recoveries", "seq", "priority", "delays", "due_ms")
    ends = [outcome(job, verdict, ERROR) for job in (a, b)]
    assert lab.store.finish(ClaimRequest("c1", ()), 9, ends, 0)[0] == [1, 1]
    lab.advance(2000)
    lab.store.promote(["default"])
    assert told(lab, "a")[-1][0] == told(lab, "b")[-1][0]
    if verdict not in ("failed", "cancelled"):
        taken = [*lab.claim(jobs=2).jobs, *lab.claim("c2", jobs=2).jobs]
        assert sorted(job.id for job in taken) == ["a", "b"]
    if verdict == "delayed":
        assert (lab.job("a")["delays"], lab.job("b")["delays"]) == ("1", "1")
    assert lab.tokens() <= 1


@pytest.mark.parametrize("value", NONE)
def test_invalid_numbers_do_not_stop_a_recovery(lab: Lab, value: str) -> None:
    lab.add("a", "b")
    lab.claim(jobs=2)
    corrupt(lab, "a", value, "attempts", "recoveries", "seq", "lease")
    assert sorted(lab.store.reap("c1", ["a"]).jobs) == [("a", "recovered"), ("b", "released")]
    assert told(lab, "a")[-1][0] == "queued"
    assert lab.take("c2").recoveries == 1
    invariants(lab, tokens=False)


@pytest.mark.parametrize("value", NONE)
def test_invalid_numbers_do_not_stop_waiting_jobs(lab: Lab, value: str) -> None:
    lab.add("p")
    lab.add("a", "b", after="wait p")
    corrupt(lab, "a", value, "waits", "attempts", "seq", "priority", "when")
    lab.finish(outcome(lab.take()))
    assert sorted(lab.ids("queued")) == ["a", "b"]
    told(lab, "a")


@pytest.mark.parametrize("value", NONE)
def test_invalid_numbers_do_not_stop_a_deletion(lab: Lab, value: str) -> None:
    lab.end("a", "b", "c", "d", verdict="failed")
    for job_id in "abcd":
        corrupt(lab, job_id, value, "bytes", "finished_ms", "until_ms", "generation", "seq")
    assert lab.store.delete(["a"]) == [1]
    assert lab.store.requeue(["b"]) == [1]
    assert lab.store.clear("default", "failed").done == 2
    assert lab.ids("failed") == []
    assert lab.taken() == ["b"]
    told(lab, "b")


@pytest.mark.parametrize("value", NONE)
def test_an_ended_or_paused_workflow_holds_back_jobs_with_invalid_numbers(
    lab: Lab, value: str
) -> None:
    workflow = LabWorkflow(lab, {0: [], 1: []})
    workflow.push()
    corrupt(lab, workflow.job(0), value, "attempts", "seq")
    lab.redis.hset(lab.keys.workflow(workflow.id), "paused_ms", "1")
    assert lab.taken(jobs=2) == []
    assert workflow.statuses() == ["waiting", "waiting"]
    told(lab, workflow.job(0))
    invariants(lab, tokens=False)


@pytest.mark.parametrize("value", [*NONE, "1.5", str(2**63 - 1)])
def test_invalid_counters_restart(lab: Lab, value: str) -> None:
    meta, counters = lab.keys.queue("default").meta, ("tail", "head", "finished_bytes")
    totals = [
        f"{verb}_total" for verb in ("enqueued", "completed", "failed", "retried", "released")
    ]
    lab.add("a", "b", "c", "d", priority=1)
    held = lab.claim(jobs=4).jobs
    lab.redis.hset(meta, mapping=dict.fromkeys([*totals, *counters], value))
    ends = ["completed", "failed", "retrying", "queued"]
    outcomes = [outcome(job, end, ERROR) for job, end in zip(held, ends, strict=True)]
    assert lab.finish(*outcomes) == [1, 1, 1, 1]
    lab.add("e", "f", priority=1)
    assert lab.taken(jobs=3) == ["d", "e", "f"]
    lab.advance(20_000)
    assert lab.store.prune("default", "completed", 0, 0)[0] == 1
    found = dict(zip(totals, lab.redis.hmget(meta, totals), strict=True))
    assert found == {**dict.fromkeys(totals, "1"), "enqueued_total": "2"}
    invariants(lab)
