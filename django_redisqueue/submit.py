"""The way of new jobs into Redis: after commit, all of one transaction together (law 9)."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .connection import PRODUCER_TIMEOUT, producer_link
from .exceptions import RedisUnavailable
from .jobdata import NewJob
from .ports import replaced_transport
from .store.transitions import BATCH, Transitions

MAX_CALL_BYTES = 1_000_000  # a script call, with BATCH (law 11)


class Deferred:
    """Jobs that wait for transactions: ``pending`` are the aliases that have not committed yet,
    ``then`` is what to call once the jobs are sent."""

    __slots__ = ("jobs", "pending", "then")

    def __init__(self, jobs: Sequence[NewJob], aliases: set[str]) -> None:
        self.jobs = jobs
        self.pending = aliases
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
            send([job for deferred in ready for job in deferred.jobs])
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


def submit(jobs: Sequence[NewJob], on_commit: bool) -> Deferred | None:
    """Send jobs now, or after the commit of every alias that is in an atomic block.

    Returns the Deferred in the second case. Raises RedisUnavailable or RedisRefused when sending
    now and Redis does not take them; then none of them is known to be queued.
    """
    if on_commit:
        atomic = [
            connection
            for connection in connections.all(initialized_only=True)
            if connection.in_atomic_block and _is_real(connection)
        ]
        if atomic:
            return _defer(jobs, atomic)
    send(jobs)
    return None


def _is_real(connection: BaseDatabaseWrapper) -> bool:
    """False when a ``TestCase`` made the only transaction there is: it never commits, and outside
    tests there would be none. (``atomic(durable=True)`` looks through it in the same way.)"""
    return not all(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def _defer(jobs: Sequence[NewJob], atomic: Sequence[BaseDatabaseWrapper]) -> Deferred:
    deferred = Deferred(jobs, {connection.alias for connection in atomic})
    for connection in atomic:
        if not connection.run_on_commit:
            _hooks.pop(connection, None)  # what an earlier transaction left when it rolled back
        hook = _Hook(connection.alias, deferred)
        _hooks.setdefault(connection, []).append(weakref.ref(hook))
        transaction.on_commit(hook, using=connection.alias)
    return deferred


def send(jobs: Sequence[NewJob]) -> None:
    """Send jobs to Redis (or the transport in its place). A repeat changes nothing: ids decide."""
    transport = replaced_transport()
    if transport is not None:
        transport.send(jobs)
        return
    store = Transitions(producer_link())
    begun = time.monotonic()
    try:
        _push(store, jobs)
    except RedisUnavailable:
        if time.monotonic() - begun > PRODUCER_TIMEOUT / 2:
            raise  # a web request has waited long enough
        # An idle timeout or a restart has cut the connection: the same ids again, on a new one.
        _push(store, jobs)


def _push(store: Transitions, jobs: Sequence[NewJob]) -> None:
    if len(jobs) == 1:
        store.enqueue(jobs)
    else:
        store.enqueue_all(_batches(jobs))


def _batches(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    batch: list[NewJob] = []
    size = 0
    for job in jobs:
        if len(batch) == BATCH or (batch and size + len(job.payload) > MAX_CALL_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(job)
        size += len(job.payload)
    if batch:
        yield batch
