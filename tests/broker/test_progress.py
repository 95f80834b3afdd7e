"""progress: stored and published while the lease is valid."""

from __future__ import annotations

import pytest

from .harness import ERROR, BrokerHarness, invariants, outcome

HALF = '{"done":1,"total":2,"note":"\\"half\\""}'


def test_it_is_stored_and_published(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    assert broker.store.progress("c1", "a", job.lease, HALF) is True
    assert broker.job("a")["progress"] == HALF
    event = broker.events("a")[-1]
    assert (event["status"], event["seq"]) == ("processing", 3)
    assert event["progress"] == {"done": 1, "total": 2, "note": '"half"'}
    invariants(broker)


def test_the_next_attempt_is_counted(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.finish(outcome(broker.take(), "retrying", ERROR, "1"))
    broker.advance(1)
    job = broker.take()
    broker.store.progress("c1", "a", job.lease, HALF)
    assert broker.events("a")[-1]["attempt"] == 2


@pytest.mark.parametrize(("child", "lease"), [("c2", 1), ("c1", 0), ("c1", 2)])
def test_a_stale_writer_is_refused_and_changes_nothing(
    broker: BrokerHarness, child: str, lease: int
) -> None:
    broker.add("a")
    broker.take()
    with broker.unchanged():
        assert broker.store.progress(child, "a", lease, HALF) is False


@pytest.mark.parametrize("kind", ["completed", "retrying", "queued"])
def test_a_job_that_no_longer_runs_accepts_no_progress(broker: BrokerHarness, kind: str) -> None:
    broker.add("a")
    job = broker.take()
    broker.finish(outcome(job, kind))
    with broker.unchanged():
        assert broker.store.progress("c1", "a", job.lease, HALF) is False
        assert broker.store.progress("c1", "never", 1, HALF) is False


def test_tasks_with_fewer_audit_events_publish_no_progress(broker: BrokerHarness) -> None:
    broker.add("a", audit="final")
    job = broker.take()
    assert broker.store.progress("c1", "a", job.lease, HALF) is True
    assert broker.job("a")["progress"] == HALF
    assert broker.events() == []


def test_a_key_of_another_type_is_named(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    with broker.refused_over(broker.keys.events, "stream"):
        broker.store.progress("c1", "a", job.lease, HALF)


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    broker.add("a")
    job = broker.take()
    with broker.full():
        assert broker.store.progress("c1", "a", job.lease, HALF) is True
