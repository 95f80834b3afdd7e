"""record_result_file: a file is recorded before it is written. The call is fenced, and only allowed
for jobs whose results other jobs read."""

from __future__ import annotations

from dataclasses import replace

from django_redisqueue.broker.scan import SCAN_START
from django_redisqueue.core.codec import encode_stored

from .gathers import TTL_MS, Query
from .harness import BrokerHarness, outcome
from .workflows import BrokerWorkflow


def test_a_file_is_recorded_and_its_gather_kept_until_the_file_is_deleted(
    broker: BrokerHarness,
) -> None:
    query = Query(broker, "a")
    query.start()
    job = query.take()
    assert broker.store.record_result_file(job.id, job.lease, "f/1.json") == 1
    assert broker.store.record_result_file(job.id, job.lease, "f/1.json") == 1
    assert broker.store.record_result_file(job.id, job.lease, "f/2.json") == 1
    query.finish(job)
    query.run_one()
    broker.advance(TTL_MS)
    query.look()
    assert query.queries.closed(10) == [query.key]
    assert query.queries.files(query.key) == (query.id, ["f/1.json", "f/2.json"])
    assert not broker.redis.exists(broker.keys.gathers)
    assert Query(broker, name="1").start() == -1  # the key is not free yet


def test_a_lost_lease_is_refused(broker: BrokerHarness) -> None:
    query = Query(broker, "a")
    query.start()
    stale = query.take()
    broker.store.reap("runner", [stale.id])
    assert broker.store.record_result_file(stale.id, stale.lease, "f") == 0
    again = query.take()
    assert broker.store.record_result_file(stale.id, stale.lease, "f") == 0
    assert broker.store.record_result_file(again.id, again.lease, "f") == 1


def test_a_gather_that_is_over_is_refused(broker: BrokerHarness) -> None:
    query = Query(broker, "ab", threshold=1)
    query.start()
    query.run_one("failed")
    query.run_one()
    query.run_one()
    broker.advance(TTL_MS)
    query.look()
    assert not query.is_known
    broker.store.requeue([query.job(0)])
    job = query.take()
    assert broker.store.record_result_file(job.id, job.lease, "f") == -1


def test_a_gather_whose_files_are_being_deleted_accepts_no_more(broker: BrokerHarness) -> None:
    query = Query(broker, "ab", threshold=1)
    query.start()
    query.run_one("failed")
    job = query.take()
    broker.store.record_result_file(job.id, job.lease, "f")
    query.finish(job)
    query.run_one()
    broker.advance(TTL_MS)
    query.look()
    assert query.queries.closed(10) == [query.key]
    broker.store.requeue([query.job(0)])
    late = query.take()
    assert broker.store.record_result_file(late.id, late.lease, "late") == -1
    query.finish(late)
    assert query.queries.files(query.key) == (query.id, ["f"])
    assert query.data().done_count == 0  # its results are gone with it
    assert not broker.redis.exists(broker.keys.gathers)


def test_a_gather_with_a_running_listener_is_not_forgotten(broker: BrokerHarness) -> None:
    query = Query(broker, "ab", threshold=1)
    query.start()
    slow = query.take()
    query.run_one()
    assert query.run_one() == "then"
    broker.advance(TTL_MS)
    query.look()
    assert broker.store.record_result_file(slow.id, slow.lease, "f") == 1
    broker.advance(TTL_MS)
    query.look()
    assert query.queries.closed(10) == []
    query.finish(slow)
    broker.advance(TTL_MS)
    query.look()
    assert query.queries.closed(10) == [query.key]


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    query = Query(broker, "a")
    query.start()
    job = query.take()
    with broker.full():
        assert broker.store.record_result_file(job.id, job.lease, "f") == 1


def test_a_job_of_a_workflow_and_one_with_a_follower_may_have_files(broker: BrokerHarness) -> None:
    BrokerWorkflow(broker, {0: [], 1: [0]}).push()
    broker.add("parent")
    broker.add("follower", after="wait parent")
    broker.add("alone")
    codes = {
        job.id: broker.store.record_result_file(job.id, job.lease, f"f/{job.id}")
        for job in broker.claim("runner", jobs=3).jobs
    }
    assert codes == {"flow_0_0.0": 1, "parent": 1, "alone": -2}
    assert broker.redis.hgetall(broker.keys.result_files) == {
        "f/flow_0_0.0": "flow_0_0.0", "f/parent": "parent",
    }  # fmt: skip
    assert broker.store.record_result_file("parent", 7, "stale") == 0


def test_a_file_is_abandoned_once_no_job_can_name_it(broker: BrokerHarness) -> None:
    broker.add("p")
    broker.add("f", after="wait p")

    def abandoned() -> list[str]:
        return broker.queries.abandoned_result_files(SCAN_START)[1]

    first = broker.take()
    broker.store.record_result_file("p", first.lease, "first")
    assert abandoned() == []  # it is running
    broker.store.reap("c1", ["p"])
    assert abandoned() == []  # it will run again
    second = broker.take()
    broker.store.record_result_file("p", second.lease, "second")
    broker.finish(outcome(second, body=encode_stored("second")))
    assert abandoned() == ["first"]
    assert broker.store.forget_result_files(["first", "never"]) == 1
    assert abandoned() == []
    broker.finish(outcome(broker.take()))
    broker.advance(20_000)
    broker.store.prune("default", "completed", 0, 0)
    broker.store.prune("default", "completed", 0, 0)
    assert not broker.redis.exists(broker.keys.job("p"))
    assert abandoned() == ["second"]


def test_the_file_of_a_deleted_job_stays_until_the_mirror_has_read_its_end(
    broker: BrokerHarness,
) -> None:
    broker.add("p")
    broker.add("f", after="go_on p")
    job = broker.take()
    broker.store.record_result_file("p", job.lease, "file")
    broker.finish(outcome(job, body=encode_stored("file")))
    broker.finish(outcome(broker.take()))
    broker.store.settings = replace(broker.store.settings, mirror=True)
    assert broker.store.delete(["p"]) == [1]
    assert broker.redis.exists(broker.keys.job("p"))
    assert broker.queries.abandoned_result_files(SCAN_START)[1] == []
