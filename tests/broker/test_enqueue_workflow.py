"""enqueue_workflow: the jobs of a workflow are created together; and what happens as they end."""

from __future__ import annotations

from typing import Any

import pytest

from django_redisqueue.broker.workflows import HALF_PUSHED_MS
from django_redisqueue.client.transport import CLEANED_UP
from django_redisqueue.core.records import WorkflowPart
from django_redisqueue.exceptions import WrongKeyType

from .harness import ERROR, PAYLOAD, BrokerHarness, invariants, outcome
from .workflows import BrokerWorkflow


def test_a_small_workflow_starts_in_the_call_that_makes_it(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0], 2: [0], 3: [1, 2]})
    assert workflow.push() == 1
    assert broker.ids("queued") == [workflow.job(0)]
    assert workflow.statuses() == ["queued", "waiting", "waiting", "waiting"]
    assert workflow.counts() == {"total": 4, "waiting": 3}
    assert broker.tokens() == 1


def test_each_child_starts_once_when_its_last_parent_is_done(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0], 2: [0], 3: [1, 2]})
    workflow.push()
    assert workflow.run_one() == 0
    assert workflow.run_one() == 1
    assert workflow.statuses()[3] == "waiting"
    assert workflow.run_one() == 2
    assert workflow.statuses()[3] == "queued"
    assert workflow.run_one() == 3
    assert workflow.data().status == "completed"
    assert broker.event_statuses(workflow.job(3)) == [
        "waiting",
        "queued",
        "processing",
        "completed",
    ]


def test_a_repeated_push_changes_nothing(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0]})
    assert workflow.push() == 1
    with broker.unchanged():
        assert workflow.push() == 0


def test_a_large_workflow_is_not_visible_before_its_last_call(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], **{n: [0] for n in range(1, 250)}})
    workflow.push_batch(0, 100, first=True)
    workflow.push_batch(100, 200)
    assert workflow.data().status == "building"
    assert broker.taken() == []
    workflow.push_batch(100, 200)  # its reply was lost
    workflow.push_batch(200, 250, last=True)
    assert workflow.data().total == 250
    workflow.advance()
    assert broker.ids("queued") == [workflow.job(0)]
    assert workflow.run_all() == list(range(250))
    assert workflow.data().status == "completed"


def test_a_batch_without_the_first_is_refused(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0]})
    assert workflow.push_batch(0, 2, last=True) == -1
    assert broker.dump() == {}


def test_a_half_pushed_workflow_waits_a_day_for_the_rest_and_is_not_recreated_later(
    broker: BrokerHarness,
) -> None:
    workflow = BrokerWorkflow(broker, {n: [] for n in range(150)})
    assert workflow.push_batch(0, 100, first=True) == 1
    broker.advance(HALF_PUSHED_MS - 1)
    workflow.advance()
    assert workflow.push_batch(0, 100, first=True) == 1
    assert workflow.data().status == "building"
    broker.advance(1)
    workflow.advance()
    assert set(workflow.statuses()[:100]) == {"cancelled"}
    with broker.unchanged():
        assert workflow.push_batch(0, 100, first=True) == CLEANED_UP
        assert workflow.push_batch(100, 150, last=True) == -1


def test_a_workflow_of_several_calls_is_not_cleaned_up_while_it_runs(
    broker: BrokerHarness,
) -> None:
    workflow = BrokerWorkflow(broker, {n: [] for n in range(101)})
    workflow.push_all()
    broker.advance(HALF_PUSHED_MS)
    workflow.advance()
    assert len(workflow.run_all()) == 101
    assert workflow.data().status == "completed"


def test_its_jobs_are_counted_as_enqueued(broker: BrokerHarness) -> None:
    done = {"complete_task": "app.done", "complete_payload": "[[],{}]", "complete_queue": "other"}
    workflow = BrokerWorkflow(broker, {0: [], 1: [0]}, **done)
    workflow.push()
    assert broker.meta()["enqueued_total"] == 2
    workflow.run_all()
    assert (broker.meta()["enqueued_total"], broker.meta("other")["enqueued_total"]) == (2, 1)


def test_a_fan_out_over_the_budget_is_notified_in_steps(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(
        broker, {0: [], **{n: [0] for n in range(1, 351)}, 351: list(range(1, 351))}
    )
    workflow.push_all()
    workflow.advance()
    assert workflow.run_one() == 0
    told, more = [workflow.statuses().count("queued")], True
    while more:
        more = broker.store.advance()
        told.append(workflow.statuses().count("queued"))
    assert all(b - a <= 100 for a, b in zip([0, *told], told, strict=False))
    assert told[-1] == 350
    assert workflow.run_all() == list(range(1, 352))
    assert workflow.data().status == "completed"


def test_ends_of_one_batch_share_a_budget(broker: BrokerHarness) -> None:
    parents = {n: [n % 3] if n > 2 else [] for n in range(183)}
    workflow = BrokerWorkflow(broker, parents, on_fail={0: "skip", 1: "skip", 2: "skip"})
    workflow.push_all()
    workflow.advance()
    broker.finish(*[outcome(broker.take(), "failed", ERROR) for _ in range(3)])
    assert workflow.statuses().count("failed") == 3
    assert 0 < workflow.statuses().count("cancelled") <= 100
    workflow.advance()
    assert workflow.statuses().count("cancelled") == 180


@pytest.mark.parametrize("name", ["pending_writes", "workflows", "timer"])
def test_a_key_that_all_workflows_share_and_of_another_type_is_named(
    broker: BrokerHarness, name: str
) -> None:
    broker.add("a", "b")
    a, b = broker.claim(jobs=2).jobs
    workflow = BrokerWorkflow(broker, {0: []})
    with broker.refused_over(getattr(broker.keys, name)):
        workflow.push()
    with broker.unchanged(), pytest.raises(WrongKeyType):
        broker.finish(outcome(a), outcome(b, "failed", ERROR))
    with broker.unchanged(), pytest.raises(WrongKeyType):
        broker.store.cancel(["a"])


@pytest.mark.parametrize(("part", "belongs"), [("", "hash"), (":held", "list")])
def test_a_key_of_the_wrong_type_is_named_and_nothing_is_created(
    broker: BrokerHarness, part: str, belongs: str
) -> None:
    workflow = BrokerWorkflow(broker, {0: []})
    with broker.refused_over(broker.keys.workflow(workflow.id) + part, belongs):
        workflow.push()


def test_an_index_of_the_wrong_type_is_named_and_nothing_is_created(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: []})
    workflow.jobs[0] = workflow.jobs[0]._replace(options='{"index":"tag:x"}')
    with broker.refused_over(broker.keys.index("tag:x"), "set"):
        workflow.push()
    broker.redis.delete(broker.keys.index("tag:x"))
    workflow.push()
    assert broker.redis.smembers(broker.keys.index("tag:x")) == {workflow.job(0)}


def test_a_lane_of_the_wrong_type_is_named_and_nothing_is_created(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: []})
    workflow.jobs[0] = workflow.jobs[0]._replace(lane="|c:t: c:t=1")
    with broker.refused_over(f"{broker.keys.queue('default').queued}:lane:|c:t:", "zset"):
        workflow.push()


def test_jobs_and_callbacks_obey_the_limits_that_they_bring(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: []})
    workflow.jobs = [job._replace(lane="|c:t: c:t=1") for job in workflow.jobs]
    workflow.push()
    assert broker.taken(jobs=8) == [workflow.job(0)]
    for name in "ab":
        other = BrokerWorkflow(
            broker, {0: []}, name=name, complete_task="app.done", complete_payload=PAYLOAD,
            complete_lane="|c:u: c:u=1", complete_queue="after",
        )  # fmt: skip
        other.push()
        other.run_one()
    assert len(broker.taken("c2", jobs=8, queues=["after"])) == 1
    invariants(broker)


def test_each_failure_after_a_retry_has_a_callback_of_its_own(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(
        broker, {0: []}, failure_task="app.failed", failure_payload=PAYLOAD, failure_queue="after"
    )
    workflow.push()
    for generation in range(2):
        broker.finish(outcome(broker.take(), "failed", ERROR))
        assert broker.taken("c9", queues=["after"]) == [f"{workflow.id}.failure{generation}"]
        broker.store.requeue([workflow.job(0)])


def test_jobs_with_a_priority_and_without_a_lane_are_in_no_lane(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: []})
    workflow.jobs = [job._replace(priority=3) for job in workflow.jobs]
    workflow.jobs[1] = workflow.jobs[1]._replace(when="+0")
    workflow.push()
    assert broker.ids("priority") == [workflow.job(0), workflow.job(1)]
    invariants(broker)


def test_a_delayed_first_job_is_counted_once(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0]})
    workflow.jobs[0] = workflow.jobs[0]._replace(when="+5000")
    workflow.push()
    assert workflow.counts() == {"total": 2, "waiting": 1}
    invariants(broker)


def test_the_delay_of_a_first_job_starts_with_its_workflow(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: []})
    workflow.jobs[0] = workflow.jobs[0]._replace(when="+5000")
    workflow.push_batch(0, 1, first=True)
    assert workflow.statuses() == ["waiting", None]
    broker.advance(1000)
    workflow.push_batch(1, 2, last=True)
    workflow.advance()
    assert broker.events(workflow.job(0))[-1]["dueMs"] == broker.now + 5000
    invariants(broker)


def test_a_callback_runs_once_when_the_workflow_is_complete(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(
        broker, {0: [], 1: []}, complete_task="app.done", complete_payload="[[7],{}]",
        complete_options='{"timeout_ms":5}', complete_priority="3",
    )  # fmt: skip
    workflow.push()
    assert workflow.run_all() == [0, 1]
    done = broker.take("c9")
    assert (done.id, done.task, done.payload) == (
        f"{workflow.id}.complete0",
        "app.done",
        "[[7],{}]",
    )
    assert (done.options, broker.job(done.id)["priority"]) == ('{"timeout_ms":5}', "3")
    assert broker.taken() == []


def test_a_callback_may_be_delayed_and_have_fewer_events_in_the_mirror(
    broker: BrokerHarness,
) -> None:
    workflow = BrokerWorkflow(
        broker, {0: []}, complete_task="app.done", complete_payload="[[],{}]",
        complete_queue="other", complete_when="+5000", complete_audit="final",
    )  # fmt: skip
    workflow.push()
    workflow.run_one()
    done = f"{workflow.id}.complete0"
    assert broker.ids("scheduled", "other") == [done]
    assert (broker.job(done)["audit"], broker.event_statuses(done)) == ("final", [])
    broker.advance(5000)
    assert broker.taken(queues=["other"]) == [done]
    invariants(broker)


def test_a_delay_starts_when_the_last_parent_is_done(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0]})
    workflow.jobs[1] = workflow.jobs[1]._replace(when="+5000")
    workflow.push()
    workflow.run_one()
    assert broker.event_statuses(workflow.job(1)) == ["waiting", "scheduled"]
    assert broker.events(workflow.job(1))[-1]["dueMs"] == broker.now + 5000


def test_results_are_kept_for_children_in_the_workflow(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0]})
    workflow.push()
    workflow.run_one(body='{"rows":3}')
    assert broker.workflows.parent_results(workflow.job(1)) == {workflow.job(0): {"rows": 3}}


def test_a_failure_stops_the_workflow_and_a_retry_resumes_it(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(
        broker,
        {0: [], 1: [], 2: [0], 3: [2, 1]},
        failure_task="app.alarm",
        failure_payload="[[],{}]",
    )
    workflow.push()
    workflow.run_one(kind="failed")
    assert workflow.data().status == "failed"
    alarm = f"{workflow.id}.failure0"
    assert broker.ids("queued") == [workflow.job(1), alarm]
    assert broker.taken("c5", jobs=5) == [alarm]  # job 1 is held back
    assert workflow.statuses() == ["failed", "waiting", "waiting", "waiting"]
    assert broker.store.requeue([workflow.job(0)]) == [1]
    assert workflow.data().status == "running"
    assert workflow.data().generation == 1
    workflow.advance()
    assert sorted(workflow.run_all()) == [0, 1, 2, 3]
    assert workflow.data().status == "completed"


def test_a_retry_while_its_workflow_is_still_being_pushed_does_not_end_the_push(
    broker: BrokerHarness,
) -> None:
    workflow = BrokerWorkflow(broker, {n: [] for n in range(150)})
    workflow.push_batch(0, 100, first=True)
    assert broker.store.cancel([workflow.job(3)]) == [1]
    assert broker.store.requeue([workflow.job(3)]) == [1]
    assert workflow.data().status == "building"
    assert workflow.push_batch(100, 150, last=True) == 1
    workflow.advance()
    assert len(workflow.run_all()) == 150
    assert (workflow.data().status, workflow.data().generation) == ("completed", 0)


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize(("policy", "status"), [("go_on", "completed"), ("skip", "cancelled")])
def test_dependants_pushed_after_a_cancel_are_notified(
    broker: BrokerHarness, policy: str, status: str, deletes: bool
) -> None:
    workflow = BrokerWorkflow(
        broker, {n: [] for n in range(149)} | {149: [3, 4]}, on_fail={3: policy}
    )
    workflow.push_batch(0, 100, first=True)
    assert broker.store.cancel([workflow.job(3)]) == [1]
    if deletes:
        assert broker.store.delete([workflow.job(3)]) == [1]
    workflow.advance()
    assert workflow.push_batch(100, 150, last=True) == 1
    workflow.advance()
    workflow.run_all()
    expected = "cancelled" if deletes and policy == "go_on" else status
    assert broker.status(workflow.job(149)) == expected
    assert workflow.data().status == "completed"
    assert broker.redis.llen(broker.keys.pending_writes) == 0
    invariants(broker, tokens=False)


def test_a_retried_skipped_job_notifies_the_remaining_dependants_when_it_ends(
    broker: BrokerHarness,
) -> None:
    workflow = BrokerWorkflow(
        broker, {0: [], 1: [0], **{n: [1] for n in range(2, 302)}}, on_fail={0: "skip"}
    )
    workflow.push_all()
    workflow.advance()
    workflow.run_one(kind="failed")
    broker.store.advance()
    assert (broker.status(workflow.job(1)), broker.status(workflow.job(301))) == (
        "cancelled",
        "waiting",
    )
    assert broker.store.requeue([workflow.job(1)]) == [1]
    workflow.advance()
    assert broker.ids("queued") == [workflow.job(1)]
    told = workflow.statuses().count("cancelled")
    assert 0 < told < 300
    assert len(workflow.run_all()) == 1 + 300 - told
    assert workflow.data().status == "completed"
    invariants(broker, tokens=False)


def test_a_skipped_branch_does_not_fail_the_workflow(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0], 2: [1], 3: []}, on_fail={0: "skip"})
    workflow.push()
    workflow.run_one(kind="failed")
    assert workflow.statuses() == ["failed", "cancelled", "cancelled", "queued"]
    assert broker.job(workflow.job(2))["reason"] == "skipped"
    workflow.run_one()
    assert workflow.data().status == "completed"


def test_go_on_runs_the_dependants_of_a_failed_job(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0]}, on_fail={0: "go_on"})
    workflow.push()
    workflow.run_one(kind="failed")
    assert workflow.run_one() == 1
    assert workflow.data().status == "completed"


def test_a_redelivered_finish_notifies_children_once(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [], 2: [0, 1]})
    workflow.push()
    job = broker.take()
    assert broker.finish(workflow.completed(job)) == [1]
    assert broker.finish(workflow.completed(job)) == [2]
    assert broker.job(workflow.job(2))["waits"] == "1"


def test_a_retry_after_clean_up_is_refused(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: []})
    workflow.push()
    workflow.run_one(kind="failed")
    assert broker.store.control_workflow(workflow.id, "clean") == 1
    workflow.advance()
    assert broker.store.requeue([workflow.job(0)]) == [-2]
    assert broker.store.requeue_oldest("default", "failed", 10) == (1, 0)
    assert broker.ids("failed") == [workflow.job(0)]  # refused, and still in its list


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_retry_is_refused_from_the_beginning_of_the_clean_up(
    broker: BrokerHarness, by_itself: bool
) -> None:
    workflow = BrokerWorkflow(broker, {n: [] for n in range(300)}, ttl_ms="60000")
    workflow.push_all()
    workflow.advance()
    workflow.run_one(kind="failed")
    if by_itself:
        broker.advance(60_001)
    else:
        broker.store.control_workflow(workflow.id, "clean")
    broker.store.advance()
    assert workflow.data().cancelled  # it has begun, and there is more to do
    assert broker.store.requeue([workflow.job(0)]) == [-2]
    workflow.advance()
    assert workflow.statuses() == ["failed", *["cancelled"] * 299]
    assert broker.workflows.workflow(workflow.id) is None
    invariants(broker, tokens=False)


def test_the_clean_up_is_automatic_after_the_lifetime(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0]}, ttl_ms="60000")
    workflow.push()
    workflow.run_one(kind="failed")
    broker.advance(60_001)
    workflow.advance()
    assert workflow.statuses() == ["failed", "cancelled"]
    assert not broker.redis.exists(broker.keys.workflow(workflow.id))


def part(workflow: BrokerWorkflow) -> WorkflowPart:
    return WorkflowPart(workflow.id, (), workflow.jobs, True, True)


def push_together(broker: BrokerHarness, *workflows: BrokerWorkflow) -> list[int | str]:
    call = broker.store.enqueue_workflow([part(workflow) for workflow in workflows])
    found: list[int | str] = broker.connection.script(*call)
    return found


def test_one_call_may_create_several(broker: BrokerHarness) -> None:
    workflows = [BrokerWorkflow(broker, {0: [], 1: [0], 2: []}, name=name) for name in "abc"]
    assert workflows[1].push() == 1
    assert push_together(broker, *workflows) == [1, 0, 1]
    assert [workflow.counts() for workflow in workflows] == [{"total": 3, "waiting": 1}] * 3
    assert broker.meta()["enqueued_total"] == 9
    assert [event.data["status"] for event in broker.written("workflow")] == ["running"] * 3
    with broker.unchanged():
        assert push_together(broker, *workflows) == [0, 0, 0]
    assert sorted(broker.taken(jobs=10)) == [one.job(n) for one in workflows for n in (0, 2)]
    invariants(broker)


def test_a_half_pushed_workflow_and_a_new_one_in_one_call(broker: BrokerHarness) -> None:
    """Their jobs are alike, but those of the half-pushed one wait for its start."""
    half, new = (BrokerWorkflow(broker, {0: [], 1: []}, name=name) for name in "ab")
    half.push_batch(0, 1, first=True)
    assert push_together(broker, new, half) == [1, 1]
    assert (new.statuses(), half.statuses()) == (["queued"] * 2, ["waiting"] * 2)
    half.advance()
    assert len(broker.taken(jobs=9)) == 4
    invariants(broker)


def test_each_job_has_its_own_first_event(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {n: [] for n in range(4)})
    workflow.jobs[1] = workflow.jobs[1]._replace(task="app.other")
    workflow.jobs[3] = workflow.jobs[3]._replace(queue="low", payload='[["x"],{}]')
    workflow.push()
    told = [(one["jobId"], one["task"], one["queue"], one["args"]) for one in broker.events()]
    assert told == [(job.id, job.task, job.queue, job.payload) for job in workflow.jobs]


@pytest.mark.parametrize(("size", "is_inline"), [(1024, True), (1025, False)])
def test_the_first_event_has_short_arguments(
    broker: BrokerHarness, size: int, is_inline: bool
) -> None:
    workflow = BrokerWorkflow(broker, {0: []})
    payload = '["' + "x" * (size - 4) + '"]'
    workflow.jobs[0] = workflow.jobs[0]._replace(payload=payload)
    workflow.push()
    (event,) = broker.events()
    assert event.get("args") == (payload if is_inline else None)


def test_of_two_workflows_with_the_same_unique_key_the_first_is_created(
    broker: BrokerHarness,
) -> None:
    workflows = [BrokerWorkflow(broker, {0: [], 1: [0]}, name=name) for name in "abc"]
    for workflow in workflows[:2]:
        workflow.jobs[1] = workflow.jobs[1]._replace(unique="key until_finished - -")
    a, b, c = workflows
    assert push_together(broker, a, b, c) == [1, f"{b.job(1)} {a.job(1)} key", 1]
    assert b.statuses() == [None, None]
    assert not broker.redis.exists(broker.keys.workflow(b.id))
    assert (a.counts(), c.counts()) == ({"total": 2, "waiting": 1},) * 2
    invariants(broker)


def test_a_key_of_the_wrong_type_leaves_all_of_a_call_unwritten(broker: BrokerHarness) -> None:
    a, b = (BrokerWorkflow(broker, {0: []}, name=name) for name in "ab")
    b.jobs[0] = b.jobs[0]._replace(queue="low")
    with broker.broken("queued", "low"), broker.unchanged(), pytest.raises(WrongKeyType):
        push_together(broker, a, b)
    assert push_together(broker, a, b) == [1, 1]


def test_a_half_pushed_workflow_is_started_by_a_push_in_one_call(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0]})
    workflow.push_batch(0, 2, first=True)
    assert workflow.push() == 1
    workflow.advance()
    assert workflow.counts() == {"total": 2, "waiting": 1}
    assert workflow.run_all() == [0, 1]
    assert workflow.data().status == "completed"
    invariants(broker)


def test_a_job_has_only_the_fields_that_differ_from_the_default(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0], 2: [0]}, on_fail={1: "skip"})
    workflow.jobs[1] = workflow.jobs[1]._replace(
        queue="low", options='{"timeout":5}', priority=3, when="+5", audit="final"
    )
    workflow.push()
    hashes = [broker.redis.hgetall(broker.keys.job(workflow.job(n))) for n in range(3)]
    always = {"task": "app.task", "payload": PAYLOAD, "enqueued_ms": str(broker.now)}
    assert hashes == [
        {**always, "status": "queued", "then": ".1 .2"},
        {
            **always, "status": "waiting", "queue": "low", "options": '{"timeout":5}', "when": "+5",
            "priority": "3", "audit": "final", "seq": "1", "waits": "1", "after": ".0",
            "on_fail": "skip",
        },
        {**always, "status": "waiting", "waits": "1", "after": ".0"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"on_fail": "skip"}, "default"),
        ({"queue": "low"}, None),
        ({"options": '{"timeout":5}'}, None),
        ({"priority": 3}, None),
        ({"when": "+5"}, None),
        ({"audit": "final"}, None),
        ({"unique": "key "}, None),
        ({"lane": "one"}, None),
        ({"after": ".0 " * 20 + ".100"}, "default"),  # 64 bytes: the hash fits into one piece
        ({"after": ".0 " * 20 + ".1000"}, None),
    ],
)
@pytest.mark.parametrize("n", [0, 1])
def test_a_workflow_of_plain_jobs_keeps_their_queue(
    broker: BrokerHarness, change: dict[str, Any], kept: str | None, n: int
) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0]})
    workflow.jobs[n] = workflow.jobs[n]._replace(**change)
    workflow.push()
    assert broker.redis.hget(broker.keys.workflow(workflow.id), "plain_queue") == kept


def test_the_jobs_of_a_plain_workflow_are_released_into_its_queue(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0], 2: [1]})
    workflow.jobs = [job._replace(queue="low") for job in workflow.jobs]
    workflow.push()
    for n in range(3):
        assert broker.ids("queued", "low") == [workflow.job(n)]
        (job,) = broker.claim(queues=("low",)).jobs
        broker.finish(outcome(job))
    assert workflow.data().status == "completed"
    invariants(broker)


def test_a_workflow_of_several_calls_keeps_no_queue(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], **{n: [0] for n in range(1, 101)}})
    workflow.push_all()
    assert broker.redis.hget(broker.keys.workflow(workflow.id), "plain_queue") is None
