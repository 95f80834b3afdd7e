"""The async lane: ``async def`` jobs on one event loop a child, many at a time.

The loop has a thread of its own, so that a sync job in the main thread does not hold up async jobs.
The main thread claims; the lane runs, and reports by itself through a reporter thread, so that
outcomes do not wait for the main thread either.
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

from ..conf import Settings
from ..exceptions import Interrupt, JobAbandoned, JobCancelled, JobTimeout, RedisQueueError
from ..jobs import Job
from ..store.replies import Outcome, Verdict
from . import journal, verdicts
from .asides import LatestProgress
from .context import UNREPORTED_INTERVAL, JobContext
from .executor import Call, Report
from .forks import ForksEnd
from .outcomes import KEPT_ROOM
from .reportable import encode, may_be_large
from .seat import Seat
from .threads import DatabaseThreads, JobThread
from .verdicts import Ruling

logger = logging.getLogger("django_redisqueue")

Send = Callable[[list[Outcome]], list[bool]]  # for each outcome whether it was written
REPORTED_TOGETHER = 64
SEND_AGAIN = 0.25  # s until what could not be written is sent again


@dataclass(slots=True)
class _Flight:
    """One job under way."""

    call: Call
    slot: int
    context: JobContext | None = None
    progress: LatestProgress | None = None
    task: asyncio.Task[None] | None = None
    interrupt: Interrupt | None = None


class _Landing(NamedTuple):
    """One job that has ended; ``log_end``: the end of the log behind its outcome."""

    outcome: Outcome
    log_end: int
    progress: LatestProgress | None
    is_unwritten: bool = False  # it was sent, and a key of its queue is of a wrong type


class AsyncLane:
    """Runs up to ``capacity`` async jobs; ``send`` reports outcomes, in the reporter's thread, and
    ``report`` their progress, in any thread but the loop's."""

    def __init__(
        self,
        settings: Settings,
        seat: Seat,
        capacity: int,
        connections: int,
        report: Report,
        send: Send,
    ) -> None:
        self._settings = settings
        self._seat = seat
        self._log = seat.lane_log
        self._connections = connections
        self._report = report
        self._send = send
        self.free_slots = list(range(1, capacity + 1))  #: one for each job that may start
        self._held_slots: list[int] = []  # until the log has room
        self._flights: dict[tuple[str, int], _Flight] = {}
        self._changed = threading.Condition()
        self._unreported = 0
        self.unwritten = 0  #: outcomes that cannot be written before somebody mends their queue
        self._landings: SimpleQueue[_Landing] = SimpleQueue()
        self._progress: SimpleQueue[LatestProgress] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: DatabaseThreads | None = None
        self._forks_end = ForksEnd()
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """Jobs that run or are not yet reported, but for those that cannot be."""
        return len(self._flights) + self._unreported - self.unwritten

    def start(self, call: Call, token: bytes) -> None:
        """Start a job; the caller has seen that a place is free.

        One that is under way with this very lease goes on: Redis went back to a time before its
        claim, and this child got it again.
        """
        loop, job = self._loop or self._start_loop(), call.job
        with self._changed:
            under_way = self._flights.get((job.id, job.lease))
            if under_way is not None:
                under_way.call = call
                logger.warning("job %s was claimed again while it runs here; it goes on", job.id)
                return
            flight = _Flight(call, self.free_slots.pop())
            self._flights[job.id, job.lease] = flight
        now_ms = time.monotonic_ns() // 1_000_000
        deadline_ms = now_ms + call.timeout_ms if call.timeout_ms else 0
        self._seat.begin(flight.slot, token, now_ms, deadline_ms)
        loop.call_soon_threadsafe(self._launch, flight)

    def wait(self, until: Callable[[], bool], timeout: float | None) -> None:
        """Wait in the main thread until a condition on the lane holds, or ``timeout`` seconds
        (None: for ever).
        """
        with self._changed:
            self._changed.wait_for(until, timeout)

    def interrupt(self, verb: str, job_id: str, lease: int) -> None:
        """An order of the supervisor for a job that may be under way here."""
        flight = self._flights.get((job_id, lease))
        if flight is None or self._loop is None:
            return
        interrupt = (
            JobCancelled("the job was cancelled while it ran")
            if verb == "cancel"
            else JobAbandoned("the job's lease is lost; another worker has it")
        )
        self._loop.call_soon_threadsafe(self._stop, flight, interrupt)

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop = asyncio.new_event_loop()
        self._threads = DatabaseThreads(self._connections, loop)
        threading.Thread(target=self._run_loop, name="async-lane", daemon=True).start()
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
            except BaseException:  # SystemExit in a task that a job has left running
                logger.exception("the event loop was stopped from inside a task; it goes on")

    # -- on the loop

    def _launch(self, flight: _Flight) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._run(flight))
        if flight.call.timeout_ms:
            late = JobTimeout("the job ran longer than its timeout")
            timer = self._loop.call_later(flight.call.timeout_ms / 1000, self._stop, flight, late)
            task.add_done_callback(lambda _: timer.cancel())

    def _stop(self, flight: _Flight, interrupt: Interrupt) -> None:
        if flight.interrupt is not None:
            return
        flight.interrupt = interrupt
        if isinstance(interrupt, JobCancelled) and flight.context is not None:
            flight.context.mark_cancelled()
        # A task that is cancelled before its first step never takes it: then ``_begin`` looks.
        if flight.task is not None and not flight.task.done():
            flight.task.cancel()

    def _begin(self, flight: _Flight) -> None:
        flight.task = asyncio.current_task()
        if flight.interrupt is not None:
            raise flight.interrupt

    async def _run(self, flight: _Flight) -> None:
        call, job = flight.call, flight.call.job
        try:
            self._begin(flight)
            ruling = Ruling(Verdict.COMPLETED, await self._perform(flight))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and flight.interrupt is not None:
                error = flight.interrupt.with_traceback(error.__traceback__)
            ruling = verdicts.judge(
                error, call.task.options, job.attempts, call.max_attempts, self._settings,
                call.secrets(),
            )  # fmt: skip
        journal.note(job, ruling)
        self._landed(flight, ruling)

    async def _perform(self, flight: _Flight) -> str:
        call, job = flight.call, flight.call.job
        assert self._threads is not None
        assert self._loop is not None
        args = call.args
        if call.task.options.takes_context:
            progress = flight.progress = LatestProgress(
                lambda text: self._report(job, text), self._progress.put
            )
            flight.context = JobContext(Job(job.id), job.attempts + 1, progress.give, job)
            args = [flight.context, *args]
        async with ThreadSensitiveContext() as context:
            # asgiref makes a thread for the context on its first call, unless it has one.
            SyncToAsync.context_to_thread_executor[context] = JobThread(self._threads, self._loop)
            with self._forks_end:
                result = await call.task.func(*args, **call.kwargs)
            if may_be_large(job.id):  # which takes time
                return await sync_to_async(encode)(result, job, self._settings)
            return encode(result, job, self._settings)

    def _landed(self, flight: _Flight, ruling: Ruling) -> None:
        if flight.progress is not None:
            flight.progress.end()
        with self._changed:
            job = flight.call.job  # by now: the call that claimed it may be another than at first
            outcome = Outcome(job.id, job.lease, job.call, *ruling)
            end = self._log.record(outcome)
            self._unreported += 1
            self._seat.end(flight.slot)
            self._held_slots.append(flight.slot)
            self._free_slots_for_room()
            del self._flights[outcome.id, outcome.lease]
            self._landings.put(_Landing(outcome, end, flight.progress))
            self._changed.notify_all()

    def _free_slots_for_room(self) -> None:
        """When outcomes come faster than they can be reported, no more jobs are begun: what does
        not fit in the log would run again if this process died."""
        if self._log.room >= KEPT_ROOM or not self._unreported:
            self.free_slots += self._held_slots
            self._held_slots.clear()

    # -- in the reporter's thread

    def _report_all(self) -> None:
        while True:
            landed = [self._landings.get()]
            while not self._landings.empty() and len(landed) < REPORTED_TOGETHER:
                landed.append(self._landings.get())
            for landing in landed:
                if landing.progress is not None:
                    landing.progress.send_last()
            written = self._send([landing.outcome for landing in landed])
            self._sent(landed, written)
            if not all(written):
                time.sleep(SEND_AGAIN)

    def _sent(self, landed: Sequence[_Landing], written: Sequence[bool]) -> None:
        """The oldest outcomes are reported, and leave the log; those behind them stay. What could
        not be written goes to the end, to be sent again."""
        with self._changed:
            for landing, is_written in zip(landed, written, strict=True):
                self.unwritten += (not is_written) - landing.is_unwritten
                self._unreported -= is_written
                if not is_written:
                    end = self._log.record(landing.outcome)
                    self._landings.put(_Landing(landing.outcome, end, None, is_unwritten=True))
            if self._unreported:
                self._log.forget(landed[-1].log_end)
            else:
                self._log.clear()
            self._free_slots_for_room()
            self._changed.notify_all()

    # -- in the progress thread

    def _send_progress(self) -> None:
        while True:
            progress = self._progress.get()
            try:
                progress.send()
            except RedisQueueError:  # no reason to fail a job
                time.sleep(UNREPORTED_INTERVAL)
            except Exception:  # nor to send no other job's
                logger.exception("the progress of an async job could not be sent; trying again")
                time.sleep(UNREPORTED_INTERVAL)

    def close(self) -> None:
        """Stop the loop; nothing is in flight any more."""
        self._is_closed = True
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop.stop)
