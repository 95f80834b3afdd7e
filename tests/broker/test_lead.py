"""lead: at most one leader, until it steps down or its lease ends."""

from __future__ import annotations

import pytest

from django_redisqueue.exceptions import WrongKeyType

from .harness import BrokerHarness


def test_a_leader_leads_until_its_lease_ends(broker: BrokerHarness) -> None:
    assert broker.store.lead("a", 1000) == 1
    assert broker.store.lead("b", 1000) == 0
    broker.advance(1000)
    assert broker.store.lead("b", 1000) == 0
    broker.advance(1)
    assert broker.store.lead("b", 1000) == 1
    assert broker.store.lead("a", 1000) == 0


def test_a_leader_keeps_it_by_asking_again(broker: BrokerHarness) -> None:
    for _ in range(5):
        assert broker.store.lead("a", 1000) == 1
        broker.advance(900)
    assert broker.store.lead("b", 1000) == 0


def test_giving_up_makes_room(broker: BrokerHarness) -> None:
    broker.store.lead("a", 1000)
    assert broker.store.lead("a", 0) == 0
    assert broker.store.lead("b", 1000) == 1


def test_a_child_succeeds_a_dead_one_of_its_own_worker_at_once(broker: BrokerHarness) -> None:
    assert broker.store.lead("w.m.1.5.2", 1000) == 1
    assert broker.store.lead("w.m.1.6.2", 1000) == 0  # another worker's child
    assert broker.store.lead("w.m.1.5.3", 1000) == 1
    # the supervisor acts for the dead child, but too late
    assert broker.store.lead("w.m.1.5.2", 0) == 0
    assert broker.store.lead("w.m.1.6.2", 1000) == 0


def test_no_child_can_give_up_another_ones_lead(broker: BrokerHarness) -> None:
    broker.store.lead("a", 1000)
    with broker.unchanged():
        assert broker.store.lead("b", 0) == 0


def test_a_term_deleted_by_hand_has_ended(broker: BrokerHarness) -> None:
    broker.store.lead("a", 1000)
    broker.redis.hdel(broker.keys.meta, "leader_until_ms")
    assert broker.store.lead("b", 1000) == 1


def test_a_clock_that_goes_back_does_not_keep_a_dead_leader(broker: BrokerHarness) -> None:
    broker.store.lead("dead", 1000)
    broker.advance(-3_600_000)
    assert broker.store.lead("b", 1000) == 0  # it may be alive
    broker.advance(1001)
    assert broker.store.lead("b", 1000) == 1


def test_a_key_of_another_type_is_named(broker: BrokerHarness) -> None:
    broker.redis.set(broker.keys.meta, "theirs")
    with pytest.raises(WrongKeyType, match="holds a string where a hash belongs"):
        broker.store.lead("a", 1000)


def test_it_works_on_a_full_redis(broker: BrokerHarness) -> None:
    with broker.full():
        assert broker.store.lead("a", 1000) == 1


def test_roles_are_led_independently(broker: BrokerHarness) -> None:
    assert broker.store.lead("a", 1000) == 1
    assert broker.store.lead("b", 1000, "bridge") == 1
    assert broker.store.lead("a", 1000, "bridge") == 0
    assert broker.store.lead("b", 0, "bridge") == 0
    assert broker.store.lead("b", 1000) == 0
    assert broker.store.lead("a", 1000, "bridge") == 1
