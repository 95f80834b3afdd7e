"""Periodic upkeep of a shard. Each class does one bounded pass; maintenance.py calls them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from django.db import router

from ...broker.commands import Commands
from ...broker.failures import BlockedQueues
from ...broker.policies import UniqueQueries
from ...broker.queries import Continuation, Queries
from ...broker.replies import STEP, ContinuationStep
from ...broker.scan import SCAN_START
from ...broker.workflows import GatherQueries
from ...client.large_results import delete_result
from ...core.ids import ids_by_shard
from ...core.statuses import FINAL, ApprovalStatus, Status
from ...exceptions import RedisQueueError, RedisUnavailable, WrongKeyType
from ...models import Approval
from ...models.approvals import close_approvals
from ...models.tables import has_table, rows_of_shard

logger = logging.getLogger("django_redisqueue")

PASS = 1.0  # s that promotion may take before schedules and everything else get their turn
AGAIN_MS = 1  # until its next pass in that case
STUCK_MS = 1000  # until the next try, if a key of the wrong type blocks promotion
STEPS_A_PASS = 50  # of at most 100 jobs
AUDIT_STEPS = 10  # of at most 100 jobs
APPROVALS_PER_PASS = 100
GATHERS_PER_PASS = 20
KNOWN_FOR = 60.0  # s until Redis is asked for its queues again
REPORT_INTERVAL = 60.0  # s between two log lines about jobs that are deleted early
LINGERING = 1000  # cancelled ids that a queue's list may hold, because claims drop them at no cost


class Promoter:
    """Moves due jobs into their queues, and continues work that scripts left for later.

    ``schedule_ms``: at the last pass, the time until the next schedule was due, or -1."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self.schedule_ms = -1
        self._queues = tuple(commands.settings.queues)
        self.blocked = BlockedQueues("maintenance")  #: by keys of the wrong type

    def run_once(self) -> int:
        """Promote due jobs: all of them, unless that takes longer than a pass. Returns ms until the
        next pass, -1 if none is scheduled."""
        end = time.monotonic() + PASS
        while True:
            moved, next_ms, broken, self.schedule_ms = self._commands.promote(self._queues)
            self.blocked.note(broken)
            if next_ms != 0:
                return next_ms
            while time.monotonic() < end and self._commands.advance():
                moved += 1
            if time.monotonic() >= end:
                return AGAIN_MS
            if not moved and self._commands.promote(self._queues).next_ms == 0:
                return STUCK_MS


class ContinuationRunner:
    """Continues clears and requeues whose callers died halfway."""

    def __init__(self, commands: Commands) -> None:
        self._queries = Queries(commands.connection, commands.settings)
        self._verbs = {"clear": commands.clear, "requeue": commands.requeue_oldest}
        self._begun: list[Continuation] = []  # by this runner, which has not finished them

    def run_once(self) -> bool:
        """True if there is more to do now."""
        # Redis takes those that have begun for those of a living caller, which this runner is.
        begun, self._begun = self._begun, []
        found = self._queries.abandoned_continuations()
        for rest in found:
            #: A process died while it was clearing or requeueing many jobs, and a worker finishes
            #: the work. No action is needed.
            logger.info(
                "queue %s: the %s of %s jobs continues without its caller; %d left",
                rest.queue, rest.verb, rest.status, rest.left,
            )  # fmt: skip
        for rest in begun + found:
            try:
                left = self._continue(rest)
            except RedisUnavailable:
                raise
            except RedisQueueError as error:  # concerns this queue alone
                #: A clear or a requeue whose caller died cannot continue, because a key of the
                #: queue has the wrong type. Rename or delete that key.
                logger.error("queue %s: the %s continues later: %s", rest.queue, rest.verb, error)
                continue
            if left:
                self._begun.append(rest._replace(left=left))
        return bool(self._begun)

    def _continue(self, rest: Continuation) -> int:
        """Take the steps of one pass; returns how many jobs are left for the next."""
        left = rest.left
        for _ in range(STEPS_A_PASS):
            step = ContinuationStep(rest.token, left, 0)
            taken = self._verbs[rest.verb](rest.queue, rest.status, min(left, STEP), step)
            left -= taken.seen
            if taken.seen == 0 or left == 0:
                return 0
        return left


class LaneAudit:
    """Repairs slots and lanes that were changed manually, so that no job waits forever.

    Reads at most AUDIT_STEPS pages per pass, and one in an idle shard.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._queue = self._position = ""  # where the next step begins

    def run_once(self) -> None:
        """The next pass continues, because none of this is urgent."""
        total = 0
        for _ in range(AUDIT_STEPS):
            found = self._commands.audit_lanes(self._queue, self._position)
            repaired, self._queue, self._position = found
            total += repaired
            if not self._queue and not self._position:
                break
        if total:
            #: Slots of limits, or lanes of jobs, did not agree with the jobs, because keys in Redis
            #: were deleted or changed by hand. This has been repaired; avoid such changes.
            logger.warning("repaired %d slots and lanes that were changed manually", total)


def set_aging(commands: Commands) -> None:
    """Store in Redis the option ``AGING`` of the queues in this worker's settings."""
    commands.set_aging({name: queue.aging_ms for name, queue in commands.settings.queues.items()})


class KnownQueues:
    """The queues of a shard: those in the settings and all others in Redis.

    New queues are rare, so Redis is asked for them once a minute. Not thread-safe.
    """

    def __init__(self, commands: Commands, queues: Sequence[str]) -> None:
        self._queries = Queries(commands.connection, commands.settings)
        self._own = queues
        self._queues: Sequence[str] = ()
        self._ask_at = 0.0

    def names(self) -> Sequence[str]:
        now = time.monotonic()
        if now >= self._ask_at:
            self._queues = [*self._own, *self._queries.former_queues(self._own)]
            self._ask_at = now + KNOWN_FOR
        return self._queues


class Pruner:
    """Deletes finished jobs of some statuses by count, age and bytes."""

    def __init__(self, commands: Commands, statuses: Sequence[Status], known: KnownQueues) -> None:
        self._commands = commands
        self._statuses = statuses
        self._known = known
        self._forced: Counter[tuple[str, Status]] = Counter()  # not yet logged
        self._report_at = 0.0

    def run_once(self) -> int:
        """Prune all queues that Redis has. Returns how many jobs were deleted."""
        known = self._known.names()
        total = sum(self._prune(queue, status) for queue in known for status in self._statuses)
        self._report_forced()
        return total

    def _report_forced(self) -> None:
        now = time.monotonic()
        if not self._forced or now < self._report_at:
            return
        self._report_at = now + REPORT_INTERVAL
        for (queue, status), count in self._forced.items():
            #: Finished jobs leave Redis earlier than KEEP_* and the TTLs say, because they take up
            #: too much memory. Their records stay. Raise FINISHED_MAX_BYTES, or return less data
            #: from tasks. The line appears at most once a minute, with all jobs since the last one.
            logger.warning(
                "queue %s: %d %s jobs deleted early because of FINISHED_MAX_BYTES",
                queue, count, status.value,
            )  # fmt: skip
        self._forced.clear()

    def compact(self) -> bool:
        """Drop cancelled ids, also from queues without workers. True if there is more to do now."""
        more = False
        for queue in self._known.names():
            with suppress(WrongKeyType):  # the queue is blocked, which the promoter has logged
                more |= all(self._commands.compact(queue, LINGERING) for _ in range(STEPS_A_PASS))
        return more

    def _prune(self, queue: str, status: Status) -> int:
        settings = self._commands.settings
        limits = settings.queues.get(queue, settings.retention)
        failed = status is Status.FAILED
        keep = limits.keep_failed if failed else limits.keep_completed
        ttl_ms = limits.failed_ttl_ms if failed else limits.result_ttl_ms
        total = 0
        for _ in range(STEPS_A_PASS):
            try:
                gone, forced, more = self._commands.prune(queue, status.value, keep, ttl_ms)
            except WrongKeyType:  # the queue is blocked, which the promoter has logged
                break
            total += gone
            if forced:
                self._forced[queue, status] += forced
            if not more:
                break
        return total


class ApprovalCloser:
    """Closes pending approvals of a shard's jobs that were cancelled, have failed or are gone, one
    page per pass. Asks Redis only while there are pending approvals."""

    def __init__(self, commands: Commands) -> None:
        self._queries = UniqueQueries(commands.connection, commands.settings)
        self._after = 0  # the next pass starts after this primary key

    def run_once(self) -> bool:
        """True if there may be more to do now. Raises RedisQueueError or DatabaseError."""
        alias = router.db_for_write(Approval)
        if not has_table(Approval, alias):
            return False
        pending = rows_of_shard(
            Approval._base_manager.using(alias).filter(status=ApprovalStatus.PENDING),
            self._queries.connection.shard, "job_id",
        )  # fmt: skip
        found = pending.filter(pk__gt=self._after).order_by("pk").values_list("pk", "job_id")
        rows = dict(found[:APPROVALS_PER_PASS])
        self._after = max(rows) if len(rows) == APPROVALS_PER_PASS else 0
        ended = self._ended(rows.values())
        suspects = {pk: job_id for pk, job_id in rows.items() if job_id in ended}
        if suspects:
            close_approvals(suspects, lambda: self._ended(suspects.values()))
        return bool(self._after)

    def _ended(self, job_ids: Iterable[str]) -> Mapping[str, str]:
        """The final statuses of the jobs among these that have ended; "gone" for unknown ones."""
        found = self._queries.statuses(sorted(set(job_ids)))
        return {
            job_id: status or "gone"
            for job_id, status in found.items()
            if not status or status in FINAL
        }


def jobs_that_may_run(commands: Commands, ids: Iterable[str]) -> set[str]:
    """The jobs among these, in any shard, that Redis has and that have not completed: a failed one
    may be requeued. Raises RedisQueueError."""
    found: set[str] = set()
    for shard, some in ids_by_shard(ids).items():
        if shard < commands.settings.shards:
            queries = UniqueQueries(commands.connection.at(shard), commands.settings)
            statuses = queries.statuses(some)
            found.update(one for one in some if statuses[one] not in ("", Status.COMPLETED))
    return found


class ResultFileCleaner:
    """Deletes the files of gathers that are over, and of other jobs that Redis no longer has.

    The files are deleted before their names in Redis, so an interrupted pass leaves none behind.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._gathers = GatherQueries(commands.connection, commands.settings)
        self._queries = Queries(commands.connection, commands.settings)
        self._cursor = SCAN_START

    def run_once(self) -> bool:
        """True if there may be more to do now. Raises RedisQueueError."""
        keys = self._gathers.closed(GATHERS_PER_PASS)
        forgotten = [self._forget_gather(key) for key in keys]
        more_jobs = self._delete_abandoned()
        return more_jobs or (all(forgotten) and len(keys) == GATHERS_PER_PASS)

    def _forget_gather(self, key: str) -> bool:
        gather_id, names = self._gathers.files(key)
        if not _deleted(names, f"the files of gather {key!r}"):
            return False
        self._commands.delete_gather(key, gather_id)
        return True

    def _delete_abandoned(self) -> bool:
        """One step of the scan; True unless it was the last."""
        self._cursor, names = self._queries.abandoned_result_files(self._cursor)
        if names and _deleted(names, "the files of results"):
            self._commands.forget_result_files(names)
        return self._cursor != SCAN_START


def _deleted(names: Sequence[str], what: str) -> bool:
    """Delete files; False, with a log entry, if the storage cannot."""
    try:
        for name in names:
            delete_result(name)
    except Exception as error:  # a file storage may raise anything; the next pass retries
        #: Django's storage refuses to delete files of large results. The worker tries again every
        #: minute. Look at the storage and its permissions.
        logger.error("%s cannot be deleted yet: %r", what, error)
        return False
    return True
