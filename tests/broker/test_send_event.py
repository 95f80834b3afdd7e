"""send_event, and the jobs that are parked until the event is sent: each is in one place
throughout."""

from __future__ import annotations

import pytest

from django_redisqueue.broker import sums
from django_redisqueue.broker.shards import AllShards
from django_redisqueue.broker.steps import Wait, WaitQueries
from django_redisqueue.core.job_data import WaitKind
from django_redisqueue.exceptions import RedisFull

from .lab import ERROR, T0, Lab, invariants, outcome
from .test_check_wait import ask, park, started
from .test_step import remembered
from .workflows import LabWorkflow


def test_a_parked_job_is_scheduled_for_its_timeout(lab: Lab) -> None:
    park(lab, started(lab))
    job = lab.job("a")
    assert (job["status"], job["waits_for"], job["due_ms"]) == ("scheduled", "e", str(T0 + 1000))
    assert (job["parked_ms"], job["ran"]) == (str(T0), "c1")
    assert "attempts" not in job
    assert lab.held() == []
    assert lab.ids("scheduled") == ["a"]
    assert lab.events("a")[-1]["dueMs"] == T0 + 1000
    invariants(lab)


@pytest.mark.parametrize("priority", [0, 5])
def test_the_event_wakes_it_at_the_tail_of_its_queue(lab: Lab, priority: int) -> None:
    park(lab, started(lab, priority=priority))
    lab.add("b", priority=priority)
    lab.pop_token()
    assert lab.store.send_event("e", "[1]", 5000) == 1
    invariants(lab)
    assert "due_ms" not in lab.job("a")
    assert lab.taken() == ["b"]
    job = lab.take()
    assert (job.id, job.attempts, job.lease) == ("a", 0, 2)
    assert ask(lab, job) == (1, "[1]")
    assert lab.story("a") == ["queued", "processing", "scheduled", "queued", "processing"]
    lab.finish(outcome(job))
    invariants(lab)


def test_an_event_between_the_check_and_the_end_of_the_run(lab: Lab) -> None:
    job = started(lab)
    reply = ask(lab, job)
    assert lab.store.send_event("e", "[1]", 5000) == 0
    assert lab.finish(outcome(job, "parked", "e", reply.value)) == [1]
    assert lab.status("a") == "queued"
    lab.redis.delete(lab.keys.event("e"))
    invariants(lab)
    assert ask(lab, lab.take()) == (1, "[1]")


@pytest.mark.parametrize("is_claimed", [True, False])
def test_an_event_after_the_timeout_and_before_the_check(lab: Lab, is_claimed: bool) -> None:
    park(lab, started(lab))
    lab.advance(1000)
    lab.store.promote(["default"])
    job = lab.take() if is_claimed else None
    assert lab.store.send_event("e", "[1]", 5000) == 0
    lab.redis.delete(lab.keys.event("e"))
    assert ask(lab, job or lab.take()) == (1, "[1]")
    invariants(lab)


def test_a_sleep_ends_by_the_timer(lab: Lab) -> None:
    job = started(lab)
    reply = ask(lab, job, sleeps=True)
    lab.finish(outcome(job, "parked", "", reply.value))
    assert lab.job("a")["waits_for"] == ""
    invariants(lab)
    assert lab.taken() == []
    lab.advance(1000)
    assert ask(lab, lab.take(), sleeps=True) == (1, "null")
    invariants(lab)


@pytest.mark.parametrize("how", ["cancel", "clear"])
def test_a_parked_job_can_be_cancelled(lab: Lab, how: str) -> None:
    park(lab, started(lab))
    if how == "cancel":
        assert lab.store.cancel(["a"]) == [1]
    else:
        assert lab.store.clear("default", "scheduled").done == 1
    assert lab.status("a") == "cancelled"
    assert not lab.redis.exists(lab.keys.awaiting("e"))
    invariants(lab)
    assert lab.store.send_event("e", "1", 5000) == 0
    assert lab.store.requeue(["a"]) == [1]
    invariants(lab)
    assert ask(lab, lab.take()) == (1, "1")


def test_a_cancel_while_it_parks(lab: Lab) -> None:
    job = started(lab)
    lab.store.cancel(["a"])
    assert lab.finish(outcome(job, "parked", "e", "")) == [3]
    assert lab.status("a") == "cancelled"
    assert "error" not in lab.job("a")
    invariants(lab)


def test_a_repeated_or_stale_park_changes_nothing(lab: Lab) -> None:
    job = started(lab)
    park(lab, job)
    before = lab.dump()
    assert lab.finish(outcome(job, "parked", "e", "")) == [2]
    assert lab.finish(outcome(job, "parked", "e", ""), child="c2") == [0]
    assert lab.dump() == before


def test_many_wait_for_one_event(lab: Lab) -> None:
    """100 per call; maintenance does the rest."""
    names = [f"j{n}" for n in range(250)]
    for at in range(0, 250, 50):
        lab.add(*names[at : at + 50])
    for job in [job for _ in range(3) for job in lab.claim(jobs=100).jobs]:
        park(lab, job)
    assert lab.store.send_event("e", "1", 5000) == 100
    invariants(lab)
    assert lab.redis.zcard(lab.keys.awaiting("e")) == 150
    for _ in lab.advancing():
        invariants(lab)
    assert {lab.status(name) for name in names} == {"queued"}
    assert not lab.redis.exists(lab.keys.awaiting("e"))


def test_a_large_payload_is_copied_to_few_jobs_per_call(lab: Lab) -> None:
    lab.add(*"abcd")
    for job in lab.claim(jobs=4).jobs:
        park(lab, job)
    assert lab.store.send_event("e", '"' + "x" * 400_000 + '"', 5000) == 2
    for _ in lab.advancing():
        pass
    assert {lab.status(name) for name in "abcd"} == {"queued"}


def test_a_queue_with_a_key_of_the_wrong_type_wakes_its_jobs_later(lab: Lab) -> None:
    park(lab, started(lab))
    with lab.broken("wake"):
        assert lab.store.send_event("e", "1", 5000) == 0
        assert lab.status("a") == "scheduled"
        lab.store.advance()
        assert lab.status("a") == "scheduled"
    for _ in lab.advancing():
        pass
    assert lab.status("a") == "queued"
    lab.redis.delete(lab.keys.event("e"))
    assert ask(lab, lab.take()) == (1, "1")


def test_a_repeated_event_has_the_newest_payload(lab: Lab) -> None:
    lab.store.send_event("e", "1", 5000)
    lab.store.send_event("e", "2", 5000)
    assert ask(lab, started(lab)) == (1, "2")


def test_a_full_redis_refuses_it(lab: Lab) -> None:
    park(lab, started(lab))
    before = lab.dump()
    with lab.full(), pytest.raises(RedisFull):
        lab.store.send_event("e", "1", 5000)
    assert lab.dump() == before


def test_a_job_that_fails_or_retries_forgets_no_wait(lab: Lab) -> None:
    park(lab, started(lab))
    lab.store.send_event("e", "1", 5000)
    lab.finish(outcome(lab.take(), "retrying", ERROR, "1"))
    assert remembered(lab) == {"wait:e": "event 1"}
    lab.advance(1)
    assert ask(lab, lab.take()) == (1, "1")
    invariants(lab)


# -- with limits and unique keys


def test_a_parked_job_holds_no_slot_of_its_limit(lab: Lab) -> None:
    lab.add("a", "b", lane="|c:t:1 c:t=1")
    park(lab, lab.take())
    invariants(lab)
    other = lab.take()
    assert lab.store.send_event("e", "1", 5000) == 1
    assert lab.taken("c2", 9) == []
    invariants(lab)
    lab.finish(outcome(other))
    assert lab.taken("c2", 9) == ["a"]
    invariants(lab)


@pytest.mark.parametrize("detail", ["head", "tail"])
def test_a_parked_job_that_is_released_holds_no_slot(lab: Lab, detail: str) -> None:
    lab.add("a", "b", lane="|c:t:1 c:t=1")
    lab.finish(outcome(lab.take(), "queued", "", detail))
    invariants(lab)
    assert lab.taken(jobs=9) == ["a" if detail == "head" else "b"]
    invariants(lab)


@pytest.mark.parametrize(
    ("unique", "status", "is_new"),
    [
        ("k until_started - -", "queued", True),
        ("k until_finished - -", None, False),
        ("k replace 5 5", "scheduled", True),
        ("k keep_last - -", "waiting", True),
    ],
)
def test_a_parked_job_has_started(lab: Lab, unique: str, status: str | None, is_new: bool) -> None:
    park(lab, started(lab, unique=unique))
    payload = lab.job("a")["payload"]
    assert lab.add("b", unique=unique, payload="[[2],{}]", when="+5") == [is_new]
    assert lab.status("b") == (status if status != "queued" else "scheduled")
    assert lab.job("a")["payload"] == payload
    invariants(lab)
    lab.store.send_event("e", "1", 5000)
    lab.finish(outcome(lab.take()))
    invariants(lab)


# -- in workflows


@pytest.fixture
def workflow(lab: Lab) -> LabWorkflow:
    """Job 0 waits for an event, job 1 waits for job 0, and job 2 is queued."""
    made = LabWorkflow(lab, {0: (), 1: (0,), 2: ()})
    made.push()
    park(lab, lab.take(), None)
    return made


def test_a_parked_job_keeps_its_workflow_running(lab: Lab, workflow: LabWorkflow) -> None:
    assert workflow.run_one() == 2
    assert workflow.data().status == "running"
    assert workflow.counts() == {"total": 3, "waiting": 1, "completed": 1}
    invariants(lab)
    assert lab.store.send_event("e", "1", 5000) == 1
    invariants(lab)
    assert (workflow.run_one(), workflow.run_one()) == (0, 1)
    assert workflow.data().status == "completed"
    invariants(lab)


def test_the_event_reaches_a_failed_workflow(lab: Lab, workflow: LabWorkflow) -> None:
    """Like everything in the workflow that has not ended, the job continues after a retry."""
    workflow.run_one("failed")
    assert workflow.data().status == "failed"
    assert lab.store.send_event("e", "1", 5000) == 1
    assert lab.taken() == []
    invariants(lab)
    assert lab.store.requeue([workflow.job(2)]) == [1]
    workflow.advance()
    invariants(lab)
    assert workflow.run_all() == [2, 0, 1]
    assert workflow.data().status == "completed"


def test_the_event_reaches_a_paused_workflow(lab: Lab, workflow: LabWorkflow) -> None:
    lab.store.control_workflow(workflow.id, "pause")
    workflow.advance()
    assert lab.status(workflow.job(0)) == "scheduled"
    assert lab.store.send_event("e", "1", 5000) == 1
    assert lab.taken(jobs=9) == []
    assert workflow.counts() == {"total": 3, "waiting": 3}
    invariants(lab)
    lab.store.control_workflow(workflow.id, "release")
    workflow.advance()
    invariants(lab)
    assert {job.id for job in lab.claim(jobs=9).jobs} == {workflow.job(0), workflow.job(2)}


@pytest.mark.parametrize("command", ["cancel", "clean"])
def test_a_workflow_that_ends_ends_its_parked_jobs_too(
    lab: Lab, workflow: LabWorkflow, command: str
) -> None:
    if command == "clean":
        workflow.run_one("failed")
    lab.store.control_workflow(workflow.id, command)
    workflow.advance()
    assert workflow.statuses()[:2] == ["cancelled"] * 2
    assert not lab.redis.exists(lab.keys.awaiting("e"))
    invariants(lab)
    assert lab.store.send_event("e", "1", 5000) == 0


def test_waits_are_listed_in_pages(lab: Lab) -> None:
    queries = WaitQueries(lab.connection)

    def page(kind: WaitKind, after: str = "") -> tuple[list[Wait], str]:
        return sums.waits(AllShards(lab.connection.at, [lab.connection.shard]), kind, after, 1)

    assert queries.counts() == {WaitKind.EVENT: 0, WaitKind.APPROVAL: 0, WaitKind.SLEEP: 0}
    for n, event in enumerate(["e", "f", "approval:2:refund", ""]):
        lab.add(str(n))
        job = lab.take()
        reply = ask(lab, job, 1000, event or "night", sleeps=not event)
        lab.finish(outcome(job, "parked", event, reply.value))
        lab.advance(1)
    assert queries.counts() == {WaitKind.EVENT: 2, WaitKind.APPROVAL: 1, WaitKind.SLEEP: 1}
    first, following = page(WaitKind.EVENT)
    assert first == [Wait("0", "app.task", "default", WaitKind.EVENT, "e", T0, T0 + 1000)]
    (second,), end = page(WaitKind.EVENT, following)
    assert (second.job_id, second.name, end) == ("1", "f", "")
    ((approval,), _), ((sleep,), _) = map(page, (WaitKind.APPROVAL, WaitKind.SLEEP))
    assert (approval.name, sleep.name) == ("refund", "")
    lab.redis.delete(lab.keys.job("3"))  # another program has deleted it
    assert page(WaitKind.SLEEP) == ([], "")
