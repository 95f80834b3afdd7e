"""record_result_file: a file is recorded before it is written; fenced, and only for a gather."""

from __future__ import annotations

from .gathers import TTL_MS, Query
from .lab import Lab


def test_a_file_is_noted_and_its_gather_kept_until_it_is_deleted(lab: Lab) -> None:
    query = Query(lab, "a")
    query.start()
    job = query.take()
    assert lab.store.record_result_file(job.id, job.lease, "f/1.json") == 1
    assert lab.store.record_result_file(job.id, job.lease, "f/1.json") == 1
    assert lab.store.record_result_file(job.id, job.lease, "f/2.json") == 1
    query.finish(job)
    query.run_one()
    lab.advance(TTL_MS)
    query.look()
    assert query.queries.closed(10) == [query.key]
    assert query.queries.files(query.key) == (query.id, ["f/1.json", "f/2.json"])
    assert not lab.redis.exists(lab.keys.gathers)
    assert Query(lab, name="1").start() == -1  # the key is not free yet


def test_a_lost_lease_is_refused(lab: Lab) -> None:
    query = Query(lab, "a")
    query.start()
    stale = query.take()
    lab.store.reap("runner", [stale.id])
    assert lab.store.record_result_file(stale.id, stale.lease, "f") == 0
    again = query.take()
    assert lab.store.record_result_file(stale.id, stale.lease, "f") == 0
    assert lab.store.record_result_file(again.id, again.lease, "f") == 1


def test_a_gather_that_is_over_is_refused(lab: Lab) -> None:
    query = Query(lab, "ab", threshold=1)
    query.start()
    query.run_one("failed")
    query.run_one()
    query.run_one()
    lab.advance(TTL_MS)
    query.look()
    assert not query.is_known
    lab.store.requeue([query.job(0)])
    job = query.take()
    assert lab.store.record_result_file(job.id, job.lease, "f") == -1
    lab.add("other")
    other = lab.take()
    assert lab.store.record_result_file(other.id, other.lease, "f") == -1


def test_a_gather_whose_files_are_being_deleted_takes_no_more(lab: Lab) -> None:
    query = Query(lab, "ab", threshold=1)
    query.start()
    query.run_one("failed")
    job = query.take()
    lab.store.record_result_file(job.id, job.lease, "f")
    query.finish(job)
    query.run_one()
    lab.advance(TTL_MS)
    query.look()
    assert query.queries.closed(10) == [query.key]
    lab.store.requeue([query.job(0)])
    late = query.take()
    assert lab.store.record_result_file(late.id, late.lease, "late") == -1
    query.finish(late)
    assert query.queries.files(query.key) == (query.id, ["f"])
    assert query.data().done_count == 0  # its results went with it
    assert not lab.redis.exists(lab.keys.gathers)


def test_a_gather_with_a_running_listener_is_not_forgotten(lab: Lab) -> None:
    query = Query(lab, "ab", threshold=1)
    query.start()
    slow = query.take()
    query.run_one()
    assert query.run_one() == "then"
    lab.advance(TTL_MS)
    query.look()
    assert lab.store.record_result_file(slow.id, slow.lease, "f") == 1
    lab.advance(TTL_MS)
    query.look()
    assert query.queries.closed(10) == []
    query.finish(slow)
    lab.advance(TTL_MS)
    query.look()
    assert query.queries.closed(10) == [query.key]


def test_a_full_redis_takes_it(lab: Lab) -> None:
    query = Query(lab, "a")
    query.start()
    job = query.take()
    with lab.full():
        assert lab.store.record_result_file(job.id, job.lease, "f") == 1
