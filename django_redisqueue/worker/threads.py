"""Database threads for async jobs: every job its own connection, never more than a few in all.

asgiref runs the ORM calls of one ``ThreadSensitiveContext`` in one thread of its own; a thousand
jobs would open a thousand connections. Here a job gets one of a few threads with its first such
call and keeps it until it ends, or until another job waits and this one is between two calls and
outside a transaction. A thread's connections are closed before it changes hands, so no two jobs
share one.

Everything but the calls themselves happens on the event loop's thread, so there are no locks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from django.db import connections

from .databases import close_all
from .forks import ForksEnd


class DatabaseThreads:
    """``limit`` threads, each with at most one connection an alias."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._free = [ThreadPoolExecutor(1, f"database-{n}") for n in range(limit)]
        self._waiting: deque[JobThread] = deque()
        self._holders: list[JobThread] = []

    def acquire(self, job: JobThread) -> None:
        """Give the job a thread now, or as soon as one can be had."""
        if self._free:
            self._give(self._free.pop(), job)
            return
        self._waiting.append(job)
        for holder in self._holders:
            if holder.is_idle:
                self.release(holder)
                return

    def release(self, job: JobThread) -> None:
        """Take the job's thread back, once its connections are closed in it."""
        if job in self._waiting:
            self._waiting.remove(job)
        thread, job.thread = job.thread, None
        if thread is None:
            return
        self._holders.remove(job)
        closed = thread.submit(close_all)
        closed.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._pass_on, thread))

    def idle(self, job: JobThread) -> None:
        """The job is between two calls: somebody who waits may have its thread."""
        if self._waiting and job.is_idle:
            self.release(job)

    def close(self) -> None:
        """End the threads; nothing runs in them any more."""
        for thread in self._free:
            thread.shutdown()

    def _pass_on(self, thread: ThreadPoolExecutor) -> None:
        if self._waiting:
            self._give(thread, self._waiting.popleft())
        else:
            self._free.append(thread)

    def _give(self, thread: ThreadPoolExecutor, job: JobThread) -> None:
        self._holders.append(job)
        job.start(thread)


class JobThread(Executor):
    """What asgiref takes for the thread of one job's context."""

    def __init__(self, threads: DatabaseThreads, loop: asyncio.AbstractEventLoop) -> None:
        self._threads = threads
        self._loop = loop
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running = 0
        self._in_transaction = False
        self._forks_end = ForksEnd()
        self.thread: ThreadPoolExecutor | None = None

    @property
    def is_idle(self) -> bool:
        """True when the thread could be given away."""
        return self.thread is not None and not self._running and not self._in_transaction

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``fn`` in the job's thread, waiting for one if need be."""
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
        """A thread was found."""
        self.thread = thread
        while self._calls:
            self._run(*self._calls.popleft())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """The job has ended (asgiref says so as its context closes)."""
        self._threads.release(self)

    def _run(self, future: Future[Any], call: Callable[[], Any]) -> None:
        assert self.thread is not None
        self._running += 1
        self.thread.submit(self._call, future, call)

    def _call(self, future: Future[Any], call: Callable[[], Any]) -> None:
        """In the thread."""
        result, error = None, None
        if future.set_running_or_notify_cancel():
            try:
                with self._forks_end:
                    result = call()
            except BaseException as raised:
                error = raised
        in_transaction = any(c.in_atomic_block for c in connections.all(initialized_only=True))
        self._loop.call_soon_threadsafe(self._ended, in_transaction)
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def _ended(self, in_transaction: bool) -> None:
        self._running -= 1
        self._in_transaction = in_transaction
        self._threads.idle(self)
