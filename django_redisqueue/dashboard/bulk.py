"""One verb on all jobs of a list that match: at once when the list is short, else as a job.

What is meant is fixed when the order is given: jobs that came into the list later (`before_ms`) are
left alone. So an order that runs twice, because its worker died, has one effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from ..conf import get_settings
from ..connection import producer_link
from ..exceptions import InvalidOption
from ..jobdata import JobData
from ..jobs import Job
from ..states import Status
from ..store.continuations import STEP
from ..store.reads import Broken, Reads
from ..store.transitions import Transitions
from ..store.verbs import BATCH
from ..tasks import task
from .filters import EVERYTHING, JobFilter, instant_of
from .verbs import CANCEL, RETRY, VERBS, Verb

INLINE = 1000  # jobs of a list at the most for which a request does the work itself
PAGE = 1000  # ids a page of the snapshot
OVERLAP = 200  # a page begins before the last one's end: what leaves the list meanwhile moves it up
SNAPSHOT = 1_000_000  # ids of one order at the most (about 100 MB)
logger = logging.getLogger("django_redisqueue.dashboard")
Tell = Callable[[int, int], bool]  # (looked at, of so many) -> go on?


@dataclass(frozen=True, slots=True)
class Order:
    """Do ``verb`` to all jobs of one list that match, but for those that came after it."""

    verb: Verb
    queue: str
    status: Status
    before_ms: int
    which: JobFilter = EVERYTHING
    besides: str = ""  # the id of the job that carries it out

    def means(self, job: JobData | Broken) -> bool:
        """A job that cannot be read matches only where everything does."""
        if job.id == self.besides:
            return False
        if isinstance(job, Broken):
            return not self.which
        return job.status is self.status and self.covers(job) and self.which.matches(job)

    def covers(self, job: JobData | Broken) -> bool:
        """False for a job that came after the order. (What lingers in a list has no say.)"""
        return isinstance(job, Broken) or instant_of(job) <= self.before_ms


def carry_out(order: Order, tell: Tell) -> int:
    """Act; on how many jobs it did."""
    link = producer_link()
    reads, store = Reads(link), Transitions(link)
    if order.which or order.status in (Status.PROCESSING, Status.WAITING):
        return _by_name(order, reads, store, tell)
    acted = _from_the_end(order, reads, store, tell)
    if order.verb is CANCEL:  # these lists are in another order than that of their making
        acted += _by_name(order, reads, store, tell)
    return acted


def _from_the_end(order: Order, reads: Reads, store: Transitions, tell: Tell) -> int:
    """Take the oldest until one is younger than the order. No step costs the list's length."""
    total = reads.stats([order.queue])[order.queue][order.status.value]
    take = store.requeue_oldest if order.verb is RETRY else store.clear
    acted = seen = 0
    while seen < total and tell(seen, total):
        oldest = reads.outlines(reads.oldest(order.queue, order.status, STEP))
        meant = list(takewhile(order.covers, oldest))
        if not meant:
            break
        taken = take(order.queue, order.status.value, len(meant))
        if taken.seen == 0:
            break
        acted, seen = acted + taken.done, seen + taken.seen
    return acted


def _by_name(order: Order, reads: Reads, store: Transitions, tell: Tell) -> int:
    """Look at every job that is there now."""
    ids = _snapshot(order, reads)
    acted = at = 0
    while at < len(ids) and tell(at, len(ids)):
        jobs = reads.outlines(ids[at : at + BATCH])
        meant = [job.id for job in jobs if order.means(job)]
        for first in range(0, len(meant), STEP):
            acted += len(order.verb.act(store, meant[first : first + STEP]))
        at += BATCH
    return acted


def _snapshot(order: Order, reads: Reads) -> list[str]:
    def pages() -> Iterator[str]:
        for start in range(0, SNAPSHOT, PAGE):
            first = max(0, start - OVERLAP)
            page = reads.ids(order.queue, order.status, first, start + PAGE - 1)
            yield from page
            if len(page) <= start - first:
                return

    return list(dict.fromkeys(pages()))


def give(order: Order) -> Job:
    """Let a worker carry out an order, ahead of the queue's other jobs. Raises InvalidOption when
    every queue is paused."""
    return bulk.using(queue_name=_open_queue(order.queue)).enqueue(
        order.verb.name, order.queue, order.status.value, order.before_ms,
        order.which.task, order.which.text, order.which.since_ms, order.which.until_ms,
    )  # fmt: skip


def _open_queue(queue: str) -> str:
    """The queue itself, unless it is paused and nothing in it would run."""
    names = sorted(get_settings().queues, key=lambda name: (name != queue, name))
    for found in Reads(producer_link()).overview(names):
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
    """An order of the dashboard, with progress."""
    which = JobFilter(task_name, text, since_ms, until_ms)
    order = Order(VERBS[verb], queue, Status(status), before_ms, which, context.job.id)

    def tell(done: int, total: int) -> bool:
        context.progress(done, total, f"{verb} of {status} jobs")
        return not context.cancelled

    acted = carry_out(order, tell)
    logger.info(
        "bulk %s of %s jobs of queue %s (%s): %d acted on, by job %s",
        verb, status, queue, str(which) or "all", acted, context.job.id,
    )  # fmt: skip
    return {"jobs": acted}
