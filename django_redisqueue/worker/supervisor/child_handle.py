"""What the supervisor knows about each child slot, and what it tells the child in it."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.clock import mono_ms
from ..child_state import ChildState
from .fork_server import Role

logger = logging.getLogger("django_redisqueue")


@dataclass(slots=True)
class ChildHandle:
    """A child slot: its shared state, and the process in it. Times are monotonic seconds."""

    state: ChildState
    role: Role
    child: str = ""  # the id of the child; "" while the slot is empty
    pid: int = 0  # 0 until the fork server has started it
    spawned_at: float = 0.0
    watched_until: float = 0.0
    released_for: tuple[str, int] | None = None  # the slow job (id, lease) that had others released
    timed_out: Sequence[tuple[str, int]] = ()  # the jobs (id, lease) that it was killed for
    is_killed: bool = False  # by us, at shutdown or as unresponsive: its jobs are not to blame
    unresponsive_since_ms: int = 0  # when the watchdog first missed a sign of life
    is_stopping: bool = False  # told to stop after its job
    spawn_at: float = 0.0  # when to start the next child; 0: not planned
    early_exits: int = 0
    is_retired: bool = False  # no further child will start here

    def assign(self, child: str, now: float) -> None:
        """Give the slot to a new child, which the fork server is about to start."""
        self.child, self.spawned_at, self.spawn_at = child, now, 0.0
        self.timed_out, self.released_for = (), None
        self.is_killed, self.is_stopping, self.unresponsive_since_ms = False, False, 0

    def vacate(self) -> None:
        """Empty the slot: the child is dead, and its state has been read."""
        # Before the reset, so that `unreported_jobs` does not take the reset state for the child's.
        self.pid, self.child, self.watched_until = 0, "", 0.0
        self.state.reset()

    def send(self, message: str) -> None:
        """Send a message to the child, if it has started."""
        if self.pid:
            self.is_stopping = self.is_stopping or message in ("stop", "recycle")
            self.state.send(message)
            os.kill(self.pid, signal.SIGUSR1)

    def abandon_job(self, job_id: str, lease: int) -> None:
        """Have the child end a job that now belongs to another worker."""
        #: A worker was stopped or cut off for longer than LEASE, and another one has taken its job,
        #: so this one's report is refused. Nothing is stored twice. If this repeats, look for
        #: overloaded or suspended machines.
        logger.warning("job %s: its lease %d is lost, child %s ends it", job_id, lease, self.child)
        self.send(f"abandon {job_id} {lease}")


# Any thread may call the following functions.


def living_children(handles: Sequence[ChildHandle]) -> list[str]:
    return [handle.child for handle in handles if handle.child]


def running_jobs(handles: Sequence[ChildHandle]) -> list[tuple[str, str, int]]:
    """The job id, child and lease of each running job."""
    return [
        (job.id, handle.child, job.lease)
        for handle in handles
        if handle.child
        for job in handle.state.running()
    ]


def unreported_jobs(handles: Sequence[ChildHandle]) -> dict[str, set[str]]:
    """The ids of the jobs that each child is running, or has ended and may not have reported.
    Leaves out a child whose slot is vacated in the meantime."""
    found = {}
    for handle in handles:
        child = handle.child
        if handle.role == "jobs" and child:
            # Running jobs first: a job that ends is logged before it leaves the table.
            ids = {job.id for job in handle.state.running()}
            ids.update(outcome.id for outcome in handle.state.outcomes())
            if handle.child == child:
                found[child] = ids
    return found


def children_without_reply(handles: Sequence[ChildHandle], shard: int, for_ms: int) -> set[str]:
    """The children that got no reply from a shard and, busy elsewhere, did not ask again."""
    before_ms = mono_ms() - for_ms
    return {
        handle.child
        for handle in handles
        if handle.role == "jobs" and 0 < handle.state.unanswered_since(shard) < before_ms
    }
