"""The heartbeat threads of a supervisor: its connections to Redis.

A thread renews the leases of all children in its shard, asks about lost and cancelled jobs, reaps
dead workers, and writes what the supervisor's main thread submits. The main thread itself never
waits for Redis. Each shard has its own thread, so a shard that does not answer delays no other.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from ...broker.base import BATCH, slices
from ...broker.commands import ClaimRequest, Commands
from ...broker.connection import worker_connection
from ...broker.failures import log_outage, log_recovery
from ...broker.queries import Queries
from ...broker.replies import FinishCode, HeartbeatReply, Outcome, RoleTerm
from ...client.registry import get_task
from ...conf import Settings
from ...core.ids import shard_of_id
from ...exceptions import CorruptJob, JobTimeout, RedisQueueError, WrongKeyType
from ..child.retry_policy import resolve_error
from ..child_state import RoleNote
from ..identity import shard_label
from ..probe import HeartbeatFile
from ..reaper import Reaper, RewoundClaims, release_unanswered
from .child_handle import (
    ChildHandle,
    children_without_reply,
    living_children,
    running_jobs,
    unreported_jobs,
)
from .fork_server import Role

logger = logging.getLogger("django_redisqueue")

RETRY_INTERVAL = 0.5  # s between two attempts while Redis is unavailable
# s without a transition after which each step of the maintenance has been done. Added to these are
# LEASE, before which no job counts as orphaned, and RESEND_WINDOW, before which no job is pruned.
QUIET_AFTER = 60.0


@dataclass(frozen=True, slots=True)
class ReleaseUnstarted:
    """A running job is slow: release the jobs behind it, and report those that have ended."""

    child: str
    unstarted: Sequence[tuple[str, int]]  # id, lease
    outcomes: Sequence[Outcome]


@dataclass(frozen=True, slots=True)
class ExitReport:
    """What a dead child leaves behind."""

    child: str
    outcomes: Sequence[Outcome]
    blamed: Sequence[str]  # ids of jobs that ran: one of them may be the cause
    timed_out: Sequence[tuple[str, int]] = ()  # the jobs (id, lease) for which it was killed
    in_order: bool = False  # it ended normally, and left nothing behind


WriteRequest = ReleaseUnstarted | ExitReport


class ShardNotes:
    """What the heartbeats of all shards find, for the children, in shared memory: whether a shard
    answers, and the state of their roles, such as maintenance. For any thread.

    A leader that sleeps leaves the renewal of its lease to the heartbeats, and a child that does
    not lead leaves it to them to notice that no child does. So a worker costs an idle shard little
    more than its heartbeats.
    """

    def __init__(
        self,
        handles: Sequence[ChildHandle],
        settings: Settings,
        roles: Mapping[Role, tuple[str, int]],
        heartbeat_file: HeartbeatFile,
        away: Collection[int] = (),
    ) -> None:
        """``roles``: what each kind of child leads (lead.lua), and for how many ms at a time.
        ``away``: shards that do not answer as the worker starts."""
        self._handles = handles
        self._holders = [(handle, roles[handle.role]) for handle in handles if handle.role in roles]
        self._heartbeat_ms = settings.heartbeat_ms
        self._quiet_after = QUIET_AFTER + (settings.lease_ms + settings.resend_window_ms) / 1000
        self._activity: list[str | None] = [None] * settings.shards  # what each heartbeat saw
        self._active_until = [0.0] * settings.shards  # monotonic
        self._heartbeat_file = heartbeat_file
        self._guard = threading.Lock()  # guards the file
        self._answered = [shard not in away for shard in range(settings.shards)]
        for shard in away:
            self._tell(shard, False)

    def terms(self, shard: int) -> list[RoleTerm]:
        """The roles that the children have or want, for the next heartbeat."""
        return [
            RoleTerm(name, handle.child, term_ms, handle.state.sleeps(shard))
            for handle, (name, term_ms) in self._holders
            if handle.child
        ]

    def note(self, shard: int, reply: HeartbeatReply | None) -> None:
        """Tell the children what a heartbeat found; None if Redis has not answered. The file says
        that Redis answers as long as any shard does."""
        self._tell(shard, reply is not None)
        with self._guard:
            self._answered[shard] = reply is not None
            self._heartbeat_file.write(any(self._answered))
        found = RoleNote.ASK if reply is None else self._note_activity(shard, reply)
        for handle, (name, term_ms) in self._holders:
            # Like a lease, a term is renewed three times before it ends.
            is_covered = self._heartbeat_ms * 3 <= term_ms
            must_ask = reply is None or name in reply.to_ask or not is_covered
            handle.state.note_role(shard, RoleNote.ASK if must_ask else found)

    def _tell(self, shard: int, answered: bool) -> None:
        for handle in self._handles:
            handle.state.note_shard(shard, answered)

    def _note_activity(self, shard: int, reply: HeartbeatReply) -> RoleNote:
        now = time.monotonic()
        if reply.interrupted or reply.activity != self._activity[shard]:
            self._activity[shard] = reply.activity
            self._active_until[shard] = now + self._quiet_after
        return RoleNote.ACTIVE if now < self._active_until[shard] else RoleNote.QUIET


@dataclass(frozen=True, slots=True)
class HeartbeatCallbacks:
    """What the heartbeat threads ask the supervisor, and tell it. Any thread may call these."""

    worker: str  # its id
    report: Callable[[], str]  # its description, as JSON
    is_stopping: Callable[[], bool]  # its queues are announced as served until then
    notify: Callable[
        [Sequence[tuple[str, int]], Sequence[str]], None
    ]  # lost (id, lease); to cancel
    on_order: Callable[[str], None]  # the last order, "<ms> <order>"


class HeartbeatThread(threading.Thread):
    """The heartbeats of one shard."""

    def __init__(
        self,
        settings: Settings,
        queues: Sequence[str],
        handles: Sequence[ChildHandle],
        notes: ShardNotes,
        callbacks: HeartbeatCallbacks,
        shard: int,
    ) -> None:
        super().__init__(name=shard_label("heartbeat", shard, settings), daemon=True)
        self._settings = settings
        self._shard = shard
        self._commands = Commands(worker_connection(shard), settings)
        self._queries = Queries(self._commands.connection, settings)
        self._reaper = Reaper(self._commands)
        self._rewound_claims = RewoundClaims(self._commands, partial(unreported_jobs, handles))
        self._queues = queues
        self._handles = handles
        self._notes = notes
        self._callbacks = callbacks
        self._who = shard_label("supervisor", shard, settings)
        self._reaper_name = shard_label("reaper", shard, settings)
        self._requests: queue.SimpleQueue[WriteRequest | None] = queue.SimpleQueue()
        self._unfinished: WriteRequest | None = None
        self._deferred: list[WriteRequest] = []  # deferred until the next heartbeat
        self._unsettled: set[str] = set()  # children with a deferred request
        self._recoveries_submitted = self._recoveries_done = 0  # each written by one thread
        self._recovered_at = float("inf")  # when (monotonic) jobs were last requeued; inf: not yet
        self.fault: BaseException | None = None  # the error that broke it
        self._asked = 0

    # For the main thread: see Heartbeats

    def submit(self, request: WriteRequest) -> None:
        if isinstance(request, ExitReport) and not request.in_order:
            self._recoveries_submitted += 1
        self._requests.put(request)

    def may_recover_since(self, since: float) -> bool:
        pending = self._recoveries_submitted - self._recoveries_done
        return pending > 0 or self._recovered_at >= since

    def finish(self) -> None:
        """Write what is left, and end."""
        self._requests.put(None)

    # The thread

    def run(self) -> None:
        """Take over from this machine's dead workers, then beat until ``finish``."""
        try:
            self._loop()
        except BaseException as error:
            # Without heartbeats other workers assume that this one is dead, so it must end.
            #: A bug in the worker, which stops so that others take over. The service manager starts
            #: it again. Report the traceback.
            logger.exception("the heartbeat thread failed; stopping the worker")
            self.fault = error
            os.kill(os.getpid(), signal.SIGTERM)

    def _loop(self) -> None:
        interval = self._settings.heartbeat_ms / 1000
        took_over = False  # until then `_recovered_at` is inf
        while True:
            due = time.monotonic() + interval
            answered = self.beat()
            for request in self._deferred:
                self._requests.put(request)
            self._deferred.clear()
            if answered and not took_over:
                took_over = self._try_reaping(self._take_over)
            now = time.monotonic()
            # Slow heartbeats must leave some time for what was submitted.
            until = max(due, now + interval / 10) if answered else now + RETRY_INTERVAL
            if not self._write_until(until):
                self._log_unwritten()
                return

    def beat(self) -> bool:
        """One heartbeat, and the reaper if leases expired; False if Redis is unavailable."""
        asked, callbacks = self._jobs_to_ask_after(), self._callbacks
        # This includes dead children with unwritten outcomes: if their leases expired, another
        # worker would recover these jobs and run them again.
        children = [*living_children(self._handles), *self._unsettled]
        served = () if callbacks.is_stopping() else self._queues
        reply: HeartbeatReply | None = None
        try:
            reply = self._commands.heartbeat(
                children, asked, served, callbacks.worker, callbacks.report(),
                self._notes.terms(self._shard),
            )  # fmt: skip
        except RedisQueueError as error:
            log_outage(self._who, error)
        self._notes.note(self._shard, reply)
        if reply is None:
            return False
        log_recovery(self._who)
        if reply.order:
            callbacks.on_order(reply.order)
        if reply.lost or reply.flagged:
            # With the lease: one of these children may run the job again, under a new lease.
            lost = [(job_id, lease) for job_id, _, lease in asked if job_id in reply.lost]
            callbacks.notify(lost, reply.flagged)
        if reply.lapsed:  # all of them, because a whole machine may have died
            until = time.monotonic() + self._settings.heartbeat_ms / 2000
            self._try_reaping(lambda: self._reaper.run_once(until))
        self._rewound_claims.after_beat(reply.steady_ms)
        silent = children_without_reply(self._handles, self._shard, self._settings.lease_ms)
        if silent:
            release_unanswered(self._commands, silent, unreported_jobs(self._handles))
        return True

    def _jobs_to_ask_after(self) -> list[tuple[str, str, int]]:
        """A page of the shard's running jobs; the next call returns the next page."""
        several = self._settings.shards > 1
        running = [
            job
            for job in running_jobs(self._handles)
            if not several or shard_of_id(job[0]) == self._shard
        ]
        first = self._asked if self._asked < len(running) else 0
        self._asked = first + BATCH
        return running[first : self._asked]

    def _take_over(self) -> None:
        self._reaper.take_over()
        self._recovered_at = time.monotonic()

    def _try_reaping(self, step: Callable[[], object]) -> bool:
        try:
            step()
        except RedisQueueError as error:
            log_outage(self._reaper_name, error)
            return False
        log_recovery(self._reaper_name)
        return True

    # Requests from the main thread

    def _write_until(self, due: float) -> bool:
        """Write what was submitted until the next heartbeat is due; False when told to stop.

        A request that Redis did not answer is written again, in full, after the next heartbeat.
        Each of its writes is fenced, so repeating one that went through changes nothing.
        """
        while (left := due - time.monotonic()) > 0:
            try:
                request = self._unfinished or self._requests.get(timeout=left)
            except queue.Empty:
                return True
            if request is None:
                return False
            self._unfinished = request
            try:
                self._write(request)
            except RedisQueueError as error:
                log_outage(self._who, error)
                time.sleep(min(RETRY_INTERVAL, left) * random.uniform(0.5, 1))
                return True
            self._unfinished = None
        return True

    def _write(self, request: WriteRequest) -> None:
        """Write a request; defer what is refused because a key has the wrong type."""
        rest: WriteRequest | None = request
        try:
            if isinstance(request, ReleaseUnstarted):
                rest = self._release(request)
            else:
                rest = self._settle_exit(request)
            log_recovery(request.child)
        except WrongKeyType as error:
            log_outage(request.child, error)
        if rest is None:
            self._unsettled.discard(request.child)
        else:
            self._unsettled.add(request.child)
            self._deferred.append(rest)

    def _release(self, request: ReleaseUnstarted) -> ReleaseUnstarted | None:
        """Release jobs and report outcomes. Returns a request for the jobs that are left.

        It has no outcomes, because the child itself reports these again.
        """
        child, unstarted = request.child, request.unstarted
        self._report(child, request.outcomes)
        codes = self._commands.release(child, unstarted) if unstarted else []
        pairs = zip(unstarted, codes, strict=True)
        left = [job for job, code in pairs if code == FinishCode.UNWRITTEN]
        return ReleaseUnstarted(child, left, []) if left else None

    def _settle_exit(self, report: ExitReport) -> ExitReport | None:
        """Report the outcomes of a dead child and reap it; returns what is left to do."""
        unwritten = self._report(report.child, report.outcomes)
        for job_id, lease in report.timed_out:
            unwritten += self._report(report.child, self._timeout_outcome(job_id, lease))
        keep = [outcome.id for outcome in unwritten]
        is_stuck = self._reaper.reap_dead(report.child, report.blamed, keep)
        if not report.in_order:
            self._recovered_at = max(time.monotonic(), self._recovered_at)
            self._recoveries_done += 1
        with suppress(RedisQueueError):  # otherwise the lease expires
            self._commands.lead(report.child, 0)  # if it led, another worker need not wait
        if not unwritten and not is_stuck:
            return None
        return replace(report, outcomes=unwritten, timed_out=(), in_order=True)

    def _report(self, child: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Report outcomes; returns those that could not be written."""
        unwritten = []
        for page in slices(outcomes):
            codes, _ = self._commands.finish(ClaimRequest(child, ()), 0, page, 0)
            unwritten += [o for o, c in zip(page, codes, strict=True) if c == FinishCode.UNWRITTEN]
        return unwritten

    def _timeout_outcome(self, job_id: str, lease: int) -> list[Outcome]:
        """The outcome, by its task's policy, of a job whose child was killed for its timeout."""
        try:
            job = self._queries.job(job_id)
            task = get_task(job.task)
        except (LookupError, CorruptJob) as error:
            #: The worker cannot decide what follows the timeout, because it does not know the task
            #: or cannot read the job. The job is recovered when its lease expires.
            logger.error("job %s was killed for its timeout, but: %s", job_id, error)
            return []
        options = task.options
        timeout_ms = job.options.get("timeout_ms", options.timeout_ms)
        if timeout_ms is None:
            timeout_ms = self._settings.timeout_ms
        timeout = JobTimeout(
            f"ran longer than its timeout of {timeout_ms / 1000:g} s and did not stop when told; "
            "its process was killed"
        )
        max_attempts = job.options.get("max_attempts", options.max_attempts)
        resolution = resolve_error(timeout, options, job.attempts, max_attempts, self._settings)
        return [Outcome(job_id, lease, 0, *resolution)]

    def _log_unwritten(self) -> None:
        while not self._requests.empty():  # resubmitted after the request to stop
            self._deferred += filter(None, [self._requests.get()])
        if self._deferred:
            names = ", ".join(sorted({request.child for request in self._deferred}))
            #: A worker stopped while a key of a queue had the wrong type, and could not report the
            #: outcomes of some jobs. These jobs run again. Rename or delete the key.
            logger.error(
                "some outcomes and jobs of %s could not be written, because a key of their queue "
                "has a wrong type; once it is repaired, these jobs are recovered and run again",
                names,
            )


class Heartbeats:
    """Starts and stops the threads, and gives each the requests for its shard."""

    def __init__(self, threads: Sequence[HeartbeatThread]) -> None:
        """``threads``: one per shard, in order."""
        self._threads = threads

    def start(self) -> None:
        """Take over from this machine's dead workers, then beat until ``stop``."""
        for thread in self._threads:
            thread.start()

    def submit(self, request: WriteRequest) -> None:
        """Write a request to Redis as soon as Redis answers."""
        if len(self._threads) == 1:
            self._threads[0].submit(request)
            return
        for shard, thread in enumerate(self._threads):
            part = _part_of(request, shard)
            if part is not None:
                thread.submit(part)

    def may_recover_since(self, since: float) -> bool:
        """Whether jobs of dead children were returned to their queues after ``since`` (monotonic),
        or still will be: a child that found the queues empty must then check again."""
        return any(thread.may_recover_since(since) for thread in self._threads)

    @property
    def fault(self) -> BaseException | None:
        """The error that broke a thread, if any."""
        return next((thread.fault for thread in self._threads if thread.fault), None)

    def stop(self, timeout: float) -> bool:
        """Write what is left, within ``timeout`` seconds; False if that failed."""
        end = time.monotonic() + timeout
        for thread in self._threads:
            thread.finish()
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return self.fault is None and not any(thread.is_alive() for thread in self._threads)


def _part_of(request: WriteRequest, shard: int) -> WriteRequest | None:
    """The part of a request for one shard; None if it has none.

    The exit of a child concerns every shard, because it may have claimed jobs anywhere.
    """
    outcomes = [outcome for outcome in request.outcomes if shard_of_id(outcome.id) == shard]
    if isinstance(request, ExitReport):
        return replace(
            request,
            outcomes=outcomes,
            blamed=[job_id for job_id in request.blamed if shard_of_id(job_id) == shard],
            timed_out=[job for job in request.timed_out if shard_of_id(job[0]) == shard],
        )
    unstarted = [job for job in request.unstarted if shard_of_id(job[0]) == shard]
    if not outcomes and not unstarted:
        return None
    return ReleaseUnstarted(request.child, unstarted, outcomes)
