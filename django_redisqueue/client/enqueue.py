"""How new jobs reach Redis: at once, after the commit, or through the outbox.

No job runs before its transaction commits. All jobs of a transaction are sent together, in one
round trip. With the outbox, a job is also a row of its transaction until it is safe elsewhere.
Without it, a row is written only when Redis refuses a job after the commit, because then no caller
is left to handle the error.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from asyncio import _get_running_loop
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from django.db import Error as DatabaseError
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from ..broker.commands import Commands
from ..broker.queries import Queries
from ..conf import get_settings
from ..core.interrupts import interrupt_shield
from ..core.job_data import NewJob
from ..core.ports import ports
from ..core.redaction import without_frames
from ..exceptions import ConfigurationError, PayloadTooLarge, RedisQueueError, RedisUnavailable
from .options import check_flag
from .transport import connection_of, transport

logger = logging.getLogger("django_redisqueue")

CANCEL_DELAY_MS = 600_000  # until a job that is sent only to be cancelled could start
_PROBE = "redisqueue_probe"
_IN_ERROR = 3  # psycopg's TransactionStatus.INERROR


class DeliveryMode(NamedTuple):
    """Whether a job waits for the commit of open transactions, and goes through the outbox."""

    after_commit: bool
    outbox: bool


AT_ONCE = DeliveryMode(after_commit=False, outbox=False)
ON_COMMIT = DeliveryMode(after_commit=True, outbox=False)
THROUGH_OUTBOX = DeliveryMode(after_commit=True, outbox=True)

_outbox_required: ContextVar[bool] = ContextVar("outbox_required", default=False)


@dataclass(slots=True)
class _Sending:
    """What a commit sends, one thing after the other. Once Redis fails to answer, the rest goes
    into the outbox at once: each further wait would keep the request for up to a second."""

    away: RedisUnavailable | None = None

    def note(self, error: RedisQueueError) -> None:
        """Note an error of Redis. Raises ``error`` if the outbox cannot help."""
        if isinstance(error, ConfigurationError) or transport().in_memory:
            raise error
        if isinstance(error, RedisUnavailable):
            self.away = error


_sending: ContextVar[_Sending | None] = ContextVar("redisqueue_sending", default=None)


@contextmanager
def through_outbox() -> Iterator[None]:
    """Store all jobs enqueued in the block in the open transaction (``exactly_once``)."""
    token = _outbox_required.set(True)
    try:
        yield
    finally:
        _outbox_required.reset(token)


def delivery_mode(on_commit: bool | None, outbox: bool | None) -> DeliveryMode:
    """The options of the call or the task, or else the settings. Jobs in memory need no outbox.

    Raises InvalidOption unless ``on_commit`` is True, False or None.
    """
    if on_commit is not None and not check_flag(on_commit, "on_commit"):
        return AT_ONCE
    settings = get_settings()
    if outbox or (outbox is None and settings.outbox) or _outbox_required.get():
        return ON_COMMIT if transport().in_memory else THROUGH_OUTBOX
    after_commit = settings.enqueue_on_commit if on_commit is None else on_commit
    return ON_COMMIT if after_commit else AT_ONCE


@dataclass(slots=True, eq=False)
class Deferred:
    """Jobs that wait for transactions."""

    jobs: Sequence[NewJob]
    pending: set[str]  # the aliases that have not committed yet
    rows: Sequence[str] = ()  # the aliases that have outbox rows of the jobs
    callbacks: list[Callable[[], object]] = field(default_factory=list)  # once the jobs are sent


def submit(jobs: Sequence[NewJob], mode: DeliveryMode) -> Deferred | None:
    """Send jobs now, or after the commit of every alias that is in an atomic block.

    Returns a Deferred for jobs that wait for a commit or have outbox rows. Raises
    ConfigurationError when REDISQUEUE names no Redis, and RedisUnavailable or RedisRefused when
    jobs are sent now without the outbox; then it is not known whether Redis has any of them.
    """
    if mode.after_commit:
        atomic = _atomic_connections()
        rows = _store(jobs, atomic) if mode.outbox else ()
        if atomic:
            return _defer(jobs, atomic, rows)
        if rows:
            stored = Deferred(jobs, set(), rows)
            _deliver([stored], rows[0], _Sending())
            return stored
    transport().enqueue(jobs)
    return None


def after_commit(
    send: Callable[[], object],
    mode: DeliveryMode,
    row: Callable[[], NewJob],
    committed: Callable[[], object] = lambda: None,
) -> Sequence[str]:
    """Call ``send`` now, or after the commit of every alias that is in an atomic block; then
    ``committed`` is called first. After an outage in the same commit, ``send`` is not called.

    ``row`` makes a job for the outbox that does the same. Its row is stored first if the mode says
    so, otherwise only if Redis refuses the call after a commit. Returns the aliases in which the
    row was stored first.
    """
    atomic = _atomic_connections() if mode.after_commit else []
    rows: Sequence[str] = ()
    stored_id = ""
    if mode.outbox:
        stored = row()
        rows, stored_id = _store((stored,), atomic), stored.id
    if not atomic and not rows:
        send()
        return ()

    def send_or_store() -> None:
        committed()
        sending = _sending.get() or _Sending()
        try:
            if sending.away is not None:
                raise sending.away
            send()
        except RedisQueueError as error:
            sending.note(error)
            if rows:
                _log_stored(error, [stored_id])
            else:
                _store_row(row, atomic[0].alias, error)

    if atomic:
        _defer((), atomic, rows).callbacks.append(send_or_store)
    else:
        send_or_store()
    return rows


def call_after_commit(
    call: Callable[[], object], make_job: Callable[[], NewJob], on_commit: bool | None
) -> tuple[NewJob, Deferred | None] | None:
    """Call ``call`` now, or after the commit of every alias that is in an atomic block.

    ``make_job`` makes a job that does the same. With the outbox that job is a row of the
    transaction; without it, a row is stored only if Redis refuses the call after the commit. It is
    made before the commit, because no caller could handle its errors afterwards. Returns the job
    of the outbox, with what ``submit`` returned for it.
    """
    mode = delivery_mode(on_commit, None)
    if not (mode.after_commit and (mode.outbox or in_atomic())):
        call()
        return None
    job = make_job()
    if mode.outbox:
        return job, submit((job,), mode)
    after_commit(call, mode, lambda: job)
    return None


def in_atomic() -> bool:
    """Whether a job that is enqueued now waits for a commit."""
    return bool(_atomic_connections())


def _atomic_connections() -> list[BaseDatabaseWrapper]:
    """The connections with an open transaction of the application. Raises
    TransactionManagementError if the application commits one manually."""
    return [
        connection
        for connection in open_connections()
        if not connection.autocommit and _is_in_transaction(connection)
    ]


def _is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Ignores the transaction of a ``TestCase``, as ``atomic(durable=True)`` does."""
    if connection.in_atomic_block:
        return not all(getattr(one, "_from_testcase", False) for one in connection.atomic_blocks)
    if connection.connection is not None:
        raise TransactionManagementError(
            f"the database {connection.alias!r} has autocommit off (set_autocommit, AUTOCOMMIT), "
            "so nothing reports when a transaction commits: enqueue inside atomic(), or after "
            "commit() with using(on_commit=False)"
        )
    return False


def open_connections() -> Sequence[BaseDatabaseWrapper]:
    """What ``connections.all(initialized_only=True)`` returns, but faster: that takes a sixth of an
    enqueue, because asgiref looks for an event loop twice for each alias, by an exception."""
    if _get_running_loop() is None:
        storage = _thread_storage()
        if storage is not None:
            own = storage.__dict__
            return [own[alias] for alias in connections.settings if alias in own]
    elif not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        return ()  # Django refuses to begin a transaction in the thread of an event loop
    return connections.all(initialized_only=True)


@cache
def _thread_storage() -> threading.local | None:
    """Where asgiref keeps the connections of threads without an event loop, or None."""
    local = getattr(connections, "_connections", None)
    storage = getattr(local, "_storage", None)
    if not isinstance(storage, threading.local):
        return None
    setattr(local, _PROBE, True)
    try:
        return storage if _PROBE in storage.__dict__ else None
    finally:
        delattr(local, _PROBE)


class _Hook:
    """What ``on_commit`` holds for one enqueue on one alias.

    The first hook of a transaction to be called sends the jobs of all of them in one round trip.
    Django silently discards the hooks of a rolled-back savepoint. It holds the only strong
    reference to a hook, so a hook whose weak reference is alive will be called.
    """

    __slots__ = ("__weakref__", "alias", "deferred")

    def __init__(self, alias: str, deferred: Deferred) -> None:
        self.alias = alias
        self.deferred: Deferred | None = deferred

    def __call__(self) -> None:
        if self.deferred is None:
            return  # an earlier hook has sent its jobs
        try:
            with interrupt_shield.get()():  # what a job enqueues must not get lost
                self._send()
        except RedisQueueError as error:
            without_frames(error)  # error pages show locals, and a task may redact them
            raise

    def _send(self) -> None:
        ready: list[Deferred] = []
        for hook in _pop_hooks(connections[self.alias], self):
            deferred, hook.deferred = hook.deferred, None
            if deferred is not None:
                deferred.pending.discard(self.alias)
                if not deferred.pending:
                    ready.append(deferred)
        token = _sending.set(sending := _Sending())
        try:
            with ExitStack() as stack:  # calls all of them, whichever raises
                # Without jobs, it sends something else, such as a workflow.
                _call_at_exit(stack, [deferred for deferred in ready if not deferred.jobs])
                _deliver(ready, self.alias, sending)
                _call_at_exit(stack, [deferred for deferred in ready if deferred.jobs])
        finally:
            _sending.reset(token)


def _call_at_exit(stack: ExitStack, ready: Sequence[Deferred]) -> None:
    """Have the stack call their callbacks, in their order."""
    for callback in reversed([one for deferred in ready for one in deferred.callbacks]):
        stack.callback(callback)


class _EarlierHook:
    """A commit hook of the application that runs before ours. Django calls no hook after one that
    raises; the jobs are sent nevertheless, because their transaction has committed."""

    __slots__ = ("_alias", "_hook")

    def __init__(self, alias: str, hook: Callable[[], object]) -> None:
        self._alias = alias
        self._hook = hook

    def __call__(self) -> None:
        try:
            self._hook()
        except BaseException:
            if ours := _living_hooks(connections[self._alias]):
                ours[0]()
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hook, name)  # Django logs the __qualname__ of a robust hook


_hooks: weakref.WeakKeyDictionary[BaseDatabaseWrapper, list[weakref.ref[_Hook]]] = (
    weakref.WeakKeyDictionary()
)


def _defer(
    jobs: Sequence[NewJob], atomic: Sequence[BaseDatabaseWrapper], rows: Sequence[str]
) -> Deferred:
    transport().check()  # wrong settings must raise while everything can still be rolled back
    deferred = Deferred(jobs, {connection.alias for connection in atomic}, rows)
    for job in jobs:
        job.is_known = True  # the caller gets its id now
    for connection in atomic:
        hooks = _hooks.get(connection)
        if hooks is None:
            hooks = _hooks[connection] = []
            _refuse_silent_rollbacks(connection)
        if not connection.run_on_commit:  # drop those of a transaction that rolled back
            hooks[:] = map(weakref.ref, _living_hooks(connection))
        hook = _Hook(connection.alias, deferred)
        hooks.append(weakref.ref(hook))
        _guard_earlier_hooks(connection)
        transaction.on_commit(hook, using=connection.alias)
    return deferred


def _refuse_silent_rollbacks(connection: BaseDatabaseWrapper) -> None:
    """Have a commit that would be a rollback raise. After an error that the application caught
    inside ``atomic()``, PostgreSQL answers COMMIT with a rollback, without an error, and Django
    would call the hooks."""
    commit = connection.commit

    def commit_or_raise() -> None:
        own = connection.connection
        is_doomed = own is not None and own.info.transaction_status == _IN_ERROR
        if is_doomed and _living_hooks(connection):
            raise TransactionManagementError(
                f"PostgreSQL rolls back the transaction on {connection.alias!r}, because a query "
                "in it failed, and no job of it is sent. If the error of a query is to be caught, "
                "put the query into an atomic() of its own, inside the try block"
            )
        commit()

    if connection.vendor == "postgresql":
        connection.commit = commit_or_raise  # type: ignore[method-assign]


def _guard_earlier_hooks(connection: BaseDatabaseWrapper) -> None:
    """Guard the hooks that the application has registered since the last one of ours."""
    hooks: list[Any] = connection.run_on_commit
    for at in range(len(hooks) - 1, -1, -1):
        savepoints, hook, *rest = hooks[at]
        if isinstance(hook, _Hook | _EarlierHook):
            break
        hooks[at] = (savepoints, _EarlierHook(connection.alias, hook), *rest)


def _pop_hooks(connection: BaseDatabaseWrapper, first: _Hook) -> list[_Hook]:
    """Forget and return ``first`` and the living hooks registered after it. Those before it wait
    for a hook that is running and has begun another transaction."""
    alive = _living_hooks(connection)
    at = alive.index(first) if first in alive else len(alive)
    _hooks[connection] = [*map(weakref.ref, alive[:at])]
    return alive[at:] or [first]


def _living_hooks(connection: BaseDatabaseWrapper) -> list[_Hook]:
    return [hook for ref in _hooks.get(connection, ()) if (hook := ref()) is not None]


def uncommitted_jobs() -> list[NewJob]:
    """The jobs that wait for commits of this thread's connections."""
    hooks = [hook for connection in open_connections() for hook in _living_hooks(connection)]
    found = [hook.deferred for hook in hooks if hook.deferred is not None]
    # A Deferred that waits for two aliases has two hooks.
    return [job for deferred in dict.fromkeys(found) for job in deferred.jobs]


def _deliver(ready: Sequence[Deferred], alias: str, sending: _Sending) -> None:
    """Send jobs that have committed. Jobs that Redis refuses stay in the outbox, or are stored
    there now. Nothing is raised in that case: the error would reach the view after its commit, and
    keep the transaction's other hooks from running."""
    jobs = [job for deferred in ready for job in deferred.jobs]
    try:
        if jobs:
            transport().enqueue(jobs)
    except RedisQueueError as error:
        sending.note(error)
        stored = [job.id for deferred in ready if deferred.rows for job in deferred.jobs]
        if stored:
            _log_stored(error, stored)
        unstored = [deferred for deferred in ready if not deferred.rows]
        if missing := [job for deferred in unstored for job in deferred.jobs]:
            rows = _store_undelivered(missing, alias, error)
            for deferred in unstored:
                deferred.rows = rows


def _store(jobs: Sequence[NewJob], atomic: Sequence[BaseDatabaseWrapper]) -> Sequence[str]:
    if ports.outbox is None:
        raise ConfigurationError(
            'the outbox needs "django_redisqueue" in INSTALLED_APPS, and Django must be set up'
        )
    return ports.outbox.store(jobs, [connection.alias for connection in atomic])


def _store_row(row: Callable[[], NewJob], alias: str, error: RedisQueueError) -> None:
    try:
        job = row()
    except PayloadTooLarge as problem:
        error.add_note(f"What was to be sent is lost: it is too large for the outbox: {problem}")
        raise error from problem
    _store_undelivered([job], alias, error)


def _store_undelivered(jobs: Sequence[NewJob], alias: str, error: RedisQueueError) -> Sequence[str]:
    """Store jobs that Redis refused and that have no row yet; returns the aliases that have them.
    Raises ``error`` if that fails as well: then the jobs are lost."""
    ids = [job.id for job in jobs]
    try:
        if ports.outbox is None:
            raise ConfigurationError('"django_redisqueue" is not in INSTALLED_APPS')
        stored_on = ports.outbox.store_undelivered(jobs, alias)
    except (DatabaseError, ConfigurationError) as problem:
        #: Neither Redis nor the outbox of the database accepted these jobs, and their transaction
        #: has committed. Enqueue them again; the line has their ids. Run migrate if the outbox has
        #: no table.
        logger.error("jobs are lost: %s; and no outbox: %s: %s", error, problem, ", ".join(ids))
        raise error from problem
    #: Redis did not accept jobs after their commit. They are kept in the database, and are sent
    #: once Redis accepts them. Bring Redis back.
    logger.warning("%s; put into the outbox of database %r: %s", error, stored_on, _shortened(ids))
    return (stored_on,)


def _log_stored(error: RedisQueueError, ids: Sequence[str]) -> None:
    #: Redis did not accept jobs after their commit. They are kept in the database, and are sent
    #: once Redis accepts them. Bring Redis back.
    logger.warning("%s; in the outbox until it does: %s", error, _shortened(ids))


def _shortened(ids: Sequence[str]) -> str:
    return ", ".join(ids[:100]) + (f" and {len(ids) - 100} more" if len(ids) > 100 else "")


def send_to_cancel(job_id: str, *, in_outbox: bool) -> bool:
    """Send a job that is only in the outbox, so that it can be cancelled; False if it has no row.

    The job is made due so late that it cannot start before it is cancelled. If the caller dies in
    between, it runs at that time, or at its own time if that is later. The relay finds it in Redis.
    ``in_outbox``: the caller knows that the job has a row; else the settings decide.
    """
    settings = get_settings()
    may_be = in_outbox or settings.outbox or settings.mirror
    if ports.outbox is None or transport().in_memory or not may_be:
        return False
    job = ports.outbox.find(job_id)
    if job is None:
        return False
    connection = connection_of(job_id)
    when = max(int(job.when or 0), Queries(connection).now_ms() + CANCEL_DELAY_MS)
    Commands(connection).enqueue(
        [replace(job, when=str(when), unique="")], allow_missing_parents=True
    )
    return True
