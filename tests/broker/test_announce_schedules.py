"""announce_schedules: the newest running code decides."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.replies import AnnounceReply
from django_redisqueue.exceptions import WrongKeyType

from .harness import BrokerHarness

TTL = 60_000
OUTDATED, DEFINED, TO_DEFINE = AnnounceReply


def announce(broker: BrokerHarness, digest: str, *, is_defined: bool = False) -> AnnounceReply:
    broker.advance(1)
    return broker.store.announce_schedules(digest, TTL, is_defined=is_defined)


def test_the_first_is_to_define_its_schedules_once(broker: BrokerHarness) -> None:
    assert announce(broker, "v1") is TO_DEFINE
    assert announce(broker, "v1") is TO_DEFINE  # its worker died before it did
    assert announce(broker, "v1", is_defined=True) is DEFINED
    assert announce(broker, "v1") is DEFINED


def test_newer_code_wins_in_whatever_order_workers_announce(broker: BrokerHarness) -> None:
    announce(broker, "v1", is_defined=True)
    assert announce(broker, "v2") is TO_DEFINE
    assert announce(broker, "v1") is OUTDATED
    assert announce(broker, "v2", is_defined=True) is DEFINED
    assert announce(broker, "v1") is OUTDATED  # also from a worker that starts later
    assert announce(broker, "v2") is DEFINED


def test_an_old_worker_that_finishes_late_defines_nothing(broker: BrokerHarness) -> None:
    announce(broker, "v1")
    announce(broker, "v2")
    assert announce(broker, "v1", is_defined=True) is OUTDATED
    assert announce(broker, "v2") is TO_DEFINE


def test_after_a_rollback_the_older_code_wins(broker: BrokerHarness) -> None:
    announce(broker, "v1", is_defined=True)
    announce(broker, "v2", is_defined=True)
    for _ in range(3):
        assert announce(broker, "v1") is OUTDATED
        broker.advance(TTL // 3)
    assert announce(broker, "v1") is TO_DEFINE
    announce(broker, "v1", is_defined=True)
    assert announce(broker, "v2") is TO_DEFINE  # once deployed again, it is the newest


def test_after_a_time_without_workers_nothing_has_to_be_redefined(broker: BrokerHarness) -> None:
    announce(broker, "v1", is_defined=True)
    broker.advance(100 * TTL)
    assert announce(broker, "v1") is DEFINED


def test_a_key_of_another_type_is_named(broker: BrokerHarness) -> None:
    broker.redis.set(broker.keys.schedule_sets, "theirs")
    with pytest.raises(WrongKeyType, match="holds a string where a zset belongs"):
        announce(broker, "v1")
