"""Runs sync jobs in threads, several at a time (``runworker --threads``).

An interrupt reaches a thread between two bytecodes of its job. A thread that waits in C code, for
a socket or in ``time.sleep``, cannot be interrupted: the job sees the interrupt when the call
returns. If that is more than 5 s after its timeout, the supervisor kills the child.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import TypeVar

from django.db import connections

from ...broker.replies import OutcomeKind
from ...core.clock import mono_ms
from ...core.interrupts import interrupt_shield
from ...exceptions import Interrupt, JobTimeout
from .databases import Databases
from .executor import Execution, Pipeline
from .forks import ForkGuard
from .in_flight import InFlight, InFlightRun, end_child
from .retry_policy import Resolution

Returned = TypeVar("Returned")
Request = tuple["ThreadRun", Interrupt]

CLOSE_SECONDS = 1.0  # for a thread to close its database connections, at the end of the child


class ThreadRun(InFlightRun):
    """A job that runs in a thread. It is interrupted only in ``call``, and at most once.

    Whoever takes the thread out of ``_interruptible`` decides how the race between the end of the
    call and an interrupt ends. There is no lock: an interrupt could leave it held
    (core/interrupts.py).
    """

    def __init__(
        self, execution: Execution, free_slots: list[int], request: Callable[[Request], None]
    ) -> None:
        super().__init__(execution, free_slots)
        self._request = request
        self._interruptible: list[int] = []  # the thread, while it may be interrupted
        self._was_set: SimpleQueue[None] = SimpleQueue()  # filled once Python knows the interrupt
        self._is_settled = False  # whether the interrupt was raised, or is about to be

    def request(self, interrupt: Interrupt) -> None:
        """Have the interrupt thread raise it: a signal handler must not wait for a lock."""
        self._request((self, interrupt))

    def raise_in_thread(self, interrupt: Interrupt) -> None:
        """Interrupt the job, unless it has been interrupted or has ended. All calls must be in the
        same thread, other than the job's."""
        if self.note(interrupt):
            thread = self._take_thread()
            if thread is not None:
                _set_async_exception(thread, type(interrupt))
                self._was_set.put(None)

    def call(self, code: Callable[[], Returned]) -> Returned:
        """Call ``code``, which may be interrupted until this returns, but not later."""
        try:
            try:
                self._open()
                return code()
            finally:
                self._close()  # the interrupt may arrive during this
        except BaseException as error:
            if self.interrupt is not None and type(error) is type(self.interrupt):
                # In another thread Python can only raise a class: add the message here.
                raise self.interrupt.with_traceback(error.__traceback__) from None
            raise

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Raise no interrupt inside the block; one that arrives is raised after it. A thread that
        the job has started gets none in any case, and neither does a job that had its only one."""
        if threading.get_ident() not in self._interruptible:
            yield
            return
        self._close()
        try:
            yield
        finally:
            self._open()

    def _open(self) -> None:
        self._interruptible.append(threading.get_ident())
        if self.interrupt is not None and self._take_thread() is not None:
            self._is_settled = True
            raise self.interrupt  # it arrived before

    def _close(self) -> None:
        if self._take_thread() is None and not self._is_settled:
            self._is_settled = True
            self._was_set.get()  # an interrupt that was not raised in the job is raised here

    def _take_thread(self) -> int | None:
        try:
            return self._interruptible.pop()
        except IndexError:
            return None


class ThreadRunner:
    """Runs up to ``threads`` sync jobs at a time, in slots from ``first_slot`` on."""

    def __init__(
        self, pipeline: Pipeline, in_flight: InFlight, threads: int, first_slot: int
    ) -> None:
        self._pipeline = pipeline
        self._in_flight = in_flight
        self.free_slots = list(range(first_slot, first_slot + threads))  #: see AsyncRunner
        self._size = threads
        self._threads: list[threading.Thread] = []
        self._runs: SimpleQueue[ThreadRun | None] = SimpleQueue()
        self._requests: SimpleQueue[Request | None] = SimpleQueue()
        self._wake_ms = inf  # when the interrupt thread checks the deadlines again
        self._fork_guard = ForkGuard()

    def start(self, execution: Execution, token: bytes) -> None:
        """Start a job in one of the ``free_slots``."""
        if not self._threads:
            self._start_threads()
        run = ThreadRun(execution, self.free_slots, self._requests.put)
        if self._in_flight.begin(run, token):
            if execution.timeout_ms:
                self._in_flight.set_deadline(run)
            self._runs.put(run)
            if run.deadline_ms and run.deadline_ms < self._wake_ms:
                self._requests.put(None)

    def close(self) -> None:
        """End the threads, once no job is in flight."""
        for _ in self._threads:
            self._runs.put(None)
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)

    def _start_threads(self) -> None:
        self._threads = [
            threading.Thread(target=self._work, name=f"job-{n}", daemon=True)
            for n in range(1, self._size + 1)
        ]
        for thread in self._threads:
            thread.start()
        threading.Thread(target=self._interrupt, name="job-interrupts", daemon=True).start()

    # The following methods run in the threads of jobs.

    def _work(self) -> None:
        try:
            databases = Databases()
            while (run := self._runs.get()) is not None:
                self._run(run, databases)
            connections.close_all()
        except BaseException as error:
            end_child(error)

    def _run(self, run: ThreadRun, databases: Databases) -> None:
        databases.before()
        try:
            body = self._pipeline.perform(run.execution, partial(self._call_task, run))
            resolution = Resolution(OutcomeKind.COMPLETED, body)
        except BaseException as error:
            resolution = self._pipeline.resolve(run.execution, error)
        self._in_flight.finish(run, resolution)
        if resolution.kind != OutcomeKind.COMPLETED:
            databases.after_error()
        databases.after()
        self._in_flight.free_slot(run)  # only now does the thread have room for another job

    def _call_task(self, run: ThreadRun, execution: Execution) -> object:
        args = execution.args
        if execution.task.options.takes_context:
            execution.context = self._in_flight.add_context(run)
            args = [execution.context, *args]

        interrupt_shield.set(run.shield)

        def code() -> object:
            with self._fork_guard:  # inside: a forked process must not wait for locks of threads
                return copy_context().run(execution.task.func, *args, **execution.kwargs)

        result = run.call(code)
        if execution.task.options.exactly_once:
            self._in_flight.note_commit(run)
        return result

    # The following methods run in the interrupt thread.

    def _interrupt(self) -> None:
        """Deliver interrupts that were requested, and those of deadlines that have passed."""
        while True:
            self._wake_ms = inf  # a job that starts after this wakes the thread
            next_ms = self._interrupt_overdue()
            self._wake_ms = next_ms
            try:
                request = self._requests.get(
                    timeout=None if next_ms == inf else max(0.0, (next_ms - mono_ms()) / 1000)
                )
            except Empty:
                continue
            if request is not None:
                run, interrupt = request
                run.raise_in_thread(interrupt)

    def _interrupt_overdue(self) -> float:
        """Interrupt the jobs that have run too long; returns when (monotonic ms) to check again."""
        now_ms, next_ms = mono_ms(), inf
        for run in self._in_flight.running():
            if not isinstance(run, ThreadRun) or not run.deadline_ms or run.interrupt is not None:
                continue
            if run.deadline_ms <= now_ms:
                run.raise_in_thread(JobTimeout())
            else:
                next_ms = min(next_ms, run.deadline_ms)
        return next_ms


def _set_async_exception(thread: int, kind: type[Interrupt]) -> None:
    """Have the interpreter raise ``kind`` in a thread."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
