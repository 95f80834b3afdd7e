"""What heartbeats tell the children that have or want a role."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_redisqueue.broker.replies import HeartbeatReply, RoleTerm
from django_redisqueue.conf import Settings, get_settings
from django_redisqueue.worker.child_state import ChildState, RoleNote
from django_redisqueue.worker.supervisor import shard_roles
from django_redisqueue.worker.supervisor.child_handle import ChildHandle
from django_redisqueue.worker.supervisor.shard_roles import RoleInRedis, ShardRoles

REPLY = HeartbeatReply(
    interrupted=False, steady_ms=0, lapsed=0, lost=[], flagged=[], order="", activity="1"
)
TERM_MS = 15_000


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(shard_roles, "time", clock)
    return clock


@pytest.fixture
def handles() -> list[ChildHandle]:
    return [
        ChildHandle(ChildState(0, 1), "jobs", child="w.1"),
        ChildHandle(ChildState(1, 1), "maintenance", child="w.2"),
    ]


def made(handles: list[ChildHandle], settings: Settings | None = None) -> ShardRoles:
    roles = {"maintenance": RoleInRedis("leader", TERM_MS)}
    return ShardRoles(handles, settings or replace(get_settings(), shards=2), roles)  # type: ignore[arg-type]


def test_it_is_quiet_when_there_was_no_transition_for_a_while(
    handles: list[ChildHandle], clock: Clock
) -> None:
    roles, state, settings = made(handles), handles[1].state, get_settings()
    shortest = shard_roles.QUIET_AFTER + (settings.lease_ms + settings.resend_window_ms) / 1000
    assert state.role_note(1) is RoleNote.ASK
    other = replace(REPLY, activity="2")
    for reply in (REPLY, other, replace(other, interrupted=True)):
        roles.note(1, reply)
        clock.now += shortest - 1
        roles.note(1, replace(reply, interrupted=False))
        assert state.role_note(1) is RoleNote.ACTIVE
        clock.now += 1
        roles.note(1, replace(reply, interrupted=False))
        assert state.role_note(1) is RoleNote.QUIET
    assert state.role_note(0) is RoleNote.ASK  # of another shard
    assert handles[0].state.role_note(1) is RoleNote.ASK  # it wants no role


@pytest.mark.parametrize("reply", [None, replace(REPLY, to_ask=["leader"])])
def test_a_child_asks_itself_if_the_role_may_be_vacant(
    handles: list[ChildHandle], clock: Clock, reply: HeartbeatReply | None
) -> None:
    roles, state = made(handles), handles[1].state
    roles.note(0, replace(REPLY, to_ask=["bridge"]))
    assert state.role_note(0) is RoleNote.ACTIVE
    roles.note(0, reply)
    assert state.role_note(0) is RoleNote.ASK
    clock.now += 1000
    roles.note(0, REPLY)
    assert state.role_note(0) is RoleNote.QUIET


def test_heartbeats_that_are_too_seldom_leave_it_to_the_child(
    handles: list[ChildHandle], clock: Clock
) -> None:
    seldom = replace(get_settings(), heartbeat_ms=TERM_MS // 3 + 1, lease_ms=2 * TERM_MS)
    roles = made(handles, seldom)
    roles.note(0, REPLY)
    assert handles[1].state.role_note(0) is RoleNote.ASK


def test_a_heartbeat_says_who_sleeps(handles: list[ChildHandle]) -> None:
    roles, state = made(handles), handles[1].state
    state.note_sleep(1, True)
    assert roles.terms(0) == [RoleTerm("leader", "w.2", TERM_MS, False)]
    assert roles.terms(1) == [RoleTerm("leader", "w.2", TERM_MS, True)]
    handles[1].vacate()
    assert roles.terms(1) == []
    handles[1].assign("w.3", 0.0)
    assert roles.terms(1) == [RoleTerm("leader", "w.3", TERM_MS, False)]
