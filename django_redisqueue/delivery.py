"""New jobs into Redis; and what becomes of those that it does not take after a commit.

With the outbox a job is also a row of its transaction, until it is safe elsewhere. Without, a row
is written only when Redis does not take a job after the commit: there is nobody left to tell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from django.db import Error as DatabaseError

from .batches import batches
from .clock import real_ms
from .conf import get_settings
from .connection import insist, producer_link
from .exceptions import ConfigurationError, RedisQueueError
from .jobdata import NewJob
from .ports import filled, replaced_transport
from .store.transitions import Transitions

logger = logging.getLogger("django_redisqueue")

LATE_MS = 600_000  # from now: a job that is sent only to be cancelled does not start before


class Deferred:
    """Jobs that wait for transactions: ``pending`` are the aliases that have not committed yet,
    ``rows`` those that have rows of the jobs, ``then`` is what to call once the jobs are sent."""

    __slots__ = ("jobs", "pending", "rows", "then")

    def __init__(self, jobs: Sequence[NewJob], aliases: set[str], rows: Sequence[str] = ()) -> None:
        self.jobs = jobs
        self.pending = aliases
        self.rows = rows
        self.then: list[Callable[[], object]] = []


def send(jobs: Sequence[NewJob]) -> None:
    """Send jobs to Redis (or the transport in its place). A repeat changes nothing: ids decide.
    Raises ParentNotFound for a job that is to wait for one that is not known."""
    transport = replaced_transport()
    if transport is not None:
        transport.send(jobs)
        return
    store = Transitions(producer_link())
    insist(lambda: _push(store, jobs))


def _push(store: Transitions, jobs: Sequence[NewJob]) -> None:
    if len(jobs) == 1:
        store.enqueue(jobs)
    else:
        store.enqueue_all(batches(jobs))


def deliver(ready: Sequence[Deferred], alias: str) -> None:
    """Send what has committed. When Redis does not take it, it stays (or gets) in the outbox, and
    nothing is raised: a view would fail after its commit, and the hooks behind be left out."""
    jobs = [job for deferred in ready for job in deferred.jobs]
    try:
        send(jobs)
    except ConfigurationError:
        raise
    except RedisQueueError as error:
        if replaced_transport() is not None:
            raise
        stored = [job.id for deferred in ready if deferred.rows for job in deferred.jobs]
        if stored:
            logger.warning("%s; in the outbox until it does: %s", error, _some(stored))
        keep([deferred for deferred in ready if not deferred.rows], alias, error)
        return


def keep(ready: Sequence[Deferred], alias: str, error: RedisQueueError) -> None:
    """Store what Redis did not take and no row holds. Raises ``error`` if that fails too: then the
    jobs are lost, and whoever asked for them must hear of it."""
    jobs = [job for deferred in ready for job in deferred.jobs]
    if not jobs:
        return
    ids = [job.id for job in jobs]
    try:
        if filled.outbox is None:
            raise ConfigurationError('"django_redisqueue" is not in INSTALLED_APPS')
        kept_on = filled.outbox.keep(jobs, alias)
    except (DatabaseError, ConfigurationError) as problem:
        logger.error("jobs are lost: %s; and no outbox: %s: %s", error, problem, ", ".join(ids))
        raise error from problem
    for deferred in ready:
        deferred.rows = (kept_on,)
    logger.warning("%s; put into the outbox of database %r: %s", error, kept_on, _some(ids))


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:100]) + (f" and {len(ids) - 100} more" if len(ids) > 100 else "")


def send_late(job_id: str, *, is_stored: bool) -> bool:
    """Send a job that Redis does not know and the outbox has, to be cancelled: so late that nobody
    runs it before. Whoever sends it later finds it there. False when no outbox has it.

    If the caller dies before it cancels, the job runs then, or at its own time if that is later.
    ``is_stored``: it is known to have been put there; else it is looked for if it may have been.
    """
    settings = get_settings()
    may_be = is_stored or settings.outbox or settings.mirror
    if filled.outbox is None or replaced_transport() is not None or not may_be:
        return False
    found = filled.outbox.find(job_id)
    if found is None:
        return False
    job, _ = found
    when = max(int(job.when or 0), real_ms() + LATE_MS)
    Transitions(producer_link()).enqueue([replace(job, when=str(when))], orphans=True)
    return True
