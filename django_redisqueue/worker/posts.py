"""What a supervisor is told and what it knows of each seat."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from .seat import Seat
from .zygote import Role

logger = logging.getLogger("django_redisqueue")

EXIT_DONE = 0  # told to stop, or to be renewed
EXIT_DRY = 10  # with burst: the queues were empty


@dataclass(slots=True)
class Post:
    """A seat and who sits in it."""

    seat: Seat
    role: Role
    child: str = ""
    pid: int = 0
    born: float = 0.0
    watched_until: float = 0.0
    handed_back: tuple[str, int] | None = None  # id and lease of the slow job that it was done for
    overdue: tuple[str, int] | None = None
    is_killed: bool = False  # by us, at shutdown or by the watchdog: its jobs are not to blame
    silent_since_ms: int = 0  # when (monotonic) the watchdog first missed a sign of life
    is_leaving: bool = False  # told to stop after its job
    respawn_at: float = 0.0
    early_deaths: int = 0
    is_over: bool = False  # nobody will sit here again

    def take_seat(self, child: str, now: float) -> None:
        """A new child is on its way."""
        self.child, self.born, self.respawn_at = child, now, 0.0
        self.overdue, self.handed_back = None, None
        self.is_killed, self.is_leaving, self.silent_since_ms = False, False, 0

    def leave_seat(self) -> None:
        """The child is dead, and what its seat said of it was read."""
        self.pid, self.child, self.watched_until = 0, "", 0.0  # first: see ``held``
        self.seat.reset()

    def order(self, line: str) -> None:
        """Tell the child something."""
        if self.pid:
            self.is_leaving = self.is_leaving or line == "stop"
            self.seat.order(line)
            os.kill(self.pid, signal.SIGUSR1)

    def abandon(self, job_id: str, lease: int) -> None:
        """Have a job ended that is another worker's by now."""
        logger.warning("job %s: its lease %d is lost, child %s ends it", job_id, lease, self.child)
        self.order(f"abandon {job_id} {lease}")


def held(posts: Sequence[Post]) -> dict[str, set[str]]:
    """The ids that each child runs, or has ended and may not have reported. For any thread: one
    whose seat is being left meanwhile is left out."""
    found = {}
    for post in posts:
        child = post.child
        if post.role == "jobs" and child:
            ids = {job.id for job in post.seat.running()}  # first: what ends is logged before
            ids.update(outcome.id for outcome in post.seat.outcomes())
            if post.child == child:
                found[child] = ids
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """Seconds, bytes; ``max_memory`` 0 for no limit."""

    grace: float = 25.0
    max_memory: int = 0
    burst: bool = False


@dataclass(slots=True)
class Bells:
    """Pipes that wake the supervisor: the children's bell, and its own threads and signals."""

    bell: int
    bell_end: int
    own: int
    own_end: int
