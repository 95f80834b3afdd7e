"""record_result_file: a file is recorded before it is written. The call is fenced, and only allowed
for jobs whose results other jobs read."""

from __future__ import annotations

from dataclasses import replace

from django_redisqueue.broker.scan import SCAN_START
from django_redisqueue.core.codec import encode_stored

from .gathers import TTL_MS, Query
from .lab import Lab, outcome
from .workflows import LabWorkflow


def test_a_file_is_recorded_and_its_gather_kept_until_the_file_is_deleted(lab: Lab) -> None:
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


def test_a_gather_whose_files_are_being_deleted_accepts_no_more(lab: Lab) -> None:
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
    assert query.data().done_count == 0  # its results are gone with it
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


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    query = Query(lab, "a")
    query.start()
    job = query.take()
    with lab.full():
        assert lab.store.record_result_file(job.id, job.lease, "f") == 1


def test_a_job_of_a_workflow_and_one_with_a_follower_may_have_files(lab: Lab) -> None:
    LabWorkflow(lab, {0: [], 1: [0]}).push()
    lab.add("parent")
    lab.add("follower", after="wait parent")
    lab.add("alone")
    codes = {
        job.id: lab.store.record_result_file(job.id, job.lease, f"f/{job.id}")
        for job in lab.claim("runner", jobs=3).jobs
    }
    assert codes == {"flow_0_0.0": 1, "parent": 1, "alone": -2}
    assert lab.redis.hgetall(lab.keys.result_files) == {
        "f/flow_0_0.0": "flow_0_0.0", "f/parent": "parent",
    }  # fmt: skip
    assert lab.store.record_result_file("parent", 7, "stale") == 0


def test_a_file_is_abandoned_once_no_job_can_name_it(lab: Lab) -> None:
    lab.add("p")
    lab.add("f", after="wait p")

    def abandoned() -> list[str]:
        return lab.queries.abandoned_result_files(SCAN_START)[1]

    first = lab.take()
    lab.store.record_result_file("p", first.lease, "first")
    assert abandoned() == []  # it is running
    lab.store.reap("c1", ["p"])
    assert abandoned() == []  # it will run again
    second = lab.take()
    lab.store.record_result_file("p", second.lease, "second")
    lab.finish(outcome(second, body=encode_stored("second")))
    assert abandoned() == ["first"]
    assert lab.store.forget_result_files(["first", "never"]) == 1
    assert abandoned() == []
    lab.finish(outcome(lab.take()))
    lab.advance(20_000)
    lab.store.prune("default", "completed", 0, 0)
    lab.store.prune("default", "completed", 0, 0)
    assert not lab.redis.exists(lab.keys.job("p"))
    assert abandoned() == ["second"]


def test_the_file_of_a_deleted_job_stays_until_the_mirror_has_read_its_end(lab: Lab) -> None:
    lab.add("p")
    lab.add("f", after="go_on p")
    job = lab.take()
    lab.store.record_result_file("p", job.lease, "file")
    lab.finish(outcome(job, body=encode_stored("file")))
    lab.finish(outcome(lab.take()))
    lab.store.settings = replace(lab.store.settings, mirror=True)
    assert lab.store.delete(["p"]) == [1]
    assert lab.redis.exists(lab.keys.job("p"))
    assert lab.queries.abandoned_result_files(SCAN_START)[1] == []
