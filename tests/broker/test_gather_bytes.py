"""The results held by a gather count as bytes of finished jobs for as long as they exist."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.worker.processes import eventually

from .gathers import DELAY_MS, KEEP_MS, POLLS, TTL_MS, Query
from .lab import Lab, invariants

SIZE = 100_000
BODY = '"' + "r" * (SIZE - 2) + '"'
LATER = 20_000  # ms; after the resend window


def failed(lab: Lab, verdict: str = "failed", **options: Any) -> Query:
    """A gather of three listeners whose follow-up failed after two of them."""
    query = Query(lab, "abc", threshold=2, **options)
    query.start()
    query.run_one(body=BODY)
    query.run_one(body=BODY)
    late = query.take("other")
    query.run_one(verdict)
    assert late.id == query.job(2)
    return query


def counted(lab: Lab, queue: str = "default") -> int:
    """How many results of that size are counted among the bytes of finished jobs."""
    invariants(lab)
    return lab.meta(queue).get("finished_bytes", 0) // SIZE


def test_they_count_while_the_gather_collects(lab: Lab) -> None:
    query = Query(lab, "abc")
    query.start()
    for count in (1, 2):
        query.run_one(body=BODY)
        assert counted(lab) == 2 * count  # the listener's own result, and the gather's copy
    query.run_one("failed")
    assert query.state() == ("failed", "unreachable")
    assert counted(lab) == 2 + 2


def test_expired_results_no_longer_count(lab: Lab) -> None:
    query = Query(lab, "abc")
    query.start()
    query.run_one(body=BODY)
    query.expire()
    query.run_one(body=BODY)
    assert query.state() == ("failed", "expired")
    assert counted(lab) == 2
    query.run_one(body=BODY)
    assert counted(lab) == 3


def test_they_count_until_their_ttl_is_over(lab: Lab) -> None:
    query = Query(lab, "a")
    query.start()
    query.run_one(body=BODY)
    assert counted(lab) == 2
    query.run_one()
    assert 0 < query.ttl_ms() <= TTL_MS
    assert counted(lab) == 2
    lab.advance(TTL_MS + 1000)
    query.look()
    assert not query.is_known
    assert counted(lab) == 1


def test_without_a_follow_up_they_count_until_their_ttl(lab: Lab) -> None:
    query = Query(lab, "ab", failure=False)
    query.start()
    query.run_one(body=BODY)
    for _ in range(POLLS):
        lab.advance(DELAY_MS)
        query.look()
    assert query.state() == ("failed", "late")
    assert counted(lab) == 2
    lab.advance(TTL_MS - 1)
    assert query.ttl_ms() > 0
    lab.redis.pexpire(
        lab.keys.gather(query.key), 100
    )  # its clock is not the one that the lab moves
    lab.advance(1)
    query.look()
    assert query.is_known  # the other job may still be running
    assert counted(lab) == 2
    eventually(lambda: query.ttl_ms() == -2)
    lab.advance(200)
    query.look()
    assert query.is_known
    assert counted(lab) == 1


@pytest.mark.parametrize("verdict", ["failed", "cancelled"])
def test_they_count_before_a_retry_and_after_it(lab: Lab, verdict: str) -> None:
    query = failed(lab, verdict)
    assert counted(lab) == 2 + 2
    lab.store.requeue([query.job("then")])
    assert counted(lab) == 2 + 2
    query.run_one()
    assert counted(lab) == 2 + 2
    lab.store.reap("other", [])
    query.run_one()
    lab.advance(TTL_MS + 1000)
    query.look()
    assert counted(lab) == 2


def test_later_results_also_count(lab: Lab) -> None:
    query = failed(lab)
    lab.store.reap("other", [])
    query.run_one(body=BODY)
    assert counted(lab) == 3 + 3


def test_they_count_in_the_queue_of_the_follow_up(lab: Lab) -> None:
    query = Query(lab, "ab")
    fields = dict(zip(query.plan.fields[::2], query.plan.fields[1::2], strict=True))
    fields |= {"then_queue": "low", "failure_queue": "high"}
    parts = [part for pair in fields.items() for part in pair]
    query.plan = query.plan._replace(fields=parts)
    query.start()
    query.run_one(body=BODY)
    assert (counted(lab), counted(lab, "low"), counted(lab, "high")) == (1, 1, 0)
    query.run_one("failed")
    assert query.state() == ("failed", "unreachable")
    assert (counted(lab), counted(lab, "low"), counted(lab, "high")) == (1, 0, 1)
    assert lab.store.cancel([query.job("failure")]) == [1]
    lab.advance(LATER)
    assert lab.store.delete([query.job("failure")]) == [1]
    assert (counted(lab), counted(lab, "low"), counted(lab, "high")) == (1, 0, 0)


def test_a_counter_of_the_wrong_type_stops_no_result(lab: Lab) -> None:
    query = Query(lab, "ab", queue="low")
    query.start()
    lab.redis.rpush(lab.keys.queue("low").meta, "mine")
    assert query.run_one(body=BODY) == "0"
    assert query.data().done_count == 1
    assert lab.meta()["finished_bytes"] // SIZE == 1
    lab.redis.delete(lab.keys.queue("low").meta)
    assert query.run_one("failed") == "1"
    assert lab.store.cancel([query.job("failure")]) == [1]
    lab.advance(LATER)
    assert lab.store.delete([query.job("failure")]) == [1]
    assert not lab.redis.exists(lab.keys.gather(query.key))
    assert lab.meta("low")["finished_bytes"] == 0


def test_the_byte_cap_removes_them_with_the_job(lab: Lab) -> None:
    query = failed(lab)
    lab.store.reap("other", [])
    query.run_one()
    lab.store.settings = replace(lab.store.settings, finished_max_bytes=2 * SIZE + SIZE // 2)
    lab.store.prune("default", "completed", 100, 10**9)
    assert query.is_known
    lab.store.settings = replace(lab.store.settings, finished_max_bytes=SIZE // 2)
    assert lab.store.prune("default", "failed", 100, 10**9) == (1, 1, False)
    assert counted(lab) == 0
    assert not lab.redis.exists(lab.keys.gather(query.key))
    query.look()
    assert not query.is_known


@pytest.mark.parametrize("way", ["delete", "clear", "prune"])
def test_they_are_removed_when_that_job_is_deleted(lab: Lab, way: str) -> None:
    query = failed(lab)
    lab.store.reap("other", [])
    query.run_one(body=BODY)
    lab.advance(LATER)
    if way == "delete":
        assert lab.store.delete([query.job("then")]) == [1]
    elif way == "clear":
        assert lab.store.clear("default", "failed").done == 1
    else:
        assert lab.store.prune("default", "failed", 0, 0)[0] == 1
    assert not lab.redis.exists(lab.keys.gather(query.key))
    assert counted(lab) == 3
    query.look()
    assert not query.is_known
    invariants(lab)


def test_a_completed_follow_up_does_not_take_the_results_with_it(lab: Lab) -> None:
    """Its results remain until their TTL."""
    query = Query(lab, "a")
    query.start()
    query.run_one(body=BODY)
    query.run_one()
    lab.advance(LATER)
    assert lab.store.prune("default", "completed", 0, 0)[0] == 2
    query.look()
    assert 0 < query.ttl_ms() <= TTL_MS
    assert counted(lab) == 1


def test_results_removed_before_the_job_no_longer_count(lab: Lab) -> None:
    query = failed(lab)
    lab.store.reap("other", [])
    query.run_one()
    for _ in range(KEEP_MS // TTL_MS + 2):
        lab.advance(TTL_MS)
        query.look()
    assert not query.is_known
    assert lab.status(query.job("then")) == "failed"
    assert counted(lab) == 2
