"""Signals in a child: timeouts by SIGALRM, orders of the supervisor by SIGUSR1.

An interrupt is raised only while the job it is meant for runs, at most once a run, and never in the
next job: the handler looks at ``current`` and takes it down as it raises. The timer is lazy: it is
set when a job's deadline is sooner than the alarm that is already set, so a thousand short jobs
with the same timeout cost one system call, not two thousand.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType

from ..exceptions import Interrupt, JobAbandoned, JobCancelled, JobTimeout
from ..store.replies import Claimed
from .context import JobContext
from .seat import Seat

# The supervisor orders; nobody else does. A program that a job starts inherits what is ignored: it
# outlives a Ctrl-C as the job does, but must be able to be terminated.
IGNORED = (signal.SIGINT, signal.SIGHUP)
NOT_HEARD = signal.SIGTERM


class Woken(BaseException):
    """Raised out of an idle wait when there is an order to stop."""


class Waits:
    """Idle waits that an order to stop ends. Use in the main thread only."""

    def __init__(self) -> None:
        self.stopping = False
        self._is_idle = False

    def wait(self, block: Callable[[], object]) -> None:
        """Run an idle wait that an order to stop may end."""
        try:
            try:
                self._is_idle = True
                if not self.stopping:
                    block()
            finally:
                self._is_idle = False
        except Woken:
            pass  # out here, for it may come in the line that ends the waiting

    def end_wait(self) -> None:
        """For a signal's handler, last of all: leave the wait that it has come into, if there is
        one and it is time to stop."""
        if self.stopping and self._is_idle:
            self._is_idle = False
            raise Woken


class Interrupts(Waits):
    """The signal state of one child."""

    def __init__(self, seat: Seat) -> None:
        super().__init__()
        self.current: Claimed | None = None
        self.context: JobContext | None = None
        self.on_other: Callable[[str, str, int], None] | None = None
        self._deadline_ms = 0
        self._alarm_ms = 0
        self._early: tuple[str, str, int] | None = None
        self._seat = seat

    def install(self) -> None:
        """Take over the child's signals."""
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(NOT_HEARD, lambda *_: None)
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.signal(signal.SIGUSR1, self._on_order)
        self._read_orders()  # one may have come before there was a handler

    def arm(self, job: Claimed, context: JobContext | None, deadline_ms: int) -> None:
        """Interrupts are meant for ``job`` from now on; ``deadline_ms`` is monotonic, 0: none."""
        self.context = context
        self._deadline_ms = deadline_ms
        self.current = job
        if self._early is not None:
            verb, job_id, lease = self._early
            self._early = None
            self._for_job(verb, job_id, lease)
        if deadline_ms and not time.monotonic() * 1000 < self._alarm_ms <= deadline_ms:
            self._set_alarm(deadline_ms)  # also when a job has cleared one whose time is over

    def disarm(self) -> None:
        """The job has ended."""
        self.current = None

    def _set_alarm(self, deadline_ms: int) -> None:
        self._alarm_ms = deadline_ms
        left = deadline_ms / 1000 - time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, max(left, 0.0001))

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        self._alarm_ms = 0
        if self.current is None or not self._deadline_ms:
            return
        if time.monotonic() * 1000 < self._deadline_ms:
            self._set_alarm(self._deadline_ms)  # it was set for an earlier job
            return
        self._raise(JobTimeout("the job ran longer than its timeout"))

    def _on_order(self, number: int, frame: FrameType | None) -> None:
        self._read_orders()
        self.end_wait()

    def _read_orders(self) -> None:
        orders = self._seat.read_orders()
        if "stop" in orders:  # first: an order for the job leaves by an exception
            self.stopping = True
        for line in orders:
            if line == "stop":
                continue
            verb, job_id, lease = line.split()
            self._for_job(verb, job_id, int(lease))

    def _for_job(self, verb: str, job_id: str, lease: int) -> None:
        job = self.current
        if job is None or job.id != job_id or job.lease != lease:
            self._early = (verb, job_id, lease)  # for a job about to begin: ``arm`` looks
            if self.on_other is not None:
                self.on_other(verb, job_id, lease)
            return
        if verb == "cancel":
            if self.context is not None:
                self.context.mark_cancelled()
            self._raise(JobCancelled("the job was cancelled while it ran"))
        self._raise(JobAbandoned("the job's lease is lost; another worker has it"))

    def _raise(self, interrupt: Interrupt) -> None:
        self.current = None
        raise interrupt
