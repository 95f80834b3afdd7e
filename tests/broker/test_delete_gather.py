"""delete_gather: the rest of a gather is removed once its files are deleted."""

from __future__ import annotations

import pytest

from django_redisqueue.exceptions import WrongKeyType

from .gathers import TTL_MS, Query
from .harness import BrokerHarness


@pytest.fixture
def closed(broker: BrokerHarness) -> Query:
    """A gather whose files are about to be deleted."""
    query = Query(broker, "a")
    query.start()
    job = query.take()
    broker.store.record_result_file(job.id, job.lease, "f")
    query.finish(job)
    query.run_one()
    broker.advance(TTL_MS)
    query.look()
    return query


def test_everything_is_removed_once(broker: BrokerHarness, closed: Query) -> None:
    assert broker.store.delete_gather(closed.key, closed.id)
    keys = (
        broker.keys.gather_plan(closed.key),
        broker.keys.gather(closed.key),
        broker.keys.closed_gathers,
    )
    assert broker.redis.exists(*keys) == 0
    assert not broker.store.delete_gather(closed.key, closed.id)
    assert Query(broker, name="1").start() == 1


def test_a_gather_that_is_not_closed_or_has_been_replaced_stays(
    broker: BrokerHarness, closed: Query
) -> None:
    other = Query(broker, key="other", name="1")
    other.start()
    with broker.unchanged():
        assert not broker.store.delete_gather(other.key, other.id)
        assert not broker.store.delete_gather(closed.key, other.id)


def test_a_plan_that_was_deleted_by_hand_does_not_stay_listed(
    broker: BrokerHarness, closed: Query
) -> None:
    broker.redis.delete(broker.keys.gather_plan(closed.key))
    assert closed.queries.files(closed.key) == ("", [])
    assert not broker.store.delete_gather(closed.key, "")
    assert closed.queries.closed(10) == []


def test_a_key_of_the_wrong_type_is_named(broker: BrokerHarness, closed: Query) -> None:
    broker.redis.set(broker.keys.closed_gathers, "mine")
    with pytest.raises(WrongKeyType, match="holds a string where a set belongs"):
        broker.store.delete_gather(closed.key, closed.id)
    with pytest.raises(WrongKeyType, match="holds a string where a set belongs"):
        broker.store.advance()
    broker.redis.delete(broker.keys.closed_gathers)
    broker.redis.set(broker.keys.gather_plan(closed.key), "mine")
    with pytest.raises(WrongKeyType, match="holds a string where a hash belongs"):
        broker.store.delete_gather(closed.key, closed.id)


def test_it_works_on_a_full_redis(broker: BrokerHarness, closed: Query) -> None:
    with broker.full():
        assert broker.store.delete_gather(closed.key, closed.id)
