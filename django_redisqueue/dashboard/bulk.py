"""Verbs for jobs in a list. A verb has a label, a permission, and the statuses to which it applies.
It acts on all matching jobs of a list at once if the list is short, otherwise in a job.

It acts only on jobs that were in the list when the user confirmed (``before_ms``), so an action
that runs twice, because its worker died, takes effect once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any

from django.apps import apps
from django.db.models import QuerySet

from ..broker.base import slices
from ..broker.commands import Commands
from ..broker.connection import RedisConnection
from ..broker.queries import Queries, UnreadableJob
from ..broker.replies import SINGLE_STEP, STEP
from ..broker.shards import AllShards, Answers, all_shards
from ..client.decorator import task
from ..client.jobs import Job
from ..conf import APP, get_settings
from ..core.ids import ids_by_shard
from ..core.job_data import JobData
from ..core.statuses import FINAL, UNFINISHED, Status
from ..exceptions import InvalidOption
from .filters import EVERYTHING, JobListFilter, instant_of

INLINE = 1000  # jobs in a list that the request itself acts on
PAGE = 1000  # ids per page of the snapshot
OVERLAP = 200  # ids read twice, because jobs that leave the list meanwhile move the others up
SNAPSHOT = 1_000_000  # ids per action (about 100 MB)
logger = logging.getLogger("django_redisqueue.dashboard")

OnProgress = Callable[[int, int], bool]  # (jobs seen, jobs in all) -> whether to continue


@dataclass(frozen=True, slots=True)
class Verb:
    """``call`` accepts at most BATCH ids and returns a code for each, above 0 where it acted."""

    name: str
    label: str
    done: str  # "3 jobs <done>"
    permission: str
    statuses: frozenset[Status]
    call: Callable[[Commands, Sequence[str]], list[int]]
    needs_confirmation: bool = True
    why_left: str = "had changed or disappeared meanwhile"

    def act(self, ids: Sequence[str]) -> tuple[list[str], str]:
        """Act on any number of jobs, each in its shard; return those that had the right status, and
        which shards did not answer, or ''. Raises the error of a shard if none answers."""
        parts = ids_by_shard(ids)

        def act(connection: RedisConnection) -> list[str]:
            return self.act_here(Commands(connection), parts[connection.shard])

        found = all_shards(act, shards=parts)
        return [*chain.from_iterable(found.by_shard.values())], found.problem

    def act_here(self, commands: Commands, ids: Sequence[str]) -> list[str]:
        acted: list[str] = []
        for batch in slices(ids):
            codes = self.call(commands, batch)
            acted += [job_id for job_id, code in zip(batch, codes, strict=True) if code > 0]
        return acted


RETRY = Verb(
    "retry", "Retry", "sent back to the queue", "retry_job",
    frozenset({Status.FAILED, Status.CANCELLED}), Commands.requeue, needs_confirmation=False,
)  # fmt: skip
RUN_NOW = Verb(
    "run_now", "Run now", "moved into the queue", "retry_job",
    frozenset({Status.SCHEDULED, Status.RETRYING}), Commands.run_now, needs_confirmation=False,
    why_left="had changed or disappeared meanwhile, or cannot run until a wait ends",
)  # fmt: skip
CANCEL = Verb(
    "cancel", "Cancel", "cancelled, or asked to stop", "cancel_job", UNFINISHED, Commands.cancel
)
DELETE = Verb("delete", "Delete", "deleted from Redis", "clear_queue", FINAL, Commands.delete)
VERBS = {verb.name: verb for verb in (RETRY, RUN_NOW, CANCEL, DELETE)}


def verbs_for(status: Status) -> list[Verb]:
    return [verb for verb in VERBS.values() if status in verb.statuses]


@dataclass(frozen=True, slots=True)
class BulkAction:
    """A verb for all jobs in a list that match and were there before ``before_ms``, or with
    ``group`` for those whose last error is of that group, in all queues."""

    verb: Verb
    queue: str
    status: Status
    before_ms: int
    which: JobListFilter = EVERYTHING
    own_id: str = ""  # of the job that performs it
    group: str = ""

    def applies_to(self, job: JobData | UnreadableJob) -> bool:
        has_moved = isinstance(job, JobData) and job.status is not self.status
        is_meant = job.id != self.own_id and not has_moved and self.is_in_time(job)
        return is_meant and self.which.matches(job)

    def is_in_time(self, job: JobData | UnreadableJob) -> bool:
        return isinstance(job, UnreadableJob) or instant_of(job) <= self.before_ms


def perform(action: BulkAction, on_progress: OnProgress) -> Answers[int]:
    """Act shard by shard; returns how many jobs in each. Raises a shard's error if none answers."""
    of_group = ids_by_shard(records_of(action)[:SNAPSHOT]) if action.group else {}

    def count_here(connection: RedisConnection) -> int:
        if action.group:
            return len(of_group.get(connection.shard, ()))
        return Queries(connection).length(action.queue, action.status)

    shards = AllShards()
    counts = shards.each(count_here).by_shard
    progress = _Progress(on_progress, sum(counts.values()))

    def act(connection: RedisConnection) -> int:
        if action.group:
            return _one_by_one(action, connection, of_group.get(connection.shard, ()), progress)
        return _perform_here(action, connection, counts[connection.shard], progress)

    found = shards.each(act)
    if not found.missing:
        progress.finish()
    return found


def records_of(action: BulkAction) -> QuerySet[Any, str]:
    """The ids of the jobs of an error group that the mirror has."""
    records = apps.get_model(APP, "JobRecord")  # apps.py imports this module before any model
    found: QuerySet[Any, Any] = records._default_manager.filter(
        error_group=action.group, status=action.status
    )
    return found.order_by("-enqueued_at").values_list("id", flat=True)


class _Progress:
    """How many jobs of all shards were ``seen``, out of those that were there at the beginning."""

    def __init__(self, report: OnProgress, total: int) -> None:
        self.seen = 0
        self._total = total
        self._report = report
        self._is_stopped = False

    def goes_on(self) -> bool:
        """Report the progress; False if the action should stop."""
        if not self._is_stopped:
            self._is_stopped = not self._report(min(self.seen, self._total), self._total)
        return not self._is_stopped

    def finish(self) -> None:
        """Count jobs that were too new to be seen as done."""
        if self._total and not self._is_stopped:
            self._report(self._total, self._total)


def _perform_here(
    action: BulkAction, connection: RedisConnection, count: int, progress: _Progress
) -> int:
    queries, commands = Queries(connection), Commands(connection)
    is_unordered = action.status in (Status.PROCESSING, Status.WAITING)
    if action.which or is_unordered or action.verb is RUN_NOW:
        return _one_by_one(action, connection, _snapshot(action, queries), progress)
    acted = _oldest_first(action, queries, commands, count, progress)
    if action.verb is CANCEL:  # lists of unfinished jobs are not in order of creation
        acted += _one_by_one(action, connection, _snapshot(action, queries), progress)
    return acted


def _oldest_first(
    action: BulkAction, queries: Queries, commands: Commands, left: int, progress: _Progress
) -> int:
    """Act from the end of the list until a job is too new, on at most ``left`` jobs. The cost of a
    step does not depend on the length of the list. Jobs that leave the list meanwhile count as
    seen; those that move into their places are left alone."""
    take = commands.requeue_oldest if action.verb is RETRY else commands.clear
    acted = 0
    while left > 0 and progress.goes_on():
        oldest = queries.outlines(queries.oldest(action.queue, action.status, STEP))
        in_time = list(takewhile(action.is_in_time, oldest))
        if not in_time:
            break
        meant = [job.id for job in in_time]
        taken = take(action.queue, action.status.value, len(meant), SINGLE_STEP, meant)
        acted, left = acted + taken.done, left - len(meant)
        progress.seen += len(meant)
    return acted


def _one_by_one(
    action: BulkAction, connection: RedisConnection, ids: Sequence[str], progress: _Progress
) -> int:
    """Look at each of these jobs of a shard."""
    queries, commands = Queries(connection), Commands(connection)
    acted = 0
    for batch in slices(ids):
        if not progress.goes_on():
            break
        jobs = queries.outlines(batch)
        chosen = [job.id for job in jobs if action.applies_to(job)]
        acted += sum(len(action.verb.act_here(commands, some)) for some in slices(chosen, STEP))
        progress.seen += len(jobs)
    return acted


def _snapshot(action: BulkAction, queries: Queries) -> list[str]:
    def pages() -> Iterator[str]:
        for start in range(0, SNAPSHOT, PAGE):
            first = max(0, start - OVERLAP)
            page = queries.ids(action.queue, action.status, first, start + PAGE - 1)
            yield from page
            if len(page) <= start - first:
                return

    return list(dict.fromkeys(pages()))


def count_jobs(queue: str, status: Status) -> int:
    """How many jobs are in a list, in the shards that answer."""
    found = all_shards(lambda one: Queries(one).stats([queue])[queue][status.value])
    return sum(found.by_shard.values())


def now_ms() -> int:
    """The time by the earliest clock of the shards: whatever any of them gets later is later."""
    return min(all_shards(lambda one: Queries(one).now_ms()).by_shard.values())


def enqueue_bulk(action: BulkAction) -> Job:
    """Let a worker perform the action, ahead of the queue's other jobs. Raises InvalidOption when
    every queue is paused."""
    return bulk.using(queue_name=_open_queue(action.queue)).enqueue(
        action.verb.name, action.queue, action.status.value, action.before_ms,
        action.which.task, action.which.text, action.which.since_ms, action.which.until_ms,
        action.group, **action.which.more(),
    )  # fmt: skip


def _open_queue(queue: str) -> str:
    """The queue itself, or another one if it is paused."""
    names = sorted(get_settings().queues, key=lambda name: (name != queue, name))
    shards = all_shards(lambda one: Queries(one).overview(names)).by_shard.values()
    paused = {one.name for queues in shards for one in queues if one.is_paused}
    found = next((name for name in names if name not in paused), None)
    if found is None:
        raise InvalidOption(
            "every queue is paused, so no worker can do this; resume one of them first"
        )
    return found


@task(
    name="django_redisqueue.bulk", takes_context=True, priority=100, timeout=3600, max_attempts=5,
)  # fmt: skip
def bulk(
    context: Any,
    verb: str,
    queue: str,
    status: str,
    before_ms: int,
    task_name: str = "",
    text: str = "",
    since_ms: int | None = None,
    until_ms: int | None = None,
    group: str = "",
    tag: str = "",
    worker: str = "",
) -> dict[str, int]:
    which = JobListFilter(task_name, text, since_ms, until_ms, tag, worker)
    action = BulkAction(VERBS[verb], queue, Status(status), before_ms, which, context.job.id, group)

    def on_progress(done: int, total: int) -> bool:
        context.progress(done, total, f"{verb} of {status} jobs")
        return not context.cancelled

    found = perform(action, on_progress)
    acted = sum(found.by_shard.values())
    #: A job that a user started in the dashboard has retried, cancelled or deleted many jobs. The
    #: admin's log says who it was. No action is needed.
    logger.info(
        "bulk %s of %s jobs of %s (%s): %d acted on, by job %s",
        verb, status, f"error {group}" if group else f"queue {queue}", str(which) or "all", acted,
        context.job.id,
    )  # fmt: skip
    found.complete()  # raises, so that the job is retried, if shards did not answer
    return {"jobs": acted}
