"""A child: claims, runs, reports, in a loop whose every round trip does all three for a batch."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..conf import Settings
from ..connection import worker_link
from ..exceptions import RedisQueueError
from ..link import BLOCK
from ..store.replies import Claim, Claimed, Outcome, Settled, Verdict
from ..store.transitions import Seeker, Transitions
from .asides import Asides
from .batch import BatchSize, handed_back, largest_batch
from .brokenqueues import BrokenQueues
from .executor import Call, Executor, Resolver
from .forks import leave_the_wreck
from .idle import Idle, SuspectPatience
from .interrupts import Interrupts
from .lane import AsyncLane
from .outcomes import KEPT_ROOM
from .reconnect import until_answered
from .seat import Seat

logger = logging.getLogger("django_redisqueue")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOptions:
    """What a child is told. ``max_jobs`` 0: no limit."""

    queues: tuple[str, ...]
    min_priority: int = -100
    max_jobs: int = 0
    burst: bool = False
    async_concurrency: int = 100
    async_db_connections: int = 10


class Child:
    """One process that runs jobs. ``ring``: calls the supervisor's attention to the seat;
    ``siblings``: how many such children its worker has, this one included."""

    def __init__(
        self,
        child: str,
        seat: Seat,
        options: ChildOptions,
        settings: Settings,
        ring: Callable[[], None],
        siblings: int,
    ) -> None:
        self.child = child
        self._seat = seat
        self._options = options
        self._settings = settings
        self._ring = ring
        self._siblings = siblings
        self._seeker = Seeker(child, options.queues, options.min_priority)
        self._store = Transitions(worker_link(), settings)
        self._side_store = Transitions(worker_link(), settings)  # the async lane's reports
        self._interrupts = Interrupts(seat)
        asides = Asides(child, settings, seat.keep_alive)
        self._resolve = Resolver(settings, asides.delays, asides.parent_result)
        self._executor = Executor(settings, seat, self._interrupts, asides.report)
        self._lane = AsyncLane(
            settings, seat, options.async_concurrency, options.async_db_connections,
            asides.report_anywhere, self._send_aside,
        )  # fmt: skip
        self._idle = Idle(self._store, self._seeker, self._interrupts, self._lane)
        self._batch = BatchSize(settings.batch_window_ms)
        self._window = settings.batch_window_ms / 1000
        self._call = 0
        self._done = 0
        self._outcomes: list[Outcome] = []
        self._broken = BrokenQueues(child)
        self._suspects = SuspectPatience()
        self._alone_until = 0.0  # when (monotonic) jobs may again start beside those of the lane

    def run(self) -> bool:
        """Until ordered to stop, recycled, or out of work with ``burst``: then True."""
        is_dry = False
        self._interrupts.on_other = self._lane.interrupt
        self._interrupts.install()
        with suppress(RedisQueueError):  # while it is away, take it for near
            self._batch.limit = largest_batch(lambda: self._store.link.call("PING"), self._siblings)
        while not self._is_over():
            self._seat.keep_alive()
            if not self._has_room():
                continue
            try:
                claim = self._exchange(self._wanted())
            except RedisQueueError:
                break  # told to stop, and there is nothing to report that Redis must hear first
            self._alone_until = self._suspects.paused_until(claim.must_be_alone, time.monotonic())
            if claim.jobs:
                self._idle.has_work()
                self._run_batch(claim.jobs)
            elif claim.must_be_alone and not self._lane.in_flight:
                self._idle.until_handed_back()
            elif self._options.burst:
                is_dry = self._idle.is_dry(len(self._outcomes) + self._lane.unwritten)
                if is_dry:
                    break
            else:
                self._idle.leave_out([*claim.leave_out, *claim.broken])
                self._idle.wait()
        self._finish_last()
        return is_dry

    def _is_over(self) -> bool:
        return self._interrupts.stopping or 0 < self._options.max_jobs <= self._done

    # -- claiming and reporting

    def _wanted(self) -> int:
        wanted = self._batch.jobs()
        if self._lane.in_flight:
            wanted = min(wanted, len(self._lane.free_slots))
        if self._options.max_jobs:
            wanted = min(wanted, self._options.max_jobs - self._done)
        return wanted

    def _has_room(self) -> bool:
        """False after waiting a while for the async lane to have a place, or to be empty."""
        lane, left = self._lane, self._alone_until - time.monotonic()

        def has_room() -> bool:
            return bool(lane.free_slots) and not (left > 0 and lane.in_flight)

        if has_room():
            self._alone_until = 0.0
            return True
        self._flush()
        self._interrupts.wait(lambda: lane.wait(has_room, min(BLOCK, left) if left > 0 else BLOCK))
        return False

    def _exchange(self, wanted: int) -> Claim:
        """Report what has ended and claim what comes next, in one round trip.

        The call has a number: sent again after a lost reply it brings the same jobs, and accepts
        its own finishes once more. Outcomes of a queue that has a key of a wrong type go along with
        every call until they are written.
        """
        self._call += 1
        call, outcomes = self._call, self._outcomes

        def ask(resent: bool) -> tuple[Sequence[int], Claim]:
            self._seat.keep_alive()
            return self._store.finish(self._seeker, call, outcomes, wanted, resent=resent)

        codes, claim = until_answered(
            ask,
            who=self.child,
            give_up=lambda: self._interrupts.stopping and not outcomes,
        )
        self._outcomes = _unwritten(outcomes, codes)
        self._seat.log.keep(self._outcomes)
        if wanted:
            self._broken.note(claim.broken)
        if Settled.LEASE_LOST in codes:
            self._log_refused(outcomes, codes)
        if claim.lost:
            logger.error(
                "ids without a job were in the queue (deleted, or cancelled and pruned): %s",
                ", ".join(claim.lost),
            )
        return claim

    def _flush(self) -> None:
        if self._outcomes:
            self._exchange(0)

    def _log_refused(self, outcomes: Sequence[Outcome], codes: Sequence[int]) -> None:
        for outcome, code in zip(outcomes, codes, strict=True):
            if code == Settled.LEASE_LOST and outcome.verdict != Verdict.QUEUED:
                logger.warning(
                    "job %s: '%s' of child %s refused, its lease %d is lost",
                    outcome.id, outcome.verdict, self.child, outcome.lease,
                )  # fmt: skip

    # -- running

    def _run_batch(self, jobs: list[Claimed]) -> None:
        seat, free_slots, begun = self._seat, self._lane.free_slots, time.monotonic()
        seat.offer(jobs)
        if (len(jobs) > 1 or self._lane.in_flight) and not seat.is_watched:
            self._ring()
        ran = 0
        for at, job in enumerate(jobs):
            if self._interrupts.stopping or not free_slots or (at and self._is_late(begun)):
                self._hand_back(jobs[at:])
                break
            token = seat.take()
            if not token:
                break  # the supervisor has handed the rest back
            self._start(job, token)
            ran += 1
        if ran:
            if seat.has_lost_files():
                leave_the_wreck([job.id for job in jobs[:ran]])
            self._batch.learn(ran, time.monotonic() - begun, of=len(jobs))
            self._done += ran
            seat.add_done(ran)

    def _is_late(self, begun: float) -> bool:
        """True when it is time to report, and when the log has no room for what else may end."""
        return time.monotonic() - begun > self._window or self._seat.log.room < KEPT_ROOM

    def _hand_back(self, jobs: Sequence[Claimed]) -> None:
        """Return jobs that have not started to the head of the queue, with the next report, unless
        the supervisor has done so already."""
        if self._seat.steal():
            self._outcomes += [handed_back(job) for job in reversed(jobs)]

    def _start(self, job: Claimed, token: bytes) -> None:
        call = self._resolve(job)
        if not isinstance(call, Call):
            self._outcomes.append(self._executor.settle(job, call))
        elif call.task.is_async:
            self._lane.start(call, token)
            if job.recoveries > 0:
                self._alone_until = float("inf")
        else:
            self._outcomes.append(self._executor.run(call, token))

    def _send_aside(self, outcomes: list[Outcome]) -> list[bool]:
        """Report outcomes of the lane; for each whether it was written."""
        codes, _ = until_answered(
            lambda resent: self._side_store.finish(self._seeker, 0, outcomes, 0, resent=resent),
            who=self.child,
        )
        self._log_refused(outcomes, codes)
        return [code != Settled.UNWRITTEN for code in codes]

    # -- the end

    def _finish_last(self) -> None:
        self._flush()
        while self._lane.in_flight:
            self._seat.keep_alive()
            self._lane.wait(lambda: not self._lane.in_flight, BLOCK)
        self._lane.close()
        self._idle.close()
        logger.debug("child %s ends after %d jobs (pid %d)", self.child, self._done, os.getpid())


def _unwritten(outcomes: Sequence[Outcome], codes: Sequence[int]) -> list[Outcome]:
    if Settled.UNWRITTEN not in codes:
        return []
    pairs = zip(outcomes, codes, strict=True)
    return [outcome for outcome, code in pairs if code == Settled.UNWRITTEN]
