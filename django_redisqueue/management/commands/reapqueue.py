"""``manage.py reapqueue``: recovers the jobs of dead workers, without running any."""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser
from types import FrameType
from typing import Any

from django.core.management.base import CommandError
from django.db import Error as DatabaseError

from ...broker.commands import Commands
from ...broker.connection import worker_connection
from ...broker.queries import Queries
from ...broker.redis_url import get_redis_url
from ...conf import Settings, get_settings
from ...core.text import sanitize
from ...exceptions import RedisQueueError
from ...mirror.database_errors import explain_error
from ...mirror.redis_identity import RedisIdentity
from ...worker.reaper import Reaper, ReapReport
from .. import base
from ..base import MAX_LINE, QueueCommand


class Command(QueueCommand):
    help = "Returns the jobs of dead workers to their queues. Every worker does this too."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--once", action="store_true", help="one pass, then end")
        parser.add_argument(
            "--interval",
            type=base.seconds,
            default=4.0,
            help="seconds between passes (default: 4)",
        )
        parser.add_argument("--dry-run", action="store_true", help="show what would be done, once")
        parser.add_argument(
            "--accept-redis",
            action="store_true",
            help="let the mirror follow this Redis, which is not the one that it knows; unfinished "
            "jobs that this Redis does not have are then recorded as failed (lost)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        settings = get_settings()
        self._store = Commands(worker_connection(), settings)
        self._reaper = Reaper(self._store, list(settings.queues))
        self._stop = threading.Event()
        try:
            if options["accept_redis"]:
                self._accept(settings)
            elif options["dry_run"]:
                self._dry_run()
            elif options["once"]:
                self._once()
            else:
                self._run(options["interval"])
        except RedisQueueError as error:
            raise CommandError(str(error)) from error

    def _dry_run(self) -> None:
        queries = Queries(self._store.connection, self._store.settings)
        now = queries.now_ms()
        lapsed = [child for child, until in queries.workers() if until < now]
        held = queries.held(lapsed)
        for child in lapsed:
            self.write(f"{child}: lease has lapsed, holds {len(held[child])} jobs")
            for job_id in held[child]:
                self.write(f"  {job_id} would go back to its queue")
        self.write(f"{len(lapsed)} dead children at {get_redis_url().address}; nothing was changed")

    def _accept(self, settings: Settings) -> None:
        if not settings.mirror:
            raise CommandError('REDISQUEUE["MIRROR"] is False: there is no mirror')
        identity, address = RedisIdentity(self._store.connection, settings), get_redis_url().address
        try:
            is_new = identity.accept()
        except DatabaseError as error:
            raise CommandError(explain_error(identity.alias, error)) from error
        if not is_new:
            self.write(f"{address} is the Redis that the mirror knows; nothing was changed")
            return
        self.write(
            f"the mirror follows {address} from now on. The bridge (in every runworker, or "
            "bridgeevents) reconciles the records with it: unfinished jobs that it does not have "
            "will be recorded as failed (lost)"
        )

    def _once(self) -> None:
        """Reap once, as soon as Redis has answered steadily for one lease. Until then send
        heartbeats."""
        while True:
            report = self._pass()
            if not report.wait_ms or self._stop.is_set():
                return
            wait = min(report.wait_ms / 1000 + 0.05, self._store.settings.heartbeat_ms / 1000)
            self.write(
                f"leases have lapsed, but this Redis has been steady for less than one lease; "
                f"{report.wait_ms / 1000:.1f} s to go"
            )
            self._stop.wait(wait)

    def _run(self, interval: float) -> None:
        def on_signal(number: int, frame: FrameType | None) -> None:
            self._stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        self.write(f"reaping at {get_redis_url().address} every {interval:g} s; stop with Ctrl-C")
        while not self._stop.is_set():
            try:
                self._pass(quiet=True)
            except RedisQueueError as error:
                self.stderr.write(sanitize(f"{error}; trying again", MAX_LINE))
            self._stop.wait(interval)

    def _pass(self, quiet: bool = False) -> ReapReport:
        self._store.heartbeat([])
        report = self._reaper.run_once()
        orphans = self._reaper.recover_orphans()
        if report.children or orphans or not quiet:
            self._report(report, orphans)
        return report

    def _report(self, report: ReapReport, orphans: list[tuple[str, str, str]]) -> None:
        for job_id, outcome in report.jobs:
            self.write(f"  {job_id}: {outcome}")
        for job_id, child, outcome in orphans:
            self.write(f"  {job_id}: held by {child}, which does not exist: {outcome}")
        counts = ", ".join(
            f"{report.count(name)} {name}"
            for name in ("recovered", "released", "cancelled", "poison")
        )
        self.write(f"{len(report.children)} dead children reaped: {counts}; {len(orphans)} orphans")
