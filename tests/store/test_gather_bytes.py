"""Results that a gather keeps for the retry of what followed count as that job's and go with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .gathers import KEEP_MS, TTL_MS, Query
from .lab import Lab, invariants

SIZE = 100_000
BODY = '"' + "r" * (SIZE - 2) + '"'
LATER = 20_000  # ms; behind the resend window


def failed(lab: Lab, verdict: str = "failed", **options: int) -> Query:
    """A gather of three listeners whose follow-up has failed after two of them."""
    query = Query(lab, "abc", threshold=2, **options)
    query.start()
    query.run_one(body=BODY)
    query.run_one(body=BODY)
    late = query.take("other")
    query.run_one(verdict)
    assert late.id == query.job(2)
    return query


def counted(lab: Lab) -> int:
    """How many results of that size the bytes of finished jobs have."""
    return lab.meta()["finished_bytes"] // SIZE


@pytest.mark.parametrize("verdict", ["failed", "cancelled"])
def test_they_count_until_the_retry(lab: Lab, verdict: str) -> None:
    query = failed(lab, verdict)
    assert counted(lab) == 2 + 2  # of the listeners, and what is kept
    invariants(lab)
    lab.store.requeue([query.job("then")])
    assert counted(lab) == 2
    query.run_one()
    assert counted(lab) == 2
    invariants(lab)


def test_results_that_come_later_count_too(lab: Lab) -> None:
    query = failed(lab)
    lab.store.reap("other", [])
    query.run_one(body=BODY)
    assert counted(lab) == 3 + 3
    invariants(lab)


def test_the_byte_cap_lets_them_go_with_the_job(lab: Lab) -> None:
    query = failed(lab)
    lab.store.reap("other", [])
    query.run_one()
    lab.store.settings = replace(lab.store.settings, finished_max_bytes=2 * SIZE + SIZE // 2)
    lab.store.prune("default", "completed", 100, 10**9)
    assert query.is_known
    lab.store.settings = replace(lab.store.settings, finished_max_bytes=SIZE // 2)
    assert lab.store.prune("default", "failed", 100, 10**9) == (1, 1, False)
    query.look()
    assert not query.is_known
    assert not lab.redis.exists(lab.keys.gather(query.key))
    invariants(lab)


@pytest.mark.parametrize("way", ["delete", "clear", "prune"])
def test_they_go_when_that_job_is_let_go(lab: Lab, way: str) -> None:
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
    query.look()
    assert not lab.redis.exists(lab.keys.gather(query.key))
    invariants(lab)


def test_a_follow_up_that_has_completed_takes_nothing_along(lab: Lab) -> None:
    """Its results have their time to live."""
    query = Query(lab, "a")
    query.start()
    query.run_one(body=BODY)
    query.run_one()
    lab.advance(LATER)
    assert lab.store.prune("default", "completed", 0, 0)[0] == 2
    query.look()
    assert 0 < query.ttl_ms() <= TTL_MS
    invariants(lab)


def test_they_count_no_more_when_they_went_before_the_job(lab: Lab) -> None:
    query = failed(lab)
    lab.store.reap("other", [])
    query.run_one()
    for _ in range(KEEP_MS // TTL_MS + 2):
        lab.advance(TTL_MS)
        query.look()
    assert not query.is_known
    assert lab.status(query.job("then")) == "failed"
    assert counted(lab) == 2
    invariants(lab)
