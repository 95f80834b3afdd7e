"""lead: at most one leader, until it steps down or its lease ends."""

from __future__ import annotations

import pytest

from django_redisqueue.exceptions import WrongKeyType

from .lab import Lab


def test_a_leader_leads_until_its_lease_ends(lab: Lab) -> None:
    assert lab.store.lead("a", 1000) == 1
    assert lab.store.lead("b", 1000) == 0
    lab.advance(1000)
    assert lab.store.lead("b", 1000) == 0
    lab.advance(1)
    assert lab.store.lead("b", 1000) == 1
    assert lab.store.lead("a", 1000) == 0


def test_a_leader_keeps_it_by_asking_again(lab: Lab) -> None:
    for _ in range(5):
        assert lab.store.lead("a", 1000) == 1
        lab.advance(900)
    assert lab.store.lead("b", 1000) == 0


def test_giving_up_makes_room(lab: Lab) -> None:
    lab.store.lead("a", 1000)
    assert lab.store.lead("a", 0) == 0
    assert lab.store.lead("b", 1000) == 1


def test_a_child_succeeds_a_dead_one_of_its_own_worker_at_once(lab: Lab) -> None:
    assert lab.store.lead("w.m.1.5.2", 1000) == 1
    assert lab.store.lead("w.m.1.6.2", 1000) == 0  # another worker's child
    assert lab.store.lead("w.m.1.5.3", 1000) == 1
    # the supervisor acts for the dead child, but too late
    assert lab.store.lead("w.m.1.5.2", 0) == 0
    assert lab.store.lead("w.m.1.6.2", 1000) == 0


def test_no_child_can_give_up_another_ones_lead(lab: Lab) -> None:
    lab.store.lead("a", 1000)
    before = lab.dump()
    assert lab.store.lead("b", 0) == 0
    assert lab.dump() == before


def test_a_term_deleted_by_hand_has_ended(lab: Lab) -> None:
    lab.store.lead("a", 1000)
    lab.redis.hdel(lab.keys.meta, "leader_until_ms")
    assert lab.store.lead("b", 1000) == 1


def test_a_clock_that_goes_back_does_not_keep_a_dead_leader(lab: Lab) -> None:
    lab.store.lead("dead", 1000)
    lab.advance(-3_600_000)
    assert lab.store.lead("b", 1000) == 0  # it may be alive
    lab.advance(1001)
    assert lab.store.lead("b", 1000) == 1


def test_a_key_of_another_type_is_named(lab: Lab) -> None:
    lab.redis.set(lab.keys.meta, "theirs")
    with pytest.raises(WrongKeyType, match="holds a string where a hash belongs"):
        lab.store.lead("a", 1000)


def test_it_works_on_a_full_redis(lab: Lab) -> None:
    with lab.full():
        assert lab.store.lead("a", 1000) == 1


def test_roles_are_led_independently(lab: Lab) -> None:
    assert lab.store.lead("a", 1000) == 1
    assert lab.store.lead("b", 1000, "bridge") == 1
    assert lab.store.lead("a", 1000, "bridge") == 0
    assert lab.store.lead("b", 0, "bridge") == 0
    assert lab.store.lead("b", 1000) == 0
    assert lab.store.lead("a", 1000, "bridge") == 1
