"""The watchdog: checks children for slow jobs, missed deadlines, memory and silence."""

from __future__ import annotations

import logging
import os
import resource
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from ...conf import Settings
from ...core.clock import mono_ms
from ..child_state import RunningJob
from .child_handle import ChildHandle
from .heartbeat import ExitReport, Heartbeats, ReleaseUnstarted

logger = logging.getLogger("django_redisqueue")

HARD_GRACE_MS = 5000  # from a job's timeout, when the job is interrupted, to the kill
BUSY_INTERVAL, IDLE_INTERVAL = 0.01, 0.5  # s between two checks
WATCH_SECONDS = 0.5  # without anything to watch for, before a child has to wake the supervisor
STALLED_MS = 1000  # until unstarted jobs are released if none is running, as while a file is read
UNRESPONSIVE_MS = 2000  # of silence before the kill: this process may have been stopped as well
MEMORY_INTERVAL = 5.0  # s between two checks of the children's memory


class Watchdog:
    """Checks the children of a supervisor, whose heartbeat threads write what has to be written."""

    def __init__(
        self,
        handles: Sequence[ChildHandle],
        heartbeats: Heartbeats,
        settings: Settings,
        max_memory: int,
    ) -> None:
        self._all_handles = handles
        self._handles = [handle for handle in handles if handle.role == "jobs"]
        self._heartbeats = heartbeats
        self._window_ms = settings.batch_window_ms
        self._max_memory = max_memory
        self._memory_at = 0.0
        self.interval = IDLE_INTERVAL  #: s until the next `check`, as of the last one

    def watch_closely(self) -> None:
        """Check often from now on, because a child has claimed a batch."""
        until = time.monotonic() + WATCH_SECONDS
        for handle in self._handles:
            if handle.pid:
                handle.watched_until = until
                handle.state.set_watched(True)

    def check(self) -> None:
        """Check every child once."""
        now, now_ms = time.monotonic(), mono_ms()
        self.interval = IDLE_INTERVAL
        for handle in self._handles:
            if handle.pid:
                if handle.watched_until:
                    self._check_waiting(handle, now, now_ms)
                self._kill_if_timed_out(handle, now_ms)
        for handle in self._all_handles:
            self._kill_if_unresponsive(handle, now_ms)
        if self._max_memory and now > self._memory_at:
            self._memory_at = now + MEMORY_INTERVAL
            self._stop_oversized()

    def exit_report(self, handle: ChildHandle) -> ExitReport:
        """What a dead child leaves behind: outcomes to report, and the jobs that ran.

        A job that was killed for its timeout during its commit is recovered. The next run finds its
        receipt, or that there is none.
        """
        if handle.role != "jobs":
            return ExitReport(handle.child, [], [])
        outcomes = handle.state.outcomes()
        ended = {(outcome.id, outcome.lease) for outcome in outcomes}
        running = {(job.id, job.lease): job for job in handle.state.running()}
        late = [job for job in handle.timed_out if job not in ended]
        committing = [job for job in late if job in running and running[job].commits]
        is_crash = not handle.is_killed and not handle.timed_out
        blamed = [job for job in running if job not in ended] if is_crash else committing
        timed_out = [job for job in late if job not in committing]
        return ExitReport(handle.child, outcomes, [job_id for job_id, _ in blamed], timed_out)

    def _check_waiting(self, handle: ChildHandle, now: float, now_ms: int) -> None:
        """Let nothing wait behind a slow job, neither unstarted jobs nor other jobs' outcomes."""
        job = handle.state.running_sync()
        since_ms = self._waiting_since(handle, job)
        if since_ms:
            handle.watched_until = now + WATCH_SECONDS
        elif now > handle.watched_until:
            handle.watched_until = 0.0
            handle.state.set_watched(False)
            # Check again: the child may have read the flag just before, and so not woken us.
            if not self._waiting_since(handle, handle.state.running_sync()):
                return
            handle.watched_until = now + WATCH_SECONDS
            handle.state.set_watched(True)
        left_ms = since_ms + self._window_ms - now_ms if since_ms else self._window_ms
        if left_ms <= 0 and (handle.state.running() or left_ms <= -STALLED_MS):
            self._release_unstarted(handle, job)
        # A batch offered after this check is due a whole window later, so no check is too late.
        self.interval = min(self.interval, left_ms / 1000 if left_ms > 0 else BUSY_INTERVAL)

    def _waiting_since(self, handle: ChildHandle, job: RunningJob | None) -> int:
        """When (monotonic ms) something began to wait behind the running ``job``; 0 if nothing."""
        is_new = job is not None and (job.id, job.lease) != handle.released_for
        ended_ms = handle.state.ended_since() if is_new else 0
        return min(filter(None, (handle.state.unstarted_since(), ended_ms)), default=0)

    def _release_unstarted(self, handle: ChildHandle, job: RunningJob | None) -> None:
        """``job`` is None if the main thread is running none: another thread blocks it (by holding
        the GIL), or it is preparing one, or it is stuck."""
        if job is not None:
            handle.released_for = (job.id, job.lease)
        unstarted = handle.state.take_unstarted()
        outcomes = handle.state.take_outcomes()
        self._heartbeats.submit(ReleaseUnstarted(handle.child, unstarted, outcomes))

    def _kill_if_timed_out(self, handle: ChildHandle, now_ms: int) -> None:
        late = [
            job
            for job in handle.state.running()
            if job.deadline_ms and now_ms > job.deadline_ms + HARD_GRACE_MS
        ]
        if late and not handle.timed_out:
            #: The task caught JobTimeout or hangs in C code. Its process is replaced, and the job
            #: counts as timed out. Raise the job's timeout, or set a timeout on the calls that it
            #: makes.
            logger.error(
                "job %s did not stop at its timeout; killing its process %d",
                ", ".join(job.id for job in late), handle.pid,
            )  # fmt: skip
            handle.timed_out = [(job.id, job.lease) for job in late]
            os.kill(handle.pid, signal.SIGKILL)

    def _kill_if_unresponsive(self, handle: ChildHandle, now_ms: int) -> None:
        """Kill a child that is stopped or stuck, so that it is replaced.

        A child that is running a job is left alone, because the job has its own timeout, and may
        hold the GIL for that long.
        """
        until_ms = handle.state.alive_until_ms
        if not handle.pid or not until_ms or now_ms <= until_ms or handle.state.running():
            handle.unresponsive_since_ms = 0
        elif not handle.unresponsive_since_ms:
            handle.unresponsive_since_ms = now_ms
        elif now_ms - handle.unresponsive_since_ms > UNRESPONSIVE_MS and not handle.is_killed:
            #: A process shows no sign of life, for example because a debugger has stopped it. It is
            #: replaced, and its jobs return to their queues.
            logger.error(
                "child %s (%s) is stopped or stuck: its sign of life is %.0f s overdue; "
                "replacing its process %d",
                handle.child, handle.role, (now_ms - until_ms) / 1000, handle.pid,
            )  # fmt: skip
            handle.is_killed = True
            os.kill(handle.pid, signal.SIGKILL)

    def _stop_oversized(self) -> None:
        for handle in self._handles:
            size = resident_bytes(handle.pid) if handle.pid and not handle.is_stopping else 0
            if size > self._max_memory:
                #: A process exceeds --max-memory, and is replaced after its job. If this happens
                #: often, look for a leak in the tasks.
                logger.warning(
                    "child %s uses %d MB, over its limit; it ends after its job",
                    handle.child, size // 2**20,
                )  # fmt: skip
                handle.send("recycle")


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it cannot be read (gone, or not Linux)."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * resource.getpagesize()
