"""advance: does what other scripts deferred, in bounded steps."""

from __future__ import annotations

from .lab import Lab, invariants
from .workflows import LabWorkflow

WIDE = {0: [], **{n: [0] for n in range(1, 251)}}


def test_there_is_nothing_to_do_in_an_empty_shard(lab: Lab) -> None:
    assert not lab.store.advance()


def test_it_wakes_the_timer(lab: Lab) -> None:
    workflow = LabWorkflow(lab, WIDE)
    workflow.push_all()
    assert lab.redis.llen(lab.keys.timer) == 1


def test_claims_continue_it_too(lab: Lab) -> None:
    workflow = LabWorkflow(lab, WIDE)
    workflow.push_all()
    assert lab.taken() == [workflow.job(0)]


def test_a_large_entry_does_not_delay_the_others(lab: Lab) -> None:
    large = LabWorkflow(lab, {n: [] for n in range(1000)}, name="1")
    small = LabWorkflow(lab, {n: [] for n in range(101)}, name="2")
    large.push_all()
    small.push_all()
    for _ in range(5):
        lab.store.advance()
    assert small.statuses() == ["queued"] * 101
    assert "waiting" in large.statuses()
    large.advance()
    assert large.statuses() == ["queued"] * 1000


def test_a_queue_with_a_key_of_the_wrong_type_loses_nothing(lab: Lab) -> None:
    workflow = LabWorkflow(lab, {0: [], **{n: [0] for n in range(1, 121)}})
    workflow.push_all()
    workflow.advance()
    job = lab.take()
    wake = lab.keys.queue("default").wake
    assert lab.finish(workflow.completed(job)) == [1]
    lab.redis.delete(wake)
    lab.redis.set(wake, "mine")
    workflow.advance()  # which ends, because nothing more can be done now
    assert "waiting" in workflow.statuses()
    lab.redis.delete(wake)
    workflow.advance()
    assert workflow.statuses()[1:] == ["queued"] * 120
    invariants(lab, tokens=False)


def test_advance_works_on_a_full_redis(lab: Lab) -> None:
    workflow = LabWorkflow(lab, WIDE)
    workflow.push_all()
    with lab.full():
        workflow.advance()
    assert workflow.statuses()[0] == "queued"


def test_dependants_that_do_not_fit_into_one_call_are_notified_in_the_next(lab: Lab) -> None:
    """Two parents, each with as many dependants as one call notifies, end together."""
    both = {0: range(2, 102), 1: range(102, 202)}
    workflow = LabWorkflow(
        lab, {0: [], 1: [], **{n: [0] for n in both[0]}, **{n: [1] for n in both[1]}}
    )
    workflow.push_all()
    workflow.advance()
    parents = lab.take(), lab.take()  # a claim takes only as many jobs as their ends may notify
    lab.finish(*map(workflow.completed, parents))
    workflow.advance()
    assert workflow.statuses() == ["completed"] * 2 + ["queued"] * 200
    invariants(lab, tokens=False)
