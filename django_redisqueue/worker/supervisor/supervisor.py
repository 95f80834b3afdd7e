"""The supervisor's main loop: spawn children, watch them, report their exits, replace them, stop.

The main thread runs no job, no database query and no Redis call. In a single ``select`` it waits
for events from the fork server, signals, wake-ups from children, and calls from its other threads.
It checks the children every 10 ms while one of them has unstarted jobs, otherwise twice a second.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue

from ...conf import Settings
from ...core.parsing import int_or_none
from ...core.records import WorkerOrder, WorkerState
from ..identity import Worker, start_time
from ..options import WorkerOptions
from .child_handle import ChildHandle, living_children
from .fork_server import ChildExited, ChildStarted, ForkServer, SpawnFailed, exit_cause
from .heartbeat import Heartbeats
from .watchdog import Watchdog

logger = logging.getLogger("django_redisqueue")

EXIT_DONE = 0  # told to stop, or to be recycled
EXIT_QUEUES_EMPTY = 10  # with burst

MAX_SPAWNING = 8  # children at a time, so that the fork server's pipe never fills up
CANCEL_WAIT = 1.0  # s that a cancel waits for a claimed job to start
CANCEL_INTERVAL = 0.01  # s between two searches for that job
BURST_INTERVAL = 0.1  # s until the next claim while jobs are being recovered, with burst
SPAWN_RETRY = 1.0  # s until the next try after a failed fork
SPAWN_LOG = 60.0  # s until another failed fork is logged
EXIT_WAIT = 1.0  # s for children to die after their fork server has died


class WakePipe:
    """A pipe that wakes its reader when another process or thread writes. Neither end blocks."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self.writer, False)

    def fileno(self) -> int:
        return self._reader

    def wake(self) -> None:
        """Wake the reader. For any process and thread."""
        with suppress(BlockingIOError):  # the pipe is full: the reader will wake up anyway
            os.write(self.writer, b"!")

    def drain(self) -> None:
        os.read(self._reader, 4096)


class Supervisor:
    """Runs until a signal stops it, or with ``burst`` until its children have ended."""

    def __init__(
        self,
        worker: Worker,
        fork_server: ForkServer,
        handles: Sequence[ChildHandle],
        child_wakes: WakePipe,
        own_wakes: WakePipe,
        settings: Settings,
        options: WorkerOptions,
    ) -> None:
        """``own_wakes``: that of this process's threads and signals."""
        self._worker = worker
        self._fork_server = fork_server
        self._handles = handles
        # Without maintenance, jobs with a delay would wait until there is room for a process.
        self._spawn_order = sorted(handles, key=lambda handle: handle.role == "jobs")
        self._child_wakes = child_wakes
        self._own_wakes = own_wakes
        self._settings = settings
        self._options = options
        self._heartbeats: Heartbeats
        self._watchdog: Watchdog
        self._spawned = 0
        self._log_spawn_failure_at = 0.0
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()  # from other threads
        self._cancels: dict[str, float] = {}  # job id -> until when to look for it
        self._ordered_ms = 0  # when the last order was given
        self._is_quiet = False  # told to claim no more jobs
        self._stop_at: float | None = None
        self._kill_at = 0.0
        self._is_broken = False

    def run(self, heartbeats: Heartbeats) -> int:
        """Run the worker from start to end; return the exit code."""
        self._heartbeats = heartbeats
        self._watchdog = Watchdog(
            self._handles, heartbeats, self._settings, self._options.max_memory
        )
        for handle in self._handles:
            handle.spawn_at = time.monotonic()
        self._spawn_due()
        heartbeats.start()
        with selectors.DefaultSelector() as selector:
            for source in (self._fork_server.connection, self._child_wakes, self._own_wakes):
                selector.register(source, selectors.EVENT_READ)
            while not all(handle.is_retired for handle in self._handles):
                self._handle_events(selector.select(self._select_timeout()))
                while not self._calls.empty():
                    self._calls.get()()
                if self._cancels:
                    self._interrupt_jobs([])
                self._spawn_due()
                self._watchdog.check()
                if os.getpid() == 1:
                    reap_orphans(self._fork_server.pid)
                if self._stop_at is not None and time.monotonic() > self._kill_at:
                    self._kill_all()
        return self._end()

    def _select_timeout(self) -> float:
        interval = CANCEL_INTERVAL if self._cancels else self._watchdog.interval
        planned = [handle.spawn_at for handle in self._handles if handle.spawn_at]
        if not planned:
            return interval
        return min(interval, max(0.0, min(planned) - time.monotonic()))

    def _handle_events(self, ready: Sequence[tuple[selectors.SelectorKey, int]]) -> None:
        for key, _ in ready:
            if isinstance(key.fileobj, WakePipe):
                key.fileobj.drain()
                if key.fileobj is self._child_wakes:
                    self._watchdog.watch_closely()
            else:
                self._handle_child_events()

    def _call_soon(self, call: Callable[[], None]) -> None:
        """Have the main thread make this call. For any thread, and for signal handlers."""
        self._calls.put(call)
        self._own_wakes.wake()

    # Spawn

    def _spawn_due(self) -> None:
        now = time.monotonic()
        room = MAX_SPAWNING - sum(1 for handle in self._handles if handle.child and not handle.pid)
        for handle in self._spawn_order:
            if room > 0 and handle.spawn_at and handle.spawn_at <= now:
                room -= 1
                self._spawned += 1
                handle.assign(self._worker.child(self._spawned, handle.role), now)
                self._fork_server.spawn(handle.role, handle.state.number, handle.child)

    def _handle_child_events(self) -> None:
        try:
            for event in self._fork_server.events():
                match event:
                    case ChildStarted(slot, pid):
                        self._on_child_started(self._handles[slot], pid)
                    case SpawnFailed(slot, problem):
                        self._on_spawn_failed(self._handles[slot], problem)
                    case ChildExited(pid, code):
                        self._on_child_exit(pid, code)
        except ConnectionError as error:
            #: The process that forks the children was killed. The worker stops, its jobs are
            #: recovered, and the service manager starts it again.
            logger.error("%s, and its children with it; stopping the worker", error)
            self._on_fork_server_lost()

    def _on_child_started(self, handle: ChildHandle, pid: int) -> None:
        handle.pid = pid
        if self._jobs_are_over if handle.role == "bridge" else self._takes_no_more(handle):
            handle.send("stop")

    def _on_spawn_failed(self, handle: ChildHandle, problem: str) -> None:
        """Try again later; running children continue in the meantime."""
        now = time.monotonic()
        if now >= self._log_spawn_failure_at:
            self._log_spawn_failure_at = now + SPAWN_LOG
            #: The system cannot give the worker a new process, because memory, processes or open
            #: files (ulimit) have run out. The worker tries again; free some, or raise the limit.
            #: It logs this once a minute, whatever the number of children.
            logger.error(
                "no process for child %s: %s; trying again in %g s",
                handle.child, problem, SPAWN_RETRY,
            )  # fmt: skip
        handle.vacate()
        if self._stop_at is not None:
            self._retire(handle)
        elif not self._takes_no_more(handle):
            handle.spawn_at = now + SPAWN_RETRY

    # Watch: what other threads ask and report

    @property
    def state(self) -> WorkerState:
        """What the worker is doing. For any thread."""
        if self._stop_at is not None:
            return WorkerState.STOPPING
        return WorkerState.QUIET if self._is_quiet else WorkerState.RUNNING

    def is_stopping(self) -> bool:
        """Whether the worker claims no more jobs. For any thread."""
        return self.state is not WorkerState.RUNNING

    def _takes_no_more(self, handle: ChildHandle) -> bool:
        return self._stop_at is not None or (self._is_quiet and handle.role == "jobs")

    def notify(self, lost: Sequence[tuple[str, int]], flagged: Sequence[str]) -> None:
        """Interrupt jobs whose leases are lost, and jobs to cancel. For any thread."""
        self._call_soon(partial(self._handle_notice, lost, flagged))

    def on_cancel(self, child: str, job_id: str) -> None:
        """Handle the cancel of a job that any worker's child holds. For any thread."""
        if child in living_children(self._handles):
            self.notify([], [job_id])

    def _handle_notice(self, lost: Sequence[tuple[str, int]], flagged: Sequence[str]) -> None:
        self._cancels.update(dict.fromkeys(flagged, time.monotonic() + CANCEL_WAIT))
        self._interrupt_jobs(lost)

    def _interrupt_jobs(self, lost: Sequence[tuple[str, int]]) -> None:
        """Tell children to end their lost and cancelled jobs.

        A cancelled job that its child has claimed but not started is looked up again for
        ``CANCEL_WAIT``; after that, the next heartbeat asks.
        """
        now, cancels = time.monotonic(), self._cancels
        for handle in self._handles:
            if not handle.pid or handle.role != "jobs":
                continue
            for job in handle.state.running():
                if job.id in cancels:
                    del cancels[job.id]
                    handle.send(f"cancel {job.id} {job.lease}")
                elif (job.id, job.lease) in lost:
                    handle.abandon_job(job.id, job.lease)
        for job_id in [job_id for job_id, until in cancels.items() if until < now]:
            del cancels[job_id]

    # Reap and replace

    def _on_child_exit(self, pid: int, code: int) -> None:
        """Report what a dead child leaves behind, and plan its replacement."""
        handle = next(handle for handle in self._handles if handle.pid == pid)
        self._fork_server.reap(pid)
        report = self._watchdog.exit_report(handle)
        # A job may end its process with the very exit code of a child that ends normally.
        in_order = code in (EXIT_DONE, EXIT_QUEUES_EMPTY) and not report.blamed
        queues_empty = in_order and code == EXIT_QUEUES_EMPTY
        # Jobs of dead children may have been requeued since this child looked for jobs, or still
        # will be.
        may_find_jobs = handle.role == "jobs" and self._heartbeats.may_recover_since(
            handle.spawned_at
        )
        has_finished = queues_empty and not may_find_jobs
        crashed = not in_order and not handle.is_killed and not handle.timed_out
        if crashed:
            #: A process was killed (often because of its memory) or crashed. It is replaced at
            #: once, and its jobs are recovered. If this repeats, look at the kernel's log.
            logger.error("child %s died (%s)", handle.child, exit_cause(code))
        was_useful = bool(handle.state.done or report.outcomes or report.blamed)
        handle.vacate()
        self._heartbeats.submit(replace(report, in_order=in_order))
        if self._stop_at is not None or has_finished:
            self._retire(handle)
            return
        if self._takes_no_more(handle):
            return
        now = time.monotonic()
        delay = _respawn_delay(handle, crashed and not was_useful, now)
        handle.spawn_at = now + (BURST_INTERVAL if queues_empty else delay)

    def _on_fork_server_lost(self) -> None:
        """No more children can start: stop, and release the jobs of the former children."""
        self._is_broken = True
        end = time.monotonic() + EXIT_WAIT
        for handle in self._handles:
            if handle.pid and _kill_and_wait(handle.pid, end):
                self._heartbeats.submit(self._watchdog.exit_report(handle))
            handle.vacate()
            handle.spawn_at, handle.is_retired = 0.0, True

    # Orders

    def on_order(self, text: str) -> None:
        """Accept an order to this worker, ``<ms> <order>``. For any thread."""
        self._call_soon(partial(self._handle_order, text))

    def _handle_order(self, text: str) -> None:
        """Follow a new order. Every heartbeat returns the last order again, which is ignored."""
        at, _, order = text.partition(" ")
        at_ms = int_or_none(at) or 0
        if at_ms <= self._ordered_ms or order not in set(WorkerOrder):
            return
        self._ordered_ms = at_ms
        if self._stop_at is None:
            #: A user has quieted, resumed or stopped the worker in the dashboard. No action is
            #: needed.
            logger.info("told to %s", order)
            self._follow(WorkerOrder(order))

    def _follow(self, order: WorkerOrder) -> None:
        if order is WorkerOrder.STOP:
            self._begin_stop()
            return
        self._is_quiet = order is WorkerOrder.QUIET
        for handle in self._handles:
            if handle.role != "jobs" or handle.is_retired:
                continue
            if self._is_quiet:
                handle.spawn_at = 0.0
                handle.send("stop")
            elif not handle.child:
                handle.spawn_at = time.monotonic()

    # Stop

    def on_signal(self, number: int) -> None:
        """Called by the signal handler."""
        self._call_soon(partial(self._handle_signal, number))

    def _handle_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._stop_at is None:
            #: The worker shuts down normally, within --grace. No action is needed.
            logger.info("%s: finishing running jobs", name)
            self._begin_stop()
        else:
            #: The worker got a second signal: running jobs are ended, and return to their queues
            #: without spending an attempt. No action is needed.
            logger.warning("%s again: stopping now", name)
            self._kill_at = 0.0

    def _begin_stop(self) -> None:
        self._stop_at = time.monotonic()
        self._kill_at = self._stop_at + self._options.grace
        for handle in self._handles:
            if not handle.child:
                handle.spawn_at, handle.is_retired = 0.0, True
            if handle.role != "bridge":
                handle.send("stop")
        self._stop_last_children()

    def _retire(self, handle: ChildHandle) -> None:
        handle.is_retired = True
        self._stop_last_children()

    def _stop_last_children(self) -> None:
        """Stop the bridge after the last job child, so that it mirrors the outcomes of the last
        jobs. With burst, stop maintenance after the bridge."""
        if not self._jobs_are_over:
            return
        bridges = [
            handle for handle in self._handles if handle.role == "bridge" and not handle.is_retired
        ]
        for handle in bridges:
            if not handle.is_stopping:
                handle.send("stop")
        if not bridges and self._stop_at is None:
            self._begin_stop()

    @property
    def _jobs_are_over(self) -> bool:
        return all(handle.is_retired for handle in self._handles if handle.role == "jobs")

    def _kill_all(self) -> None:
        for handle in self._handles:
            if handle.pid and not handle.is_killed:  # including one that has only just started
                handle.is_killed = True
                os.kill(handle.pid, signal.SIGKILL)

    def _end(self) -> int:
        """Release what the dead children held; return the exit code."""
        self._fork_server.stop()
        if self._heartbeats.stop(timeout=5.0):
            return int(self._is_broken)
        if (fault := self._heartbeats.fault) is not None:
            #: A bug in the worker, whose traceback is earlier in the log, kept it from reporting
            #: the outcomes of its last jobs. These jobs run again. Report the traceback.
            logger.error("%r; unreported jobs are recovered when their leases lapse", fault)
        else:
            #: A worker stopped while Redis was unavailable, and could not report the outcomes of
            #: its last jobs. These jobs run again. Bring Redis back.
            logger.error(
                "Redis does not answer; unreported jobs are recovered when their leases lapse"
            )
        return 1


def _respawn_delay(handle: ChildHandle, crashed_early: bool, now: float) -> float:
    """Seconds to wait: a child that crashed before doing any work would probably crash again."""
    is_early = crashed_early and now - handle.spawned_at < 5
    handle.early_exits = handle.early_exits + 1 if is_early else 0
    return 0.0 if handle.early_exits < 3 else min(5.0, 0.1 * 2**handle.early_exits)


def _kill_and_wait(pid: int, end: float) -> bool:
    """Kill a process until it is gone; False if it still exists at ``end`` (monotonic)."""
    while time.monotonic() < end:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # the latter: now another user's process
            return True
        if not start_time(pid):  # dead, but not reaped
            return True
        time.sleep(0.005)
    return False


def reap_orphans(own: int) -> None:
    """Reap dead processes that this process adopted; ``own`` is its only real child.

    A worker that is the first process of a container adopts every process that loses its parent,
    such as a program started by a job whose process was killed. No other process would reap it.
    """
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid == own:
            return
        os.waitpid(found.si_pid, 0)
