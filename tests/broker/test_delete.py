"""delete: deletes finished jobs at once, by id."""

from __future__ import annotations

import pytest

from django_redisqueue.exceptions import JobNotFound, WrongKeyType

from .harness import FINISHED, BrokerHarness, invariants


@pytest.mark.parametrize("status", FINISHED)
def test_a_finished_job_is_deleted_and_its_neighbours_stay(
    broker: BrokerHarness, status: str
) -> None:
    broker.end("a", "b", "c", kind=status)
    broker.advance(10_000)
    assert broker.store.delete(["b"]) == [1]
    assert broker.ids(status) == ["c", "a"]
    assert broker.job("b") == {}
    invariants(broker)
    assert broker.store.delete(["b"]) == [-1]


def test_unfinished_jobs_are_left_alone(broker: BrokerHarness) -> None:
    broker.add("queued", "running")
    broker.add("later", when="+1000")
    with broker.unchanged():
        assert broker.store.delete(["queued", "later", "never"]) == [0, 0, -1]
    running = broker.take().id
    assert broker.store.delete([running]) == [0]
    invariants(broker)


def test_the_bytes_are_counted_down(broker: BrokerHarness) -> None:
    broker.end("a", "b", kind="failed")
    broker.advance(10_000)
    assert broker.store.delete(["a", "b", "a"]) == [1, 1, -1]
    assert broker.meta()["finished_bytes"] == 0


def test_a_repeated_enqueue_still_finds_a_deleted_job_for_a_while(broker: BrokerHarness) -> None:
    broker.end("a")
    broker.advance(4000)
    assert broker.store.delete(["a"]) == [1]
    assert broker.add("a") == [False]
    assert 0 < broker.redis.pttl(broker.keys.job("a")) <= 6000
    with pytest.raises(JobNotFound):
        broker.queries.job("a")
    invariants(broker)


def test_a_cancelled_id_that_lingers_in_its_list_is_discarded_by_a_claim(
    broker: BrokerHarness,
) -> None:
    broker.add("a", "b")
    broker.store.cancel(["a"])
    broker.advance(10_000)
    assert broker.store.delete(["a"]) == [1]
    assert broker.taken(jobs=5) == ["b"]
    assert broker.claim().lost == []
    invariants(broker)


def test_delete_works_on_a_full_redis(broker: BrokerHarness) -> None:
    broker.end("a", kind="failed")
    broker.advance(10_000)
    with broker.full():
        assert broker.store.delete(["a"]) == [1]
    invariants(broker)


def test_a_list_of_another_type_is_refused_before_anything_is_written(
    broker: BrokerHarness,
) -> None:
    broker.end("a", "b", kind="failed")
    broker.redis.set(broker.keys.queue("default").completed, "x")
    with broker.unchanged(), pytest.raises(WrongKeyType):
        broker.store.delete(["a", "b"])
