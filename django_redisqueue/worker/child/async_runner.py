"""Runs ``async def`` jobs, many at a time, on one event loop per child.

The main thread claims jobs and starts them here. The event loop has a thread of its own, so a sync
job in the main thread does not block async jobs. Two more threads talk to Redis: one reports
outcomes, the other sends progress.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from ...broker.replies import Outcome, OutcomeKind
from ...client.jobs import Job
from ...exceptions import (
    Interrupt,
    JobAbandoned,
    JobCancelled,
    JobTimeout,
    PayloadTooLarge,
    RedisQueueError,
)
from ..child_state import ChildState
from ..outcome_log import RESERVED_BYTES
from .context import UNREPORTED_INTERVAL, JobContext
from .databases import DatabaseThreads, JobThread
from .executor import Execution, Pipeline, ReportProgress
from .forks import ForkGuard
from .job_log import log_outcome
from .job_redis import LatestProgress
from .results import encode_large, encode_within_cap
from .retry_policy import Resolution
from .steps import StepStore

logger = logging.getLogger("django_redisqueue")

Send = Callable[[list[Outcome]], list[bool]]  # returns for each outcome whether it was written
REPORTED_TOGETHER = 64
RESEND_INTERVAL = 0.25  # s until outcomes that could not be written are sent again


@dataclass(slots=True)
class AsyncRun:
    """A job that runs on the event loop."""

    execution: Execution
    slot: int
    context: JobContext | None = None
    progress: LatestProgress | None = None
    task: asyncio.Task[None] | None = None
    interrupt: Interrupt | None = None


class FinishedRun(NamedTuple):
    """A job that has ended. ``log_end`` is where the log ended after its outcome."""

    outcome: Outcome
    log_end: int
    progress: LatestProgress | None
    is_unwritten: bool = False  # sent before, but a key of its queue has the wrong type


class AsyncRunner:
    """Runs up to ``capacity`` async jobs.

    ``send`` reports outcomes and is called in the reporter thread; ``report`` reports progress and
    is called in any thread but the event loop's.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        state: ChildState,
        capacity: int,
        connections: int,
        report: ReportProgress,
        send: Send,
        steps: StepStore | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._state = state
        self._log = state.async_log
        self._connections = connections
        self._report = report
        self._send = send
        self._steps = steps
        self.free_slots = list(range(1, capacity + 1))  #: one for each job that may start now
        self._held_slots: list[int] = []  # kept back until the log has room
        self._running: dict[tuple[str, int], AsyncRun] = {}
        self._changed = threading.Condition()
        self._unreported = 0
        self.unwritten = 0  #: outcomes that cannot be written until their queue is repaired
        self._finished: SimpleQueue[FinishedRun] = SimpleQueue()
        self._progress: SimpleQueue[LatestProgress] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: DatabaseThreads | None = None
        self._fork_guard = ForkGuard()
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """How many jobs run or wait to be reported, without those that cannot be written."""
        return len(self._running) + self._unreported - self.unwritten

    def start(self, execution: Execution, token: bytes) -> None:
        """Start a job in one of the ``free_slots``.

        A job that already runs here with the same lease goes on: Redis lost the claim, and this
        child claimed the job again.
        """
        loop, job = self._loop or self._start_loop(), execution.job
        with self._changed:
            known = self._running.get((job.id, job.lease))
            if known is not None:
                known.execution = execution
                logger.warning("job %s was claimed again while it runs here; it goes on", job.id)
                return
            run = AsyncRun(execution, self.free_slots.pop())
            self._running[job.id, job.lease] = run
        now_ms = time.monotonic_ns() // 1_000_000
        deadline_ms = now_ms + execution.timeout_ms if execution.timeout_ms else 0
        self._state.begin(run.slot, token, now_ms, deadline_ms)
        loop.call_soon_threadsafe(self._launch, run)

    def wait(self, until: Callable[[], bool], timeout: float | None) -> None:
        """Block the main thread until ``until()`` holds or ``timeout`` seconds have passed; None
        waits without a limit."""
        with self._changed:
            self._changed.wait_for(until, timeout)

    def interrupt(self, verb: str, job_id: str, lease: int) -> None:
        """Interrupt a job by order of the supervisor, if it runs here."""
        run = self._running.get((job_id, lease))
        if run is None or self._loop is None:
            return
        interrupt = (
            JobCancelled("the job was cancelled while it ran")
            if verb == "cancel"
            else JobAbandoned("the job's lease is lost; another worker has it")
        )
        self._loop.call_soon_threadsafe(self._stop, run, interrupt)

    def close(self) -> None:
        """Stop the event loop, once no job is in flight."""
        self._is_closed = True
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop = asyncio.new_event_loop()
        self._threads = DatabaseThreads(self._connections, loop)
        threading.Thread(target=self._run_loop, name="async-runner", daemon=True).start()
        threading.Thread(target=self._report_all, name="async-reporter", daemon=True).start()
        threading.Thread(target=self._send_progress, name="async-progress", daemon=True).start()
        return loop

    def _run_loop(self) -> None:
        assert self._loop is not None
        while not self._is_closed:
            try:
                self._loop.run_forever()
                if not self._is_closed:
                    logger.error("a task has stopped the event loop it runs on; it goes on")
            except BaseException:  # such as SystemExit in a task that a job left running
                logger.exception("the event loop was stopped from inside a task; it goes on")

    # The following methods run on the event loop.

    def _launch(self, run: AsyncRun) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._run(run))
        if run.execution.timeout_ms:
            late = JobTimeout("the job ran longer than its timeout")
            timer = self._loop.call_later(run.execution.timeout_ms / 1000, self._stop, run, late)
            task.add_done_callback(lambda _: timer.cancel())

    def _stop(self, run: AsyncRun, interrupt: Interrupt) -> None:
        if run.interrupt is not None:
            return
        run.interrupt = interrupt
        if isinstance(interrupt, JobCancelled) and run.context is not None:
            run.context.mark_cancelled()
        # Cancelling a task before its first step would skip all of it, so ``_begin`` checks too.
        if run.task is not None and not run.task.done():
            run.task.cancel()

    def _begin(self, run: AsyncRun) -> None:
        run.task = asyncio.current_task()
        if run.interrupt is not None:
            raise run.interrupt

    async def _run(self, run: AsyncRun) -> None:
        execution = run.execution
        try:
            self._begin(run)
            resolution = Resolution(OutcomeKind.COMPLETED, await self._perform(run))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and run.interrupt is not None:
                error = run.interrupt.with_traceback(error.__traceback__)
            resolution = self._pipeline.resolve(execution, error)
        log_outcome(execution.job, resolution)
        self._finish(run, resolution)

    async def _perform(self, run: AsyncRun) -> str:
        execution = run.execution
        job = execution.job
        assert self._threads is not None
        assert self._loop is not None
        args = execution.args
        if execution.task.options.takes_context:
            progress = run.progress = LatestProgress(
                lambda text: self._report(job, text), self._progress.put
            )
            run.context = JobContext(Job(job.id), job.attempts + 1, progress.give, job, self._steps)
            args = [run.context, *args]
        async with ThreadSensitiveContext() as context:
            # asgiref would otherwise create a thread for the context on its first call.
            SyncToAsync.context_to_thread_executor[context] = JobThread(self._threads, self._loop)
            with self._fork_guard:
                result = await execution.task.func(*args, **execution.kwargs)
            settings = self._pipeline.settings
            try:
                return encode_within_cap(result, job, settings)
            except PayloadTooLarge as error:  # it may be written to a file, which takes time
                return await sync_to_async(encode_large)(result, job, settings, error)

    def _finish(self, run: AsyncRun, resolution: Resolution) -> None:
        if run.progress is not None:
            run.progress.end()
        with self._changed:
            job = run.execution.job  # which a second claim of this run may have replaced
            outcome = Outcome(job.id, job.lease, job.call, *resolution)
            end = self._log.record(outcome)
            self._unreported += 1
            self._state.end(run.slot)
            self._held_slots.append(run.slot)
            self._free_slots_for_room()
            del self._running[outcome.id, outcome.lease]
            self._finished.put(FinishedRun(outcome, end, run.progress))
            self._changed.notify_all()

    def _free_slots_for_room(self) -> None:
        """Let further jobs start only while the log has room for their outcomes: a job whose
        outcome is not in the log would run again if this process died."""
        if self._log.free_bytes >= RESERVED_BYTES or not self._unreported:
            self.free_slots += self._held_slots
            self._held_slots.clear()

    # The following methods run in the reporter thread.

    def _report_all(self) -> None:
        while True:
            finished = [self._finished.get()]
            while not self._finished.empty() and len(finished) < REPORTED_TOGETHER:
                finished.append(self._finished.get())
            for one in finished:
                if one.progress is not None:
                    one.progress.send_last()
            written = self._send([one.outcome for one in finished])
            self._sent(finished, written)
            if not all(written):
                time.sleep(RESEND_INTERVAL)

    def _sent(self, finished: Sequence[FinishedRun], written: Sequence[bool]) -> None:
        """Drop reported outcomes from the log. Unwritten ones move to its end and to the end of the
        queue, to be sent again."""
        with self._changed:
            for one, is_written in zip(finished, written, strict=True):
                self.unwritten += (not is_written) - one.is_unwritten
                self._unreported -= is_written
                if not is_written:
                    end = self._log.record(one.outcome)
                    self._finished.put(FinishedRun(one.outcome, end, None, is_unwritten=True))
            if self._unreported:
                self._log.discard_before(finished[-1].log_end)
            else:
                self._log.clear()
            self._free_slots_for_room()
            self._changed.notify_all()

    # The following method runs in the progress thread.

    def _send_progress(self) -> None:
        while True:
            progress = self._progress.get()
            try:
                progress.send()
            except RedisQueueError:  # not a reason to fail the job
                time.sleep(UNREPORTED_INTERVAL)
            except Exception:  # the thread must survive: other jobs use it too
                logger.exception("the progress of an async job could not be sent; trying again")
                time.sleep(UNREPORTED_INTERVAL)
