"""The main loop of a child: claim a batch of jobs, run them, report their outcomes.

One round trip to Redis reports a batch and claims the next one.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from ...broker.commands import ClaimRequest
from ...broker.connection import BLOCK_SECONDS
from ...broker.replies import ClaimedJob, ClaimReply
from ...client.registry import lookup
from ...conf import Settings
from ...exceptions import RedisQueueError
from ..child_state import RESERVED_BYTES, ChildState
from ..interrupts import Interrupts
from ..options import WorkerOptions
from .async_runner import AsyncRunner
from .chunks import perform_chunk, shares_chunk
from .claims import BatchSize, Claims, Reports, largest_batch, releases
from .executor import Execution, Executor, Pipeline
from .forks import exit_after_fd_loss, exit_without_files
from .idle import IdleWait, SuspectPauses
from .in_flight import InFlight
from .job_log import logs_completed
from .job_redis import JobRedis
from .retry_policy import Resolution
from .thread_runner import ThreadRunner

logger = logging.getLogger("django_redisqueue")

FD_LOSS_WAIT = 0.5  # s to wait for jobs about to end, such as the one that closed the files


class Child:
    """A process that runs jobs. ``wake_supervisor`` makes the supervisor check ``state``."""

    def __init__(
        self,
        child: str,
        state: ChildState,
        options: WorkerOptions,
        settings: Settings,
        wake_supervisor: Callable[[], None],
    ) -> None:
        self.child = child
        self._state = state
        self._options = options
        self._settings = settings
        self._wake_supervisor = wake_supervisor
        request = ClaimRequest(child, options.queues, options.min_priority)
        self._interrupts = Interrupts(state)
        self._claims = Claims(request, state, settings, lambda: self._interrupts.stopping)
        job_redis = JobRedis(child, settings, state.keep_alive)
        self._pipeline = Pipeline(
            settings, job_redis.unknown_task_delays, job_redis.parent_result,
            job_redis.waited_since,
        )  # fmt: skip
        self._executor = Executor(self._pipeline, state, self._interrupts, job_redis)
        self._in_flight = InFlight(
            state, job_redis.report, Reports(request, state, settings).send, job_redis,
            lambda: self._interrupts.stopping,
            several_shards=settings.shards > 1,
        )  # fmt: skip
        capacity, connections = options.async_concurrency, options.async_db_connections
        self._async_runner = AsyncRunner(self._pipeline, self._in_flight, capacity, connections)
        self._thread_runner: ThreadRunner | None = None
        if options.threads > 1:
            self._thread_runner = ThreadRunner(
                self._pipeline, self._in_flight, options.threads, 1 + capacity
            )
        self._idle = IdleWait(self._claims, self._interrupts, self._in_flight)
        self._batch = BatchSize(settings.batch_window_ms)
        self._window = settings.batch_window_ms / 1000
        self._done = 0
        self._suspects = SuspectPauses()
        self._alone_until = 0.0  # when (monotonic) jobs may again start alongside those in flight
        self._has_more = False  # whether the last claim had jobs, and all of them have started

    def run(self) -> bool:
        """Work until ordered to stop, recycled or, with ``burst``, out of work, which returns
        True."""
        is_drained = False
        self._interrupts.on_unmatched = self._in_flight.interrupt
        self._interrupts.install()
        with suppress(RedisQueueError):  # if Redis is unavailable, assume that it is near
            self._batch.limit = largest_batch(
                lambda: self._claims.current.commands.connection.call("PING"),
                self._options.processes,
            )
        while not self._is_over():
            if not self._claims.is_made or self._in_flight.count:  # else that was checked
                self._interrupts.unblock()
                if not self._can_claim():
                    self._wait_for_room()
                    continue
            try:
                claim = self._claim()
            except RedisQueueError:
                break  # ordered to stop, with nothing left to report
            self._alone_until = self._suspects.paused_until(claim.must_be_alone, time.monotonic())
            if claim.jobs:
                self._idle.found_work()
                self._run_batch(claim.jobs)
                continue
            self._has_more = False
            if self._has_slot() and (is_drained := self._wait_for_jobs(claim)):
                break
        self._finish_last()
        return is_drained

    def _wait_for_jobs(self, claim: ClaimReply) -> bool:
        """Wait until a claim may have jobs again; with ``burst``, True if none can."""
        if claim.must_be_alone and not self._in_flight.count:
            self._idle.wait_for_release()
        elif not self._options.burst:
            self._idle.ignore([*claim.leave_out, *claim.broken])
            self._idle.wait(self._wanted(), self._async_runner.blocked_after)
        elif not self._claims.is_dry:
            self._idle.next_shard()
        else:
            return self._idle.is_drained(self._in_flight.unwritten)
        return False

    def _is_over(self) -> bool:
        return self._interrupts.stopping or 0 < self._options.max_jobs <= self._done

    def _claim(self) -> ClaimReply:
        claim = self._claims.claim(self._wanted())
        several = len(self._claims.shards) > 1
        if several and claim.jobs and claim.jobs[0].recoveries and self._in_flight.count:
            # A suspect runs alone, but its shard has no knowledge of other shards' jobs.
            self._claims.add(releases(claim.jobs))
            self._claims.flush()
            queues = [job.queue for job in claim.jobs]
            return claim._replace(jobs=[], must_be_alone=True, leave_out=queues)
        return claim

    def _wanted(self) -> int:
        wanted = self._batch.jobs()
        if not self._claims_ahead():
            if self._in_flight.count:
                wanted = min(wanted, len(self._async_runner.free_slots))
            if self._thread_runner is not None:  # so that a thread is free for each of them
                wanted = min(wanted, len(self._thread_runner.free_slots))
        if self._options.max_jobs:
            wanted = min(wanted, self._options.max_jobs - self._done)
        return wanted

    def _has_slot(self) -> bool:
        """True if there is room for one more job alongside those in flight."""
        threads = self._thread_runner
        return bool(self._async_runner.free_slots and (threads is None or threads.free_slots))

    def _claims_ahead(self) -> bool:
        """True if jobs may be claimed before they have a slot: while those in flight end so soon
        that the claimed ones will start within the window. Otherwise slots would be empty during
        each claim."""
        return self._has_more and self._in_flight.mean_ms < self._settings.batch_window_ms

    def _can_claim(self) -> bool:
        """True if another job may start now, or soon."""
        if self._async_runner.check_blocked():
            return False
        if not self._has_slot() and not self._claims_ahead():
            return False
        if self._state.is_out_of_files():
            return False
        if self._alone_until and self._in_flight.count:
            return time.monotonic() >= self._alone_until
        return True

    def _wait_for_room(self) -> None:
        """Report, and wait a while for jobs in flight to make room for others. Jobs that wait for
        one that blocks the event loop return to the head of their queue."""
        if self._state.is_out_of_files() and not self._in_flight.running():
            exit_without_files()
        self._state.keep_alive()
        self._claims.give_back()
        self._claims.add(releases(self._async_runner.withdraw_blocked()))
        self._claims.flush()
        left = self._alone_until - time.monotonic()
        timeout = min(BLOCK_SECONDS, left) if left > 0 else BLOCK_SECONDS
        self._interrupts.wait(lambda: self._in_flight.wait(self._can_claim, timeout))

    def _run_batch(self, jobs: list[ClaimedJob]) -> None:
        task = lookup(jobs[0].task)
        if task is not None and task.options.chunk is not None:
            self._run_chunk(jobs, task.options.chunk.size)
            return
        state, begun = self._state, time.monotonic()
        is_alone = len(jobs) == 1 and not self._in_flight.count
        # A job that was reported may still have its slot.
        starts_at_once = is_alone and self._has_slot() and not self._interrupts.stopping
        if not starts_at_once:
            state.offer(jobs)
        self._executor.logs_completed = logs_completed()  # asked once, because it takes a while
        others = len(jobs) > 1 or self._in_flight.count or self._claims.unreported
        if others and not state.is_watched:  # none of which must wait behind a slow job
            self._wake_supervisor()
        if starts_at_once:  # two system calls less
            self._start(jobs[0], state.token_of(jobs[0]))
            ran = 1
        elif all(map(self._runs_alongside, jobs)):
            ran = self._start_together(jobs, begun)
        else:
            ran = self._start_in_turn(jobs, begun)
        self._has_more = ran == len(jobs)
        if ran:
            self._note_run(jobs, ran, begun)

    def _start_together(self, jobs: Sequence[ClaimedJob], begun: float) -> int:
        """Start jobs that all run alongside the main thread; return how many. One system call takes
        all that have a slot, because on each call this thread may have to wait for the jobs on the
        event loop.
        """
        at = 0
        while at < len(jobs):
            if not self._wait_for_slot(begun):
                self._release(jobs[at:])
                break
            group = jobs[at : at + self._free_slots()]
            tokens = self._state.take_several(len(group))
            for job, token in zip(group, tokens, strict=False):
                self._start(job, token)
            at += len(tokens)
            if len(tokens) < len(group):
                break  # the supervisor releases the rest
        return at

    def _wait_for_slot(self, begun: float) -> bool:
        """Wait for a slot until the window of the batch ends; False if no job may start then."""
        if not self._has_slot():
            left = max(0.0, begun + self._window - time.monotonic())
            self._interrupts.wait(lambda: self._in_flight.wait(self._has_slot, left))
        return self._has_slot() and not self._interrupts.stopping

    def _free_slots(self) -> int:
        free = len(self._async_runner.free_slots)
        return min(free, len(self._thread_runner.free_slots)) if self._thread_runner else free

    def _runs_alongside(self, job: ClaimedJob) -> bool:
        task = lookup(job.task)
        if task is None or task.options.chunk is not None:
            return False
        return task.is_async or self._thread_runner is not None

    def _start_in_turn(self, jobs: Sequence[ClaimedJob], begun: float) -> int:
        for at, job in enumerate(jobs):
            if not self._wait_for_slot(begun) or (at and self._is_late(begun)):
                self._release(jobs[at:])
                return at
            token = self._state.take()
            if not token:
                return at  # the supervisor releases the rest
            self._start(job, token)
        return len(jobs)

    def _note_run(self, jobs: Sequence[ClaimedJob], ran: int, begun: float) -> None:
        if self._state.has_lost_files():
            self._in_flight.wait(lambda: not self._in_flight.running(), FD_LOSS_WAIT)
            exit_after_fd_loss([job.id for job in jobs[:ran]])
        self._batch.learn(ran, time.monotonic() - begun, of=len(jobs))
        self._done += ran
        self._state.add_done(ran)

    def _run_chunk(self, jobs: list[ClaimedJob], size: int) -> None:
        """Run those of the batch that may share a call with its first, and release the rest."""
        begun = time.monotonic()
        self._state.offer(jobs)
        if not self._state.is_watched:
            self._wake_supervisor()
        taken, chunk, tokens = 0, list[Execution](), list[bytes]()
        for job in jobs[:size] if not self._interrupts.stopping else ():
            execution = self._pipeline.prepare(job)
            if isinstance(execution, Execution) and chunk and not shares_chunk(chunk[0], execution):
                break
            token = self._state.take()
            if not token:
                break  # the supervisor releases the rest
            taken += 1
            if isinstance(execution, Resolution):
                self._claims.add([self._executor.record(job, execution)])
            else:
                chunk.append(execution)
                tokens.append(token)
        if taken < len(jobs):
            self._release(jobs[taken:])
            self._claims.flush()
        if chunk:
            self._start_chunk(chunk, tokens)
        if taken:
            self._note_run(jobs, taken, begun)

    def _start_chunk(self, chunk: Sequence[Execution], tokens: Sequence[bytes]) -> None:
        perform = partial(perform_chunk, self._pipeline, chunk, self._executor.steps_of)
        self._claims.add(self._executor.run_chunk(chunk, tokens, perform))

    def _is_late(self, begun: float) -> bool:
        """True if it is time to report, or if the log may lack room for another outcome."""
        return (
            time.monotonic() - begun > self._window or self._state.log.free_bytes < RESERVED_BYTES
        )

    def _release(self, jobs: Sequence[ClaimedJob]) -> None:
        """Return unstarted jobs to the head of their queue, unless the supervisor does so."""
        if self._state.take_unstarted():
            self._claims.add(releases(jobs))

    def _start(self, job: ClaimedJob, token: bytes) -> None:
        execution = self._pipeline.prepare(job)
        if isinstance(execution, Resolution):
            self._claims.add([self._executor.record(job, execution)])
            return
        if execution.task.options.chunk is not None:
            self._start_chunk([execution], [token])
            return
        runner = self._async_runner if execution.task.is_async else self._thread_runner
        if runner is None:
            self._claims.add([self._executor.run(execution, token)])
            return
        runner.start(execution, token)
        if job.recoveries > 0:  # a suspect runs without any others
            self._alone_until = math.inf

    def _finish_last(self) -> None:
        self._idle.close()
        # If this child is recycled, its supervisor reports to shards that do not answer.
        interrupts = self._interrupts
        self._claims.flush(wait=interrupts.stopping and not interrupts.recycled)
        while self._in_flight.count:
            self._state.keep_alive()
            self._in_flight.wait(lambda: not self._in_flight.count, BLOCK_SECONDS)
        self._async_runner.close()
        if self._thread_runner is not None:
            self._thread_runner.close()
        #: A process of the worker exits normally: at a stop, at --max-jobs or --max-memory. No
        #: action is needed.
        logger.debug("child %s ends after %d jobs (pid %d)", self.child, self._done, os.getpid())
