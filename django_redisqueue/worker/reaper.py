"""Recovers jobs that Redis assigns to a child that is not running them.

``Reaper`` recovers those of dead children: in every heartbeat, and in the command ``reapqueue``.
``RewoundClaims`` releases those that a living child has already ended, ``release_unanswered`` those
whose claim got no reply.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field

from ..broker.base import BATCH
from ..broker.commands import Commands
from ..broker.queries import Queries
from ..broker.replies import ReapReply
from ..core.statuses import JobReason
from ..exceptions import RedisQueueError, WrongKeyType
from .identity import parse_child

logger = logging.getLogger("django_redisqueue")

COMPARED_AFTER = (1, 2, 4, 8, 16, 32, 64)  # leases after an outage (RewoundClaims)
AT_ANY_TIME = 2**53  # ms, later than any claim

UnreportedJobs = Callable[[], Mapping[str, set[str]]]  # child -> ids, see `unreported_jobs`


@dataclass(slots=True)
class ReapReport:
    children: list[str] = field(default_factory=list)
    jobs: list[tuple[str, str]] = field(default_factory=list)  # id, outcome
    wait_ms: int = 0  # until expired leases may be reaped, because Redis was recently unavailable

    def add(self, reaped: ReapReply) -> None:
        if reaped.child and reaped.child not in self.children:
            self.children.append(reaped.child)
        self.jobs.extend(reaped.jobs)
        self.wait_ms = max(self.wait_ms, reaped.wait_ms)

    def count(self, outcome: str) -> int:
        """How many jobs had this outcome: recovered, released, cancelled, or poison."""
        return sum(1 for _, found in self.jobs if found == outcome)


class Reaper:
    """Recovers jobs in bounded passes of atomic steps; safe to run anywhere at any time."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._queries = Queries(commands.connection, commands.settings)
        self._positions: dict[str, int] = {}  # of the next page of orphans, by queue

    def run_once(self, until: float = math.inf) -> ReapReport:
        """Reap the children whose leases have expired, until ``until`` (monotonic) at the latest.

        Each step is one script call of at most 100 jobs, so that other clients get their turn.
        """
        report = ReapReport()
        while True:
            reaped = self._reap()
            report.add(reaped)
            if not reaped.child or time.monotonic() >= until:
                return report

    def reap_dead(
        self, child: str, started: Sequence[str] | None, keep: Sequence[str] = ()
    ) -> bool:
        """Reap a child whose process is known to be dead. True if jobs stay with it, because a key
        of their queue has the wrong type.

        ``started``: the jobs that ran, None if unknown. ``keep``: jobs to leave with the child,
        because their outcomes are still to be reported.
        """
        is_stuck, more = False, True
        while more:
            reaped = self._reap(child, started, keep)
            is_stuck, more = is_stuck or reaped.stuck, reaped.more
        return is_stuck

    def take_over(self) -> None:
        """Reap at once the children of dead workers of this machine."""
        for child, _ in self._queries.workers():
            worker = parse_child(child)
            if worker is not None and worker.is_gone:
                self.reap_dead(child, None)

    def recover_orphans(self, queues: Sequence[str]) -> list[tuple[str, str, str]]:
        """Recover jobs whose child does not exist; returns (job id, child, outcome).

        Each pass reads one page of every queue.
        """
        found = []
        for queue in queues:
            with suppress(WrongKeyType):  # the timer logs that the queue is blocked
                after, jobs = self._commands.recover_orphans(queue, self._positions.get(queue, 0))
                self._positions[queue] = after
                found.extend(jobs)
        for job_id, child, outcome in found:
            #: A job was held by a process that no worker knows, for example after Redis lost its
            #: last writes. It returns to its queue, or ends as the line says. No action is needed.
            logger.warning(
                "job %s was held by %s, which does not exist: %s", job_id, child, outcome
            )
        return found

    def _reap(
        self, child: str = "", started: Sequence[str] | None = None, keep: Sequence[str] = ()
    ) -> ReapReply:
        """One step, which is logged."""
        reaped = self._commands.reap(child, started, keep)
        if reaped.unreadable:
            #: Another program has overwritten the list of the jobs that a dead process held.
            #: Maintenance recovers these jobs within two leases. Rename or delete the key.
            logger.error(
                "child %s is gone, and %s is not its list of jobs: maintenance looks for them",
                reaped.child, self._commands.keys.child_processing(reaped.child),
            )  # fmt: skip
        for job_id, outcome in reaped.jobs:
            if outcome == JobReason.POISON:
                #: The job took its worker down three times, for example by running out of memory, a
                #: crash in C code, or os._exit. Find the cause before you retry it.
                logger.error(
                    "job %s failed: its worker died too often while it ran (poison)", job_id
                )
            else:
                #: The job's process died, in most cases killed because of its memory. The job
                #: returns to its queue, or ends as the line says. Look into it if it repeats.
                logger.warning("job %s of a dead child: %s", job_id, outcome)
        return reaped


class RewoundClaims:
    """Detects claims that Redis resurrected after losing writes.

    After a crash with its last second unwritten, or a failover to a stale replica, Redis may list a
    job as held by a child that has already reported the job's outcome. The child renews its lease,
    so the job would never be reaped. One whole lease after each outage, the supervisor therefore
    compares: of the jobs that a child has held since before the outage, some are running or yet to
    be reported; the rest are released. A later outage is compared after a lease of its own, and
    postpones nothing.

    The clock of a former master may have been ahead, so that jobs claimed there seem to have been
    claimed since. At growing intervals, the supervisor therefore compares again the jobs that a
    child has held for longer than a lease.
    """

    def __init__(self, commands: Commands, unreported: UnreportedJobs) -> None:
        self._commands = commands
        self._unreported = unreported
        self._steady_ms = 0  # of the last heartbeat
        self._due: deque[tuple[float, int]] = deque()  # when to compare; the latest claim
        self._due_again: deque[tuple[float, int]] = deque()  # for the last outage

    def after_beat(self, steady_ms: int) -> None:
        """``steady_ms``: the time since which this Redis has had heartbeats without a gap."""
        now = time.monotonic()
        if self._steady_ms and steady_ms != self._steady_ms:
            lease_ms = self._commands.settings.lease_ms
            first, *again = (
                (now + lease_ms * leases / 1000, steady_ms + lease_ms * (leases - 1))
                for leases in COMPARED_AFTER
            )
            self._due.append(first)
            self._due_again = deque(again)
        self._steady_ms = steady_ms
        for due in (self._due, self._due_again):
            while due and now >= due[0][0]:
                self._release_all(due.popleft()[1])

    def _release_all(self, before_ms: int) -> None:
        for child, known in self._unreported().items():
            for job_id in release_unknown(self._commands, child, before_ms, known):
                #: Redis lost its last writes in a crash or a failover, so a job that had ended runs
                #: again. Make the task idempotent, or use appendfsync always. After two outages
                #: within a lease, it may also be a job that has not run: its claim got no reply.
                logger.warning(
                    "job %s ended in child %s, but Redis lost that write: it runs again",
                    job_id, child,
                )  # fmt: skip


def release_unanswered(
    commands: Commands, silent: Set[str], unreported: Mapping[str, Set[str]]
) -> None:
    """Release the jobs that ``silent`` children have claimed in a shard by calls without a reply.

    A child sends such a call again to learn what it has claimed. With several shards it may first
    run another shard's job, for however long. So after a lease, the jobs that it holds without
    knowing are released. ``unreported``: the jobs that it knows of.
    """
    for child in silent & unreported.keys():
        for job_id in release_unknown(commands, child, AT_ANY_TIME, unreported[child]):
            #: A process claimed a job, but the reply was lost, and it is running a job of another
            #: shard. The job returns to its queue. No action is needed.
            logger.warning(
                "job %s: child %s got no reply when it claimed it: released", job_id, child
            )


def release_unknown(
    commands: Commands, child: str, before_ms: int, known: Set[str]
) -> Iterator[str]:
    """Release all but the ``known`` jobs that a child has held since ``before_ms``. Yields them."""
    more = True
    try:
        while more:
            ids = commands.release_unknown(child, before_ms, sorted(known))
            yield from ids
            more = len(ids) == BATCH
    except RedisQueueError as error:
        #: Jobs that a process holds but does not run could not be released, because Redis refuses
        #: writes or a key has the wrong type. Remove the cause; the jobs wait until then.
        logger.error("jobs that child %s no longer runs stay with it: %s", child, error)
