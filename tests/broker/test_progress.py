"""progress: stored and published while the lease is valid."""

from __future__ import annotations

import pytest

from django_redisqueue.exceptions import WrongKeyType

from .lab import ERROR, Lab, invariants, outcome

HALF = '{"done":1,"total":2,"note":"\\"half\\""}'


def test_it_is_stored_and_published(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    assert lab.store.progress("c1", "a", job.lease, HALF) is True
    assert lab.job("a")["progress"] == HALF
    event = lab.events("a")[-1]
    assert (event["status"], event["seq"]) == ("processing", 3)
    assert event["progress"] == {"done": 1, "total": 2, "note": '"half"'}
    invariants(lab)


def test_the_next_attempt_is_counted(lab: Lab) -> None:
    lab.add("a")
    lab.finish(outcome(lab.take(), "retrying", ERROR, "1"))
    lab.advance(1)
    job = lab.take()
    lab.store.progress("c1", "a", job.lease, HALF)
    assert lab.events("a")[-1]["attempt"] == 2


@pytest.mark.parametrize(("child", "lease"), [("c2", 1), ("c1", 0), ("c1", 2)])
def test_a_stale_writer_is_refused_and_changes_nothing(lab: Lab, child: str, lease: int) -> None:
    lab.add("a")
    lab.take()
    before = lab.dump()
    assert lab.store.progress(child, "a", lease, HALF) is False
    assert lab.dump() == before


@pytest.mark.parametrize("verdict", ["completed", "retrying", "queued"])
def test_a_job_that_no_longer_runs_accepts_no_progress(lab: Lab, verdict: str) -> None:
    lab.add("a")
    job = lab.take()
    lab.finish(outcome(job, verdict))
    before = lab.dump()
    assert lab.store.progress("c1", "a", job.lease, HALF) is False
    assert lab.store.progress("c1", "never", 1, HALF) is False
    assert lab.dump() == before


def test_tasks_with_fewer_audit_events_publish_no_progress(lab: Lab) -> None:
    lab.add("a", audit="final")
    job = lab.take()
    assert lab.store.progress("c1", "a", job.lease, HALF) is True
    assert lab.job("a")["progress"] == HALF
    assert lab.events() == []


def test_a_key_of_another_type_is_named(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    lab.redis.delete(lab.keys.events)
    lab.redis.set(lab.keys.events, "theirs")
    before = lab.dump()
    with pytest.raises(WrongKeyType, match="holds a string where a stream belongs"):
        lab.store.progress("c1", "a", job.lease, HALF)
    assert lab.dump() == before


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    lab.add("a")
    job = lab.take()
    with lab.full():
        assert lab.store.progress("c1", "a", job.lease, HALF) is True
