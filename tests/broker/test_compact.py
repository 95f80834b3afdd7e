"""compact: cancelled ids that linger in a list from which no worker claims."""

from __future__ import annotations

import re

import pytest

from django_redisqueue.core.statuses import Status
from django_redisqueue.exceptions import WrongKeyType
from django_redisqueue.worker.maintenance import upkeep

from .lab import Lab, invariants


def cancelled(lab: Lab, *ids: str) -> None:
    lab.add(*ids)
    assert lab.store.cancel(ids) == [1] * len(ids)


def test_few_cancelled_ids_are_left_alone(lab: Lab) -> None:
    cancelled(lab, "a", "b")
    before = lab.dump()
    assert not lab.store.compact("default", 2)
    assert lab.dump() == before


def test_cancelled_ids_go_and_the_order_of_the_others_stays(lab: Lab) -> None:
    lab.add("first")
    cancelled(lab, *[f"a{n}" for n in range(60)])
    lab.add("second", "third")
    cancelled(lab, *[f"b{n}" for n in range(60)])
    lab.add("last")
    assert lab.meta()["lingering"] == 120
    assert lab.store.compact("default", 10)
    assert not lab.store.compact("default", 10)
    assert lab.ids("queued") == []
    lab.add("after")
    lab.add("high", priority=1)
    lab.add("low", priority=-1)
    invariants(lab)
    order = ["high", "first", "second", "third", "last", "after", "low"]
    assert lab.queries.ids("default", Status.QUEUED, 0, 99) == order
    assert lab.taken(jobs=3, min_priority=1) == ["high"]
    assert lab.taken("c2", jobs=3, min_priority=0) == order[1:4]
    assert lab.taken("c3", jobs=9) == order[4:]
    invariants(lab)


def test_it_stops_when_few_are_left(lab: Lab) -> None:
    cancelled(lab, *[f"a{n}" for n in range(100)])
    cancelled(lab, *[f"b{n}" for n in range(100)])
    assert not lab.store.compact("default", 100)
    assert len(lab.ids("queued")) == lab.meta()["lingering"] == 100


def test_lingering_ids_are_counted(lab: Lab) -> None:
    """It is counted until it is claimed, requeued or cleared."""
    cancelled(lab, "a", "b", "c")
    lab.store.requeue(["b"])
    assert lab.meta()["lingering"] == 2
    assert lab.taken() == ["b"]
    assert lab.meta()["lingering"] == 1
    lab.store.clear("default", "queued")
    assert lab.meta()["lingering"] == 0


def test_a_job_that_was_moved_is_cancelled_without_a_trace(lab: Lab) -> None:
    lab.add("moved")
    cancelled(lab, *[f"a{n}" for n in range(9)])
    lab.store.compact("default", 1)
    assert lab.ids("priority") == ["moved"]
    assert lab.store.cancel(["moved"]) == [1]
    assert lab.ids("priority") == []
    assert lab.meta().get("lingering", 0) == 0
    invariants(lab)


def test_an_id_that_has_lost_its_job_is_left_for_a_claim_to_report(lab: Lab) -> None:
    lab.add("lost")
    lab.redis.delete(lab.keys.job("lost"))
    cancelled(lab, "a")
    lab.store.compact("default", 0)
    claim = lab.claim(jobs=5)
    assert (claim.jobs, claim.lost) == ([], ["lost"])


def test_a_key_of_another_type_is_named(lab: Lab) -> None:
    cancelled(lab, "a")
    with lab.broken("priority") as words, pytest.raises(WrongKeyType, match=re.escape(words)):
        lab.store.compact("default", 0)


def test_an_unserved_queue_keeps_a_bounded_number(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "LINGERING", 50)
    pruner = upkeep.Pruner(
        lab.store, (Status.CANCELLED,), upkeep.KnownQueues(lab.store, ["default"])
    )
    lab.add("stays", queue="former")
    for n in range(5):
        ids = [f"j{n}.{m}" for m in range(90)]
        lab.add(*ids, queue="former")
        lab.store.cancel(ids)
        lab.store.clear("former", "cancelled")
        lab.advance(20_000)
        while pruner.compact():
            continue
        assert lab.meta("former").get("lingering", 0) <= 50
    assert len(lab.redis.keys(lab.keys.job("j*"))) <= 2 * 90
    assert lab.queries.ids("former", Status.QUEUED, 0, 0) == ["stays"]
