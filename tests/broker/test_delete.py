"""delete: deletes finished jobs at once, by id."""

from __future__ import annotations

import pytest

from django_redisqueue.exceptions import JobNotFound, WrongKeyType

from .lab import FINISHED, Lab, invariants


@pytest.mark.parametrize("status", FINISHED)
def test_a_finished_job_is_deleted_and_its_neighbours_stay(lab: Lab, status: str) -> None:
    lab.end("a", "b", "c", verdict=status)
    lab.advance(10_000)
    assert lab.store.delete(["b"]) == [1]
    assert lab.ids(status) == ["c", "a"]
    assert lab.job("b") == {}
    invariants(lab)
    assert lab.store.delete(["b"]) == [-1]


def test_unfinished_jobs_are_left_alone(lab: Lab) -> None:
    lab.add("queued", "running")
    lab.add("later", when="+1000")
    before = lab.dump()
    assert lab.store.delete(["queued", "later", "never"]) == [0, 0, -1]
    assert lab.dump() == before
    running = lab.take().id
    assert lab.store.delete([running]) == [0]
    invariants(lab)


def test_the_bytes_are_counted_down(lab: Lab) -> None:
    lab.end("a", "b", verdict="failed")
    lab.advance(10_000)
    assert lab.store.delete(["a", "b", "a"]) == [1, 1, -1]
    assert lab.meta()["finished_bytes"] == 0


def test_a_repeated_enqueue_still_finds_a_deleted_job_for_a_while(lab: Lab) -> None:
    lab.end("a")
    lab.advance(4000)
    assert lab.store.delete(["a"]) == [1]
    assert lab.add("a") == [False]
    assert 0 < lab.redis.pttl(lab.keys.job("a")) <= 6000
    with pytest.raises(JobNotFound):
        lab.queries.job("a")
    invariants(lab)


def test_a_cancelled_id_that_lingers_in_its_list_is_discarded_by_a_claim(lab: Lab) -> None:
    lab.add("a", "b")
    lab.store.cancel(["a"])
    lab.advance(10_000)
    assert lab.store.delete(["a"]) == [1]
    assert lab.taken(jobs=5) == ["b"]
    assert lab.claim().lost == []
    invariants(lab)


def test_delete_works_on_a_full_redis(lab: Lab) -> None:
    lab.end("a", verdict="failed")
    lab.advance(10_000)
    with lab.full():
        assert lab.store.delete(["a"]) == [1]
    invariants(lab)


def test_a_list_of_another_type_is_refused_before_anything_is_written(lab: Lab) -> None:
    lab.end("a", "b", verdict="failed")
    lab.redis.set(lab.keys.queue("default").completed, "x")
    before = lab.dump()
    with pytest.raises(WrongKeyType):
        lab.store.delete(["a", "b"])
    assert lab.dump() == before
