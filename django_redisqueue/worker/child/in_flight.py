"""Jobs that run side by side in one child, and the report of their outcomes.

The main thread claims jobs and starts them; the runners (async_runner.py, thread_runner.py) run
them. Everything that such jobs share is here: a slot in the table of running jobs, interrupts, a
log of outcomes, and two threads that talk to Redis: one reports outcomes, the other sends progress.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple, NoReturn

from ...broker.replies import Outcome
from ...core.clock import mono_ms
from ...core.ids import shard_of_id
from ...exceptions import Interrupt, JobCancelled, RedisQueueError, RedisUnavailable
from ..child_state import RESERVED_BYTES, ChildState
from ..interrupts import to_interrupt
from .context import UNREPORTED_INTERVAL, JobContext
from .executor import Execution, ReportProgress
from .job_log import log_outcome
from .job_redis import LatestProgress
from .retry_policy import Resolution
from .steps import StepStore

logger = logging.getLogger("django_redisqueue")

Send = Callable[[list[Outcome]], list[bool]]  # returns for each outcome whether it was written
REPORTED_TOGETHER = 64
WEIGHT = 0.05  # of the last job in the mean run time
RESEND_INTERVAL = 0.25  # s until outcomes that could not be written are sent again


def end_child(error: BaseException) -> NoReturn:
    """End the child after a fault outside its jobs, as in its main thread; the jobs are recovered.
    Otherwise they would seem to run forever, because heartbeats renew their leases."""
    try:
        #: A bug in the worker, not in a task. The jobs are recovered in a new process. Report the
        #: traceback.
        logger.error("a thread failed outside its job; its child ends", exc_info=error)
    finally:
        os._exit(1)


class InFlightRun:
    """A job that runs alongside others, in one of its runner's ``free_slots``."""

    def __init__(self, execution: Execution, free_slots: list[int]) -> None:
        self.execution = execution
        self.free_slots = free_slots
        self.slot = 0
        self.token = b""
        self.deadline_ms = 0
        self.started_ms = 0
        self.in_flight: InFlight | None = None
        self.context: JobContext | None = None
        self.progress: LatestProgress | None = None
        self.interrupt: Interrupt | None = None  #: the first one; others are ignored

    def new_context(self, _: Execution) -> JobContext:
        """The context of this run, which is in flight."""
        assert self.in_flight is not None
        return self.in_flight.add_context(self)

    def request(self, interrupt: Interrupt) -> None:
        """Have the job interrupted. A signal handler calls this, so it must not wait for a lock."""
        raise NotImplementedError

    def note(self, interrupt: Interrupt) -> bool:
        """Note the interrupt that the job gets; False if it already has one."""
        if self.interrupt is not None:
            return False
        if isinstance(interrupt, JobCancelled) and self.context is not None:
            self.context.mark_cancelled()
            if self.context.defers_cancel:
                return False  # it checks between two items
        self.interrupt = interrupt
        if self.context is not None:
            self.context.interrupt = interrupt
        return True


class FinishedRun(NamedTuple):
    """A job that has ended. ``log_end``: the end of the log after its outcome was added."""

    outcome: Outcome
    log_end: int
    progress: LatestProgress | None
    is_unwritten: bool = False  # sent before, but a key of its queue has the wrong type


class InFlight:
    """The jobs of all runners, from their start until their outcomes are accepted.

    ``send`` reports outcomes and is called in the reporter thread; ``report`` reports progress and
    is called in any thread except those of jobs. With ``several_shards``, neither waits for a shard
    that does not answer.
    """

    def __init__(
        self,
        state: ChildState,
        report: ReportProgress,
        send: Send,
        steps: StepStore,
        is_stopping: Callable[[], bool] = lambda: False,
        *,
        several_shards: bool = False,
    ) -> None:
        self._state = state
        self._several_shards = several_shards
        self._log = state.concurrent_log
        self._report = report
        self._send = send
        self._steps = steps
        self._is_stopping = is_stopping
        self._running: dict[tuple[str, int], InFlightRun] = {}
        # Ended runs whose slots are withheld until there is room.
        self._without_slot: list[InFlightRun] = []
        self._changed = threading.Condition()
        self._unreported = 0
        self.mean_ms = 1000.0  #: how long recent jobs ran; high until many have ended
        self.unwritten = 0  #: outcomes that cannot be written until their queue is repaired
        self._finished: SimpleQueue[FinishedRun] = SimpleQueue()
        self._progress: SimpleQueue[LatestProgress] = SimpleQueue()
        self._has_threads = False

    @property
    def count(self) -> int:
        """How many jobs run or wait to be reported, except those that cannot be written."""
        return len(self._running) + self._unreported - self.unwritten

    def running(self) -> list[InFlightRun]:
        """The runs that have not ended."""
        with self._changed:
            return list(self._running.values())

    def begin(self, run: InFlightRun, token: bytes) -> bool:
        """Enter a run that its runner is about to start; False if the runner must not start it.

        A job that already runs here with the same lease continues: Redis lost the claim, and this
        child claimed the job again.
        """
        job = run.execution.job
        if not self._has_threads:
            self._start_threads()
        with self._changed:
            known = self._running.get((job.id, job.lease))
            if known is not None:
                known.execution = run.execution
                #: Redis lost a job's claim in a failover, and the same process claimed the job
                #: again; it runs once. No action is needed.
                logger.warning("job %s was claimed again while it runs here; it continues", job.id)
                return False
            run.slot, run.token = run.free_slots.pop(), token
            self._running[job.id, job.lease] = run
        run.started_ms = mono_ms()
        run.in_flight, run.execution.runner = self, run
        self._state.begin(run.slot, token, run.started_ms, 0)
        return True

    def set_deadline(self, run: InFlightRun) -> None:
        """Start the timeout of a run, which may have waited for another that blocked its runner."""
        run.deadline_ms = mono_ms() + run.execution.timeout_ms
        self._state.begin(run.slot, run.token, run.started_ms, run.deadline_ms)

    def note_commit(self, run: InFlightRun) -> None:
        """Note that the function of a run has returned, and that its work is being committed."""
        self._state.note_commit(run.slot)

    def withdraw(self, run: InFlightRun) -> None:
        """Take back a run that its runner has not started."""
        job = run.execution.job
        with self._changed:
            self._state.end(run.slot)
            del self._running[job.id, job.lease]
            run.free_slots.append(run.slot)

    def wake(self) -> None:
        """Make the main thread check again what it waits for."""
        with self._changed:
            self._changed.notify_all()

    def add_context(self, run: InFlightRun) -> JobContext:
        """The context of a run whose task takes one. Its progress does not wait for Redis."""
        job = run.execution.job
        run.progress = LatestProgress(lambda text: self._report(job, text), self._progress.put)
        run.context = JobContext(
            job, run.progress.give, self._steps, self._is_stopping, run.execution.max_attempts
        )
        if isinstance(run.interrupt, JobCancelled):
            run.context.mark_cancelled()
        return run.context

    def finish(self, run: InFlightRun, resolution: Resolution) -> None:
        """Record and log how a run ended, and have it reported. `free_slot` must follow."""
        log_outcome(run.execution.job, resolution, run.started_ms)
        if run.progress is not None:
            run.progress.end()
        with self._changed:
            job = run.execution.job  # which a second claim of this run may have replaced
            outcome = Outcome(job.id, job.lease, job.call, *resolution)
            end = self._log.record(outcome)
            self._unreported += 1
            self.mean_ms += (mono_ms() - run.started_ms - self.mean_ms) * WEIGHT
            self._state.end(run.slot)
            del self._running[outcome.id, outcome.lease]
            self._finished.put(FinishedRun(outcome, end, run.progress))

    def free_slot(self, run: InFlightRun) -> None:
        """Let another job have the slot of a finished run."""
        with self._changed:
            self._without_slot.append(run)
            self._free_slots_for_room()
            self._changed.notify_all()

    def interrupt(self, verb: str, job_id: str, lease: int) -> None:
        """Interrupt a job on the supervisor's order, if it runs here."""
        run = self._running.get((job_id, lease))
        if run is not None:
            run.request(to_interrupt(verb))

    def wait(self, until: Callable[[], bool], timeout: float | None) -> None:
        """Block until ``until()`` holds or ``timeout`` seconds have passed; None: no limit."""
        with self._changed:
            self._changed.wait_for(until, timeout)

    def _free_slots_for_room(self) -> None:
        """Let further jobs start only while the log has room for their outcomes: a job whose
        outcome is not in the log would run again if this process died."""
        if self._log.free_bytes >= RESERVED_BYTES or not self._unreported:
            for run in self._without_slot:
                run.free_slots.append(run.slot)
            self._without_slot.clear()

    def _start_threads(self) -> None:
        self._has_threads = True
        threading.Thread(target=self._report_all, name="reporter", daemon=True).start()
        threading.Thread(target=self._send_progress, name="progress", daemon=True).start()

    # The following methods run in the reporter thread.

    def _report_all(self) -> None:
        try:
            while True:
                self._report_some()
        except BaseException as error:
            end_child(error)

    def _report_some(self) -> None:
        finished = [self._finished.get()]
        while not self._finished.empty() and len(finished) < REPORTED_TOGETHER:
            finished.append(self._finished.get())
        for one in finished:
            if one.progress is not None:
                self._send_last(one.progress, shard_of_id(one.outcome.id))
        written = self._send([one.outcome for one in finished])
        self._sent(finished, written)
        if not any(written):  # otherwise more may be writable
            time.sleep(RESEND_INTERVAL)

    def _send_last(self, progress: LatestProgress, shard: int) -> None:
        if not self._several_shards:
            progress.send_last()
        elif self._state.answers(shard):
            with suppress(RedisUnavailable):  # it is sent again with the outcome
                progress.send_last(waits=False)

    def _sent(self, finished: Sequence[FinishedRun], written: Sequence[bool]) -> None:
        """Drop reported outcomes from the log; put unwritten ones at its end, to be sent again."""
        with self._changed:
            for one, is_written in zip(finished, written, strict=True):
                self.unwritten += (not is_written) - one.is_unwritten
                self._unreported -= is_written
                if not is_written:
                    end = self._log.record(one.outcome)
                    progress = one.progress if self._several_shards else None
                    self._finished.put(FinishedRun(one.outcome, end, progress, is_unwritten=True))
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
                #: Progress that a job reports is not shown, because of an unexpected error. The job
                #: keeps running. Report the traceback.
                logger.exception("the progress of a job could not be sent; trying again")
                time.sleep(UNREPORTED_INTERVAL)
