"""run_now: jobs that are due later run now."""

from __future__ import annotations

import pytest

from .harness import ERROR, BrokerHarness, invariants, outcome


@pytest.mark.parametrize("priority", [0, 3])
def test_scheduled_and_retrying_jobs_go_to_the_tail_and_wake_a_worker(
    broker: BrokerHarness, priority: int
) -> None:
    broker.add("a", priority=priority)
    broker.finish(outcome(broker.take(), "retrying", ERROR, "60000"))
    broker.add("later", when="+60000", priority=priority)
    broker.add("first", priority=priority)
    assert broker.store.run_now(["later", "a", "later"]) == [1, 1, 0]
    assert (broker.ids("scheduled"), broker.ids("retrying")) == ([], [])
    assert broker.tokens() == 1
    assert "due_ms" not in broker.job("a")
    assert broker.job("a")["ready_ms"] == str(broker.now)
    assert broker.event_statuses("later") == ["scheduled", "queued"]
    assert broker.events("a")[-1]["attempt"] == 1
    invariants(broker)
    assert broker.taken(jobs=5) == ["first", "later", "a"]


def test_others_are_left_alone(broker: BrokerHarness) -> None:
    broker.end("done", kind="failed")
    broker.add("queued")
    broker.add("after", after="wait queued")
    with broker.unchanged():
        assert broker.store.run_now(["queued", "done", "after", "never"]) == [0, 0, 0, -1]


@pytest.mark.parametrize(("event", "due"), [("paid", ""), ("", "60000")])
def test_a_parked_job_stays_parked(broker: BrokerHarness, event: str, due: str) -> None:
    broker.add("a")
    broker.finish(outcome(broker.take(), "parked", event, due))
    assert broker.store.run_now(["a"]) == [-2]
    assert broker.status("a") == "scheduled"
    invariants(broker)


def test_a_job_with_a_lane_waits_in_it(broker: BrokerHarness) -> None:
    broker.add("a", "b", lane="|c:t:1 c:t=1", when="+1000")
    assert broker.store.run_now(["a", "b"]) == [1, 1]
    assert broker.taken(jobs=2) == ["a"]
    invariants(broker)
