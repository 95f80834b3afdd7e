"""The results held by a gather count as bytes of finished jobs for as long as they exist."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.worker.processes import eventually

from .gathers import DELAY_MS, KEEP_MS, POLLS, TTL_MS, Query
from .harness import BrokerHarness, invariants

SIZE = 100_000
BODY = '"' + "r" * (SIZE - 2) + '"'
LATER = 20_000  # ms; after the resend window


def failed(broker: BrokerHarness, kind: str = "failed", **options: Any) -> Query:
    """A gather of three listeners whose follow-up failed after two of them."""
    query = Query(broker, "abc", threshold=2, **options)
    query.start()
    query.run_one(body=BODY)
    query.run_one(body=BODY)
    late = query.take("other")
    query.run_one(kind)
    assert late.id == query.job(2)
    return query


def counted(broker: BrokerHarness, queue: str = "default") -> int:
    """How many results of that size are counted among the bytes of finished jobs."""
    invariants(broker)
    return broker.meta(queue).get("finished_bytes", 0) // SIZE


def test_they_count_while_the_gather_collects(broker: BrokerHarness) -> None:
    query = Query(broker, "abc")
    query.start()
    for count in (1, 2):
        query.run_one(body=BODY)
        assert counted(broker) == 2 * count  # the listener's own result, and the gather's copy
    query.run_one("failed")
    assert query.state() == ("failed", "unreachable")
    assert counted(broker) == 2 + 2


def test_expired_results_no_longer_count(broker: BrokerHarness) -> None:
    query = Query(broker, "abc")
    query.start()
    query.run_one(body=BODY)
    query.expire()
    query.run_one(body=BODY)
    assert query.state() == ("failed", "expired")
    assert counted(broker) == 2
    query.run_one(body=BODY)
    assert counted(broker) == 3


def test_they_count_until_their_ttl_is_over(broker: BrokerHarness) -> None:
    query = Query(broker, "a")
    query.start()
    query.run_one(body=BODY)
    assert counted(broker) == 2
    query.run_one()
    assert 0 < query.ttl_ms() <= TTL_MS
    assert counted(broker) == 2
    broker.advance(TTL_MS + 1000)
    query.look()
    assert not query.is_known
    assert counted(broker) == 1


def test_without_a_follow_up_they_count_until_their_ttl(broker: BrokerHarness) -> None:
    query = Query(broker, "ab", failure=False)
    query.start()
    query.run_one(body=BODY)
    for _ in range(POLLS):
        broker.advance(DELAY_MS)
        query.look()
    assert query.state() == ("failed", "late")
    assert counted(broker) == 2
    broker.advance(TTL_MS - 1)
    assert query.ttl_ms() > 0
    # its clock is not the one that the broker moves
    broker.redis.pexpire(broker.keys.gather(query.key), 100)
    broker.advance(1)
    query.look()
    assert query.is_known  # the other job may still be running
    assert counted(broker) == 2
    eventually(lambda: query.ttl_ms() == -2)
    broker.advance(200)
    query.look()
    assert query.is_known
    assert counted(broker) == 1


@pytest.mark.parametrize("kind", ["failed", "cancelled"])
def test_they_count_before_a_retry_and_after_it(broker: BrokerHarness, kind: str) -> None:
    query = failed(broker, kind)
    assert counted(broker) == 2 + 2
    broker.store.requeue([query.job("then")])
    assert counted(broker) == 2 + 2
    query.run_one()
    assert counted(broker) == 2 + 2
    broker.store.reap("other", [])
    query.run_one()
    broker.advance(TTL_MS + 1000)
    query.look()
    assert counted(broker) == 2


def test_later_results_also_count(broker: BrokerHarness) -> None:
    query = failed(broker)
    broker.store.reap("other", [])
    query.run_one(body=BODY)
    assert counted(broker) == 3 + 3


def test_they_count_in_the_queue_of_the_follow_up(broker: BrokerHarness) -> None:
    query = Query(broker, "ab")
    fields = dict(zip(query.plan.fields[::2], query.plan.fields[1::2], strict=True))
    fields |= {"then_queue": "low", "failure_queue": "high"}
    parts = [part for pair in fields.items() for part in pair]
    query.plan = query.plan._replace(fields=parts)
    query.start()
    query.run_one(body=BODY)
    assert (counted(broker), counted(broker, "low"), counted(broker, "high")) == (1, 1, 0)
    query.run_one("failed")
    assert query.state() == ("failed", "unreachable")
    assert (counted(broker), counted(broker, "low"), counted(broker, "high")) == (1, 0, 1)
    assert broker.store.cancel([query.job("failure")]) == [1]
    broker.advance(LATER)
    assert broker.store.delete([query.job("failure")]) == [1]
    assert (counted(broker), counted(broker, "low"), counted(broker, "high")) == (1, 0, 0)


def test_a_counter_of_the_wrong_type_stops_no_result(broker: BrokerHarness) -> None:
    query = Query(broker, "ab", queue="low")
    query.start()
    broker.redis.rpush(broker.keys.queue("low").meta, "mine")
    assert query.run_one(body=BODY) == "0"
    assert query.data().done_count == 1
    assert broker.meta()["finished_bytes"] // SIZE == 1
    broker.redis.delete(broker.keys.queue("low").meta)
    assert query.run_one("failed") == "1"
    assert broker.store.cancel([query.job("failure")]) == [1]
    broker.advance(LATER)
    assert broker.store.delete([query.job("failure")]) == [1]
    assert not broker.redis.exists(broker.keys.gather(query.key))
    assert broker.meta("low")["finished_bytes"] == 0


def test_the_byte_cap_removes_them_with_the_job(broker: BrokerHarness) -> None:
    query = failed(broker)
    broker.store.reap("other", [])
    query.run_one()
    broker.store.settings = replace(broker.store.settings, finished_max_bytes=2 * SIZE + SIZE // 2)
    broker.store.prune("default", "completed", 100, 10**9)
    assert query.is_known
    broker.store.settings = replace(broker.store.settings, finished_max_bytes=SIZE // 2)
    assert broker.store.prune("default", "failed", 100, 10**9) == (1, 1, False)
    assert counted(broker) == 0
    assert not broker.redis.exists(broker.keys.gather(query.key))
    query.look()
    assert not query.is_known


@pytest.mark.parametrize("way", ["delete", "clear", "prune"])
def test_they_are_removed_when_that_job_is_deleted(broker: BrokerHarness, way: str) -> None:
    query = failed(broker)
    broker.store.reap("other", [])
    query.run_one(body=BODY)
    broker.advance(LATER)
    if way == "delete":
        assert broker.store.delete([query.job("then")]) == [1]
    elif way == "clear":
        assert broker.store.clear("default", "failed").done == 1
    else:
        assert broker.store.prune("default", "failed", 0, 0)[0] == 1
    assert not broker.redis.exists(broker.keys.gather(query.key))
    assert counted(broker) == 3
    query.look()
    assert not query.is_known
    invariants(broker)


def test_a_completed_follow_up_does_not_take_the_results_with_it(broker: BrokerHarness) -> None:
    """Its results remain until their TTL."""
    query = Query(broker, "a")
    query.start()
    query.run_one(body=BODY)
    query.run_one()
    broker.advance(LATER)
    assert broker.store.prune("default", "completed", 0, 0)[0] == 2
    query.look()
    assert 0 < query.ttl_ms() <= TTL_MS
    assert counted(broker) == 1


def test_results_removed_before_the_job_no_longer_count(broker: BrokerHarness) -> None:
    query = failed(broker)
    broker.store.reap("other", [])
    query.run_one()
    for _ in range(KEEP_MS // TTL_MS + 2):
        broker.advance(TTL_MS)
        query.look()
    assert not query.is_known
    assert broker.status(query.job("then")) == "failed"
    assert counted(broker) == 2
