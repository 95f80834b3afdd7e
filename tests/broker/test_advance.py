"""advance: does what other scripts deferred, in bounded steps."""

from __future__ import annotations

from .harness import BrokerHarness, invariants
from .workflows import BrokerWorkflow

WIDE = {0: [], **{n: [0] for n in range(1, 251)}}


def test_there_is_nothing_to_do_in_an_empty_shard(broker: BrokerHarness) -> None:
    assert not broker.store.advance()


def test_it_wakes_the_timer(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, WIDE)
    workflow.push_all()
    assert broker.redis.llen(broker.keys.timer) == 1


def test_claims_continue_it_too(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, WIDE)
    workflow.push_all()
    assert broker.taken() == [workflow.job(0)]


def test_a_large_entry_does_not_delay_the_others(broker: BrokerHarness) -> None:
    large = BrokerWorkflow(broker, {n: [] for n in range(1000)}, name="1")
    small = BrokerWorkflow(broker, {n: [] for n in range(101)}, name="2")
    large.push_all()
    small.push_all()
    for _ in range(5):
        broker.store.advance()
    assert small.statuses() == ["queued"] * 101
    assert "waiting" in large.statuses()
    large.advance()
    assert large.statuses() == ["queued"] * 1000


def test_entries_that_need_nothing_are_limited_too(broker: BrokerHarness) -> None:
    """Their jobs have been deleted since, or requeued."""
    deferred = f"{broker.keys.base}flows"
    broker.redis.rpush(deferred, *[f"job:gone-{n}" for n in range(250)])
    broker.store.advance()
    assert broker.redis.llen(deferred) == 150


def test_a_queue_with_a_key_of_the_wrong_type_loses_nothing(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], **{n: [0] for n in range(1, 121)}})
    workflow.push_all()
    workflow.advance()
    job = broker.take()
    wake = broker.keys.queue("default").wake
    assert broker.finish(workflow.completed(job)) == [1]
    broker.redis.set(wake, "mine")
    workflow.advance()  # which ends, because nothing more can be done now
    assert "waiting" in workflow.statuses()
    broker.redis.delete(wake)
    workflow.advance()
    assert workflow.statuses()[1:] == ["queued"] * 120
    invariants(broker, tokens=False)


def test_advance_works_on_a_full_redis(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, WIDE)
    workflow.push_all()
    with broker.full():
        workflow.advance()
    assert workflow.statuses()[0] == "queued"


def test_dependants_that_do_not_fit_into_one_call_are_notified_in_the_next(
    broker: BrokerHarness,
) -> None:
    """Two parents, each with as many dependants as one call notifies, end together."""
    both = {0: range(2, 102), 1: range(102, 202)}
    workflow = BrokerWorkflow(
        broker, {0: [], 1: [], **{n: [0] for n in both[0]}, **{n: [1] for n in both[1]}}
    )
    workflow.push_all()
    workflow.advance()
    # a claim takes only as many jobs as their ends may notify
    parents = broker.take(), broker.take()
    broker.finish(*map(workflow.completed, parents))
    workflow.advance()
    assert workflow.statuses() == ["completed"] * 2 + ["queued"] * 200
    invariants(broker, tokens=False)
