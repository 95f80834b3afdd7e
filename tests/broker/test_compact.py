"""compact: cancelled ids that linger in a list from which no worker claims."""

from __future__ import annotations

import re

import pytest

from django_redisqueue.core.statuses import Status
from django_redisqueue.exceptions import WrongKeyType
from django_redisqueue.worker.maintenance import upkeep

from .harness import BrokerHarness, invariants


def cancelled(broker: BrokerHarness, *ids: str) -> None:
    broker.add(*ids)
    assert broker.store.cancel(ids) == [1] * len(ids)


def test_few_cancelled_ids_are_left_alone(broker: BrokerHarness) -> None:
    cancelled(broker, "a", "b")
    with broker.unchanged():
        assert not broker.store.compact("default", 2)


def test_cancelled_ids_go_and_the_order_of_the_others_stays(broker: BrokerHarness) -> None:
    broker.add("first")
    cancelled(broker, *[f"a{n}" for n in range(60)])
    broker.add("second", "third")
    cancelled(broker, *[f"b{n}" for n in range(60)])
    broker.add("last")
    assert broker.meta()["lingering"] == 120
    assert broker.store.compact("default", 10)
    assert not broker.store.compact("default", 10)
    assert broker.ids("queued") == []
    broker.add("after")
    broker.add("high", priority=1)
    broker.add("low", priority=-1)
    invariants(broker)
    order = ["high", "first", "second", "third", "last", "after", "low"]
    assert broker.queries.ids("default", Status.QUEUED, 0, 99) == order
    assert broker.taken(jobs=3, min_priority=1) == ["high"]
    assert broker.taken("c2", jobs=3, min_priority=0) == order[1:4]
    assert broker.taken("c3", jobs=9) == order[4:]
    invariants(broker)


def test_it_stops_when_few_are_left(broker: BrokerHarness) -> None:
    cancelled(broker, *[f"a{n}" for n in range(100)])
    cancelled(broker, *[f"b{n}" for n in range(100)])
    assert not broker.store.compact("default", 100)
    assert len(broker.ids("queued")) == broker.meta()["lingering"] == 100


def test_lingering_ids_are_counted(broker: BrokerHarness) -> None:
    """It is counted until it is claimed, requeued or cleared."""
    cancelled(broker, "a", "b", "c")
    broker.store.requeue(["b"])
    assert broker.meta()["lingering"] == 2
    assert broker.taken() == ["b"]
    assert broker.meta()["lingering"] == 1
    broker.store.clear("default", "queued")
    assert broker.meta()["lingering"] == 0


def test_a_job_that_was_moved_is_cancelled_without_a_trace(broker: BrokerHarness) -> None:
    broker.add("moved")
    cancelled(broker, *[f"a{n}" for n in range(9)])
    broker.store.compact("default", 1)
    assert broker.ids("priority") == ["moved"]
    assert broker.store.cancel(["moved"]) == [1]
    assert broker.ids("priority") == []
    assert broker.meta().get("lingering", 0) == 0
    invariants(broker)


def test_an_id_that_has_lost_its_job_is_left_for_a_claim_to_report(broker: BrokerHarness) -> None:
    broker.add("lost")
    broker.redis.delete(broker.keys.job("lost"))
    cancelled(broker, "a")
    broker.store.compact("default", 0)
    claim = broker.claim(jobs=5)
    assert (claim.jobs, claim.lost) == ([], ["lost"])


def test_a_key_of_another_type_is_named(broker: BrokerHarness) -> None:
    cancelled(broker, "a")
    with broker.broken("priority") as words, pytest.raises(WrongKeyType, match=re.escape(words)):
        broker.store.compact("default", 0)


def test_an_unserved_queue_keeps_a_bounded_number(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "LINGERING", 50)
    pruner = upkeep.Pruner(
        broker.store, (Status.CANCELLED,), upkeep.KnownQueues(broker.store, ["default"])
    )
    broker.add("stays", queue="former")
    for n in range(5):
        ids = [f"j{n}.{m}" for m in range(90)]
        broker.add(*ids, queue="former")
        broker.store.cancel(ids)
        broker.store.clear("former", "cancelled")
        broker.advance(20_000)
        while pruner.compact():
            continue
        assert broker.meta("former").get("lingering", 0) <= 50
    assert len(broker.redis.keys(broker.keys.job("j*"))) <= 2 * 90
    assert broker.queries.ids("former", Status.QUEUED, 0, 0) == ["stays"]
