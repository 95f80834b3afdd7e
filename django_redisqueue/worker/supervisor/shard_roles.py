"""The roles of a worker's children, such as maintenance, as the heartbeats see them.

A leader that sleeps leaves the renewal of its term to the heartbeats of its supervisor, and a child
that does not lead leaves it to them to notice that nobody does. So while nothing goes on, a worker
costs a shard its heartbeats and little else. What a heartbeat has found is in memory that the child
shares.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...broker.replies import HeartbeatReply, RoleTerm
from ...conf import Settings
from ..child_state import RoleNote
from .child_handle import ChildHandle
from .fork_server import Role

# s without a transition, after which each step of the maintenance has been done. To these are added
# LEASE, before which nothing is taken for orphaned, and RESEND_WINDOW, before which nothing is
# pruned.
QUIET_AFTER = 60.0


@dataclass(frozen=True, slots=True)
class RoleInRedis:
    """What a kind of child leads (lead.lua), and for how long at a time."""

    name: str
    term_ms: int


@dataclass(slots=True)
class _Activity:
    """When something last went on in a shard, as far as its heartbeats can tell."""

    seen: str | None = None
    until: float = 0.0


class ShardRoles:
    """For the heartbeat threads of all shards."""

    def __init__(
        self, handles: Sequence[ChildHandle], settings: Settings, roles: Mapping[Role, RoleInRedis]
    ) -> None:
        self._holders = [(handle, roles[handle.role]) for handle in handles if handle.role in roles]
        self._heartbeat_ms = settings.heartbeat_ms
        self._quiet_after = QUIET_AFTER + (settings.lease_ms + settings.resend_window_ms) / 1000
        self._activities = [_Activity() for _ in range(settings.shards)]

    def terms(self, shard: int) -> list[RoleTerm]:
        """The roles that the children have or want, for the next heartbeat."""
        return [
            RoleTerm(role.name, handle.child, role.term_ms, handle.state.sleeps(shard))
            for handle, role in self._holders
            if handle.child
        ]

    def note(self, shard: int, reply: HeartbeatReply | None) -> None:
        """Tell the children what a heartbeat has found; None if Redis has not answered."""
        found = RoleNote.ASK if reply is None else self._note_activity(shard, reply)
        for handle, role in self._holders:
            # Like a lease, a term is renewed three times before it ends.
            is_covered = self._heartbeat_ms * 3 <= role.term_ms
            must_ask = reply is None or role.name in reply.to_ask or not is_covered
            handle.state.note_role(shard, RoleNote.ASK if must_ask else found)

    def _note_activity(self, shard: int, reply: HeartbeatReply) -> RoleNote:
        activity, now = self._activities[shard], time.monotonic()
        if reply.interrupted or reply.activity != activity.seen:
            activity.seen, activity.until = reply.activity, now + self._quiet_after
        return RoleNote.ACTIVE if now < activity.until else RoleNote.QUIET
