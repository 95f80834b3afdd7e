"""The outbox's relay: sends jobs that the enqueuing process could not send, resends jobs that Redis
has lost, and deletes the rows of jobs that are safe. Maintenance runs it.

For every row it asks Redis whether Redis has accepted the job (``broker.durability``). If Redis
lost its last writes, was flushed, or was replaced by an older copy, it has not, and the job is sent
again, unless the mirror knows that it has ended. While no outbox has rows, a pass costs one query
per alias and no call to Redis.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from django.db import Error as DatabaseError
from django.db import connections, router
from django.db.models import Q, QuerySet
from django.utils import timezone

from ..broker.base import slices
from ..broker.commands import Commands, batches
from ..broker.durability import Durability
from ..broker.entries import EventFeed, Position, parse_position
from ..broker.policies import UniqueQueries
from ..broker.workflows import WorkflowQueries
from ..client.transport import send_workflows
from ..core.ids import is_workflow_id
from ..core.job_data import NewJob
from ..core.statuses import FINAL, JobReason
from ..exceptions import RedisFull, UniqueConflict, WorkflowError, WrongKeyType, first_line
from ..models import JobRecord, MirrorState, OutboxJob, WorkflowRecord
from ..models.tables import has_table, rows_of_shard
from .rows import (
    CHUNK,
    ids_on,
    ids_with_rows,
    row_id_of,
    rows_on,
    to_new_job,
    to_push,
    unrelayed,
    waits_for_mirror,
)

logger = logging.getLogger("django_redisqueue")

GRACE = timedelta(seconds=5)  # within which the enqueuing process sends its own jobs
PAGE_ROWS = 4_000  # rows of an alias per pass: asking whether Redis is durable may take a second
RETRY_REFUSED = 600.0  # s until jobs that Redis refused are tried again
ORPHAN_AGE = timedelta(days=1)  # after which a row's siblings on other aliases will never commit
# s for which this process must also have seen that they are missing, because the age of a row
# compares the clocks of two machines, one of which may be wrong.
ORPHAN_WATCH = 3600.0
FORGET_AFTER_MS = 3_600_000  # after which Redis forgets an accepted id that has no row


class Relay:
    """Makes passes over the outbox of this alias, if it has one."""

    def __init__(self, commands: Commands, alias: str) -> None:
        self._commands = commands
        self._alias = alias
        settings = commands.settings
        self._durability = Durability(
            commands.connection, settings, replicas=settings.wait_replicas
        )
        self._retry_at = 0.0
        self._after: datetime | None = None  # unrelayed rows up to here were checked
        self._sent_after = ""  # and relayed rows up to this id
        self._incomplete: dict[str, float] = {}  # since when (monotonic), by id
        # Jobs and workflows that Redis has deleted, each with the last event when this was noticed
        self._gone: dict[str, Position] = {}
        self.problem = ""  # the error that kept the last pass from the outbox

    def run_once(self) -> bool:
        """Send waiting jobs and delete safe rows; True if there is more. Raises RedisQueueError."""
        more, problem = False, ""
        try:
            connections[self._alias].close_if_unusable_or_obsolete()
            if has_table(OutboxJob, self._alias) and self._of_shard(rows_on(self._alias)).exists():
                more = self._pass()
            else:
                self._incomplete.clear()  # including rows that other processes have sent
                self._gone.clear()
        except (DatabaseError, RedisFull) as error:
            problem = first_line(error)
            if problem != self.problem:
                #: The outbox cannot be read, so its jobs are sent later. Look at that database.
                logger.error("outbox of database %r: %s; trying again", self._alias, problem)
        self.problem = problem
        return more

    def _of_shard(self, rows: QuerySet[OutboxJob]) -> QuerySet[OutboxJob]:
        return rows_of_shard(rows, self._commands.connection.shard)

    def _pass(self) -> bool:
        rows = self._of_shard(unrelayed(self._alias))
        if time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + RETRY_REFUSED
            self._check(_read_rows(rows.exclude(problem="")))
        now = timezone.now()
        # A row from the future was created by another machine's clock; sending it early does no
        # harm.
        is_ripe = Q(created_at__lt=now - GRACE) | Q(created_at__gt=now + GRACE)
        found = rows.filter(is_ripe, problem="")
        if self._after is not None:
            found = found.filter(created_at__gt=self._after)
        page = _read_rows(found)
        self._after = page[-1].created_at if len(page) == PAGE_ROWS else None
        self._check(page)
        return self._check_sent() or self._after is not None

    def _check_sent(self) -> bool:
        """Check a page of the relayed rows, by id; True if there are more."""
        sent = rows_on(self._alias).exclude(relayed_at=None).filter(pk__gt=self._sent_after)
        page = _read_rows(self._of_shard(sent).order_by("pk"))
        self._check(page)
        self._sent_after = page[-1].id if len(page) == PAGE_ROWS else ""
        return bool(self._sent_after)

    def _check(self, page: Sequence[OutboxJob]) -> None:
        """Delete the rows of safe jobs, and send jobs that Redis does not have."""
        if not page:
            return
        has_ended = self._mirrored(page)
        unmirrored = [row for row in page if row.id not in has_ended]
        # Rows that must stay only until Redis has stored their jobs durably
        settled = {row.id for row in page if row.id in has_ended or not waits_for_mirror(row.audit)}
        settled |= self._unmirrorable(unmirrored)
        is_durable = self._durability.accepted([row.id for row in page], wait=bool(settled))
        accepted = [row for row in page if row.id in is_durable]
        lacking = [row for row in page if row.id not in is_durable]
        safe = [row for row in accepted if row.id in settled and is_durable[row.id]]
        safe += [row for row in lacking if has_ended.get(row.id)]
        self._delete_safe(safe)
        _mark_relayed([self._alias], [row.id for row in accepted])
        lost = [row.id for row in lacking if not has_ended.get(row.id)]
        for some in slices(lost, CHUNK):
            self._relay(list(rows_on(self._alias).filter(pk__in=some).order_by("created_at")))

    def _mirrored(self, page: Sequence[OutboxJob]) -> Mapping[str, bool]:
        """The rows that the mirror has; True for those that have ended, except as ``lost``."""
        alias = router.db_for_write(JobRecord)  # replicas lag
        if not self._commands.settings.mirror or not has_table(JobRecord, alias):
            return {}
        known = {}
        for model, holds_workflows in ((JobRecord, False), (WorkflowRecord, True)):
            ids = [row.id for row in page if is_workflow_id(row.id) is holds_workflows]
            found = model._base_manager.using(alias).filter(pk__in=ids)
            for row_id, status, reason in found.values_list("pk", "status", "reason"):
                known[row_id] = status in FINAL and reason != JobReason.LOST
        return known

    def _unmirrorable(self, rows: Sequence[OutboxJob]) -> set[str]:
        """The rows whose jobs or workflows the mirror will never have.

        Redis did not create the job because another one had its unique key; it forgets a
        duplicate's id after a day. Or it is gone and the mirror has read all earlier events,
        because the database refused its own, or they were trimmed before they were read.
        """
        queries = UniqueQueries(self._commands.connection, self._commands.settings)
        found = set(queries.aliases([row.id for row in rows if row.unique]))
        old = [row.id for row in rows if row.created_at < timezone.now() - ORPHAN_AGE]
        jobs = [row_id for row_id in old if not is_workflow_id(row_id)]
        gone = [job_id for job_id, status in queries.statuses(jobs).items() if not status]
        return found | self._behind_mirror([*gone, *self._gone_workflows(old)])

    def _gone_workflows(self, row_ids: Iterable[str]) -> Iterable[str]:
        """The workflows among these that Redis has deleted."""
        ids = [row_id for row_id in row_ids if is_workflow_id(row_id)]
        queries = WorkflowQueries(self._commands.connection, self._commands.settings)
        found = queries.workflows(ids) if ids else []
        return [one for one, workflow in zip(ids, found, strict=True) if workflow is None]

    def _behind_mirror(self, gone: Sequence[str]) -> set[str]:
        """The ids that were gone when the last event that the mirror has read was written."""
        alias = router.db_for_write(MirrorState)
        if not gone or not has_table(MirrorState, alias):
            return set()
        connection = self._commands.connection
        _, last = EventFeed(connection).ends()
        states = MirrorState._base_manager.using(alias).filter(shard=connection.shard)
        read = parse_position(states.values_list("position", flat=True).first() or "0-0")
        found = {row_id for row_id in gone if self._gone.setdefault(row_id, last) <= read}
        for row_id in found:
            del self._gone[row_id]
        return found

    def _delete_safe(self, rows: Sequence[OutboxJob]) -> None:
        """Delete rows with their siblings on other aliases, then let Redis forget their ids. In the
        opposite order, a remaining row would be sent again. Ids that the relay has sent are left to
        ``forget_ids``, because the process that committed them may still be about to send them."""
        if not rows:
            return
        ids = [row.id for row in rows]
        for alias in {self._alias, *_sibling_aliases(rows)}:
            rows_on(alias).filter(pk__in=ids).delete()
        self._durability.forget([row.id for row in rows if not row.resent])
        for row_id in ids:
            self._gone.pop(row_id, None)

    def _relay(self, rows: Sequence[OutboxJob]) -> None:
        whole = self._without_unsent_parents(list(self._complete(rows)))
        # A row's siblings on other aliases are marked with it.
        aliases = {self._alias, *_sibling_aliases(whole)}
        for alias in aliases:
            found = rows_on(alias).filter(pk__in=[row.id for row in whole], resent=False)
            found.update(resent=True)
        jobs = []
        for row in whole:
            if is_workflow_id(row.id):
                self._push(aliases, row)
            else:
                jobs.append(to_new_job(row))
        for batch in batches(jobs):
            problems = self._send(batch)
            _mark_relayed(aliases, [job.id for job in batch if job.id not in problems])
            for job_id, problem in problems.items():
                self._record_refusal(job_id, problem)

    def _complete(self, rows: Sequence[OutboxJob]) -> Iterable[OutboxJob]:
        """The rows whose siblings on other aliases also exist."""
        ids = [row.id for row in rows]
        there = {alias: ids_on(alias, ids) for alias in _sibling_aliases(rows) - {self._alias}}
        for row in rows:
            missing = [a for a in row.aliases.split(",") if a in there and row.id not in there[a]]
            if not missing:
                self._incomplete.pop(row.id, None)
                yield row
            elif self._is_orphan(row):
                #: A job was enqueued in transactions of several databases, and one of them was
                #: rolled back, so the job does not run. Enqueue it again if the work of the others
                #: needs it.
                logger.warning(
                    "outbox of database %r: job %s is dropped because its transaction on %s has "
                    "not committed", self._alias, row.id, ", ".join(missing),
                )  # fmt: skip
                rows_on(self._alias).filter(pk=row.id).delete()
                del self._incomplete[row.id]

    def _is_orphan(self, row: OutboxJob) -> bool:
        now = time.monotonic()
        seconds = now - self._incomplete.setdefault(row.id, now)
        return seconds >= ORPHAN_WATCH and timezone.now() - row.created_at > ORPHAN_AGE

    def _send(self, jobs: Sequence[NewJob]) -> dict[str, str]:
        """Send up to a batch; returns the problems of refused jobs by id. Raises errors that
        concern the whole batch.

        A job whose parent no longer exists is accepted and ends as cancelled, because there is no
        caller left to handle an error.
        """
        try:
            self._commands.enqueue(jobs, allow_missing_parents=True)
        except WrongKeyType as error:
            if len(jobs) == 1:
                return {jobs[0].id: str(error)}
            problems: dict[str, str] = {}
            for job in jobs:
                problems |= self._send([job])
            return problems
        return {}

    def _push(self, aliases: Iterable[str], row: OutboxJob) -> None:
        """Send a workflow, or the rest of one whose producer died during the push."""
        try:
            deque(send_workflows(self._commands.connection, [to_push(row)]), maxlen=0)
        except (UniqueConflict, WorkflowError, WrongKeyType) as error:
            self._record_refusal(row.id, str(error))
            return
        _mark_relayed(aliases, [row.id])

    def _record_refusal(self, job_id: str, problem: str) -> None:
        row = rows_on(self._alias).filter(pk=job_id).exclude(problem=problem)
        if row.update(relayed_at=None, problem=problem):
            #: Redis does not accept this job, for the reason given. The job waits in the outbox and
            #: is tried again. Remove the cause, or delete the row in manage.py shell.
            logger.error(
                "outbox of database %r: job %s is refused: %s", self._alias, job_id, problem
            )

    def _without_unsent_parents(self, rows: Sequence[OutboxJob]) -> Sequence[OutboxJob]:
        """The rows without parents that are yet to be sent: parents go first."""
        parents = {row.id: {row_id_of(one) for one in row.after.split()[1:]} for row in rows}
        stored = sorted(ids_with_rows(set().union(*parents.values())))
        unsent = set(stored) - self._durability.accepted(stored, wait=False).keys()
        return [row for row in rows if unsent.isdisjoint(parents[row.id])]


def _read_rows(rows: QuerySet[OutboxJob]) -> list[OutboxJob]:
    """Read rows without their arguments, which may be large."""
    return list(rows.only("id", "audit", "aliases", "unique", "created_at", "resent")[:PAGE_ROWS])


def _sibling_aliases(rows: Iterable[OutboxJob]) -> set[str]:
    """The aliases that these rows name and that have the table."""
    named = {alias for row in rows for alias in row.aliases.split(",") if alias}
    return {name for name in named if name in connections and has_table(OutboxJob, name)}


def _mark_relayed(aliases: Iterable[str], ids: Sequence[str]) -> None:
    for alias in aliases:
        rows = rows_on(alias).filter(pk__in=ids, relayed_at=None)
        rows.update(relayed_at=timezone.now(), problem="")


def forget_ids(commands: Commands) -> bool:
    """Let Redis forget ids whose rows were deleted by a process that died before it could tell
    Redis. Checks the outboxes of all aliases. Returns False: there is no hurry."""
    durability = Durability(commands.connection, commands.settings)
    ids = durability.older_than(FORGET_AFTER_MS, PAGE_ROWS)
    try:
        stored = ids_with_rows(ids)
    except DatabaseError:
        return False  # a relay has logged it; without the database nothing is known
    durability.forget([job_id for job_id in ids if job_id not in stored])
    return False
