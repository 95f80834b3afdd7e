"""``manage.py reapqueue``: recovers the jobs of dead workers, without running any."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from dataclasses import dataclass
from typing import Any

from django.core.management.base import CommandError
from django.db import Error as DatabaseError

from ...broker.commands import Commands
from ...broker.connection import worker_connection
from ...broker.queries import Queries
from ...broker.redis_url import redis_address
from ...broker.shards import all_shards
from ...conf import get_settings
from ...exceptions import RedisQueueError, RedisUnavailable
from ...mirror.database_errors import explain_error
from ...mirror.redis_identity import RedisIdentity
from ...mirror.writer import MirrorWriter
from ...worker.maintenance.upkeep import KnownQueues
from ...worker.reaper import Reaper, ReapReport
from .. import base
from ..base import QueueCommand, stoppable_waits


@dataclass(frozen=True, slots=True)
class _Shard:
    commands: Commands
    reaper: Reaper
    queues: KnownQueues

    @property
    def place(self) -> str:
        connection, shards = self.commands.connection, self.commands.settings.shards
        address = connection.redis_url.address
        return f"{address} (shard {connection.shard})" if shards > 1 else address


class Command(QueueCommand):
    help = "Returns the jobs of dead workers to their queues. Every worker does this too."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--once", action="store_true", help="make one pass, then exit")
        parser.add_argument(
            "--interval", type=base.interval, default=4.0,
            help="seconds between passes (default: 4)",
        )  # fmt: skip
        parser.add_argument("--dry-run", action="store_true", help="show what would be done, once")
        parser.add_argument(
            "--accept-redis", action="store_true",
            help="make the mirror follow this Redis, which is not the one it mirrored before; "
            "unfinished jobs that this Redis does not have are recorded as failed (lost)",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        settings, connection = get_settings(), worker_connection()
        commands = [Commands(connection.at(n), settings) for n in range(settings.shards)]
        self._shards = [
            _Shard(one, Reaper(one), KnownQueues(one, list(settings.queues))) for one in commands
        ]
        acts = {"accept_redis": self._accept, "dry_run": self._dry_run, "once": self._once}
        chosen = [act for option, act in acts.items() if options[option]]
        if chosen:
            all_shards(lambda one: chosen[0](self._shards[one.shard]), connection.at).complete()
        else:
            self._run(options["interval"])

    def _dry_run(self, shard: _Shard) -> None:
        commands = shard.commands
        queries = Queries(commands.connection, commands.settings)
        now = queries.now_ms()
        lapsed = [child for child, until in queries.workers() if until < now]
        held = queries.held(lapsed)
        for child in lapsed:
            self.write(f"{child}: lease has expired, holds {len(held[child])} jobs")
            for job_id in held[child]:
                self.write(f"  {job_id} would go back to its queue")
        self.write(f"{len(lapsed)} dead children at {shard.place}; nothing was changed")

    def _accept(self, shard: _Shard) -> None:
        commands = shard.commands
        if not commands.settings.mirror:
            raise CommandError('REDISQUEUE["MIRROR"] is False: there is no mirror')
        writer = MirrorWriter(commands.connection, commands.settings)
        try:
            is_new = RedisIdentity(writer).accept()
        except DatabaseError as error:
            raise CommandError(explain_error(writer.alias, error)) from error
        if not is_new:
            self.write(f"the mirror already follows {shard.place}; nothing was changed")
            return
        self.write(
            f"the mirror now follows {shard.place}. The bridge (in every runworker, or "
            "bridgeevents) will reconcile the records with it: unfinished jobs that it does not "
            "have will be recorded as failed (lost)"
        )

    def _once(self, shard: _Shard) -> None:
        """Reap once Redis has answered steadily for one lease; until then, send heartbeats."""
        while wait_ms := self._pass(shard).wait_ms:
            self.write(
                f"leases have expired, but this Redis has been steady for less than one lease; "
                f"reaping in {wait_ms / 1000:.1f} s"
            )
            time.sleep(min(wait_ms + 50, shard.commands.settings.heartbeat_ms) / 1000)

    def _run(self, interval: float) -> None:
        waits = stoppable_waits()
        self.announce(f"reaping at {redis_address()} every {interval:g} s; stop with Ctrl-C")
        while not waits.stopping:
            self._pass_everywhere()
            waits.wait(lambda: time.sleep(interval))

    def _pass_everywhere(self) -> None:
        away = set()  # a server that hangs would delay the pass once for each shard
        for shard in self._shards:
            redis_url = shard.commands.connection.redis_url
            if redis_url not in away:
                try:
                    self._pass(shard, quiet=True)
                except RedisQueueError as error:
                    if isinstance(error, RedisUnavailable):
                        away.add(redis_url)
                    self.announce(f"{error}; trying again", is_error=True)

    def _pass(self, shard: _Shard, quiet: bool = False) -> ReapReport:
        shard.commands.heartbeat([])
        report = shard.reaper.run_once()
        orphans = shard.reaper.recover_orphans(shard.queues.names())
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
