"""Signals in a child: SIGALRM for timeouts, SIGUSR1 for messages from the supervisor.

An interrupt is raised only while the job it is meant for is running, at most once per run, and
never in the next job: the handler checks ``current`` and clears it as it raises. The timer is lazy:
it is set only if a job's deadline is earlier than the alarm already set, so a thousand short jobs
with the same timeout cost one system call, not two thousand.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, Protocol

from ..broker.replies import ClaimedJob
from ..exceptions import Interrupt, JobAbandoned, JobCancelled, JobTimeout
from .child.context import JobContext
from .child_state import ChildState

# A child listens only to its supervisor. Programs that a job starts inherit ignored signals, and so
# survive Ctrl-C as the job does. SIGTERM has an empty handler instead, which is not inherited.
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGHUP)
SIGNALS = (signal.SIGALRM, signal.SIGUSR1)
AT_ONCE = 0.0001  # s, because 0 would set no timer


def to_interrupt(verb: str) -> Interrupt:
    """The interrupt that a message from the supervisor orders: ``cancel`` or ``abandon``."""
    return JobCancelled() if verb == "cancel" else JobAbandoned()


class HasContext(Protocol):
    @property
    def context(self) -> JobContext | None: ...


class WaitEnded(BaseException):
    """Raised out of an idle wait when it is time to stop."""


class StoppableWaits:
    """Idle waits that a message to stop ends. Use in the main thread only."""

    def __init__(self) -> None:
        self.stopping = False
        self._is_idle = False

    def wait(self, block: Callable[[], object]) -> None:
        """Call ``block``, which waits for something; returns early when it is time to stop."""
        try:
            try:
                self._is_idle = True
                if not self.stopping:
                    block()
            finally:
                self._is_idle = False
        except WaitEnded:
            pass  # caught out here, because it may be raised inside the `finally` above

    def end_wait(self) -> None:
        """Leave the wait if it is time to stop. Signal handlers call this last."""
        if self.stopping and self._is_idle:
            self._is_idle = False
            raise WaitEnded


class Interrupts(StoppableWaits):
    """The signal handlers of one child, and the job they may interrupt."""

    def __init__(self, state: ChildState) -> None:
        super().__init__()
        self.recycled = False  # told to stop because another child takes its place
        self.current: ClaimedJob | None = None
        self.cancelled: ClaimedJob | None = None  # the last job that was asked to stop
        self.on_unmatched: Callable[[str, str, int], None] | None = None
        self._deadline_ms = 0
        self._alarm_ms = 0
        self._run: HasContext | None = None
        self._pending: tuple[str, str, int] | None = None
        self._state = state

    def install(self) -> None:
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.signal(signal.SIGUSR1, self._on_message)
        self._read_messages()  # one may have arrived before the handler was installed

    @staticmethod
    def unblock() -> None:
        """Let the signals through again, in case a job has left them blocked."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def arm(self, job: ClaimedJob, run: HasContext | None, deadline_ms: int) -> None:
        """Direct interrupts to ``job`` from now on; ``deadline_ms`` is monotonic, 0 for none."""
        self._run = run
        self._deadline_ms = deadline_ms
        self.current = job
        if self._pending is not None:
            verb, job_id, lease = self._pending
            self._pending = None
            self._for_job(verb, job_id, lease)
        if deadline_ms and not time.monotonic() * 1000 < self._alarm_ms <= deadline_ms:
            self._set_alarm(deadline_ms)  # also if a job has cleared an alarm that is past

    def disarm(self) -> None:
        self.current = None

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Raise no interrupt inside the block; one that arrives is raised after it. Threads other
        than the main thread get none in any case."""
        job, run, deadline_ms = self.current, self._run, self._deadline_ms
        if job is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        self.disarm()
        try:
            yield
        finally:
            self.arm(job, run, deadline_ms)

    def _set_alarm(self, deadline_ms: int) -> None:
        self._alarm_ms = deadline_ms
        left = deadline_ms / 1000 - time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, max(left, AT_ONCE))

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        self._alarm_ms = 0
        if self.current is None or not self._deadline_ms:
            return
        if time.monotonic() * 1000 < self._deadline_ms:
            self._set_alarm(self._deadline_ms)  # the alarm was an earlier job's
            return
        self._raise(JobTimeout())

    def _on_message(self, number: int, frame: FrameType | None) -> None:
        self._read_messages()
        self.end_wait()

    def _read_messages(self) -> None:
        messages = self._state.read_messages()
        # First, because a message for the job raises an exception.
        self.recycled = self.recycled or "recycle" in messages
        self.stopping = self.stopping or self.recycled or "stop" in messages
        for message in messages:
            if " " in message:
                verb, job_id, lease = message.split()
                self._for_job(verb, job_id, int(lease))

    def _for_job(self, verb: str, job_id: str, lease: int) -> None:
        job = self.current
        if job is None or job.id != job_id or job.lease != lease:
            self._pending = (verb, job_id, lease)  # for a job about to start: see `arm`
            if self.on_unmatched is not None:
                self.on_unmatched(verb, job_id, lease)
            return
        if verb == "cancel":
            self.cancelled = job
            context = None if self._run is None else self._run.context
            if context is not None:
                context.mark_cancelled()
                if context.defers_cancel:
                    return  # it checks between two items
        self._raise(to_interrupt(verb))

    def _raise(self, interrupt: Interrupt) -> NoReturn:
        self.current = None
        raise interrupt
