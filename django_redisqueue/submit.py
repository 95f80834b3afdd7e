"""The way of new jobs into Redis: after commit, all of one transaction together (law 9).

With the outbox a job is also a row of its transaction, until Redis (or the mirror) has it. Without,
a row is written only when Redis does not take a job after the commit: there is nobody left to tell.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import NamedTuple

from django.db import Error as DatabaseError
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .batches import batches
from .clock import real_ms
from .conf import get_settings
from .connection import insist, producer_link
from .exceptions import ConfigurationError, PayloadTooLarge, RedisQueueError
from .jobdata import NewJob
from .ports import filled, replaced_transport
from .store.transitions import Transitions

logger = logging.getLogger("django_redisqueue")

LATE_MS = 600_000  # from now: a job that is sent only to be cancelled does not start before


class Way(NamedTuple):
    """How a job goes: after the commits of what is open, and through the outbox."""

    waits: bool
    stored: bool


_with_work: ContextVar[bool] = ContextVar("with_work", default=False)


@contextmanager
def through_outbox() -> Iterator[None]:
    """What is enqueued inside goes with the open transaction (``exactly_once``, receivers)."""
    token = _with_work.set(True)
    try:
        yield
    finally:
        _with_work.reset(token)


def way_of(on_commit: bool | None, outbox: bool | None) -> Way:
    """What was said for the call or the task, else the settings; None is not said."""
    if on_commit is False and not outbox:
        return Way(False, False)
    settings = get_settings()
    stored = settings.outbox if outbox is None else outbox
    if stored or _with_work.get():
        return Way(True, True)
    return Way(settings.enqueue_on_commit if on_commit is None else on_commit, False)


class Deferred:
    """Jobs that wait for transactions: ``pending`` are the aliases that have not committed yet,
    ``rows`` those that have rows of the jobs, ``then`` is what to call once the jobs are sent."""

    __slots__ = ("jobs", "pending", "rows", "then")

    def __init__(self, jobs: Sequence[NewJob], aliases: set[str], rows: Sequence[str] = ()) -> None:
        self.jobs = jobs
        self.pending = aliases
        self.rows = rows
        self.then: list[Callable[[], object]] = []


class _Hook:
    """What ``on_commit`` holds for one enqueue on one alias.

    Django discards the hooks of a rolled-back savepoint, and tells nobody. It holds the only strong
    reference to a hook, so a hook whose weak reference is alive when the transaction's first hook
    is called will be called too: the first sends the jobs of them all in one round trip.
    """

    __slots__ = ("__weakref__", "alias", "deferred")

    def __init__(self, alias: str, deferred: Deferred) -> None:
        self.alias = alias
        self.deferred: Deferred | None = deferred

    def __call__(self) -> None:
        if self.deferred is None:
            return  # an earlier hook has sent it along
        ready: list[Deferred] = []
        for hook in _registered(connections[self.alias], self):
            deferred, hook.deferred = hook.deferred, None
            if deferred is not None:
                deferred.pending.discard(self.alias)
                if not deferred.pending:
                    ready.append(deferred)
        if ready:
            _deliver(ready, self.alias)
        for act in [act for deferred in ready for act in deferred.then]:
            act()


_hooks: weakref.WeakKeyDictionary[BaseDatabaseWrapper, list[weakref.ref[_Hook]]] = (
    weakref.WeakKeyDictionary()
)


def _registered(connection: BaseDatabaseWrapper, first: _Hook) -> Iterator[_Hook]:
    """``first`` and the living hooks registered after it; forgets them all."""
    refs = _hooks.pop(connection, [])
    alive = [hook for ref in refs if (hook := ref()) is not None]
    return iter(alive[alive.index(first) :] if first in alive else [first])


def waiting_jobs() -> list[NewJob]:
    """What waits for commits of this thread's connections."""
    hooks = [ref() for c in connections.all(initialized_only=True) for ref in _hooks.get(c, ())]
    found = [hook.deferred for hook in hooks if hook is not None and hook.deferred is not None]
    # One that waits for two aliases has two hooks.
    return [job for deferred in dict.fromkeys(found) for job in deferred.jobs]


def submit(jobs: Sequence[NewJob], way: Way) -> Deferred | None:
    """Send jobs now, or after the commit of every alias that is in an atomic block.

    Returns the Deferred in the second case, and of what is stored. Raises RedisUnavailable or
    RedisRefused when sending now, without the outbox, and Redis does not take them; then none of
    them is known to be queued.
    """
    if way.waits:
        atomic = _atomic()
        # A transport in Redis's place can not be away, so there is nothing to store for it.
        rows = _store(jobs, atomic) if way.stored and replaced_transport() is None else ()
        if atomic:
            return _defer(jobs, atomic, rows)
        if rows:
            stored = Deferred(jobs, set(), rows)
            _deliver([stored], rows[0])
            return stored
    send(jobs)
    return None


def _store(jobs: Sequence[NewJob], atomic: Sequence[BaseDatabaseWrapper]) -> Sequence[str]:
    if filled.outbox is None:
        raise ConfigurationError(
            'the outbox needs "django_redisqueue" in INSTALLED_APPS, and Django to be ready'
        )
    return filled.outbox.store(jobs, [connection.alias for connection in atomic])


def _atomic() -> list[BaseDatabaseWrapper]:
    """The connections that are in a transaction of the application's own."""
    return [
        connection
        for connection in connections.all(initialized_only=True)
        if connection.in_atomic_block and _is_real(connection)
    ]


def in_atomic() -> bool:
    """Whether a job that is enqueued now waits for a commit."""
    return bool(_atomic())


def after_commit(act: Callable[[], object], waits: bool, instead: Callable[[], NewJob]) -> None:
    """Call ``act`` now, or with ``waits`` after the commit of every alias in an atomic block; then
    the job that ``instead`` makes goes into the outbox when Redis does not take it."""
    atomic = _atomic() if waits else []
    if not atomic:
        act()
        return

    def kept() -> None:
        try:
            act()
        except ConfigurationError:
            raise
        except RedisQueueError as error:
            if replaced_transport() is not None:
                raise
            try:
                job = instead()
            except PayloadTooLarge as problem:  # there is nobody else to tell
                error.add_note(f"What was to be sent is lost, too large for the outbox: {problem}")
                raise error from problem
            _keep([Deferred((job,), set())], atomic[0].alias, error)

    _defer((), atomic, ()).then.append(kept)


def _is_real(connection: BaseDatabaseWrapper) -> bool:
    """False when a ``TestCase`` made the only transaction there is: it never commits, and outside
    tests there would be none. (``atomic(durable=True)`` looks through it in the same way.)"""
    return not all(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def _defer(
    jobs: Sequence[NewJob], atomic: Sequence[BaseDatabaseWrapper], rows: Sequence[str]
) -> Deferred:
    deferred = Deferred(jobs, {connection.alias for connection in atomic}, rows)
    for connection in atomic:
        if not connection.run_on_commit:
            _hooks.pop(connection, None)  # what an earlier transaction left when it rolled back
        hook = _Hook(connection.alias, deferred)
        _hooks.setdefault(connection, []).append(weakref.ref(hook))
        transaction.on_commit(hook, using=connection.alias)
    return deferred


def _deliver(ready: Sequence[Deferred], alias: str) -> None:
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
        _keep([deferred for deferred in ready if not deferred.rows], alias, error)
        return
    taken: dict[tuple[str, ...], list[NewJob]] = {}
    for deferred in ready:
        taken.setdefault(tuple(deferred.rows), []).extend(deferred.jobs)
    for rows, some in taken.items():
        if rows and filled.outbox is not None:
            filled.outbox.accepted(some, rows)


def _keep(ready: Sequence[Deferred], alias: str, error: RedisQueueError) -> None:
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
    job, aliases = found
    when = max(int(job.when or 0), real_ms() + LATE_MS)
    Transitions(producer_link()).enqueue([replace(job, when=str(when))], orphans=True)
    filled.outbox.accepted([job], aliases)
    return True


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
