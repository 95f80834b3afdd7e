"""The maintenance child: what must run once per shard, behind a leader lease."""

from __future__ import annotations

import math

from django.db import connections

from ...broker.commands import Commands
from ...broker.connection import blocking_connection, worker_connection
from ...broker.keys import Keys
from ...broker.replies import LeadReply
from ...broker.retry import log_outage, log_recovery
from ...client.schedules import code_schedules
from ...conf import Settings
from ...core.statuses import Status
from ...exceptions import RedisQueueError
from ...mirror.retention import Retention, receipt_rules
from ...outbox.relay import Relay
from ..child_state import ChildState
from ..interrupts import Interrupts
from ..reaper import Reaper
from .leader import LeaderRole
from .periodic import MORE, PeriodicTask, TaskThreads, run_due
from .result_files import ResultFileCleaner
from .schedule_rows import ScheduleRows
from .scheduler import ScheduleDeployment, Scheduler
from .upkeep import ContinuationRunner, LaneAudit, Promoter, Pruner

LEASE_MS = 15_000
RENEW = 7.0  # s; others ask as often, so a dead leader is replaced within LEASE_MS + RENEW
PRUNE = 5.0  # s between two passes over completed jobs
PRUNE_OTHERS = 25.0  # s; there are fewer of those, and each pass is a round trip
AUDIT = 15.0  # s
AUDIT_LANES = 60.0  # s
RELAY = 5.0  # s
FORGET = 600.0  # s
RECEIPTS = 60.0  # s
ANNOUNCE = 20.0  # s between two announcements of this code's schedules
SCHEDULE_ROWS = 30.0  # s
FILES = 60.0  # s
BUSY = 120.0  # s that one pass may take, with many queues to promote and to prune
NEVER = math.inf  # unless the reply to a renewal says that there is something to do


class Maintenance(LeaderRole):
    """Promotes due jobs and fires schedules to the millisecond, and runs periodic tasks; takes no
    jobs."""

    def __init__(self, child: str, state: ChildState, settings: Settings) -> None:
        self._interrupts = Interrupts(state)
        store = Commands(worker_connection(), settings)
        super().__init__(
            child, store, "leader", lease_ms=LEASE_MS, renew=RENEW, retry=RENEW,
            wait=self._interrupts.wait, keep_alive=state.keep_alive,
        )  # fmt: skip
        self._waiter = blocking_connection()
        self._timer_key = Keys(settings.prefix).timer
        self._promoter = Promoter(store, tuple(settings.queues))
        reaper = Reaper(store, list(settings.queues))
        completed = Pruner(store, settings, (Status.COMPLETED,))
        others = Pruner(store, settings, (Status.FAILED, Status.CANCELLED))
        self._scheduler = Scheduler(store)
        deployment = ScheduleDeployment(store, code_schedules())
        self._announcement = PeriodicTask(deployment.run_once, ANNOUNCE)
        self._continuations = PeriodicTask(ContinuationRunner(store).run_once, NEVER, due=NEVER)
        self._tasks = [
            PeriodicTask(lambda: completed.run_once() >= 1000, PRUNE),
            PeriodicTask(lambda: others.run_once() >= 1000, PRUNE_OTHERS),
            PeriodicTask(others.compact, PRUNE_OTHERS),
            PeriodicTask(lambda: bool(reaper.recover_orphans()), AUDIT),
            PeriodicTask(LaneAudit(store).run_once, AUDIT_LANES),
            self._continuations,
        ]
        self._task_threads = TaskThreads(_database_tasks(settings, deployment.digest))

    def run(self) -> bool:
        """Work until ordered to stop, or until a task hangs: then a new process must take over.
        Always False: this child never runs out of work."""
        self._interrupts.install()
        self.start(lambda: self._interrupts.stopping or self._task_threads.hangs())
        self._task_threads.close()
        self.stop()
        return False

    def run_once(self) -> None:
        """One pass, which an order to stop may end anywhere: each step is an atomic script."""
        self._interrupts.wait(super().run_once)

    def renewed(self, reply: LeadReply) -> None:
        if reply is LeadReply.AND_CONTINUE:
            self._continuations.due = 0.0
        run_due([self._announcement])  # also of those that do not lead
        self._task_threads.lead(self._leads)

    def work(self) -> None:
        self._keep_alive(BUSY)
        next_ms = self._promoter.run_once()
        schedule_ms = self._promoter.schedule_ms
        if schedule_ms == 0:
            schedule_ms = self._scheduler.run_once()
        # Of an idle shard, only the renewal asks Redis whether there is anything to do.
        timeout = MORE if run_due(self._tasks) else self.until_renewal()
        for due_ms in (next_ms, schedule_ms):
            if due_ms > 0:
                timeout = min(timeout, due_ms / 1000)
        self.idle(lambda: self._waiter.wait([self._timer_key], timeout))

    def failed(self, error: Exception) -> None:
        assert isinstance(error, RedisQueueError)
        self._announcement.due = 0.0  # Redis may have lost the schedules
        log_outage("maintenance", error)

    def recovered(self, tries: int) -> None:
        log_recovery("maintenance")


def _database_tasks(settings: Settings, set_digest: str) -> list[PeriodicTask]:
    """Tasks that use the database. Each runs in a thread and on a Redis connection of its own."""

    def store() -> Commands:
        return Commands(worker_connection(), settings)

    relays = [
        PeriodicTask(
            Relay(store(), [alias]).run_once, RELAY, name=f"the outbox's relay on {alias!r}"
        )
        for alias in connections
    ]
    schedule_rows = ScheduleRows(store(), set_digest).run_once
    forget = Relay(store()).forget_ids
    receipts = Retention(settings, receipt_rules).run_once
    files = ResultFileCleaner(store(), settings).run_once
    return [
        *relays,
        PeriodicTask(schedule_rows, SCHEDULE_ROWS, name="the rows of schedules"),
        PeriodicTask(forget, FORGET, name="the look for ids without outbox rows"),
        PeriodicTask(receipts, RECEIPTS, name="the retention of receipts"),
        PeriodicTask(files, FILES, name="the deletion of large results"),
    ]
