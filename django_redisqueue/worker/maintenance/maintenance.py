"""The maintenance of a shard: work that must run once per shard, behind a leader lease; and its
periodic tasks, in separate threads where they use the database."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from django.db import Error as DatabaseError
from django.db import close_old_connections, connections

from ...broker.commands import Commands
from ...broker.connection import WAIT_SECONDS, blocking_connection, worker_connection
from ...broker.failures import log_outage, log_recovery
from ...broker.replies import LeadReply
from ...client.placement import shard_of_schedule
from ...client.schedules import code_schedules
from ...conf import Settings
from ...core.statuses import Status
from ...exceptions import RedisQueueError, first_line
from ...mirror.retention import Retention, receipt_rules
from ...mirror.sessions import limited_lock_waits
from ...outbox.relay import Relay, forget_ids
from ..identity import shard_label
from ..reaper import Reaper
from .leader import STANDALONE, LeaderRole, RoleHost
from .schedules import ScheduleDeployment, Scheduler, ScheduleRows
from .upkeep import (
    ApprovalCloser,
    ContinuationRunner,
    KnownQueues,
    LaneAudit,
    Promoter,
    Pruner,
    ResultFileCleaner,
    jobs_that_may_run,
    set_aging,
)

ROLE = "leader"
LEASE_MS = 15_000
RENEW = 7.0  # s; others ask as often, so a dead leader is replaced within LEASE_MS + RENEW
REST = 600.0  # s by which periodic tasks are postponed while the shard is idle
PRUNE = 5.0  # s between two passes over completed jobs
PRUNE_OTHERS = 45.0  # s; there are fewer of these, and each pass is a round trip
AUDIT = 15.0  # s
AUDIT_LANES = 60.0  # s
COMPACT = 60.0  # s
RELAY = 5.0  # s
FORGET = 600.0  # s
RECEIPTS = 60.0  # s
ANNOUNCE = 30.0  # s between two announcements of this code's schedules
AGING = 60.0  # s between two reports of AGING to Redis, which may lose its data without an outage
SCHEDULE_ROWS = 60.0  # s; changes in the admin reach Redis at once
FILES = 60.0  # s
APPROVALS = 10.0  # s
BUSY = 120.0  # s that one pass may take, with many queues to promote and to prune
NEVER = math.inf  # unless the reply to a renewal says that there is work

logger = logging.getLogger("django_redisqueue")

MORE = 0.1  # s between two passes while there is more to do
REST_FACTOR = 4  # times the length of a pass, until the next one if there is no more to do
CHECK_DUE = 5.0  # s between two checks of what is due
STOP = 2.0  # s to wait for threads at the end
HUNG_AFTER = 300.0  # s; each task is a bounded pass, which takes milliseconds to seconds


class Maintenance(LeaderRole):
    """Promotes due jobs, fires schedules and runs periodic tasks; claims no jobs."""

    def __init__(self, child: str, settings: Settings, host: RoleHost = STANDALONE) -> None:
        shard = host.shard
        commands = Commands(worker_connection(shard), settings)
        super().__init__(child, commands, ROLE, host, lease_ms=LEASE_MS, renew=RENEW, retry=RENEW)
        self._log_name = shard_label("maintenance", shard, settings)
        self._waiter = blocking_connection(shard)
        self._pass_at = 0.0
        self._longest_rest = min(REST, _shortest_ttl(settings))
        self._promoter = Promoter(commands)
        self._scheduler = Scheduler(commands)
        coded = code_schedules()
        places = {one.name: shard_of_schedule(one.name, one.job, settings) for one in coded}
        deployment = ScheduleDeployment(
            commands, [one for one in coded if places[one.name] == shard]
        )
        self._announcement = PeriodicTask(deployment.run_once, ANNOUNCE)
        self._continuations = PeriodicTask(ContinuationRunner(commands).run_once, NEVER, due=NEVER)
        self._aging = PeriodicTask(lambda: set_aging(commands), AGING, rests=True)
        self._tasks = [self._aging, *_upkeep(commands), self._continuations]
        rows = ScheduleRows(
            Commands(worker_connection(shard), settings),
            deployment.digest, places, lambda: self.is_quiet,
        )  # fmt: skip
        self._task_threads = TaskThreads(_database_tasks(settings, shard, rows), self._rest)

    def hangs(self) -> bool:
        return self._task_threads.hangs()

    def stop(self) -> None:
        self._task_threads.close()
        super().stop()

    def run_once(self) -> None:
        """One pass, which an order to stop may end anywhere: each step is an atomic script."""
        self._host.wait(self._run_pass, math.inf)

    def _run_pass(self, _: float) -> bool:
        run_due([self._announcement])  # also for processes that do not lead
        super().run_once()
        return True

    def renewed(self, reply: LeadReply) -> None:
        if reply is LeadReply.AND_CONTINUE:
            self._continuations.due = 0.0
        if not reply:
            self._waiter.close()  # its pop would take the next leader's token
        self._task_threads.lead(self._leads)

    def work(self) -> None:
        self._host.keep_alive(BUSY)
        if not self.is_quiet or time.monotonic() >= self._pass_at:
            self._pass_at = self._work_once() + time.monotonic()
        timeout = min(self.until_renewal(), max(0.0, self._pass_at - time.monotonic()))
        self.idle(self._wait_for_token, timeout)

    def _work_once(self) -> float:
        """Do what is due. Returns s until the next time, unless a token arrives earlier."""
        next_ms = self._promoter.run_once()
        schedule_ms = self._promoter.schedule_ms
        if schedule_ms == 0:
            schedule_ms = self._scheduler.run_once()
        # Nothing signals that a blocked queue was repaired.
        timeout = RENEW if self._promoter.blocked.is_blocked else WAIT_SECONDS
        if run_due(self._tasks, self._rest()):
            timeout = MORE
        return min([timeout, *(ms / 1000 for ms in (next_ms, schedule_ms) if ms > 0)])

    def _rest(self) -> float:
        return self._longest_rest if self.is_quiet else 0.0

    def _wait_for_token(self, seconds: float) -> bool:
        if self._waiter.wait([self._commands.keys.timer], seconds) is None:
            return False
        self._pass_at = 0.0
        return True

    def failed(self, error: Exception) -> None:
        assert isinstance(error, RedisQueueError)
        self._announcement.due = self._aging.due = 0.0  # Redis may have lost what they wrote
        log_outage(self._log_name, error)

    def recovered(self, tries: int) -> None:
        log_recovery(self._log_name)


def _shortest_ttl(settings: Settings) -> float:
    """In s: no finished job is kept for a shorter time."""
    kept = [settings.retention, *settings.queues.values()]
    return min(min(one.result_ttl_ms, one.failed_ttl_ms) for one in kept) / 1000


def _upkeep(commands: Commands) -> list[PeriodicTask]:
    """Tasks that have work only after transitions of jobs."""
    known = KnownQueues(commands, list(commands.settings.queues))
    reaper = Reaper(commands)
    completed = Pruner(commands, (Status.COMPLETED,), known)
    others = Pruner(commands, (Status.FAILED, Status.CANCELLED), known)
    return [
        PeriodicTask(lambda: completed.run_once() >= 1000, PRUNE, rests=True),
        PeriodicTask(lambda: others.run_once() >= 1000, PRUNE_OTHERS, rests=True),
        PeriodicTask(others.compact, COMPACT, rests=True),
        PeriodicTask(lambda: bool(reaper.recover_orphans(known.names())), AUDIT, rests=True),
        PeriodicTask(LaneAudit(commands).run_once, AUDIT_LANES, rests=True),
    ]


def _database_tasks(settings: Settings, shard: int, rows: ScheduleRows) -> list[PeriodicTask]:
    """Tasks that use the database. Each runs in its own thread and on its own Redis connection."""

    def own_commands() -> Commands:
        return Commands(worker_connection(shard), settings)

    relays = [
        PeriodicTask(
            Relay(own_commands(), alias).run_once, RELAY, name=f"the outbox's relay on {alias!r}"
        )
        for alias in connections
    ]
    forget = partial(forget_ids, own_commands())
    keep_receipts = partial(jobs_that_may_run, own_commands())
    receipts = Retention(settings, partial(receipt_rules, keep_receipts)).run_once
    files = ResultFileCleaner(own_commands()).run_once
    approvals = ApprovalCloser(own_commands()).run_once
    return [
        *relays,
        PeriodicTask(approvals, APPROVALS, name="the approvals of jobs that have ended"),
        PeriodicTask(rows.run_once, SCHEDULE_ROWS, name="the rows of schedules"),
        PeriodicTask(forget, FORGET, name="the look for ids without outbox rows"),
        PeriodicTask(receipts, RECEIPTS, name="the retention of receipts"),
        PeriodicTask(files, FILES, name="the deletion of large results", rests=True),
    ]


@dataclass(slots=True)
class PeriodicTask:
    """Something to do every ``interval`` seconds. ``do`` returns True if it has more to do now.
    ``rests``: it has work only after transitions of jobs."""

    do: Callable[[], object]
    interval: float
    due: float = 0.0
    name: str = ""
    rests: bool = False


def run_due(tasks: Sequence[PeriodicTask], rest: float = 0.0) -> bool:
    """Run the due tasks; those with ``rests``, ``rest`` s later. True if one has more to do now."""
    more = False
    for task in tasks:
        now = time.monotonic()
        if now >= task.due + (rest if task.rests else 0.0):
            task.due = now + task.interval  # even if it fails
            if task.do():
                task.due, more = now, True
    return more


class TaskThreads:
    """A thread for each task. They work while this process leads. ``rest``: the seconds by which
    those with ``rests`` are currently postponed.

    A locked table can block a task for seconds. Promotion of due jobs, in the same process, must be
    on time to within 50 ms, and a database that hangs must not stop tasks that use another one.
    """

    def __init__(
        self, tasks: Sequence[PeriodicTask], rest: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.rest = rest
        self.leads = threading.Event()
        self.closed = threading.Event()
        self._threads = [_TaskThread(task, self) for task in tasks]

    def lead(self, leads: bool) -> None:
        """Start or pause the work."""
        if not leads:
            self.leads.clear()
        elif not self.leads.is_set():
            self.leads.set()
            for thread in self._threads:
                if not thread.is_alive():
                    thread.start()

    def hangs(self) -> bool:
        """True if a task has run for so long that only a new process can help, because its database
        connection may never answer."""
        hung = [thread.name for thread in self._threads if thread.seconds > HUNG_AFTER]
        if hung:
            #: A step of maintenance hangs, usually on a database connection that never answers. A
            #: new process takes over. If this repeats, set a timeout on the database connection.
            logger.error(
                "maintenance: %s has not returned for %g s; a new process takes over",
                " and ".join(hung), HUNG_AFTER,
            )  # fmt: skip
        return bool(hung)

    def close(self) -> None:
        """Stop the threads after their current pass."""
        self.closed.set()
        self.leads.set()
        end = time.monotonic() + STOP
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, end - time.monotonic()))


class _TaskThread(threading.Thread):
    """Runs one task. A daemon, so that a database that hangs does not keep the process alive."""

    def __init__(self, task: PeriodicTask, threads: TaskThreads) -> None:
        super().__init__(name=task.name, daemon=True)
        self._task = task
        self._threads = threads
        self._logged = ""
        self._began = 0.0

    @property
    def seconds(self) -> float:
        """How long the current pass has taken; 0 between two passes."""
        began = self._began
        return time.monotonic() - began if began else 0.0

    @limited_lock_waits()  # a new process may take over, while the connection would keep waiting
    def run(self) -> None:
        while not self._threads.closed.is_set():
            self._threads.leads.wait()
            more = not self._threads.closed.is_set() and self._work()
            self._threads.closed.wait(MORE if more else CHECK_DUE)
        connections.close_all()

    def _work(self) -> bool:
        self._began, due = time.monotonic(), self._task.due
        try:
            more = run_due([self._task], self._threads.rest())
            if self._task.due != due:  # it has run
                self._logged = ""
            if not more:  # a slow pass, over a large outbox, must not keep the database busy
                now = time.monotonic()
                self._task.due = max(self._task.due, now + REST_FACTOR * (now - self._began))
            close_old_connections()  # a pool may have fewer connections than there are threads
        except Exception as error:  # such as any error from a project's database router
            problem = first_line(error)
            if problem != self._logged:
                expected = isinstance(error, RedisQueueError | DatabaseError)
                #: A step of maintenance failed, and is tried again. Jobs keep running meanwhile.
                #: The text says what does not answer; if there is a traceback, report it as a bug.
                logger.error("maintenance: %s; trying again", problem, exc_info=not expected)
            self._logged = problem
            connections.close_all()
            return False
        finally:
            self._began = 0.0
        return more
