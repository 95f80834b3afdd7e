"""forget_steps: a failed or cancelled job starts over when it is requeued."""

from __future__ import annotations

import pytest

from django_redisqueue.core.job_data import NewJob

from .harness import ERROR, PAYLOAD, BrokerHarness, invariants, outcome
from .test_step import remembered, store, with_step


@pytest.mark.parametrize("kind", ["failed", "cancelled"])
def test_steps_are_forgotten_and_no_longer_counted(broker: BrokerHarness, kind: str) -> None:
    broker.finish(outcome(with_step(broker), kind, ERROR))
    assert broker.store.forget_steps(["a"]) == [1]
    assert remembered(broker) == {}
    invariants(broker)
    assert broker.store.forget_steps(["a"]) == [1]
    invariants(broker)


def test_a_job_that_continues_keeps_its_steps(broker: BrokerHarness) -> None:
    with_step(broker)
    broker.add("b")
    with broker.unchanged():
        assert broker.store.forget_steps(["a", "b", "never"]) == [0, 0, -1]


def test_a_job_without_steps(broker: BrokerHarness) -> None:
    broker.end("a", kind="failed", body=ERROR)
    with broker.unchanged():
        assert broker.store.forget_steps(["a"]) == [1]


def test_the_job_counts_as_not_started(broker: BrokerHarness) -> None:
    unique = "k until_started - -"
    broker.add("a", unique=unique)
    job = broker.take()
    store(broker, job)
    broker.finish(outcome(job, "failed", ERROR))
    broker.store.forget_steps(["a"])
    broker.store.requeue(["a"])
    second = NewJob("b", "default", "app.task", PAYLOAD, unique=unique)
    broker.store.enqueue([second])
    assert second.owner == "a"
    invariants(broker)
