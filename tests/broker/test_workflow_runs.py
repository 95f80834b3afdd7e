"""First runs of a workflow's jobs on the fast path: their entries and their ends."""

from __future__ import annotations

import json

import pytest

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.broker.replies import ClaimedJob, FinishCode
from django_redisqueue.core.job_data import NewJob

from .harness import PAYLOAD, BrokerHarness, invariants, outcome
from .workflows import BrokerWorkflow

DIAMOND = {0: [], 1: [0], 2: [0], 3: [1, 2]}
BYTES = 444 + len(PAYLOAD)  # of a root, except for its result
MORE = 3 * 23  # of a released job: its fields seq, waits and after


def pushed(broker: BrokerHarness, **options: object) -> BrokerWorkflow:
    workflow = BrokerWorkflow(broker, DIAMOND, **options)  # type: ignore[arg-type]
    workflow.push()
    return workflow


def running(broker: BrokerHarness, n: int) -> tuple[BrokerWorkflow, ClaimedJob]:
    """The run of a diamond's root (0), or of a job that it releases (1)."""
    workflow = pushed(broker)
    if n:
        workflow.run_one()
    (job,) = broker.claim().jobs
    assert job.id == workflow.job(n)
    return workflow, job


def test_an_entry_has_everything_that_the_end_of_the_run_needs(broker: BrokerHarness) -> None:
    workflow = pushed(broker)
    for count, expected in (
        (1, [f"@2.1.2 {BYTES}+"]),
        (2, [f"@3.3 {BYTES + MORE}+"] * 2),
        (1, [f"@3 {BYTES + MORE}+"]),
    ):
        jobs = broker.claim(jobs=count).jobs
        assert broker.entries() == [
            f"{job.call}:{job.id} {what} default app.task"
            for job, what in zip(jobs, expected, strict=True)
        ]
        assert broker.finish(*map(outcome, jobs)) == [FinishCode.ACCEPTED] * count
        invariants(broker)
    assert workflow.data().status == "completed"
    assert workflow.counts() == {"total": 4, "completed": 4}


def test_a_released_root_has_a_seq_that_is_higher_by_one(broker: BrokerHarness) -> None:
    """A workflow of several calls is created as waiting, and then started."""
    small, large = BrokerWorkflow(broker, {0: []}), BrokerWorkflow(broker, {0: [], 1: []}, name="1")
    large.push_batch(0, 1, first=True)
    large.push_batch(1, 2, last=True)
    large.advance()
    small.push()
    jobs = broker.claim(jobs=3).jobs
    assert [job.id for job in jobs] == [large.job(0), large.job(1), small.job(0)]
    assert broker.finish(*map(outcome, jobs)) == [FinishCode.ACCEPTED] * 3
    assert [len(broker.events(job.id)) for job in jobs] == [4, 4, 3]


def test_a_released_job_and_a_root_of_one_batch_have_their_own_seqs(broker: BrokerHarness) -> None:
    two = BrokerWorkflow(broker, {0: [], 1: [0]}, name="two")
    two.push()
    two.run_one()
    one = BrokerWorkflow(broker, {0: []}, name="one")
    one.push()
    jobs = broker.claim(jobs=2).jobs
    assert [job.id for job in jobs] == [two.job(1), one.job(0)]
    broker.finish(*map(outcome, jobs))
    seqs = [[event["seq"] for event in broker.events(job.id)] for job in jobs]
    assert seqs == [[1, 2, 3, 4], [1, 2, 3]]
    invariants(broker)


def test_each_event_and_each_hash_has_its_number(broker: BrokerHarness) -> None:
    workflow = pushed(broker)
    workflow.run_all()
    for n in DIAMOND:
        events = broker.events(workflow.job(n))
        assert [event["seq"] for event in events] == list(range(1, 4 + (n > 0)))
        data = broker.queries.job(workflow.job(n))
        assert (data.lease, data.seq) == (1, events[-1]["seq"])
    assert workflow.run_all() == []
    then = [broker.redis.hget(broker.keys.job(workflow.job(n)), "then") for n in DIAMOND]
    assert then == ["", "", "", None]


def test_a_batch_of_ends_takes_few_commands(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], **{n: [0] for n in range(1, 9)}, 9: range(1, 9)})
    workflow.push()
    workflow.run_one()
    jobs = broker.claim(jobs=8).jobs
    broker.redis.config_resetstat()
    assert broker.finish(*map(outcome, jobs)) == [FinishCode.ACCEPTED] * 8
    assert broker.calls("hstrlen", "object", "hget", "hincrby") == [0, 0, 0, 3]
    assert broker.calls("hmget") == [1 + 1]  # the workflow, and once the jobs that they release
    assert broker.calls("hexists") == [8]  # whether anyone watches
    assert broker.calls("hset", "hdel", "lpush") == [8 + 1 + 1, 0, 1]
    assert broker.ids("queued") == [workflow.job(9)]
    invariants(broker)


def test_all_that_one_call_releases_enters_the_queue_in_order(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [], **{n: [n % 2] for n in range(2, 8)}})
    workflow.push()
    broker.pop_token()
    broker.finish(*map(outcome, broker.claim(jobs=2).jobs))
    assert broker.ids("queued") == [workflow.job(n) for n in (2, 4, 6, 3, 5, 7)]
    assert broker.tokens() == 1
    assert workflow.counts() == {"total": 8, "completed": 2}
    invariants(broker)


@pytest.mark.parametrize("n", [0, 1])
def test_a_caller_that_begins_to_wait_during_the_run_is_told(broker: BrokerHarness, n: int) -> None:
    _, job = running(broker, n)
    told = broker.redis.pubsub(ignore_subscribe_messages=True)
    told.subscribe(f"{broker.keys.base}done:{job.id}")
    told.get_message(timeout=5)
    assert broker.store.watch(job.id) == "processing"
    broker.finish(outcome(job))
    message = told.get_message(timeout=5)
    assert message
    assert message["data"] == "completed"
    invariants(broker)


@pytest.mark.parametrize("n", [0, 1])
def test_a_job_that_becomes_a_follower_during_the_run_is_notified(
    broker: BrokerHarness, n: int
) -> None:
    _, job = running(broker, n)
    broker.store.enqueue([NewJob("b", "default", "app.task", PAYLOAD, after=f"wait {job.id}")])
    broker.finish(outcome(job))
    assert broker.status("b") == "queued"
    invariants(broker)


@pytest.mark.parametrize("n", [0, 1])
def test_progress_counts_towards_the_seq_of_the_end(broker: BrokerHarness, n: int) -> None:
    _, job = running(broker, n)
    assert broker.store.progress("c1", job.id, job.lease, "{}")
    assert broker.finish(outcome(job)) == [FinishCode.ACCEPTED]
    seqs = [event["seq"] for event in broker.events(job.id)]
    assert seqs == list(range(1, 5 + n))
    invariants(broker)


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("kind", ["queued", "retrying", "failed"])
def test_another_outcome_ends_its_first_run(broker: BrokerHarness, n: int, kind: str) -> None:
    workflow, job = running(broker, n)
    assert broker.finish(outcome(job, kind)) == [FinishCode.ACCEPTED]
    if kind == "failed":
        broker.store.requeue([job.id])
    broker.advance(1000)
    again = next(one for one in broker.claim(jobs=5).jobs if one.id == job.id)
    assert again.lease == job.lease + 1
    assert f"{again.call}:{job.id}" in broker.entries()
    assert broker.finish(outcome(job)) == [FinishCode.LEASE_LOST]
    assert broker.finish(outcome(again)) == [FinishCode.ACCEPTED]
    workflow.check_counts(workflow.statuses())
    invariants(broker)


@pytest.mark.parametrize("n", [0, 1])
def test_a_hash_deleted_by_hand_is_not_recreated(broker: BrokerHarness, n: int) -> None:
    workflow, job = running(broker, n)
    broker.redis.delete(broker.keys.job(job.id))
    assert broker.finish(outcome(job)) == [FinishCode.LEASE_LOST]
    assert not broker.redis.exists(broker.keys.job(job.id))
    assert workflow.counts()["processing"] == 1
    assert broker.held() == []
    invariants(broker)


@pytest.mark.parametrize("n", [0, 1])
def test_a_repeat_is_recognised(broker: BrokerHarness, n: int) -> None:
    workflow, job = running(broker, n)
    assert broker.finish(outcome(job), outcome(job)) == [FinishCode.ACCEPTED, FinishCode.REPEATED]
    assert broker.finish(outcome(job)) == [FinishCode.REPEATED]
    assert workflow.counts()["completed"] == n + 1
    invariants(broker)


@pytest.mark.parametrize("order", ["pause", "cancel", "clean"])
@pytest.mark.parametrize("n", [0, 1])
def test_its_workflow_may_be_controlled_while_it_runs(
    broker: BrokerHarness, n: int, order: str
) -> None:
    workflow, job = running(broker, n)
    if order == "clean":
        broker.store.control_workflow(workflow.id, "cancel")
        workflow.advance()
    broker.store.control_workflow(workflow.id, order)
    workflow.advance()
    assert broker.finish(outcome(job)) == [FinishCode.ACCEPTED]
    assert broker.status(job.id) == "completed"
    if order == "pause":
        assert broker.taken() == []
        assert workflow.counts()["waiting"] == 3 - n
        broker.store.control_workflow(workflow.id, "release")
        assert sorted(workflow.run_all()) == list(range(n + 1, 4))
    invariants(broker)


def test_a_held_job_is_not_claimed_with_others(broker: BrokerHarness) -> None:
    """The first of two workflows is paused while both have queued jobs."""
    first = pushed(broker)
    second = BrokerWorkflow(broker, DIAMOND, name="1")
    second.push()
    broker.add("plain")
    broker.store.control_workflow(first.id, "pause")
    assert broker.taken(jobs=5) == [second.job(0), "plain"]
    assert broker.status(first.job(0)) == "waiting"
    invariants(broker)


def test_a_claim_reads_and_writes_each_workflow_once(broker: BrokerHarness) -> None:
    """Their jobs take turns in the queue, and the same call has ended a job of the first one."""
    first, second = (BrokerWorkflow(broker, {n: [] for n in range(4)}, name=name) for name in "01")
    first.push()
    (job,) = broker.claim().jobs
    second.push()
    turns = [one.job(n) for n in (1, 2, 3) for one in (first, second)]
    queue = broker.keys.queue("default").queued
    broker.redis.delete(queue)
    broker.redis.lpush(queue, *turns, second.job(0))
    broker.redis.config_resetstat()
    _, claim = broker.store.finish(ClaimRequest("c1", ("default",)), 2, [outcome(job)], 7)
    assert [one.id for one in claim.jobs] == [*turns, second.job(0)]
    assert broker.calls("hmget") == [7 + 2 + 1]  # the jobs, the workflows, the queue
    assert first.counts() == {"total": 4, "processing": 3, "completed": 1}
    assert second.counts() == {"total": 4, "processing": 4}
    assert broker.entries()[-1].startswith(f"2:{second.job(0)} @2 ")
    invariants(broker)


@pytest.mark.parametrize("job_id", ["flow_0_0.complete", "flow_0.0.1", "flow_.1", "flow_1", "f"])
def test_other_ids_that_begin_like_those_of_workflows(broker: BrokerHarness, job_id: str) -> None:
    workflow = pushed(broker)
    workflow.run_all()
    broker.add(job_id)
    job = broker.take()
    assert job.id == job_id
    assert broker.finish(outcome(job)) == [FinishCode.ACCEPTED]
    assert workflow.counts() == {"total": 4, "completed": 4}
    invariants(broker)


def test_jobs_with_their_own_options_are_released_accordingly(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], **{n: [0] for n in range(1, 7)}})
    plain = workflow.jobs[1]
    changes = ({"priority": 5}, {"when": "+1000"}, {"audit": "final"}, {"lane": "one"},
               {"queue": "low"})  # fmt: skip
    workflow.jobs[2:7] = [
        job._replace(**change)  # type: ignore[arg-type]
        for job, change in zip(workflow.jobs[2:7], changes, strict=True)
    ]
    workflow.push()
    broker.finish(outcome(broker.take()))
    assert broker.ids("priority") == [workflow.job(2)]
    assert broker.ids("scheduled") == [workflow.job(3)]
    assert (broker.ids("queued"), broker.ids("queued", "low")) == (
        [plain.id, workflow.job(4)], [workflow.job(6)],
    )  # fmt: skip
    assert broker.ids("keyed") == [workflow.job(5)]
    assert broker.event_statuses(workflow.job(4)) == []
    broker.advance(1000)
    taken = broker.claim(jobs=10, queues=("default", "low")).jobs
    assert broker.finish(*map(outcome, taken)) == [FinishCode.ACCEPTED] * 6
    assert broker.event_statuses(workflow.job(4)) == ["completed"]
    assert workflow.data().status == "completed"
    invariants(broker)


def test_a_job_with_a_priority_waits_for_all_parents_that_a_call_completes(
    broker: BrokerHarness,
) -> None:
    workflow = BrokerWorkflow(broker, DIAMOND)
    workflow.jobs[3] = workflow.jobs[3]._replace(priority=5)
    workflow.push()
    workflow.run_one()
    assert broker.finish(*map(outcome, broker.claim(jobs=2).jobs)) == [FinishCode.ACCEPTED] * 2
    assert broker.ids("priority") == [workflow.job(3)]
    invariants(broker)


def test_a_job_whose_queue_was_changed_by_hand_stays_with_its_child(broker: BrokerHarness) -> None:
    _, job = running(broker, 1)
    broker.store.watch(job.id)  # so that its end takes the slow path
    broker.redis.hset(broker.keys.job(job.id), "queue", "low")
    with broker.broken("scheduled", "low"):
        assert broker.finish(outcome(job)) == [FinishCode.UNWRITTEN]
        assert broker.held() == [f"{job.call}:{job.id}"]


def test_a_job_whose_queue_is_broken_is_released_later(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, DIAMOND)
    workflow.jobs[1] = workflow.jobs[1]._replace(queue="low")
    workflow.push()
    job = broker.take()
    with broker.broken("scheduled", "low"):
        assert broker.finish(outcome(job)) == [FinishCode.ACCEPTED]
        assert broker.status(workflow.job(1)) == "waiting"
    workflow.advance()
    assert broker.ids("queued", "low") == [workflow.job(1)]
    invariants(broker)


def test_one_call_notifies_a_hundred_and_defers_the_others(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(
        broker, {0: [], 1: [], 2: [], **{n: [n % 3] for n in range(3, 123)}, 123: range(3, 123)}
    )
    workflow.push_all()
    workflow.advance()
    jobs = [*broker.claim(jobs=3).jobs, *broker.claim(jobs=3).jobs]
    broker.finish(*map(outcome, jobs))
    assert len(broker.ids("queued")) == 80
    assert broker.redis.lrange(f"{broker.keys.base}flows", 0, -1) == [f"job:{workflow.job(2)}"]
    workflow.advance()
    assert len(broker.ids("queued")) == 120
    assert workflow.run_all()[-1] == 123
    assert workflow.data().status == "completed"
    invariants(broker)


def test_a_batch_has_no_more_dependants_than_its_end_may_notify(broker: BrokerHarness) -> None:
    workflows = [
        BrokerWorkflow(broker, {0: [], **{n: [0] for n in range(1, 1 + width)}}, name=name)
        for name, width in {"a": 60, "b": 40, "c": 2, "d": 99, "e": 0}.items()
    ]
    for workflow in workflows:
        assert workflow.push_batch(0, len(workflow.jobs), first=True, last=True) == 1
    batches = [[job.id for job in broker.claim(jobs=10).jobs] for _ in range(4)]
    a, b, c, d, e = (workflow.job(0) for workflow in workflows)
    assert batches == [[a, b], [c], [d, e], []]


def test_the_results_of_parents_are_marked(broker: BrokerHarness) -> None:
    workflow = pushed(broker)
    for body in ('"a"', "null", "7"):
        broker.finish(outcome(broker.take(), body=body))
    job = broker.take()
    assert workflow.broker.workflows.parent_results(job.id) == {
        workflow.job(1): None, workflow.job(2): 7,
    }  # fmt: skip
    marks = [
        name for name in broker.redis.hkeys(broker.keys.workflow(workflow.id)) if name[1] == ":"
    ]
    assert sorted(marks) == ["r:0", "r:2"]


def test_a_run_without_its_own_entry_takes_the_slow_path(broker: BrokerHarness) -> None:
    workflow = pushed(broker)
    for _ in DIAMOND:
        job = broker.take()
        broker.redis.lset(broker.keys.child_processing("c1"), 0, f"{job.call}:{job.id}")
        assert broker.finish(outcome(job)) == [FinishCode.ACCEPTED]
        invariants(broker)
    assert workflow.data().status == "completed"


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("length", [10, 100])
def test_its_bytes_are_those_of_the_slow_path(
    broker: BrokerHarness, length: int, *, wide: bool
) -> None:
    """Except for `then`, which the slow path counts although it is about to be removed."""
    middle = range(1, 41 if wide else 3)
    found = []
    for name in "01":
        workflow = BrokerWorkflow(
            broker, {0: [], **{n: [0] for n in middle}, 50: middle}, name=name
        )
        workflow.push()
        while jobs := broker.claim(jobs=50).jobs:
            if name == "1":
                broker.redis.delete(broker.keys.child_processing("c1"))
            broker.finish(*[outcome(job, body=json.dumps("x" * length)) for job in jobs])
        assert workflow.data().status == "completed"
        hashes = [broker.redis.hgetall(broker.keys.job(workflow.job(n))) for n in (0, 1, 50)]
        found.append([int(one["bytes"]) for one in hashes])  # type: ignore[call-overload]
    for fast, slow in zip(*found, strict=True):
        assert abs(slow - fast) <= 3 * 52
    invariants(broker)
