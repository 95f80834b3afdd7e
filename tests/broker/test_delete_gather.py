"""delete_gather: the rest of a gather is removed once its files are deleted."""

from __future__ import annotations

import pytest

from django_redisqueue.exceptions import WrongKeyType

from .gathers import TTL_MS, Query
from .lab import Lab


@pytest.fixture
def closed(lab: Lab) -> Query:
    """A gather whose files are about to be deleted."""
    query = Query(lab, "a")
    query.start()
    job = query.take()
    lab.store.record_result_file(job.id, job.lease, "f")
    query.finish(job)
    query.run_one()
    lab.advance(TTL_MS)
    query.look()
    return query


def test_everything_is_removed_once(lab: Lab, closed: Query) -> None:
    assert lab.store.delete_gather(closed.key, closed.id)
    keys = (lab.keys.gather_plan(closed.key), lab.keys.gather(closed.key), lab.keys.closed_gathers)
    assert lab.redis.exists(*keys) == 0
    assert not lab.store.delete_gather(closed.key, closed.id)
    assert Query(lab, name="1").start() == 1


def test_a_gather_that_is_not_closed_or_has_been_replaced_stays(lab: Lab, closed: Query) -> None:
    other = Query(lab, key="other", name="1")
    other.start()
    before = lab.dump()
    assert not lab.store.delete_gather(other.key, other.id)
    assert not lab.store.delete_gather(closed.key, other.id)
    assert lab.dump() == before


def test_a_plan_that_was_deleted_by_hand_does_not_stay_listed(lab: Lab, closed: Query) -> None:
    lab.redis.delete(lab.keys.gather_plan(closed.key))
    assert closed.queries.files(closed.key) == ("", [])
    assert not lab.store.delete_gather(closed.key, "")
    assert closed.queries.closed(10) == []


def test_a_key_of_the_wrong_type_is_named(lab: Lab, closed: Query) -> None:
    lab.redis.delete(lab.keys.closed_gathers)
    lab.redis.set(lab.keys.closed_gathers, "mine")
    with pytest.raises(WrongKeyType, match="holds a string where a set belongs"):
        lab.store.delete_gather(closed.key, closed.id)
    with pytest.raises(WrongKeyType, match="holds a string where a set belongs"):
        lab.store.advance()


def test_it_works_on_a_full_redis(lab: Lab, closed: Query) -> None:
    with lab.full():
        assert lab.store.delete_gather(closed.key, closed.id)
