"""The way of new jobs into Redis: after commit, all of one transaction together (law 9)."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from . import delivery
from .conf import get_settings
from .connection import producer_link
from .delivery import Deferred
from .exceptions import ConfigurationError, PayloadTooLarge, RedisQueueError
from .jobdata import NewJob
from .ports import filled, replaced_transport

logger = logging.getLogger("django_redisqueue")


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
            delivery.deliver(ready, self.alias)
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

    Returns the Deferred in the second case, and of what is stored. Raises ConfigurationError when
    REDISQUEUE names no Redis, and RedisUnavailable or RedisRefused when sending now, without the
    outbox, and Redis does not take them; then none of them is known to be queued.
    """
    if way.waits:
        atomic = _atomic()
        # A transport in Redis's place cannot be away, so there is nothing to store for it.
        rows = _store(jobs, atomic) if way.stored and replaced_transport() is None else ()
        if atomic:
            return _defer(jobs, atomic, rows)
        if rows:
            stored = Deferred(jobs, set(), rows)
            delivery.deliver([stored], rows[0])
            return stored
    delivery.send(jobs)
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


def after_commit(act: Callable[[], object], way: Way, row: Callable[[], NewJob]) -> Sequence[str]:
    """Call ``act``, which sends something: now, or after the commit of every alias in an atomic
    block.

    What ``row`` makes goes into the outbox first, if it goes that way; else when Redis does not
    take what is sent after a commit. Returns the aliases that have it from the beginning.
    """
    atomic = _atomic() if way.waits else []
    rows: Sequence[str] = ()
    stored_id = ""
    if way.stored and replaced_transport() is None:
        stored = row()
        rows, stored_id = _store((stored,), atomic), stored.id
    if not atomic and not rows:
        act()
        return ()

    def kept() -> None:
        try:
            act()
        except ConfigurationError:
            raise
        except RedisQueueError as error:
            if replaced_transport() is not None:
                raise
            if rows:
                logger.warning("%s; in the outbox until it does: %s", error, stored_id)
            else:
                _keep(row, atomic[0].alias, error)

    if atomic:
        _defer((), atomic, rows).then.append(kept)
    else:
        kept()
    return rows


def _keep(row: Callable[[], NewJob], alias: str, error: RedisQueueError) -> None:
    try:
        job = row()
    except PayloadTooLarge as problem:  # there is nobody else to tell
        error.add_note(f"What was to be sent is lost, too large for the outbox: {problem}")
        raise error from problem
    delivery.keep([Deferred((job,), set())], alias, error)


def _is_real(connection: BaseDatabaseWrapper) -> bool:
    """False when a ``TestCase`` made the only transaction there is: it never commits, and outside
    tests there would be none. (``atomic(durable=True)`` looks through it in the same way.)"""
    return not all(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def _defer(
    jobs: Sequence[NewJob], atomic: Sequence[BaseDatabaseWrapper], rows: Sequence[str]
) -> Deferred:
    if replaced_transport() is None:
        producer_link()  # opens nothing, but raises for wrong settings while all can be rolled back
    deferred = Deferred(jobs, {connection.alias for connection in atomic}, rows)
    for connection in atomic:
        if not connection.run_on_commit:
            _hooks.pop(connection, None)  # what an earlier transaction left when it rolled back
        hook = _Hook(connection.alias, deferred)
        _hooks.setdefault(connection, []).append(weakref.ref(hook))
        transaction.on_commit(hook, using=connection.alias)
    return deferred
