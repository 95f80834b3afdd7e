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
from ...broker.connection import RedisConnection, worker_connection
from ...broker.queries import Queries
from ...broker.redis_url import redis_address
from ...broker.shards import all_shards
from ...conf import get_settings
from ...exceptions import RedisQueueError, RedisUnavailable
from ...mirror.database_errors import explain_error
from ...mirror.redis_identity import RedisIdentity
from ...worker.maintenance.upkeep import KnownQueues
from ...worker.reaper import Reaper, ReapReport
from .. import base
from ..base import QueueCommand


class Command(QueueCommand):
    help = "Returns the jobs of dead workers to their queues. Every worker does this too."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--once", action="store_true", help="one pass, then end")
        parser.add_argument(
            "--interval", type=base.interval, default=4.0,
            help="seconds between passes (default: 4)",
        )  # fmt: skip
        parser.add_argument("--dry-run", action="store_true", help="show what would be done, once")
        parser.add_argument(
            "--accept-redis", action="store_true",
            help="let the mirror follow this Redis, which is not the one that it knows; unfinished "
            "jobs that this Redis does not have are then recorded as failed (lost)",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        settings = get_settings()
        connection, queues = worker_connection(), list(settings.queues)
        by_shard = [Commands(connection.at(shard), settings) for shard in range(settings.shards)]
        self._known = {commands: KnownQueues(commands, queues) for commands in by_shard}
        self._reapers = {commands: Reaper(commands) for commands in by_shard}
        self._stop = threading.Event()
        if not (options["accept_redis"] or options["dry_run"] or options["once"]):
            self._run(options["interval"])
            return

        def act(one: RedisConnection) -> None:
            commands = by_shard[one.shard]
            if options["accept_redis"]:
                self._accept(commands)
            elif options["dry_run"]:
                self._dry_run(commands)
            else:
                self._once(commands, self._reapers[commands])

        all_shards(act, connection.at).complete()

    def _dry_run(self, commands: Commands) -> None:
        queries = Queries(commands.connection, commands.settings)
        now = queries.now_ms()
        lapsed = [child for child, until in queries.workers() if until < now]
        held = queries.held(lapsed)
        for child in lapsed:
            self.write(f"{child}: lease has lapsed, holds {len(held[child])} jobs")
            for job_id in held[child]:
                self.write(f"  {job_id} would go back to its queue")
        self.write(f"{len(lapsed)} dead children at {_place(commands)}; nothing was changed")

    def _accept(self, commands: Commands) -> None:
        if not commands.settings.mirror:
            raise CommandError('REDISQUEUE["MIRROR"] is False: there is no mirror')
        identity, address = RedisIdentity(commands.connection, commands.settings), _place(commands)
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

    def _once(self, commands: Commands, reaper: Reaper) -> None:
        """Reap once, as soon as Redis has answered steadily for one lease. Until then send
        heartbeats."""
        while True:
            report = self._pass(commands, reaper)
            if not report.wait_ms or self._stop.is_set():
                return
            wait = min(report.wait_ms / 1000 + 0.05, commands.settings.heartbeat_ms / 1000)
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
        self.announce(f"reaping at {redis_address()} every {interval:g} s; stop with Ctrl-C")
        while not self._stop.is_set():
            self._pass_everywhere()
            self._stop.wait(interval)

    def _pass_everywhere(self) -> None:
        away = set()  # servers that hang would hold up the pass once a shard
        for commands, reaper in self._reapers.items():
            redis_url = commands.connection.redis_url
            if redis_url not in away:
                try:
                    self._pass(commands, reaper, quiet=True)
                except RedisQueueError as error:
                    if isinstance(error, RedisUnavailable):
                        away.add(redis_url)
                    self.announce(f"{error}; trying again", is_error=True)

    def _pass(self, commands: Commands, reaper: Reaper, quiet: bool = False) -> ReapReport:
        commands.heartbeat([])
        report = reaper.run_once()
        orphans = reaper.recover_orphans(self._known[commands].names())
        if report.children or orphans or not quiet:
            self._report(report, orphans)
        return report

    def _report(self, report: ReapReport, orphans: list[tuple[str, str, str]]) -> None:
        for job_id, outcome in report.jobs:
            self.announce(f"  {job_id}: {outcome}")
        for job_id, child, outcome in orphans:
            self.announce(f"  {job_id}: held by {child}, which does not exist: {outcome}")
        outcomes = ("recovered", "released", "cancelled", "poison")
        counts = ", ".join(f"{report.count(name)} {name}" for name in outcomes)
        reaped, found = len(report.children), len(orphans)
        self.announce(f"{reaped} dead children reaped: {counts}; {found} orphans")


def _place(commands: Commands) -> str:
    """Where the shard is, for messages."""
    connection, shards = commands.connection, commands.settings.shards
    return f"{connection.redis_url.address}{f' (shard {connection.shard})' if shards > 1 else ''}"
