"""control_workflow: pause, release, cancel and clean-up of a workflow."""

from __future__ import annotations

import pytest

from .harness import ERROR, BrokerHarness, invariants, outcome
from .workflows import BrokerWorkflow

DIAMOND = {0: [], 1: [0], 2: [0], 3: [1, 2]}


def test_a_paused_workflow_starts_nothing_and_release_requeues_in_order(
    broker: BrokerHarness,
) -> None:
    workflow = BrokerWorkflow(broker, {n: [] for n in range(5)})
    workflow.push()
    assert broker.store.control_workflow(workflow.id, "pause") == 1
    broker.add("other")
    assert broker.taken(jobs=10) == ["other"]
    assert workflow.statuses() == ["waiting"] * 5
    assert workflow.data().is_paused
    assert workflow.counts() == {"total": 5, "waiting": 5}
    assert broker.store.control_workflow(workflow.id, "release") == 1
    workflow.advance()
    assert broker.ids("queued") == [workflow.job(n) for n in range(5)]
    invariants(broker, tokens=False)


def test_running_jobs_of_a_paused_workflow_finish_and_their_children_wait(
    broker: BrokerHarness,
) -> None:
    workflow = BrokerWorkflow(broker, DIAMOND)
    workflow.push()
    job = broker.take()
    broker.store.control_workflow(workflow.id, "pause")
    assert broker.finish(workflow.completed(job)) == [1]
    assert broker.taken(jobs=10) == []
    broker.store.control_workflow(workflow.id, "release")
    assert workflow.run_all() == [1, 2, 3]
    assert workflow.data().status == "completed"


def test_a_release_requeues_before_another_failure_ends_the_workflow(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [], 2: [], 3: [1]})
    workflow.push()
    broker.store.cancel([workflow.job(0), workflow.job(1)])
    broker.store.requeue([workflow.job(0)])
    broker.store.control_workflow(workflow.id, "pause")
    assert broker.taken(jobs=10) == []
    broker.store.control_workflow(workflow.id, "release")
    assert workflow.data().status == "running"
    assert workflow.run_all() == [0, 2]
    assert workflow.statuses() == ["completed", "cancelled", "completed", "waiting"]
    assert (workflow.data().status, workflow.data().generation) == ("failed", 1)
    invariants(broker, tokens=False)


def test_a_paused_workflow_in_which_nothing_may_run_fails_when_it_is_released(
    broker: BrokerHarness,
) -> None:
    """Until then, a retry of its failed job continues it."""
    workflow = BrokerWorkflow(broker, {0: [], 1: [], 2: [1]})
    workflow.push()
    broker.store.cancel([workflow.job(0), workflow.job(1)])
    broker.store.requeue([workflow.job(0)])
    job = broker.take()
    broker.store.control_workflow(workflow.id, "pause")
    broker.finish(outcome(job))
    assert (workflow.data().status, workflow.data().is_paused) == ("running", True)
    broker.store.control_workflow(workflow.id, "release")
    workflow.advance()
    assert workflow.data().status == "failed"


def test_a_list_of_held_jobs_of_the_wrong_type_stops_no_claim(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: []})
    workflow.push()
    broker.store.control_workflow(workflow.id, "pause")
    broker.redis.set(f"{broker.keys.workflow(workflow.id)}:held", "theirs")
    broker.add("other")
    assert "other" in broker.taken(jobs=2)


def test_a_held_job_that_is_cancelled_does_not_prevent_the_end_of_its_workflow(
    broker: BrokerHarness,
) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [], 2: [0]}, on_fail={1: "go_on"})
    workflow.push()
    broker.store.cancel([workflow.job(0), workflow.job(1)])
    broker.store.requeue([workflow.job(1)])
    broker.store.control_workflow(workflow.id, "pause")
    assert broker.taken(jobs=10) == []
    broker.store.cancel([workflow.job(1)])
    broker.store.control_workflow(workflow.id, "release")
    workflow.advance()
    assert (workflow.data().status, workflow.data().generation) == ("failed", 1)
    assert workflow.statuses() == ["cancelled", "cancelled", "waiting"]
    invariants(broker, tokens=False)


def test_repeating_pause_or_release_does_nothing(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, DIAMOND)
    workflow.push()
    assert [broker.store.control_workflow(workflow.id, "pause") for _ in range(2)] == [1, 0]
    assert [broker.store.control_workflow(workflow.id, "release") for _ in range(2)] == [1, 0]


def test_release_repeats_no_delay_and_forgets_no_attempt(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: []})
    workflow.jobs[0] = workflow.jobs[0]._replace(when="+60000")
    workflow.push()
    assert broker.finish(outcome(broker.take(), "retrying", ERROR)) == [1]
    assert workflow.statuses() == ["scheduled", "retrying"]
    broker.store.control_workflow(workflow.id, "pause")
    broker.advance(60_000)
    assert broker.taken(jobs=10) == []
    assert workflow.statuses() == ["waiting"] * 2
    broker.store.control_workflow(workflow.id, "release")
    workflow.advance()
    assert workflow.statuses() == ["queued"] * 2
    assert [event["attempt"] for event in broker.events(workflow.job(1))][-2:] == [1, 1]
    assert [job.attempts for job in broker.claim(jobs=2).jobs] == [0, 1]


def test_cancel_ends_waiting_jobs_and_asks_running_jobs_to_stop(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(
        broker, {0: [], 1: [], 2: [0], 3: [], 4: [2]}, failure_task="app.alarm"
    )
    workflow.push()
    running = broker.take()
    assert broker.store.control_workflow(workflow.id, "cancel") == 1
    workflow.advance()
    assert workflow.statuses() == ["processing", *["cancelled"] * 4]
    assert "cancel_ms" in broker.job(running.id)
    assert broker.taken(jobs=10) == []
    # completed wins over a cancel that came late
    assert broker.finish(workflow.completed(running)) == [1]
    assert workflow.data().status == "cancelled"
    assert workflow.counts() == {"total": 5, "completed": 1, "cancelled": 4}
    assert broker.store.requeue([workflow.job(1)]) == [-3]
    invariants(broker, tokens=False)


def test_no_job_keeps_waiting_for_a_job_of_a_cancelled_workflow(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: []}, ttl_ms="60000")
    workflow.push()
    broker.add("follower", after=f"wait {workflow.job(0)}")
    broker.store.control_workflow(workflow.id, "cancel")
    workflow.advance()
    assert broker.status("follower") == "cancelled"
    invariants(broker, tokens=False)


def test_a_job_cancelled_by_hand_fails_its_workflow(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, DIAMOND)
    workflow.push()
    assert broker.store.cancel([workflow.job(1)]) == [1]
    assert workflow.data().status == "failed"


def test_only_a_workflow_that_has_ended_is_cleaned_up(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, DIAMOND)
    workflow.push()
    assert broker.store.control_workflow(workflow.id, "clean") == 0
    workflow.run_all()
    assert broker.store.control_workflow(workflow.id, "clean") == 1
    workflow.advance()
    assert broker.workflows.workflow(workflow.id) is None
    assert broker.ids("completed") == [workflow.job(n) for n in (3, 2, 1, 0)]


@pytest.mark.parametrize("order", ["pause", "release", "cancel", "clean"])
def test_an_unknown_workflow_is_reported(broker: BrokerHarness, order: str) -> None:
    assert broker.store.control_workflow("flow_gone_0", order) == -1


def test_a_full_redis_lets_a_workflow_be_cancelled(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, DIAMOND)
    workflow.push()
    with broker.full():
        assert broker.store.control_workflow(workflow.id, "cancel") == 1
        workflow.advance()
    assert workflow.statuses()[1:] == ["cancelled"] * 3


def test_queued_jobs_do_not_run_after_the_clean_up(broker: BrokerHarness) -> None:
    """Without its workflow, nothing would hold it back."""
    cancelled = BrokerWorkflow(broker, {0: [], 1: []}, name="1")
    failed = BrokerWorkflow(broker, {0: [], 1: [], 2: [1]}, name="2")
    for workflow in (failed, cancelled):
        workflow.push()
    assert failed.run_one(kind="failed") == 0
    broker.store.control_workflow(cancelled.id, "cancel")
    for workflow in (cancelled, failed):
        assert broker.store.control_workflow(workflow.id, "clean") == 1
    failed.advance()
    assert broker.taken(jobs=10) == []
    assert cancelled.statuses() == ["cancelled"] * 2
    assert failed.statuses() == ["failed", "cancelled", "cancelled"]
    assert broker.job(failed.job(1))["reason"] == "cleaned"
    invariants(broker, tokens=False)


def test_a_large_workflow_is_cleaned_up_without_a_pause(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {n: [] for n in range(250)})
    workflow.push_all()
    assert len(workflow.run_all()) == 250
    broker.store.control_workflow(workflow.id, "clean")
    workflow.advance()  # as long as it reports that there is more
    assert broker.workflows.workflow(workflow.id) is None
