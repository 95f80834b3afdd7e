"""Acting on all matching jobs of a list: at once when the list is short, otherwise in a job.

Only jobs that were in the list when the user confirmed (``before_ms``) are acted on. An action that
runs twice, because its worker died, therefore has the effect of one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from ..broker.base import BATCH
from ..broker.commands import Commands
from ..broker.connection import producer_connection
from ..broker.continuations import STEP
from ..broker.queries import Queries, UnreadableJob
from ..client.jobs import Job
from ..client.tasks import task
from ..conf import get_settings
from ..core.job_data import JobData
from ..core.statuses import Status
from ..exceptions import InvalidOption
from .filters import EVERYTHING, JobFilter, instant_of
from .verbs import CANCEL, RETRY, VERBS, Verb

INLINE = 1000  # jobs in a list for which a request does the work itself
PAGE = 1000  # ids per page of the snapshot
OVERLAP = 200  # ids read twice: jobs that leave the list meanwhile move the others up
SNAPSHOT = 1_000_000  # ids per action (about 100 MB)
logger = logging.getLogger("django_redisqueue.dashboard")

OnProgress = Callable[[int, int], bool]  # (jobs looked at, jobs in all) -> whether to go on


@dataclass(frozen=True, slots=True)
class BulkAction:
    """A verb for all jobs of a list that match and were there before ``before_ms``."""

    verb: Verb
    queue: str
    status: Status
    before_ms: int
    which: JobFilter = EVERYTHING
    own_id: str = ""  # of the job that performs it

    def applies_to(self, job: JobData | UnreadableJob) -> bool:
        """Whether to act on the job. An unreadable job only matches an empty filter."""
        if job.id == self.own_id:
            return False
        if isinstance(job, UnreadableJob):
            return not self.which
        return job.status is self.status and self.is_in_time(job) and self.which.matches(job)

    def is_in_time(self, job: JobData | UnreadableJob) -> bool:
        return isinstance(job, UnreadableJob) or instant_of(job) <= self.before_ms


def perform(action: BulkAction, on_progress: OnProgress) -> int:
    """Act on the jobs and return how many were acted on."""
    connection = producer_connection()
    queries, store = Queries(connection), Commands(connection)
    if action.which or action.status in (Status.PROCESSING, Status.WAITING):
        return _one_by_one(action, queries, store, on_progress)
    acted = _oldest_first(action, queries, store, on_progress)
    if action.verb is CANCEL:  # lists of unfinished jobs are not in the order of their creation
        acted += _one_by_one(action, queries, store, on_progress)
    return acted


def _oldest_first(
    action: BulkAction, queries: Queries, store: Commands, on_progress: OnProgress
) -> int:
    """Act from the end of the list until a job is too new. No step costs the list's length."""
    total = queries.stats([action.queue])[action.queue][action.status.value]
    take = store.requeue_oldest if action.verb is RETRY else store.clear
    acted = seen = 0
    while seen < total and on_progress(seen, total):
        oldest = queries.outlines(queries.oldest(action.queue, action.status, STEP))
        in_time = list(takewhile(action.is_in_time, oldest))
        if not in_time:
            break
        taken = take(action.queue, action.status.value, len(in_time))
        if taken.seen == 0:
            break
        acted, seen = acted + taken.done, seen + taken.seen
    return acted


def _one_by_one(
    action: BulkAction, queries: Queries, store: Commands, on_progress: OnProgress
) -> int:
    """Look at every job that is in the list now."""
    ids = _snapshot(action, queries)
    acted = at = 0
    while at < len(ids) and on_progress(at, len(ids)):
        jobs = queries.outlines(ids[at : at + BATCH])
        chosen = [job.id for job in jobs if action.applies_to(job)]
        for first in range(0, len(chosen), STEP):
            acted += len(action.verb.act(store, chosen[first : first + STEP]))
        at += BATCH
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


def enqueue_bulk(action: BulkAction) -> Job:
    """Let a worker perform the action, ahead of the queue's other jobs.

    Raises InvalidOption when every queue is paused.
    """
    return bulk.using(queue_name=_open_queue(action.queue)).enqueue(
        action.verb.name, action.queue, action.status.value, action.before_ms,
        action.which.task, action.which.text, action.which.since_ms, action.which.until_ms,
    )  # fmt: skip


def _open_queue(queue: str) -> str:
    """The queue itself, or another one if it is paused."""
    names = sorted(get_settings().queues, key=lambda name: (name != queue, name))
    for found in Queries(producer_connection()).overview(names):
        if not found.is_paused:
            return found.name
    raise InvalidOption(
        "every queue is paused, so no worker could carry this out; resume one of them first"
    )


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
) -> dict[str, int]:
    """Perform a BulkAction, with progress."""
    which = JobFilter(task_name, text, since_ms, until_ms)
    action = BulkAction(VERBS[verb], queue, Status(status), before_ms, which, context.job.id)

    def on_progress(done: int, total: int) -> bool:
        context.progress(done, total, f"{verb} of {status} jobs")
        return not context.cancelled

    acted = perform(action, on_progress)
    logger.info(
        "bulk %s of %s jobs of queue %s (%s): %d acted on, by job %s",
        verb, status, queue, str(which) or "all", acted, context.job.id,
    )  # fmt: skip
    return {"jobs": acted}
