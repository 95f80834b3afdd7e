"""Runs ``async def`` jobs, many at a time, on one event loop per child.

The event loop runs in its own thread, so a sync job in the main thread does not block async jobs.
If a job blocks the event loop, others cannot start, and the jobs that wait for it are released.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from ...broker.replies import ClaimedJob, OutcomeKind
from ...core.clock import mono_ms
from ...core.codec import encode_result
from ...exceptions import (
    Interrupt,
    InvalidArguments,
    JobSuspended,
    JobTimeout,
    PayloadTooLarge,
)
from ..current import current_run
from .databases import DatabaseThreads, JobThread, PlainThreads
from .executor import Execution, Pipeline, encode_large
from .forks import ForkGuard
from .in_flight import InFlight, InFlightRun, end_child
from .retry_policy import Resolution, UnstorableResult

logger = logging.getLogger("django_redisqueue")

BLOCKED_AFTER = 0.25  # s within which the event loop starts a job, unless another one blocks it


class AsyncRun(InFlightRun):
    def __init__(
        self, execution: Execution, free_slots: list[int], loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(execution, free_slots)
        self._loop = loop
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def request(self, interrupt: Interrupt) -> None:
        self._loop.call_soon_threadsafe(self.stop, interrupt)

    def stop(self, interrupt: Interrupt) -> None:
        """Interrupt the job. Call on the event loop."""
        # Cancelling a task before its first step would skip all of it, so ``begin`` also checks.
        if self.note(interrupt) and self.task is not None and not self.task.done():
            self.task.cancel()

    def begin(self) -> None:
        """The first step of the task."""
        self.task = asyncio.current_task()
        if self.interrupt is not None:
            raise self.interrupt
        if timeout_ms := self.execution.timeout_ms:
            self.timer = self._loop.call_later(timeout_ms / 1000, self.stop, JobTimeout())


class AsyncRunner:
    """Runs up to ``capacity`` async jobs; ``connections`` of them may use a database."""

    def __init__(
        self, pipeline: Pipeline, in_flight: InFlight, capacity: int, connections: int
    ) -> None:
        self._pipeline = pipeline
        self._in_flight = in_flight
        self._connections = connections
        self.free_slots = list(range(1, capacity + 1))  #: one for each job that may start now
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: DatabaseThreads | None = None
        self._fork_guard = ForkGuard()
        self._to_launch: deque[AsyncRun] = deque()
        self._to_begin: dict[AsyncRun, None] = {}  # whoever pops a run begins or withdraws it
        self._is_blocked = False
        self._is_closed = False

    def start(self, execution: Execution, token: bytes) -> None:
        """Start a job in one of the ``free_slots``."""
        loop = self._loop or self._start_loop()
        run = AsyncRun(execution, self.free_slots, loop)
        if self._in_flight.begin(run, token):
            self._to_begin[run] = None
            self._to_launch.append(run)
            if len(self._to_launch) == 1:  # else the loop was already woken, and has not looked yet
                loop.call_soon_threadsafe(self._launch)

    @property
    def blocked_after(self) -> float:
        """Seconds until the event loop counts as blocked if it starts no job; inf if none waits."""
        return BLOCKED_AFTER if self._to_begin else math.inf

    def check_blocked(self) -> bool:
        """Whether a job blocks the event loop. It counts as blocked until it responds again."""
        if self._to_begin and not self._is_blocked:
            since_ms = min((run.started_ms for run in list(self._to_begin)), default=math.inf)
            self._is_blocked = mono_ms() - since_ms > BLOCKED_AFTER * 1000
            if self._is_blocked and self._loop is not None:
                self._loop.call_soon_threadsafe(self._unblock)
        return self._is_blocked

    def withdraw_blocked(self) -> list[ClaimedJob]:
        """Take back the jobs that have not begun because another one blocks the event loop."""
        withdrawn = []
        for run in list(self._to_begin) if self._is_blocked else ():
            if self._take(run):
                self._in_flight.withdraw(run)
                withdrawn.append(run.execution.job)
        return withdrawn

    def _take(self, run: AsyncRun) -> bool:
        """Decide between the main thread and the event loop: True for the first to ask."""
        return self._to_begin.pop(run, True) is None

    def close(self) -> None:
        """Stop the event loop, once no job is in flight."""
        self._is_closed = True
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop = asyncio.new_event_loop()
        loop.set_default_executor(PlainThreads(thread_name_prefix="asyncio"))
        self._threads = DatabaseThreads(self._connections, loop)
        target = partial(self._run_loop, loop)
        threading.Thread(target=target, name="async-runner", daemon=True).start()
        return loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._is_closed:
            try:
                loop.run_forever()
                if not self._is_closed:
                    #: An async task stopped the loop that all async jobs of the process share, or
                    #: raised something like SystemExit in an asyncio task that it had started. The
                    #: other jobs keep running. Fix the code.
                    logger.error("a task has stopped the event loop it runs on; it continues")
            except OSError as error:  # a job has closed the loop's files
                end_child(error)
            except BaseException:  # such as SystemExit in a task that a job left running
                #: An async task stopped the loop that all async jobs of the process share, or
                #: raised something like SystemExit in an asyncio task that it had started. The
                #: other jobs keep running. Fix the code.
                logger.exception("the event loop was stopped from inside a task; it continues")

    # The following methods run on the event loop.

    def _unblock(self) -> None:
        self._is_blocked = False
        self._in_flight.wake()

    def _launch(self) -> None:
        while self._to_launch:
            run = self._to_launch.popleft()
            asyncio.create_task(self._run(run)).add_done_callback(_end_child_if_broken)

    async def _run(self, run: AsyncRun) -> None:
        if not self._take(run):
            return
        if run.execution.timeout_ms:
            self._in_flight.set_deadline(run)
        current_run.set(run.execution)  # for this asyncio task
        try:
            run.begin()
            self._pipeline.begin(run.execution)
            resolution = Resolution(OutcomeKind.COMPLETED, await self._perform(run))
            self._pipeline.complete(run.execution)
        except BaseException as error:
            if run.interrupt is not None and isinstance(error, asyncio.CancelledError):
                error = run.interrupt.with_traceback(error.__traceback__)
            resolution = self._pipeline.resolve(run.execution, error)
        run.execution.runner = None
        if run.timer is not None:
            run.timer.cancel()
        self._in_flight.finish(run, resolution)
        self._in_flight.free_slot(run)

    async def _perform(self, run: AsyncRun) -> str:
        execution = run.execution
        job = execution.job
        args = execution.args
        if execution.task.options.takes_context:
            execution.context = self._in_flight.add_context(run)
            args = [execution.context, *args]
        with self._database_thread():
            try:
                with self._fork_guard:
                    result = await execution.task.func(*args, **execution.kwargs)
            except JobSuspended as suspended:
                await sync_to_async(suspended.prepare)()
                raise
            settings = self._pipeline.settings
            try:
                return encode_result(result, settings.max_result_bytes, job.task)
            except PayloadTooLarge as error:  # may need a file, which takes time
                return await sync_to_async(encode_large)(result, job, settings, error)
            except InvalidArguments as error:
                raise UnstorableResult(error) from error

    @contextmanager
    def _database_thread(self) -> Iterator[None]:
        """Lend the job a database thread for its ORM calls.

        asgiref would create a thread on the first call of each context, and another one to shut
        down its executor when the context ends. Nor does this context end with the job: asyncio
        tasks that the job leaves running use it, and asgiref would give each of them a thread.
        """
        assert self._threads is not None
        context = ThreadSensitiveContext()
        thread = JobThread(self._threads)
        SyncToAsync.thread_sensitive_context.set(context)
        SyncToAsync.context_to_thread_executor[context] = thread
        try:
            yield
        finally:
            self._threads.end(thread)


def _end_child_if_broken(task: asyncio.Task[None]) -> None:
    """End the child after a fault outside its jobs, as when a job cancels another's task."""
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is not None:
        end_child(error)
