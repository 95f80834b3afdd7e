"""``manage.py reapqueue``: recovers what dead workers held, without running jobs."""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser
from types import FrameType
from typing import Any

from django.core.management.base import CommandError
from django.db import Error as DatabaseError

from ...conf import Settings, get_settings
from ...connection import worker_link
from ...exceptions import RedisQueueError
from ...mirror.health import explain
from ...mirror.source import Source
from ...store.reads import Reads
from ...store.transitions import Transitions
from ...targets import get_target
from ...texts import harmless
from ...worker.reaper import Reaper, Report
from .. import arguments
from ..base import LONGEST, PatientCommand


class Command(PatientCommand):
    help = "Returns the jobs of dead workers to their queues. Every worker does this by itself too."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--once", action="store_true", help="one pass, then end")
        parser.add_argument(
            "--interval",
            type=arguments.seconds,
            default=4.0,
            help="seconds between passes (default: 4)",
        )
        parser.add_argument("--dry-run", action="store_true", help="show what would be done, once")
        parser.add_argument(
            "--accept-redis",
            action="store_true",
            help="let the mirror follow this Redis, which is not the one that it knows; unfinished "
            "jobs that this one does not know are then recorded as failed (lost)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        settings = get_settings()
        self._store = Transitions(worker_link(), settings)
        self._reaper = Reaper(self._store, list(settings.queues))
        self._stop = threading.Event()
        try:
            if options["accept_redis"]:
                self._accept(settings)
            elif options["dry_run"]:
                self._show()
            elif options["once"]:
                self._once()
            else:
                self._run(options["interval"])
        except RedisQueueError as error:
            raise CommandError(str(error)) from error

    def _show(self) -> None:
        reads = Reads(self._store.link, self._store.settings)
        now = reads.now_ms()
        lapsed = [child for child, until in reads.workers() if until < now]
        held = reads.held(lapsed)
        for child in lapsed:
            self.say(f"{child}: lease has lapsed, holds {len(held[child])} jobs")
            for job_id in held[child]:
                self.say(f"  {job_id} would go back to its queue")
        self.say(f"{len(lapsed)} dead children at {get_target().address}; nothing was changed")

    def _accept(self, settings: Settings) -> None:
        if not settings.mirror:
            raise CommandError('REDISQUEUE["MIRROR"] is False: there is no mirror to tell')
        source, address = Source(self._store.link, settings), get_target().address
        try:
            is_new = source.accept()
        except DatabaseError as error:
            raise CommandError(explain(source.alias, error)) from error
        if not is_new:
            self.say(f"{address} is the Redis that the mirror knows; nothing was changed")
            return
        self.say(
            f"the mirror follows {address} from now on. The bridge (in every runworker, or "
            "bridgeevents) reconciles the records with it: unfinished jobs that it does not know "
            "will be failed (lost)"
        )

    def _once(self) -> None:
        """One pass that counts: waits, beating, until Redis has been steady for one lease."""
        while True:
            report = self._pass()
            if not report.wait_ms or self._stop.is_set():
                return
            wait = min(report.wait_ms / 1000 + 0.05, self._store.settings.heartbeat_ms / 1000)
            self.say(
                f"leases have lapsed, but this Redis has been steady for less than one lease; "
                f"{report.wait_ms / 1000:.1f} s to go"
            )
            self._stop.wait(wait)

    def _run(self, interval: float) -> None:
        def on_signal(number: int, frame: FrameType | None) -> None:
            self._stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        self.say(f"reaping at {get_target().address} every {interval:g} s; stop with Ctrl-C")
        while not self._stop.is_set():
            try:
                self._pass(quiet=True)
            except RedisQueueError as error:
                self.stderr.write(harmless(f"{error}; trying again", LONGEST))
            self._stop.wait(interval)

    def _pass(self, quiet: bool = False) -> Report:
        self._store.heartbeat([])
        report = self._reaper.run_once()
        orphans = self._reaper.audit()
        if report.children or orphans or not quiet:
            self._tell(report, orphans)
        return report

    def _tell(self, report: Report, orphans: list[tuple[str, str, str]]) -> None:
        for job_id, outcome in report.jobs:
            self.say(f"  {job_id}: {outcome}")
        for job_id, child, outcome in orphans:
            self.say(f"  {job_id}: held by {child}, which does not exist: {outcome}")
        counts = ", ".join(
            f"{report.count(name)} {name}"
            for name in ("recovered", "released", "cancelled", "poison")
        )
        self.say(f"{len(report.children)} dead children reaped: {counts}; {len(orphans)} orphans")
