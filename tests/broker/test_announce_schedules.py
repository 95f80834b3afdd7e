"""announce_schedules: the newest running code decides."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.replies import AnnounceReply
from django_redisqueue.exceptions import WrongKeyType

from .lab import Lab

TTL = 60_000
OUTDATED, DEFINED, TO_DEFINE = AnnounceReply


def announce(lab: Lab, digest: str, *, is_defined: bool = False) -> AnnounceReply:
    lab.advance(1)
    return lab.store.announce_schedules(digest, TTL, is_defined=is_defined)


def test_the_first_is_to_define_its_schedules_once(lab: Lab) -> None:
    assert announce(lab, "v1") is TO_DEFINE
    assert announce(lab, "v1") is TO_DEFINE  # its worker died before it did
    assert announce(lab, "v1", is_defined=True) is DEFINED
    assert announce(lab, "v1") is DEFINED


def test_newer_code_wins_in_whatever_order_workers_announce(lab: Lab) -> None:
    announce(lab, "v1", is_defined=True)
    assert announce(lab, "v2") is TO_DEFINE
    assert announce(lab, "v1") is OUTDATED
    assert announce(lab, "v2", is_defined=True) is DEFINED
    assert announce(lab, "v1") is OUTDATED  # also from a worker that starts later
    assert announce(lab, "v2") is DEFINED


def test_an_old_worker_that_finishes_late_defines_nothing(lab: Lab) -> None:
    announce(lab, "v1")
    announce(lab, "v2")
    assert announce(lab, "v1", is_defined=True) is OUTDATED
    assert announce(lab, "v2") is TO_DEFINE


def test_after_a_rollback_the_older_code_wins(lab: Lab) -> None:
    announce(lab, "v1", is_defined=True)
    announce(lab, "v2", is_defined=True)
    for _ in range(3):
        assert announce(lab, "v1") is OUTDATED
        lab.advance(TTL // 3)
    assert announce(lab, "v1") is TO_DEFINE
    announce(lab, "v1", is_defined=True)
    assert announce(lab, "v2") is TO_DEFINE  # once deployed again, it is the newest


def test_after_a_time_without_workers_nothing_has_to_be_redefined(lab: Lab) -> None:
    announce(lab, "v1", is_defined=True)
    lab.advance(100 * TTL)
    assert announce(lab, "v1") is DEFINED


def test_a_key_of_another_type_is_named(lab: Lab) -> None:
    lab.redis.set(lab.keys.schedule_sets, "theirs")
    with pytest.raises(WrongKeyType, match="holds a string where a zset belongs"):
        announce(lab, "v1")
