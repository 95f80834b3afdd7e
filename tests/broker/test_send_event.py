"""send_event, and the jobs that are parked until the event is sent: each is in one place
throughout."""

from __future__ import annotations

import pytest

from django_redisqueue.broker import sums
from django_redisqueue.broker.shards import AllShards
from django_redisqueue.broker.steps import Wait, WaitQueries
from django_redisqueue.core.job_data import WaitKind
from django_redisqueue.exceptions import RedisFull

from .harness import ERROR, T0, BrokerHarness, invariants, outcome
from .test_check_wait import ask, park, started
from .test_step import remembered
from .workflows import BrokerWorkflow


def test_a_parked_job_is_scheduled_for_its_timeout(broker: BrokerHarness) -> None:
    park(broker, started(broker))
    job = broker.job("a")
    assert (job["status"], job["waits_for"], job["due_ms"]) == ("scheduled", "e", str(T0 + 1000))
    assert (job["parked_ms"], job["ran"]) == (str(T0), "c1")
    assert "attempts" not in job
    assert broker.held() == []
    assert broker.ids("scheduled") == ["a"]
    assert broker.events("a")[-1]["dueMs"] == T0 + 1000
    invariants(broker)


@pytest.mark.parametrize("priority", [0, 5])
def test_the_event_wakes_it_at_the_tail_of_its_queue(broker: BrokerHarness, priority: int) -> None:
    park(broker, started(broker, priority=priority))
    broker.add("b", priority=priority)
    broker.pop_token()
    assert broker.store.send_event("e", "[1]", 5000) == 1
    invariants(broker)
    assert "due_ms" not in broker.job("a")
    assert broker.taken() == ["b"]
    job = broker.take()
    assert (job.id, job.attempts, job.lease) == ("a", 0, 2)
    assert ask(broker, job) == (1, "[1]")
    assert broker.event_statuses("a") == [
        "queued",
        "processing",
        "scheduled",
        "queued",
        "processing",
    ]
    broker.finish(outcome(job))
    invariants(broker)


def test_an_event_between_the_check_and_the_end_of_the_run(broker: BrokerHarness) -> None:
    job = started(broker)
    reply = ask(broker, job)
    assert broker.store.send_event("e", "[1]", 5000) == 0
    assert broker.finish(outcome(job, "parked", "e", reply.value)) == [1]
    assert broker.status("a") == "queued"
    broker.redis.delete(broker.keys.event("e"))
    invariants(broker)
    assert ask(broker, broker.take()) == (1, "[1]")


@pytest.mark.parametrize("is_claimed", [True, False])
def test_an_event_after_the_timeout_and_before_the_check(
    broker: BrokerHarness, is_claimed: bool
) -> None:
    park(broker, started(broker))
    broker.advance(1000)
    broker.store.promote(["default"])
    job = broker.take() if is_claimed else None
    assert broker.store.send_event("e", "[1]", 5000) == 0
    broker.redis.delete(broker.keys.event("e"))
    assert ask(broker, job or broker.take()) == (1, "[1]")
    invariants(broker)


def test_a_job_that_has_gone_on_to_another_event(broker: BrokerHarness) -> None:
    """Its timeout has passed, and it has not asked for the first event again."""
    park(broker, started(broker))
    broker.advance(1000)
    broker.store.promote(["default"])
    park(broker, broker.take(), event="f")
    assert not broker.redis.exists(broker.keys.awaiting("e"))
    assert broker.store.send_event("e", "1", 5000) == 0
    invariants(broker)
    assert broker.store.send_event("f", "1", 5000) == 1


def test_a_sleep_ends_by_the_timer(broker: BrokerHarness) -> None:
    job = started(broker)
    reply = ask(broker, job, sleeps=True)
    broker.finish(outcome(job, "parked", "", reply.value))
    assert broker.job("a")["waits_for"] == ""
    invariants(broker)
    assert broker.taken() == []
    broker.advance(1000)
    assert ask(broker, broker.take(), sleeps=True) == (1, "null")
    invariants(broker)


@pytest.mark.parametrize("how", ["cancel", "clear"])
def test_a_parked_job_can_be_cancelled(broker: BrokerHarness, how: str) -> None:
    park(broker, started(broker))
    if how == "cancel":
        assert broker.store.cancel(["a"]) == [1]
    else:
        assert broker.store.clear("default", "scheduled").done == 1
    assert broker.status("a") == "cancelled"
    assert not broker.redis.exists(broker.keys.awaiting("e"))
    invariants(broker)
    assert broker.store.send_event("e", "1", 5000) == 0
    assert broker.store.requeue(["a"]) == [1]
    invariants(broker)
    assert ask(broker, broker.take()) == (1, "1")


def test_a_cancel_while_it_parks(broker: BrokerHarness) -> None:
    job = started(broker)
    broker.store.cancel(["a"])
    assert broker.finish(outcome(job, "parked", "e", "")) == [3]
    assert broker.status("a") == "cancelled"
    assert "error" not in broker.job("a")
    invariants(broker)


def test_a_repeated_or_stale_park_changes_nothing(broker: BrokerHarness) -> None:
    job = started(broker)
    park(broker, job)
    with broker.unchanged():
        assert broker.finish(outcome(job, "parked", "e", "")) == [2]
        assert broker.finish(outcome(job, "parked", "e", ""), child="c2") == [0]


def test_many_wait_for_one_event(broker: BrokerHarness) -> None:
    """100 per call; maintenance does the rest."""
    names = [f"j{n}" for n in range(250)]
    for at in range(0, 250, 50):
        broker.add(*names[at : at + 50])
    for job in [job for _ in range(3) for job in broker.claim(jobs=100).jobs]:
        park(broker, job)
    assert broker.store.send_event("e", "1", 5000) == 100
    invariants(broker)
    assert broker.redis.zcard(broker.keys.awaiting("e")) == 150
    for _ in broker.advancing():
        invariants(broker)
    assert {broker.status(name) for name in names} == {"queued"}
    assert not broker.redis.exists(broker.keys.awaiting("e"))


@pytest.mark.parametrize(("size", "jobs"), [(400_000, 2), (1_100_000, 1)])
def test_a_large_payload_is_copied_to_few_jobs_per_call(
    broker: BrokerHarness, size: int, jobs: int
) -> None:
    broker.add(*"abcd")
    for job in broker.claim(jobs=4).jobs:
        park(broker, job)
    assert broker.store.send_event("e", '"' + "x" * size + '"', 5000) == jobs
    for _ in broker.advancing():
        pass
    assert {broker.status(name) for name in "abcd"} == {"queued"}


def test_a_queue_with_a_key_of_the_wrong_type_wakes_its_jobs_later(broker: BrokerHarness) -> None:
    park(broker, started(broker))
    with broker.broken("wake"):
        assert broker.store.send_event("e", "1", 5000) == 0
        assert broker.status("a") == "scheduled"
        broker.store.advance()
        assert broker.status("a") == "scheduled"
    for _ in broker.advancing():
        pass
    assert broker.status("a") == "queued"
    broker.redis.delete(broker.keys.event("e"))
    assert ask(broker, broker.take()) == (1, "1")


def test_an_event_that_expires_before_all_jobs_are_woken(broker: BrokerHarness) -> None:
    broker.add(*"abcd")
    for job in broker.claim(jobs=4).jobs:
        park(broker, job)
    assert broker.store.send_event("e", '"' + "x" * 400_000 + '"', 5000) == 2
    broker.redis.delete(broker.keys.event("e"))
    for _ in broker.advancing():
        pass
    assert len(broker.ids("scheduled")) == 2
    invariants(broker)


def test_a_repeated_event_has_the_newest_payload(broker: BrokerHarness) -> None:
    broker.store.send_event("e", "1", 5000)
    broker.store.send_event("e", "2", 5000)
    assert ask(broker, started(broker)) == (1, "2")


def test_a_full_redis_refuses_it(broker: BrokerHarness) -> None:
    park(broker, started(broker))
    with broker.unchanged(), broker.full(), pytest.raises(RedisFull):
        broker.store.send_event("e", "1", 5000)


def test_a_job_that_fails_or_retries_forgets_no_wait(broker: BrokerHarness) -> None:
    park(broker, started(broker))
    broker.store.send_event("e", "1", 5000)
    broker.finish(outcome(broker.take(), "retrying", ERROR, "1"))
    assert remembered(broker) == {"wait:e": "event 1"}
    broker.advance(1)
    assert ask(broker, broker.take()) == (1, "1")
    invariants(broker)


# -- with limits and unique keys


def test_a_parked_job_holds_no_slot_of_its_limit(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane="|c:t:1 c:t=1")
    park(broker, broker.take())
    invariants(broker)
    other = broker.take()
    assert broker.store.send_event("e", "1", 5000) == 1
    assert broker.taken("c2", 9) == []
    invariants(broker)
    broker.finish(outcome(other))
    assert broker.taken("c2", 9) == ["a"]
    invariants(broker)


@pytest.mark.parametrize("detail", ["head", "tail"])
def test_a_parked_job_that_is_released_holds_no_slot(broker: BrokerHarness, detail: str) -> None:
    broker.add("a", "b", lane="|c:t:1 c:t=1")
    broker.finish(outcome(broker.take(), "queued", "", detail))
    invariants(broker)
    assert broker.taken(jobs=9) == ["a" if detail == "head" else "b"]
    invariants(broker)


@pytest.mark.parametrize(
    ("unique", "status", "is_new"),
    [
        ("k until_started - -", "queued", True),
        ("k until_finished - -", None, False),
        ("k replace 5 5", "scheduled", True),
        ("k keep_last - -", "waiting", True),
    ],
)
def test_a_parked_job_has_started(
    broker: BrokerHarness, unique: str, status: str | None, is_new: bool
) -> None:
    park(broker, started(broker, unique=unique))
    payload = broker.job("a")["payload"]
    assert broker.add("b", unique=unique, payload="[[2],{}]", when="+5") == [is_new]
    assert broker.status("b") == (status if status != "queued" else "scheduled")
    assert broker.job("a")["payload"] == payload
    invariants(broker)
    broker.store.send_event("e", "1", 5000)
    broker.finish(outcome(broker.take()))
    invariants(broker)


# -- in workflows


@pytest.fixture
def workflow(broker: BrokerHarness) -> BrokerWorkflow:
    """Job 0 waits for an event, job 1 waits for job 0, and job 2 is queued."""
    made = BrokerWorkflow(broker, {0: (), 1: (0,), 2: ()})
    made.push()
    park(broker, broker.take(), None)
    return made


def test_a_parked_job_keeps_its_workflow_running(
    broker: BrokerHarness, workflow: BrokerWorkflow
) -> None:
    assert workflow.run_one() == 2
    assert workflow.data().status == "running"
    assert workflow.counts() == {"total": 3, "waiting": 1, "completed": 1}
    invariants(broker)
    assert broker.store.send_event("e", "1", 5000) == 1
    invariants(broker)
    assert (workflow.run_one(), workflow.run_one()) == (0, 1)
    assert workflow.data().status == "completed"
    invariants(broker)


def test_the_event_reaches_a_failed_workflow(
    broker: BrokerHarness, workflow: BrokerWorkflow
) -> None:
    """Like everything in the workflow that has not ended, the job continues after a retry."""
    workflow.run_one("failed")
    assert workflow.data().status == "failed"
    assert broker.store.send_event("e", "1", 5000) == 1
    assert broker.taken() == []
    invariants(broker)
    assert broker.store.requeue([workflow.job(2)]) == [1]
    workflow.advance()
    invariants(broker)
    assert workflow.run_all() == [2, 0, 1]
    assert workflow.data().status == "completed"


def test_the_event_reaches_a_paused_workflow(
    broker: BrokerHarness, workflow: BrokerWorkflow
) -> None:
    broker.store.control_workflow(workflow.id, "pause")
    workflow.advance()
    assert broker.status(workflow.job(0)) == "scheduled"
    assert broker.store.send_event("e", "1", 5000) == 1
    assert broker.taken(jobs=9) == []
    assert workflow.counts() == {"total": 3, "waiting": 3}
    invariants(broker)
    broker.store.control_workflow(workflow.id, "release")
    workflow.advance()
    invariants(broker)
    assert {job.id for job in broker.claim(jobs=9).jobs} == {workflow.job(0), workflow.job(2)}


@pytest.mark.parametrize("command", ["cancel", "clean"])
def test_a_workflow_that_ends_ends_its_parked_jobs_too(
    broker: BrokerHarness, workflow: BrokerWorkflow, command: str
) -> None:
    if command == "clean":
        workflow.run_one("failed")
    broker.store.control_workflow(workflow.id, command)
    workflow.advance()
    assert workflow.statuses()[:2] == ["cancelled"] * 2
    assert not broker.redis.exists(broker.keys.awaiting("e"))
    invariants(broker)
    assert broker.store.send_event("e", "1", 5000) == 0


def test_waits_are_listed_in_pages(broker: BrokerHarness) -> None:
    queries = WaitQueries(broker.connection)

    def page(kind: WaitKind, after: str = "") -> tuple[list[Wait], str]:
        return sums.waits(
            AllShards(broker.connection.at, [broker.connection.shard]), kind, after, 1
        )

    assert queries.counts() == {WaitKind.EVENT: 0, WaitKind.APPROVAL: 0, WaitKind.SLEEP: 0}
    for n, event in enumerate(["e", "f", "approval:2:refund", ""]):
        broker.add(str(n))
        job = broker.take()
        reply = ask(broker, job, 1000, event or "night", sleeps=not event)
        broker.finish(outcome(job, "parked", event, reply.value))
        broker.advance(1)
    assert queries.counts() == {WaitKind.EVENT: 2, WaitKind.APPROVAL: 1, WaitKind.SLEEP: 1}
    first, following = page(WaitKind.EVENT)
    assert first == [Wait("0", "app.task", "default", WaitKind.EVENT, "e", T0, T0 + 1000)]
    (second,), end = page(WaitKind.EVENT, following)
    assert (second.job_id, second.name, end) == ("1", "f", "")
    ((approval,), _), ((sleep,), _) = map(page, (WaitKind.APPROVAL, WaitKind.SLEEP))
    assert (approval.name, sleep.name) == ("refund", "")
    broker.redis.delete(broker.keys.job("3"))  # another program has deleted it
    assert page(WaitKind.SLEEP) == ([], "")
