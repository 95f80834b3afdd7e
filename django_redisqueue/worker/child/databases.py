"""The connections of jobs to databases and caches.

Sync jobs share the connections of the main thread, one job after another: ``Databases`` checks them
before each job, and afterwards closes those that must not be reused. It does the same for asgiref's
thread, which runs the ORM calls of ``asyncio.run`` and is also shared by all sync jobs.

asgiref runs the ORM calls of each ``ThreadSensitiveContext`` in a separate thread, so a thousand
async jobs would open a thousand connections. ``DatabaseThreads`` gives them a few threads instead.
A job gets a thread with its first ORM call. It keeps the thread until it ends, or until another job
waits for one while this job is between two calls, outside a transaction, and is not reading rows
from an open cursor (``aiterator``). What a job leaves running gets a thread for each call. A
thread's connections are closed before it passes to another job, so no two jobs share one.

``asyncio.to_thread`` does not use these threads: its own outlive the job, and so would their
connections. ``PlainThreads`` checks and closes them on every call.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any
from weakref import WeakSet

from asgiref.sync import SyncToAsync
from django.core.cache import caches
from django.core.cache.backends.base import BaseCache
from django.db import Error as DatabaseError
from django.db import connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from ...core.interrupts import interrupt_shield
from ...exceptions import Interrupt
from .forks import ForkGuard

ASGIREF = "redisqueue-asgiref"  # the prefix of its thread's name


class Databases:
    """Connections that jobs have opened in this thread and in asgiref's, and cache clients."""

    def __init__(self) -> None:
        self._caches = _shared_caches()
        self.is_used = bool(self._caches)  #: while True, there is something to do
        #: Each with the driver's connection as Django announced it; there may be another by now.
        self.opened: dict[BaseDatabaseWrapper, object] = {}
        self._others = _open_here()  # opened before the first job
        self._thread = threading.get_ident()
        self._asgiref: ThreadPoolExecutor | None = None  # set once a job has used it
        self._is_main = threading.current_thread() is threading.main_thread()
        if self._is_main:
            SyncToAsync.single_thread_executor = ThreadPoolExecutor(1, ASGIREF)
        connection_created.connect(self._remember)

    def _remember(self, connection: BaseDatabaseWrapper, **_: Any) -> None:
        # The signal is sent in every thread; a connection may only be used in its own thread.
        if threading.get_ident() == self._thread:
            self.opened[connection] = connection.connection
            if "set_autocommit" not in vars(connection):  # else it was opened before
                CommitShield(connection)
                if type(connection.connection).__module__.startswith("pymysql"):
                    connection.execute_wrappers.append(_close_if_interrupted)
            self.is_used = True
        elif threading.current_thread().name.startswith(ASGIREF):
            self._asgiref = SyncToAsync.single_thread_executor
            self.is_used = True

    def before(self) -> None:
        """Close connections that the server has closed since the last job."""
        _close_unusable(self.opened)
        if self._asgiref is not None:
            self._asgiref.submit(_close_unusable)

    def after_error(self) -> None:
        """Close connections that an interrupt has left half-open. Django has not announced them, so
        they would never be checked or closed, and might never commit."""
        for connection in _open_here():
            is_announced = self.opened.get(connection) is connection.connection
            if not is_announced and connection not in self._others:
                _close(connection)

    def after(self) -> None:
        """Close caches, and connections that are broken, too old or inside a transaction."""
        for cache in self._caches:
            cache.close()
        reset_queries()
        _close_unfit(self.opened)
        self.opened = {c: own for c, own in self.opened.items() if c.connection is not None}
        if self._asgiref is not None and self._is_main:  # otherwise other jobs may be using it
            self._asgiref.submit(_close_unfit)
        self.is_used = bool(self.opened or self._caches) or self._asgiref is not None


class CommitShield:
    """Keeps interrupts out of a connection's commits, until the hooks have been called: they send
    what the job has enqueued. Replaces the three methods by which ``atomic()`` begins and ends.
    """

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._commit, self._rollback = connection.commit, connection.rollback
        self._set_autocommit = connection.set_autocommit
        self._in_atomic = False  # until ``atomic()`` has committed or rolled back
        self._until_hooks = ExitStack()
        for method in (self.commit, self.rollback, self.set_autocommit):
            setattr(connection, method.__name__, method)

    def commit(self) -> None:
        with ExitStack() as shield:
            shield.enter_context(interrupt_shield.get()())
            in_atomic, self._in_atomic = self._in_atomic, False
            self._commit()
            if in_atomic:  # which calls `set_autocommit` next
                self._until_hooks = shield.pop_all()

    def rollback(self) -> None:
        with interrupt_shield.get()():
            self._rollback()
            self._in_atomic = False

    def set_autocommit(
        self, autocommit: bool, force_begin_transaction_with_broken_autocommit: bool = False
    ) -> None:
        with self._until_hooks.pop_all(), interrupt_shield.get()():
            if autocommit and self._in_atomic:
                self.rollback()  # an interrupt has ended `atomic()` just before its commit
            self._set_autocommit(autocommit, force_begin_transaction_with_broken_autocommit)
            self._in_atomic = force_begin_transaction_with_broken_autocommit


def _close_if_interrupted(
    execute: Callable[..., object], sql: object, params: object, many: bool, context: Any
) -> object:
    """Close a connection whose reply an interrupt has left unread: PyMySQL would take it for the
    reply to its next query. Other drivers notice, or are written in C."""
    try:
        return execute(sql, params, many, context)
    except Interrupt:
        context["connection"].close()
        raise


def _open_here() -> list[BaseDatabaseWrapper]:
    return [c for c in connections.all(initialized_only=True) if c.connection is not None]


def _shared_caches() -> list[BaseCache]:
    """Create the cache clients in this context, in which every job of this thread runs: otherwise
    each job would create its own and connect anew. Returns those that Django closes after each
    request."""
    made = []
    for alias in caches:
        with suppress(Exception):  # a misconfigured one raises in the jobs that use it
            made.append(caches[alias])
    return [cache for cache in made if type(cache).close is not BaseCache.close]


def _close_unusable(opened: Iterable[BaseDatabaseWrapper] | None = None) -> None:
    """Close those that the server has closed, by default among all connections of this thread."""
    for connection in connections.all(initialized_only=True) if opened is None else opened:
        if connection.connection is not None and not connection.is_usable():
            with suppress(DatabaseError):  # a job has already closed it
                connection.close()


def _close_unfit(opened: Iterable[BaseDatabaseWrapper] | None = None) -> None:
    """Close those that must not be reused, by default among all connections of this thread."""
    for connection in connections.all(initialized_only=True) if opened is None else opened:
        with suppress(DatabaseError):  # it is then forgotten as well
            if connection.in_atomic_block:
                _close(connection)
            connection.close_if_unusable_or_obsolete()


def _close(connection: BaseDatabaseWrapper) -> None:
    """Close a connection that an interrupt may have left inside ``atomic()``. There, ``close``
    alone would not forget it, and its next use would fail, as it would if the job had closed it."""
    connection.in_atomic_block = connection.closed_in_transaction = False
    with suppress(DatabaseError):  # it is forgotten nevertheless
        connection.close()


def _close_all() -> None:
    for connection in connections.all(initialized_only=True):
        _close(connection)


class PlainThreads(ThreadPoolExecutor):
    """The threads of ``asyncio.to_thread`` and of ``sync_to_async(thread_sensitive=False)``."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(_with_usable_connections, fn, *args, **kwargs)


def _with_usable_connections(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    _close_unusable()
    try:
        return fn(*args, **kwargs)
    finally:
        _close_unfit()


class DatabaseThreads:
    """``limit`` threads, each with at most one connection per alias.

    Its methods are called on the event loop's thread only, so they need no locks.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._free = [ThreadPoolExecutor(1, f"database-{n}") for n in range(limit)]
        self.fork_guard = ForkGuard()
        self._waiting: deque[JobThread] = deque()
        self._holders: list[JobThread] = []
        self.current = threading.local()  #: ``job``: the job whose call runs in this thread
        connection_created.connect(self._watch)

    def _watch(self, connection: BaseDatabaseWrapper, **_: Any) -> None:
        """Make the jobs of this thread note their cursors."""
        wrappers = connection.execute_wrappers
        if hasattr(self.current, "job") and self._note_cursor not in wrappers:
            wrappers.append(self._note_cursor)

    def _note_cursor(self, execute: Callable[..., Any], *args: Any) -> Any:
        context = args[-1]
        self.current.job.cursors.add(context["cursor"])
        return execute(*args)

    def acquire(self, job: JobThread) -> None:
        """Give the job a thread now, or as soon as one is free."""
        if self._free:
            self._give(self._free.pop(), job)
            return
        self._waiting.append(job)
        for holder in self._holders:
            if holder.is_idle:
                self.release(holder)
                return

    def release(self, job: JobThread) -> None:
        """Take the job's thread back, after closing its connections in it."""
        thread, job.thread = job.thread, None
        assert thread is not None
        self._holders.remove(job)
        closed = thread.submit(_close_all)
        closed.add_done_callback(lambda _: self.loop.call_soon_threadsafe(self._pass_on, thread))

    def idle(self, job: JobThread) -> None:
        """Note that the job is between two calls, so a waiting job may have its thread."""
        if (self._waiting or job.is_over) and job.is_idle:
            self.release(job)

    def end(self, job: JobThread) -> None:
        """Note that the job has ended. Asyncio tasks that it left running may still make calls."""
        job.is_over = True
        if job.thread is not None:
            self.release(job)

    def _pass_on(self, thread: ThreadPoolExecutor) -> None:
        if self._waiting:
            self._give(thread, self._waiting.popleft())
        else:
            self._free.append(thread)

    def _give(self, thread: ThreadPoolExecutor, job: JobThread) -> None:
        self._holders.append(job)
        job.start(thread)


class JobThread(Executor):
    """The executor of one job's context, as asgiref uses it: borrows a thread when needed."""

    def __init__(self, threads: DatabaseThreads) -> None:
        self._threads = threads
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running = 0
        self._in_transaction = False
        self.cursors: WeakSet[Any] = WeakSet()  #: that exist: a generator of rows keeps its own
        self.thread: ThreadPoolExecutor | None = None
        self.is_over = False  #: whether the job has ended

    @property
    def is_idle(self) -> bool:
        """True if another job may have the thread."""
        if self.thread is None or self._running or self._in_transaction:
            return False
        return all(getattr(cursor, "closed", False) for cursor in self.cursors)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``fn`` in the job's thread, once it has one."""
        future: Future[Any] = Future()
        call = (future, lambda: fn(*args, **kwargs))
        if self.thread is not None:
            self._run(*call)
        else:
            self._calls.append(call)
            if len(self._calls) == 1:
                self._threads.acquire(self)
        return future

    def start(self, thread: ThreadPoolExecutor) -> None:
        """Start using a thread: run the calls that have waited for it."""
        self.thread, self._in_transaction = thread, False
        while self._calls:
            self._run(*self._calls.popleft())

    def _run(self, future: Future[Any], call: Callable[[], Any]) -> None:
        assert self.thread is not None
        self._running += 1
        self.thread.submit(self._call, self.thread, future, call)

    def _call(
        self, thread: ThreadPoolExecutor, future: Future[Any], call: Callable[[], Any]
    ) -> None:
        """Run a call. This method runs in the thread."""
        result, error = None, None
        self._threads.current.job = self
        if future.set_running_or_notify_cancel():
            try:
                with self._threads.fork_guard:
                    result = call()
            except BaseException as raised:
                error = raised
        in_transaction = any(c.in_atomic_block for c in connections.all(initialized_only=True))
        self._threads.loop.call_soon_threadsafe(self._ended, thread, in_transaction)
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
            error = None  # otherwise it would keep its frames, and with them its cursors
        else:
            future.set_result(result)

    def _ended(self, thread: ThreadPoolExecutor, in_transaction: bool) -> None:
        self._running -= 1
        if thread is self.thread:  # else the job has ended during the call
            self._in_transaction = in_transaction
        self._threads.idle(self)
